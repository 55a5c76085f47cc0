"""PQNR: a row problem by projected quasi-Newton steps, L-BFGS of three pairs (Hansen, Plantenga, Kolda 2015, 3.2).

Products are over the components that are free now. As in `newton`, components that a step would make negative go to
their bound, and the step is computed again for the others. The first step is a multiplicative one: there is no pair
yet, and it knows the scale of each component.
"""

from __future__ import annotations

import numpy as np

from partitioner.jit import inner

from .newton import ITERATIONS, advance, begin, measure, search
from .rowmodel import gradient
from .team import inlined

PAIRS = 3
LEAST_CURVED = 1e-12  # of a pair's two lengths: their product, of a pair that is used


@inner
def quasi_newton(row, b, limits, work, seen):  # type: ignore[no-untyped-def]
    """Solve a row problem; see `newton.newton`. `work` is that of `pairs_of`."""
    phi, step, old, last, steps, turns, _, _ = work
    count = 0
    begin(row, b, phi, step, seen)
    for iteration in range(limits[0]):
        if iteration > 0:
            gradient(row, b, phi)
        violation, near = measure(b, phi)
        if violation < limits[1]:
            return
        seen[ITERATIONS] += 1
        if iteration > 0:
            for r in range(b.size):
                steps[count % PAIRS, r] = b[r] - old[r]
                turns[count % PAIRS, r] = last[r] - phi[r]
            count += 1
        for r in range(b.size):
            old[r], last[r] = b[r], phi[r]
        if count > 0:
            _direct(b, near, count, work)
        else:
            for r in range(b.size):
                step[r] = b[r] * (phi[r] - 1)
        downhill = 0.0
        for r in range(b.size):
            downhill += (1 - phi[r]) * step[r]
        length, _ = search(row, b, step, downhill)
        advance(b, phi, step, length, seen)


@inner
def _direct(b, near, count, work):  # type: ignore[no-untyped-def]
    """Set `step` to the quasi-Newton step within the bounds."""
    phi, step, _, _, steps, turns, free, shares = work
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
def pairs_of(rank, padded):  # type: ignore[no-untyped-def]
    """Return a thread's arrays: phi, step, the last point and its phi, pairs, free components, and pairs' shares."""
    vectors = np.empty(padded + 8), np.empty(rank), np.empty(rank), np.empty(rank)
    return (*vectors, np.empty((PAIRS, rank)), np.empty((PAIRS, rank)), np.empty(rank, np.bool_), np.empty((PAIRS, 2)))
