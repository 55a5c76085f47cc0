"""Phi and log-likelihoods of several models at once, whose columns are interleaved; see `backend.ops.phi`.

A row of a group of models stays in registers. Its products sum to one vector with the value of each model, so that one
vector division serves all of them.
"""

from __future__ import annotations

import math

import numpy as np

from partitioner.host.jit import jit

from ..simd.quotients import element
from ..simd.registers import (
    EIGHT,
    accumulate_divided,
    add_to_row,
    models_of,
    multiply,
    ones,
    own_row,
    times,
    update_maxima,
    zeros,
)
from ..simd.thread_team import add, fork, join
from ..simd.vectors import LANE, LINE

MOST_FACTORS = 16  # values of a model multiplied before a logarithm is taken; the product stays in the range of float64
WHOLE = 4  # largest integer value that is treated as repeated factors; other values take one logarithm each


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
    """Add the Phi of groups of models to the output. Threads take parts from a shared counter.

    Parameters
    ----------
    number, team, threads, nonzeros, factors, order
        See `segmented`.
    turn : (1,) int64 array
        Counter from which threads take work.
    own : (rows, stride) array
        Rows of the output mode's factor matrix; row 0 is index `row_begin`.
    floor : float
        Lower bound of the divisor.
    groups : (groups,) int64 array
        First column of each group of models.
    bounds, shared
        See `layout.Parts`.
    outs : tuple
        The output, (rows, stride) float64, and the carries of the parts, (parts, stride).
    lanes, folds : tuples
        Their lengths are the vectors per group, and the halvings in `models_of`; see `vectors`.
    """
    starts, rows, indices, values = nonzeros
    out, carries = outs
    width = len(lanes) * (LANE // factors[0].itemsize)
    if number == 0:
        turn[0] = 0
    called, units = fork(team, number, threads), (bounds.size - 1) // shared.size
    item = add(turn, 0, 1)
    while item < groups.size * shared.size:  # group by group: the columns of one group stay in the caches
        part, column = item % shared.size, groups[item // shared.size]
        carries[part, column : column + width] = 0.0
        for c in range(bounds[part * units], bounds[(part + 1) * units]):
            row = np.int64(rows[c])
            total, mine = zeros(factors, lanes), own_row(factors, own, row - row_begin, column, lanes)
            for q in range(np.int64(starts[c]), np.int64(starts[c + 1])):
                at = q if order is None else order[q]
                total = accumulate_divided(indices, factors, at, column, values[at], floor, folds, mine, total)
            if row == shared[part]:
                add_to_row(carries, part, column, total)
            else:
                add_to_row(out, row - row_begin, column, total)
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

    For small integer values, one logarithm is taken of the product of several models' values.
    """
    starts, rows, indices, values = nonzeros
    count_models = (LINE // factors[0].itemsize) >> len(folds)
    if number == 0:
        turn[0] = 0
    called, units = fork(team, number, threads), (bounds.size - 1) // sums.shape[0]
    item = add(turn, 0, 1)
    while item < groups.size * sums.shape[0]:
        part, first = item % sums.shape[0], groups[item // sums.shape[0]]
        for c in range(bounds[part * units], bounds[(part + 1) * units]):
            mine = own_row(factors, own, np.int64(rows[c]) - row_begin, first, lanes)
            product, count = ones(factors, folds), 0
            for q in range(np.int64(starts[c]), np.int64(starts[c + 1])):
                at = q if order is None else order[q]
                models_at = models_of(indices, factors, at, first, floor, folds, mine)
                value = values[at]
                if value == 1 or value == 2 or value == 3 or value == WHOLE:
                    for _ in range(int(value)):
                        product = times(product, models_at)
                    count += int(value)
                    if count > MOST_FACTORS - WHOLE:
                        for k in range(count_models):
                            sums[part, first + k] += math.log(element(product, k))
                        product, count = ones(factors, folds), 0
                else:
                    for k in range(count_models):
                        sums[part, first + k] += value * math.log(element(models_at, k))
            if count:
                for k in range(count_models):
                    sums[part, first + k] += math.log(element(product, k))
        item = add(turn, 0, 1)
    return join(team, called)


@jit
def clear(number, team, threads, turn, out, begin, end, columns, parts):  # type: ignore[no-untyped-def]
    """Set rows `begin` to `end` to zero, part by part: eight columns from each column in `eights`."""
    if number == 0:
        turn[0] = 0
    called, rows = fork(team, number, threads), end - begin
    part = add(turn, 0, 1)
    while part < parts:
        for row in range(begin + part * rows // parts, begin + (part + 1) * rows // parts):
            for column in columns:
                out[row, column : column + EIGHT] = 0.0
        part = add(turn, 0, 1)
    return join(team, called)


@jit
def measure(number, team, threads, turn, phi, matrix, columns, maxima):  # type: ignore[no-untyped-def]
    """Write the maximum of ``|min(B, 1 - Phi)|`` per column for each part of the rows; see `clear`.

    The maxima are (parts, R) float64. NaN propagates.
    """
    if number == 0:
        turn[0] = 0
    called, parts, rows = fork(team, number, threads), maxima.shape[0], matrix.shape[0]
    part = add(turn, 0, 1)
    while part < parts:
        maxima[part] = 0.0
        for row in range(part * rows // parts, (part + 1) * rows // parts):
            for column in columns:
                update_maxima(maxima, part, matrix, phi, row, column)
        part = add(turn, 0, 1)
    return join(team, called)


@jit
def apply(number, team, threads, turn, phi, matrix, columns, finished, parts):  # type: ignore[no-untyped-def]
    """Multiply columns by Phi, except those where `still`, (R,) float64, is nonzero; see `clear`."""
    if number == 0:
        turn[0] = 0
    called, rows = fork(team, number, threads), matrix.shape[0]
    part = add(turn, 0, 1)
    while part < parts:
        for row in range(part * rows // parts, (part + 1) * rows // parts):
            for column in columns:
                multiply(finished, matrix, phi, row, column)
        part = add(turn, 0, 1)
    return join(team, called)
