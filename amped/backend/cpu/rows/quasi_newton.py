"""PQNR: a row problem by projected quasi-Newton steps, L-BFGS of three pairs (Hansen, Plantenga, Kolda 2015, 3.2).

Inner products include free components only. As in `newton`, components that a step would make negative go to their
bound, and the step of the others is computed again. The first step is multiplicative: there are no pairs yet, and a
multiplicative step adapts to the scale of each component.
"""

from __future__ import annotations

import numpy as np

from partitioner.host.jit import inner

from ...row_constants import LEAST_CURVED, PAIRS
from ..simd.thread_team import inlined

# Numbers per component in the memory, after the number of pairs: last point, its Phi, pairs.
KEPT = 2 + 2 * PAIRS


@inner
def aim(row, b, near, work, memory):  # type: ignore[no-untyped-def]
    """Compute the step of a row; return the slope along it. See `steps.solve_row`."""
    phi, step, free, coefficients = work
    rank, count = b.size, np.int64(memory[0])
    old, last = memory[1 : 1 + rank], memory[1 + rank : 1 + 2 * rank]
    steps = memory[1 + 2 * rank : 1 + (2 + PAIRS) * rank].reshape((PAIRS, rank))
    gradients = memory[1 + (2 + PAIRS) * rank : 1 + (2 + 2 * PAIRS) * rank].reshape((PAIRS, rank))
    if count > 0:
        for r in range(rank):
            steps[(count - 1) % PAIRS, r] = b[r] - old[r]
            gradients[(count - 1) % PAIRS, r] = last[r] - phi[r]
        _direct(b, near, count, phi, step, steps, gradients, free, coefficients)
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
    """Do nothing: the pairs carry all information."""


@inner
def _direct(b, near, count, phi, step, steps, gradients, free, coefficients):  # type: ignore[no-untyped-def]
    """Set `step` to the quasi-Newton step within the bounds."""
    for r in range(b.size):
        free[r] = b[r] > near or phi[r] > 1
    changed = True
    while changed:
        for r in range(b.size):
            step[r] = phi[r] - 1
        _multiply(step, steps, gradients, free, count, coefficients)
        changed = False
        for r in range(b.size):
            if free[r] and not b[r] + step[r] >= 0:
                free[r], changed = False, True
            if not free[r]:
                step[r] = -b[r]


@inner
def _multiply(step, steps, gradients, free, count, coefficients):  # type: ignore[no-untyped-def]
    """Multiply the free components by the L-BFGS approximation of the inverse Hessian (two-loop recursion)."""
    scale, used = 0.0, min(count, PAIRS)
    for n in range(used):
        k = (count - 1 - n) % PAIRS
        curved = _dot(steps[k], gradients[k], free)
        length = _dot(gradients[k], gradients[k], free)
        coefficients[k, 0] = 0.0
        if curved > LEAST_CURVED * np.sqrt(length * _dot(steps[k], steps[k], free)):
            scale = curved / length if scale == 0 else scale
            coefficients[k, 0] = curved
            coefficients[k, 1] = _dot(steps[k], step, free) / curved
            for r in range(step.size):
                step[r] -= coefficients[k, 1] * gradients[k, r]
    for r in range(step.size):
        step[r] *= scale if scale > 0 else 1.0
    for n in range(used - 1, -1, -1):
        k = (count - 1 - n) % PAIRS
        if coefficients[k, 0] > 0:
            part = coefficients[k, 1] - _dot(gradients[k], step, free) / coefficients[k, 0]
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
    """Return a thread's work arrays: phi, step, free components, and coefficients of the pairs."""
    return np.empty(padded + 8), np.empty(rank), np.empty(rank, np.bool_), np.empty((PAIRS, 2))
