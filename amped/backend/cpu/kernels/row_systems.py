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

from partitioner.host.jit import inner, jit

from ...formulas import FUNCTIONS, Formula
from ..rows.equations import eight_products, padded_product
from ..rows.gram import complete, fill, last_columns
from ..simd.doubles import EIGHT, each, fused, index, load, plus, store, total
from ..simd.doubles import number as number_at
from ..simd.thread_team import add, fork, join
from ..simd.vectors import operation

if TYPE_CHECKING:
    from ..simd.vectors import Builder, Context, Operation, Signature, Type, Typing, Value, Values


MODELS, SHARES, FOUND = range(3)
FACTS, FEW = 3, 4
"""Numbers for each nonzero of a block: the model's value, its weight, and the result of a formula. For fewer than `FEW`
nonzeros the model is computed one by one."""


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


@inner
def _models(pi, count, padded, width, lower, models):  # type: ignore[no-untyped-def]
    """Write the model's values at a block of nonzeros, at least `lower`."""
    if count < FEW:
        for j in range(count):
            models[j] = total(padded_product(pi, j * width, padded, width))
    else:
        complete(pi, count, width)
        for j in range(0, count, EIGHT):
            store(models, j, eight_products(pi, j * width, padded, width))
    for j in range(count):
        models[j] = lower if models[j] < lower else models[j]  # NaN propagates


@inner
def _evaluate(formula, pi, count, rank, facts):  # type: ignore[no-untyped-def]
    """Write a formula at a block of nonzeros, times their weights; return the sum."""
    result = 0.0
    for j in range(count):
        y = facts[SHARES, j] * call_formula(formula, pi[j, rank], facts[MODELS, j])
        facts[FOUND, j] = y
        result += y
    return result


@inner
def _add_products(pi, count, width, scales, columns, sums, at):  # type: ignore[no-untyped-def]
    """Add the sum of a block's rows of Pi times `scales` to `columns` numbers of `sums` from `at` on."""
    for c in range(0, columns, EIGHT):
        of_block = each(0.0)
        for j in range(count):
            of_block = fused(each(scales[j]), load(pi, j * width + c), of_block)
        if c + EIGHT <= columns:
            store(sums, at + c, plus(load(sums, at + c), of_block))
        else:
            store(scales, scales.size - EIGHT, of_block)
            for k in range(columns - c):
                sums[at + c + k] += scales[scales.size - EIGHT + k]


@inner
def _add_curves(pi, count, width, rank, facts, sums):  # type: ignore[no-untyped-def]
    """Add a block's second derivatives, from the formula's values."""
    scales = facts[SHARES]
    for r in range(rank):
        for j in range(count):
            scales[j] = facts[FOUND, j] * pi[j, r]
        _add_products(pi, count, width, scales, rank, sums, (r + 1) * rank)


@inner
def _add_few(pi, count, rank, facts, sums, place):  # type: ignore[no-untyped-def]
    """Add the gradient (`place` is 0) or the second derivatives (`rank`) of a block of few nonzeros, one by one."""
    for j in range(count):
        for r in range(place if place else 1):
            scale = facts[FOUND, j] * (pi[j, r] if place else 1.0)
            for s in range(rank):
                sums[place + r * rank + s] += scale * pi[j, s]


@jit
def add_systems(  # type: ignore[no-untyped-def]
    number, team, threads, turn, pieces, nonzeros, own, weights, maps, parts, out, carries, scratch
):
    """Add the row systems of each part to `out`; for a row that is shared with another part or shard, to `carries`.

    Parameters
    ----------
    pieces : tuple
        First nonzero of each piece and the end, and the row of each piece.
    nonzeros : tuple
        Addresses of the values and indices, of the input factor matrices, and the form, as in `rows.gram`.
    own : tuple
        Address of the output's rows of the mode's matrix, which is stored like the others, and the first of them.
    weights : (2,) or (0,) int64 array
        Addresses of the indices and of the matrix whose column 0 are the nonzeros' weights, if they have any.
    maps : tuple
        Addresses of weight, curve and value (0: none), and the lower bound of the model.
    parts : tuple
        The first piece of each part and the end, and their shared rows.
    scratch : tuple
        For each thread: a block of Pi, a padded row, and `FACTS` rows of a number for each nonzero of a block and eight
        more.
    """
    starts, rows = pieces
    columns, matrices, form = nonzeros
    narrow, wide, stride, rank, width, block, _ = form
    address, row_begin = own
    bounds, shared = parts
    (weight, curve, value), lower = maps
    if number == 0:
        turn[0] = 0
    called = fork(team, number, threads)
    pi, padded, facts, last = scratch[0][number], scratch[1][number], scratch[2][number], last_columns(rank)
    part = add(turn, 0, 1)
    while part < shared.size:
        for c in range(bounds[part], bounds[part + 1]):
            row, begin, end = np.int64(rows[c]), np.int64(starts[c]), np.int64(starts[c + 1])
            sums = carries[part] if row == shared[part] else out[row - row_begin]
            for r in range(rank):
                padded[r] = number_at(address, (row - row_begin) * stride + r, wide)
            for first in range(begin, end, block):
                count = min(block, end - first)
                fill((columns, matrices, form, first, count), 0, count, pi, last)
                _models(pi, count, padded, width, lower, facts[MODELS])
                for j in range(count):
                    share = 1.0
                    if weights.size:
                        share = number_at(weights[1], index(weights[0], first + j, narrow) * stride, wide)
                    facts[SHARES, j] = share
                if value:
                    sums[sums.size - 1] += _evaluate(value, pi, count, rank, facts)
                for place in range(0, 2 * rank if curve else rank, rank):
                    _evaluate(curve if place else weight, pi, count, rank, facts)
                    if count < FEW:
                        _add_few(pi, count, rank, facts, sums, place)
                    elif place:
                        _add_curves(pi, count, width, rank, facts, sums)
                    else:
                        _add_products(pi, count, width, facts[FOUND], rank, sums, 0)
        part = add(turn, 0, 1)
    return join(team, called)
