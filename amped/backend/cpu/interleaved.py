"""Phi and log-likelihoods of several models at once, whose columns are interleaved; see `backend.interleaved`.

A row of a group stays in registers. Models' values are sums over it that end in a vector with a number of each: so one
division serves all of them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from partitioner.jit import jit

from .quotients import element, piece_of_row
from .team import add, fork, join
from .vectors import ADD, LANE, LINE, Vector, fused, input_rows, load_piece, operation, put, splat, zero

MOST_FACTORS = 16  # of models' values: their product is a number in double precision
WHOLE = 4  # so many times a value counts by multiplying, at most, and not by a logarithm of its own


def _register(factors: Any) -> Vector:
    """Return the type of the vector that has a number of each model, perhaps several times."""
    stored = factors.types[0].dtype
    return Vector(stored, LINE * 8 // stored.bitwidth)


def _product(context: Any, builder: Any, signature: Any, args: Any, kind: Any) -> Any:
    """Return the product of the input factor rows of a nonzero: `args` are indices, factors, its place, the column."""
    stored = context.get_value_type(signature.args[1].types[0].dtype)
    first, *others = input_rows(context, builder, signature, args, args[2], args[3])
    product = load_piece(builder, first, stored, kind)
    for address in others:
        product = builder.fmul(product, load_piece(builder, address, stored, kind))
    return product


def _chosen(builder: Any, vector: Any, places: list[int]) -> Any:
    return builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(ir.IntType(32), len(places)), places))


def _models(builder: Any, vector: Vector, product: Any, mine: Any, folds: int) -> Any:
    """Return the sums over a row's columns, one of each model: as many as a `vector` halved so often has numbers."""
    count, total = vector.count, None
    for begin in range(0, product.type.count, count):
        part, own = (_chosen(builder, each, list(range(begin, begin + count))) for each in (product, mine))
        total = builder.fmul(part, own) if total is None else fused(builder, vector, part, own, total)
    for _ in range(folds):
        count //= 2
        low, high = (_chosen(builder, total, list(range(begin, begin + count))) for begin in (0, count))
        total = builder.fadd(low, high)
    return total


def _at_least(context: Any, builder: Any, floor: Any, dtype: Any, models: Any) -> Any:
    least = splat(builder, context.cast(builder, floor, types.float64, dtype), models.type)
    # In this order a model's NaN stays.
    return builder.select(builder.fcmp_ordered("<", models, least), least, models)


@operation
def accumulate_divided(
    typing: Any,
    indices: Any,
    factors: Any,
    at: Any,
    column: Any,
    value: Any,
    floor: Any,
    lanes: Any,
    folds: Any,
    mine: Any,
    total: Any,
) -> Any:
    """Return `total` plus a nonzero's input factor rows times its value, divided by the models'; see `models_of`."""
    register = _register(factors)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number, floor, _, _, mine, total = args[4:]
        product = _product(context, builder, signature, args, total.type)
        models = _models(builder, register, product, mine, len(folds))
        models = _at_least(context, builder, floor, register.dtype, models)
        number = splat(builder, context.cast(builder, number, value, register.dtype), models.type)
        quotients = builder.fdiv(number, models)
        wide = _chosen(builder, quotients, [k % models.type.count for k in range(total.type.count)])
        return fused(builder, signature.return_type, product, wide, total)

    return total(indices, factors, types.intp, types.intp, value, types.float64, lanes, folds, mine, total), generate


@operation
def models_of(
    typing: Any, indices: Any, factors: Any, at: Any, column: Any, floor: Any, lanes: Any, folds: Any, mine: Any
) -> Any:
    """Return the values of models at a nonzero, at least `floor`, in double precision.

    `mine` is the output mode's row; `folds` is a tuple whose length says how often a register is halved until it has
    one number of each model.
    """
    register = _register(factors)
    wide = Vector(types.float64, register.count >> len(folds))

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        floor, mine = args[4], args[-1]
        product = _product(context, builder, signature, args, mine.type)
        models = _models(builder, register, product, mine, len(folds))
        models = _at_least(context, builder, floor, register.dtype, models)
        kind = context.get_value_type(wide)
        return models if models.type == kind else builder.fpext(models, kind)

    return wide(indices, factors, types.intp, types.intp, types.float64, lanes, folds, mine), generate


@operation
def ones(typing: Any, factors: Any, folds: Any) -> Any:
    """Return a vector of ones, as many numbers as models have values."""
    wide = Vector(types.float64, _register(factors).count >> len(folds))

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(context.get_value_type(wide), [1.0] * wide.count)

    return wide(factors, folds), generate


