"""Phi and log-likelihoods of several models at once, whose columns are interleaved; see `backend.interleaved`.

A row of a group stays in registers. Models' values are sums over it that end in a vector with a number of each: so one
division serves all of them.
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
    enlarge,
    models_of,
    multiply,
    nothing,
    ones,
    own_row,
    times,
)
from ..simd.thread_team import add, fork, join
from ..simd.vectors import LANE, LINE

MOST_FACTORS = 16  # of models' values: their product is a number in double precision
WHOLE = 4  # whole values up to this multiply the model; each other value takes a logarithm


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
        Of a group: as long as its columns have lanes; see `vectors` and `models_of`.
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
            total, mine = nothing(factors, lanes), own_row(factors, own, row - row_begin, column, lanes)
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
            mine = own_row(factors, own, np.int64(rows[c]) - row_begin, first, lanes)
            together, count = ones(factors, folds), 0
            for q in range(np.int64(starts[c]), np.int64(starts[c + 1])):
                at = q if order is None else order[q]
                found = models_of(indices, factors, at, first, floor, folds, mine)
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
def clear(number, team, threads, turn, out, begin, end, eights, parts):  # type: ignore[no-untyped-def]
    """Write zeros to rows `begin` to `end`, part by part: eight columns from each column in `eights`."""
    if number == 0:
        turn[0] = 0
    called, rows = fork(team, number, threads), end - begin
    part = add(turn, 0, 1)
    while part < parts:
        for row in range(begin + part * rows // parts, begin + (part + 1) * rows // parts):
            for column in eights:
                out[row, column : column + EIGHT] = 0.0
        part = add(turn, 0, 1)
    return join(team, called)


@jit
def measure(number, team, threads, turn, phi, matrix, eights, found):  # type: ignore[no-untyped-def]
    """Write the largest ``|min(B, 1 - Phi)|`` of each column, of each of some parts of the rows; see `clear`.

    They go to `found`, (parts, R) float64; NaN wins.
    """
    if number == 0:
        turn[0] = 0
    called, parts, rows = fork(team, number, threads), found.shape[0], matrix.shape[0]
    part = add(turn, 0, 1)
    while part < parts:
        found[part] = 0.0
        for row in range(part * rows // parts, (part + 1) * rows // parts):
            for column in eights:
                enlarge(found, part, matrix, phi, row, column)
        part = add(turn, 0, 1)
    return join(team, called)


@jit
def apply(number, team, threads, turn, phi, matrix, eights, still, parts):  # type: ignore[no-untyped-def]
    """Multiply columns by Phi but where `still`, (R,) float64, is not 0; see `clear`."""
    if number == 0:
        turn[0] = 0
    called, rows = fork(team, number, threads), matrix.shape[0]
    part = add(turn, 0, 1)
    while part < parts:
        for row in range(part * rows // parts, (part + 1) * rows // parts):
            for column in eights:
                multiply(still, matrix, phi, row, column)
        part = add(turn, 0, 1)
    return join(team, called)
