"""Phi and log-likelihoods over nonzeros cut into pieces of output rows; see `amped.backend.ops.phi`.

Phi is an MTTKRP whose values are divided by the model's values. If a row fits one vector, rows are read once
(`sum_of_phi`); if not, the quotients of a piece are computed first (`keep_quotients`), then its sums (`weighted_sum`).
"""

from __future__ import annotations

import math

import numpy as np

from partitioner.host.jit import jit

from ..simd.quotients import (
    GROUP,
    accumulate_quotients,
    accumulate_weighted,
    add_models,
    element,
    group_size,
    no_models,
    piece_of_row,
    quotients,
    store_group,
)
from ..simd.thread_team import add, fork, inlined, join
from ..simd.vectors import LANE, prefetch, zero


@inlined
def _fetch_group(indices, factors, order, q, count, last, column, lanes):  # type: ignore[no-untyped-def]
    for k in range(count):
        then = min(q + k, last)
        prefetch(indices, factors, then if order is None else order[then], column, lanes)


@inlined
def sum_of_phi(indices, values, factors, own, floor, order, row, start, stop, last, ahead, lanes):  # type: ignore[no-untyped-def]
    """Return the sum of Phi over a piece. `row` is its row of `own`; nonzeros after `last` are not prefetched."""
    total, own_piece = zero(factors, lanes), piece_of_row(factors, own, row, 0, lanes)
    q = start
    while q < stop:
        count = group_size(q, stop, lanes)
        if ahead:
            _fetch_group(indices, factors, order, q + ahead, count, last, 0, lanes)
        total = accumulate_quotients(indices, factors, values, order, q, stop, floor, lanes, own_piece, total)
        q += count
    return total


@inlined
def _models(indices, factors, own, row, order, q, stop, lanes, tail):  # type: ignore[no-untyped-def]
    """Return the model's values at a group of nonzeros."""
    models, width, step = no_models(factors), factors[0].shape[1], len(lanes) * (LANE // factors[0].itemsize)
    for column in range(0, width // step * step, step):
        own_piece = piece_of_row(factors, own, row, column, lanes)
        models = add_models(indices, factors, order, q, stop, column, lanes, own_piece, models)
    if tail is not None:
        own_piece = piece_of_row(factors, own, row, width // step * step, tail)
        models = add_models(indices, factors, order, q, stop, width // step * step, tail, own_piece, models)
    return models


@inlined
def keep_quotients(  # type: ignore[no-untyped-def]
    indices, values, factors, own, floor, order, row, start, stop, last, ahead, lanes, tail, scratch, part
):
    """Write the quotients of a piece's nonzeros to row `part` of `scratch`."""
    width, step = factors[0].shape[1], len(lanes) * (LANE // factors[0].itemsize)
    for q in range(start, stop, GROUP):
        if ahead:
            for column in range(0, width // step * step, step):
                _fetch_group(indices, factors, order, q + ahead, GROUP, last, column, lanes)
            if tail is not None:
                _fetch_group(indices, factors, order, q + ahead, GROUP, last, width // step * step, tail)
        models = _models(indices, factors, own, row, order, q, stop, lanes, tail)
        store_group(scratch, part, q - start, quotients(values, order, q, stop, floor, models))


@inlined
def weighted_sum(indices, factors, order, scratch, part, start, stop, column, lanes):  # type: ignore[no-untyped-def]
    """Return the sum of a piece's input factor rows, from `column` on, times the quotients in `scratch`."""
    total = zero(factors, lanes)
    for q in range(start, stop):
        at, weight = q if order is None else order[q], scratch[part, q - start]
        total = accumulate_weighted(indices, factors, weight, at, column, lanes, total)
    return total


@jit
def add_logs(number, team, threads, turn, nonzeros, factors, own, row_begin, floor, bounds, sums, order, lanes, tail):  # type: ignore[no-untyped-def]
    """Write ``sum x log(max(m, floor))`` of each part to `sums`, (parts,) float64.

    `turn` is a counter from which threads take parts; `bounds` are the first piece of each unit, part by part, and the
    end. The other arguments are those of `segmented`.
    """
    starts, rows, indices, values = nonzeros
    if number == 0:
        turn[0] = 0
    called, units = fork(team, number, threads), (bounds.size - 1) // sums.size
    part = add(turn, 0, 1)
    while part < sums.size:
        total = 0.0
        for c in range(bounds[part * units], bounds[(part + 1) * units]):
            stop, row = np.int64(starts[c + 1]), np.int64(rows[c]) - row_begin
            for q in range(np.int64(starts[c]), stop, GROUP):
                models = _models(indices, factors, own, row, order, q, stop, lanes, tail)
                for k in range(GROUP):
                    if q + k >= stop:
                        break
                    model = np.float64(element(models, k))
                    value = np.float64(values[q + k if order is None else order[q + k]])
                    total += value * math.log(floor if model < floor else model)
        sums[part] = total
        part = add(turn, 0, 1)
    return join(team, called)
