"""PDNR: a row problem by projected damped Newton steps (Hansen, Plantenga, Kolda 2015, section 3.1).

There are two differences from the paper, because rows stalled on real tensors:

- A step that leaves the bounds is not projected by the line search, which then need not descend. Instead, components
  that would become negative are set to zero in the quadratic model and the others solved again, until none is negative;
  the line search stays within the bounds.
- Damping is relative to the diagonal of the Hessian, because the scales of rows differ by orders of magnitude.
"""

from __future__ import annotations

import numpy as np

from partitioner.host.jit import inner

from ...row_constants import GOOD, LEAST_NEWTON_PIVOT, LESS_DAMPING, MORE_DAMPING, POOR
from ..simd.thread_team import inlined
from .model import curvature

MEMORY = 2  # numbers: the damping, and the change predicted by the quadratic model


@inner
def aim(row, b, near, work, memory):  # type: ignore[no-untyped-def]
    """Compute the step of a row; return the slope along it. See `steps.solve_row`."""
    phi, step, _, which, hessian, _, tiles, active, sums = work
    count, free = _split(b, phi, near, which, active, step)
    curvature(row, b, which, count, tiles, sums, hessian)
    return _aim(b, count, free, work, memory)


@inner
def aim_by_sums(curved, b, near, work, memory):  # type: ignore[no-untyped-def]
    """Like `aim`, from the second derivatives of all components, (rank * rank,)."""
    phi, step, _, which, hessian, _, _, active, _ = work
    count, free = _split(b, phi, near, which, active, step)
    for i in range(count):
        for k in range(count):
            hessian[i, k] = curved[which[i] * b.size + which[k]]
    return _aim(b, count, free, work, memory)


@inlined
def _aim(b, count, free, work, memory):  # type: ignore[no-untyped-def]
    phi, step, slope, which, hessian, _, _, _, _ = work
    for i in range(count):
        slope[i] = 1 - phi[which[i]]
    _direct(b, count, free, memory[0], work)
    curved = downhill = 0.0
    for i in range(count):
        downhill += slope[i] * step[which[i]]
        for k in range(count):
            curved += step[which[i]] * hessian[i, k] * step[which[k]] / 2
    memory[1] = downhill + curved
    return downhill


@inlined
def learn(memory, first):  # type: ignore[no-untyped-def]
    """Update the damping: compare the change `first` of the whole step with the quadratic model's prediction."""
    ratio = first / memory[1] if memory[1] < 0 else 0.0
    if ratio < POOR:
        memory[0] *= MORE_DAMPING
    elif ratio > GOOD:
        memory[0] *= LESS_DAMPING


@inner
def _split(b, phi, near, which, active, step):  # type: ignore[no-untyped-def]
    """List the components that may move in `which`, ascending; return their number and the number of free ones.

    `active` lists positions in `which`: first the free components, then those that go to their bound. Components at
    zero with a positive gradient are left out.
    """
    count = free = 0
    for r in range(b.size):
        step[r] = -b[r]
        if b[r] > 0 or phi[r] > 1:
            which[count] = r
            count += 1
    for i in range(count):
        if b[which[i]] > near or phi[which[i]] > 1:
            active[free] = i
            free += 1
    others = free
    for i in range(count):
        if not (b[which[i]] > near or phi[which[i]] > 1):
            active[others] = i
            others += 1
    return count, free


@inner
def _direct(b, count, free, damping, work):  # type: ignore[no-untyped-def]
    """Set `step` to the damped Newton step within the bounds.

    `active` lists positions in `which`: first the components solved for, then those whose step is known.
    """
    _, step, slope, which, hessian, lower, _, active, _ = work
    while free > 0:
        right = lower[free]
        for i in range(free):
            right[i] = -slope[active[i]]
            for k in range(free, count):
                right[i] -= hessian[active[i], active[k]] * step[which[active[k]]]
        _solve(hessian, active, free, damping, lower, right)
        out = 0
        for i in range(free - 1, -1, -1):
            r = which[active[i]]
            if b[r] + right[i] < 0 or not np.isfinite(right[i]):
                step[r] = -b[r]
                out += 1
                active[i], active[free - out] = active[free - out], active[i]
            else:
                step[r] = right[i]
        if out == 0:
            return
        free -= out


@inner
def _solve(hessian, active, count, damping, lower, right):  # type: ignore[no-untyped-def]
    """Solve the damped Newton system of the `active` components: Cholesky factor in `lower`, solution in `right`."""
    for i in range(count):
        for k in range(i + 1):
            entry = hessian[active[i], active[k]]
            if i == k:
                least = LEAST_NEWTON_PIVOT * entry
                entry *= 1 + damping
            for j in range(k):
                entry -= lower[i, j] * lower[k, j]
            if k < i:
                lower[i, k] = entry / lower[k, k]
            elif least > 0:
                lower[i, i] = np.sqrt(max(entry, least))
            # Pi is zero here and the gradient 1: the solution is far below zero, and the component goes to its bound.
            else:
                lower[i, i] = 1e-150
    for i in range(count):
        for j in range(i):
            right[i] -= lower[i, j] * right[j]
        right[i] /= lower[i, i]
    for i in range(count - 1, -1, -1):
        for j in range(i + 1, count):
            right[i] -= lower[j, i] * right[j]
        right[i] /= lower[i, i]


@inner
def work_of(rank, padded):  # type: ignore[no-untyped-def]
    """Return work arrays: phi, step, slope, which, hessian, lower (one more row), tiles, active, sums of tiles."""
    half = (rank + 1) // 2
    tiles = np.empty(8 * half * ((rank + 3) // 4))
    vectors = np.empty(padded + 8), np.empty(rank), np.empty(rank)
    matrices = np.empty((rank, rank)), np.empty((rank + 1, rank))
    which, active = np.empty(rank, np.int64), np.empty(rank, np.int64)
    return (*vectors, which, *matrices, tiles, active, np.empty(tiles.size))
