"""Row systems of any loss over nonzeros cut into pieces of output rows; see `amped.backend.ops.row_systems`.

The code is compiled once for all losses: it calls a loss's formulas through function addresses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from llvmlite import ir
from numba import types

from partitioner.host.jit import jit

from ...formulas import FUNCTIONS, Formula
from ..simd.thread_team import add, fork, join
from ..simd.vectors import LINE, operation, prefetch

if TYPE_CHECKING:
    from ..simd.vectors import Builder, Context, Operation, Signature, Type, Typing, Value, Values


@cache
def compiled(formula: Formula) -> Any:
    """Compile a formula of two float64 numbers; kernels receive the attribute `address` of the result."""
    names: dict[str, Any] = {name: getattr(math, name) for name in FUNCTIONS if name != "abs"}
    exec(f"def formula(x, m):\n    return float({formula.scalar})", names)
    function: Callable[..., float] = names["formula"]
    return numba.cfunc(types.float64(types.float64, types.float64), error_model="numpy")(function)


@operation
def call_formula(typing: Typing, address: Type, x: Type, m: Type) -> Operation:
    """Call the formula at an address."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        kind = ir.FunctionType(ir.DoubleType(), [ir.DoubleType(), ir.DoubleType()])
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])

    return types.float64(types.int64, types.float64, types.float64), generate


@jit
def add_systems(  # type: ignore[no-untyped-def]
    number, team, threads, turn, nonzeros, factors, own, row_begin, maps, parts, out, carries, products, ahead
):
    """Add the row systems of each part to `out`; for a row that is shared with another part or shard, to `carries`.

    `maps` are the addresses of weight, curve and value (0: none), the lower bound of the model, and whether (1 or 0)
    column 0 of the last factor matrix has the weights of the nonzeros, and is not part of the model;
    `parts` are the first piece of each part and the end, and their shared rows; `products`, (parts, R), is scratch;
    `ahead` is the prefetch distance in nonzeros, 0 for none.
    """
    starts, rows, indices, values = nonzeros
    bounds, shared = parts
    (weight, curve, value), lower, weighted = maps
    modes, line = len(factors) - weighted, LINE // factors[0].itemsize
    if number == 0:
        turn[0] = 0
    called, rank = fork(team, number, threads), products.shape[1]
    part = add(turn, 0, 1)
    while part < shared.size:
        product, last = products[part], np.int64(starts[bounds[part + 1]]) - 1
        for c in range(bounds[part], bounds[part + 1]):
            row = np.int64(rows[c])
            own_row, sums = own[row - row_begin], carries[part] if row == shared[part] else out[row - row_begin]
            for q in range(np.int64(starts[c]), np.int64(starts[c + 1])):
                if ahead:
                    for column in range(0, rank, line):
                        prefetch(indices, factors, min(q + ahead, last), column, (0,))
                model = 0.0
                for r in range(rank):
                    factor_product = 1.0
                    for k in range(modes):
                        factor_product *= np.float64(factors[k][indices[k][q], r])
                    product[r] = factor_product
                    model += factor_product * np.float64(own_row[r])
                model = lower if model < lower else model  # NaN propagates
                x, share = np.float64(values[q]), 1.0
                if weighted:
                    share = np.float64(factors[modes][indices[modes][q], 0])
                if value:
                    sums[sums.size - 1] += share * call_formula(value, x, model)
                scale = share * call_formula(weight, x, model)
                for r in range(rank):
                    sums[r] += scale * product[r]
                if curve:
                    scale = share * call_formula(curve, x, model)
                    for r in range(rank):
                        for s in range(rank):
                            sums[(r + 1) * rank + s] += scale * product[r] * product[s]
        part = add(turn, 0, 1)
    return join(team, called)