@operation
def times(typing: Any, one: Any, other: Any) -> Any:
    """Return the product of two vectors."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fmul(*args)

    return one(one, other), generate


@jit
def phis(  # type: ignore[no-untyped-def]
    number,
    team,
    threads,
    turn,
    nonzeros,
    factors,
    own,
    row_begin,
    floor,
    groups,
    bounds,
    shared,
    outs,
    order,
    lanes,
    folds,
):
    """Add the Phi of groups of models to an output; threads take parts, one after the other.

    Parameters
    ----------
    number, team, threads, nonzeros, factors, order
        As in `segmented`.
    turn : a word
    own : (rows, stride) array
        Of the output mode's matrix; row 0 is index `row_begin`.
    floor : float
    groups : (groups,) int64 array
        Where the columns of each group of models begin.
    bounds, shared
        See `layout.Parts`.
    outs : tuple
        The output, (rows, stride) float64, and the parts' carries, (parts, stride).
    lanes, folds : tuples
        Of a group; see `vectors` and `models_of`.
    """
    starts, rows, indices, values = nonzeros
    out, carries = outs
    width = len(lanes) * (LANE // factors[0].itemsize)
    if number == 0:
        turn[0] = 0
    called, units = fork(team, number, threads), (bounds.size - 1) // shared.size
    item = add(turn, 0, 1)
    while item < groups.size * shared.size:  # group by group: the caches hold the columns of one
        part, column = item % shared.size, groups[item // shared.size]
        carries[part, column : column + width] = 0.0
        for c in range(bounds[part * units], bounds[(part + 1) * units]):
            row = np.int64(rows[c])
            total, mine = zero(factors, lanes), piece_of_row(factors, own, row - row_begin, column, lanes)
            for q in range(np.int64(starts[c]), np.int64(starts[c + 1])):
                at = q if order is None else order[q]
                total = accumulate_divided(indices, factors, at, column, values[at], floor, lanes, folds, mine, total)
            if row == shared[part]:
                put(carries, part, column, total, ADD)
            else:
                put(out, row - row_begin, column, total, ADD)
        item = add(turn, 0, 1)
    faults = join(team, called)
    if number == 0:
        for t in range(shared.size):
            if shared[t] >= 0:
                for g in range(groups.size):
                    for column in range(groups[g], groups[g] + width):
                        out[shared[t] - row_begin, column] += carries[t, column]
    return faults


@jit
def logs(  # type: ignore[no-untyped-def]
    number, team, threads, turn, nonzeros, factors, own, row_begin, floor, groups, bounds, sums, order, lanes, folds
):
    """Add ``sum x log(max(m, floor))`` of each part and model to `sums`, (parts, stride) float64; see `phis`.

    Where values are small whole numbers, logarithms are taken of products.
    """
    starts, rows, indices, values = nonzeros
    models = (LINE // factors[0].itemsize) >> len(folds)
    if number == 0:
        turn[0] = 0
    called, units = fork(team, number, threads), (bounds.size - 1) // sums.shape[0]
    item = add(turn, 0, 1)
    while item < groups.size * sums.shape[0]:
        part, first = item % sums.shape[0], groups[item // sums.shape[0]]
        for c in range(bounds[part * units], bounds[(part + 1) * units]):
            mine = piece_of_row(factors, own, np.int64(rows[c]) - row_begin, first, lanes)
            together, count = ones(factors, folds), 0
            for q in range(np.int64(starts[c]), np.int64(starts[c + 1])):
                at = q if order is None else order[q]
                found = models_of(indices, factors, at, first, floor, lanes, folds, mine)
                value = values[at]
                if value == 1 or value == 2 or value == 3 or value == WHOLE:
                    for _ in range(int(value)):
                        together = times(together, found)
                    count += int(value)
                    if count > MOST_FACTORS - WHOLE:
                        for k in range(models):
                            sums[part, first + k] += math.log(element(together, k))
                        together, count = ones(factors, folds), 0
                else:
                    for k in range(models):
                        sums[part, first + k] += value * math.log(element(found, k))
            if count:
                for k in range(models):
                    sums[part, first + k] += math.log(element(together, k))
        item = add(turn, 0, 1)
    return join(team, called)


@jit
def measure(number, team, threads, turn, phi, matrix, groups, width, found):  # type: ignore[no-untyped-def]
    """Write the largest ``|min(B, 1 - Phi)|`` of each column of the groups to `found`, (R,); NaN wins. See `phis`."""
    if number == 0:
        turn[0] = 0
    called = fork(team, number, threads)
    g = add(turn, 0, 1)
    while g < groups.size:
        begin, end = groups[g], groups[g] + width
        found[begin:end] = 0.0
        for row in range(matrix.shape[0]):
            for column in range(begin, end):
                entry, left = matrix[row, column], 1 - phi[row, column]
                size = abs(entry if entry < left else left)
                if size > found[column] or size != size:
                    found[column] = size
        g = add(turn, 0, 1)
    return join(team, called)


@jit
def apply(number, team, threads, turn, phi, matrix, groups, width, live):  # type: ignore[no-untyped-def]
    """Multiply the columns of the groups that are `live`, (R,) bool, by Phi. See `phis`."""
    if number == 0:
        turn[0] = 0
    called = fork(team, number, threads)
    g = add(turn, 0, 1)
    while g < groups.size:
        for row in range(matrix.shape[0]):
            for column in range(groups[g], groups[g] + width):
                if live[column]:
                    matrix[row, column] *= phi[row, column]
        g = add(turn, 0, 1)
    return join(team, called)
