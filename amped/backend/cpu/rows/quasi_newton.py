"""PQNR: a row problem by projected quasi-Newton steps, L-BFGS of three pairs (Hansen, Plantenga, Kolda 2015, 3.2).

Products are over the components that are free now. As in `newton`, components that a step would make negative go to
their bound, and the step is computed again for the others. The first step is a multiplicative one: there is no pair
yet, and it knows the scale of each component.
"""

from __future__ import annotations

import numpy as np

from partitioner.host.jit import inner

from ..simd.thread_team import inlined

PAIRS = 3
KEPT = 2 + 2 * PAIRS  # rows of numbers that are kept of a row, after the pairs so far: the last point, its Phi, pairs
LEAST_CURVED = 1e-12  # of a pair's two lengths: their product, of a pair that is used


@inner
def aim(row, b, near, work, memory):  # type: ignore[no-untyped-def]
    """Write the step of a row; return the slope along it. See `rowsteps.solve_row`."""
    phi, step, free, shares = work
    rank, count = b.size, np.int64(memory[0])
    old, last = memory[1 : 1 + rank], memory[1 + rank : 1 + 2 * rank]
    steps = memory[1 + 2 * rank : 1 + (2 + PAIRS) * rank].reshape((PAIRS, rank))
    turns = memory[1 + (2 + PAIRS) * rank : 1 + (2 + 2 * PAIRS) * rank].reshape((PAIRS, rank))
    if count > 0:
        for r in range(rank):
            steps[(count - 1) % PAIRS, r] = b[r] - old[r]
            turns[(count - 1) % PAIRS, r] = last[r] - phi[r]
        _direct(b, near, count, phi, step, steps, turns, free, shares)
    else:
        for r in range(rank):
            step[r] = b[r] * (phi[r] - 1)
    memory[0] += 1
    downhill = 0.0
    for r in range(rank):
        old[r], last[r] = b[r], phi[r]
        downhill += (1 - phi[r]) * step[r]
    return downhill


@inlined
def learn(memory, first):  # type: ignore[no-untyped-def]
    """Pairs say all."""


@inner
def _direct(b, near, count, phi, step, steps, turns, free, shares):  # type: ignore[no-untyped-def]
    """Set `step` to the quasi-Newton step within the bounds."""
    for r in range(b.size):
        free[r] = b[r] > near or phi[r] > 1
    again = True
    while again:
        for r in range(b.size):
            step[r] = phi[r] - 1
        _multiply(step, steps, turns, free, count, shares)
        again = False
        for r in range(b.size):
            if free[r] and not b[r] + step[r] >= 0:
                free[r], again = False, True
            if not free[r]:
                step[r] = -b[r]


@inner
def _multiply(step, steps, turns, free, count, shares):  # type: ignore[no-untyped-def]
    """Multiply the free components by the inverse Hessian that the last pairs tell of, in two loops over them."""
    scale, used = 0.0, min(count, PAIRS)
    for n in range(used):
        k = (count - 1 - n) % PAIRS
        curved = _dot(steps[k], turns[k], free)
        length = _dot(turns[k], turns[k], free)
        shares[k, 0] = 0.0
        if curved > LEAST_CURVED * np.sqrt(length * _dot(steps[k], steps[k], free)):
            scale = curved / length if scale == 0 else scale
            shares[k, 0] = curved
            shares[k, 1] = _dot(steps[k], step, free) / curved
            for r in range(step.size):
                step[r] -= shares[k, 1] * turns[k, r]
    for r in range(step.size):
        step[r] *= scale if scale > 0 else 1.0
    for n in range(used - 1, -1, -1):
        k = (count - 1 - n) % PAIRS
        if shares[k, 0] > 0:
            part = shares[k, 1] - _dot(turns[k], step, free) / shares[k, 0]
            for r in range(step.size):
                step[r] += part * steps[k, r]


@inlined
def _dot(a, b, free):  # type: ignore[no-untyped-def]
    total = 0.0
    for r in range(a.size):
        if free[r]:
            total += a[r] * b[r]
    return total


@inner
def work_of(rank, padded):  # type: ignore[no-untyped-def]
    """Return a thread's arrays: phi, step, free components, and pairs' shares."""
    return np.empty(padded + 8), np.empty(rank), np.empty(rank, np.bool_), np.empty((PAIRS, 2))
