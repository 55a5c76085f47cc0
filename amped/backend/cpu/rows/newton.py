"""PDNR: a row problem by projected damped Newton steps (Hansen, Plantenga, Kolda 2015, section 3.1).

Two things differ from the paper, as rows got stuck on real tensors:

- A step that leaves the bounds is not cut off there by the line search, which need not descend then. Its components
  that would become negative are set to zero in the quadratic model, and the others solved again, until none is
  negative: so the objective is searched on a segment within the bounds.
- Damping is relative to the diagonal of the Hessian, as the scale of rows differs by orders of magnitude.
"""

from __future__ import annotations

import numpy as np

from partitioner.host.jit import inner

from ..simd.thread_team import inlined
from .model import curvature

DAMPING, MORE, LESS = 1e-5, 3.5, 2 / 7
POOR, GOOD = 0.25, 0.75  # actual over predicted decrease
LEAST_PIVOT = 1e-14  # of the diagonal: what rounding leaves of it
MEMORY = 2  # numbers: the damping, and what the quadratic model says that the whole step changes


@inner
def aim(row, b, near, work, memory):  # type: ignore[no-untyped-def]
    """Write the step of a row; return the slope along it. See `rowsteps.solve_row`."""
    phi, step, _, which, hessian, _, tiles, live, sums = work
    count, free = _split(b, phi, near, which, live, step)
    curvature(row, b, which, count, tiles, sums, hessian)
    return _aim(b, count, free, work, memory)


@inner
def aim_by_sums(curved, b, near, work, memory):  # type: ignore[no-untyped-def]
    """As `aim`, from the second derivatives of all components, (rank * rank,)."""
    phi, step, _, which, hessian, _, _, live, _ = work
    count, free = _split(b, phi, near, which, live, step)
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
    """Set the damping, by how well the quadratic model predicted the whole step's change."""
    ratio = first / memory[1] if memory[1] < 0 else 0.0
    if ratio < POOR:
        memory[0] *= MORE
    elif ratio > GOOD:
        memory[0] *= LESS


@inner
def _split(b, phi, near, which, live, step):  # type: ignore[no-untyped-def]
    """List in `which`, ascending, the components that may move; count them, and those of them that are free.

    `live` lists places in `which`: of free components, then of those that go to their bound. Components at zero that
    the gradient holds there are left out.
    """
    count = free = 0
    for r in range(b.size):
        step[r] = -b[r]
        if b[r] > 0 or phi[r] > 1:
            which[count] = r
            count += 1
    for i in range(count):
        if b[which[i]] > near or phi[which[i]] > 1:
            live[free] = i
            free += 1
    others = free
    for i in range(count):
        if not (b[which[i]] > near or phi[which[i]] > 1):
            live[others] = i
            others += 1
    return count, free


@inner
def _direct(b, count, free, damping, work):  # type: ignore[no-untyped-def]
    """Set `step` to the damped Newton step within the bounds.

    `live` lists places in `which`: those solved for, then those whose step is known.
    """
    _, step, slope, which, hessian, lower, _, live, _ = work
    while free > 0:
        right = lower[free]
        for i in range(free):
            right[i] = -slope[live[i]]
            for k in range(free, count):
                right[i] -= hessian[live[i], live[k]] * step[which[live[k]]]
        _solve(hessian, live, free, damping, lower, right)
        out = 0
        for i in range(free - 1, -1, -1):
            r = which[live[i]]
            if b[r] + right[i] < 0 or not np.isfinite(right[i]):
                step[r] = -b[r]
                out += 1
                live[i], live[free - out] = live[free - out], live[i]
            else:
                step[r] = right[i]
        if out == 0:
            return
        free -= out


@inner
def _solve(hessian, live, count, damping, lower, right):  # type: ignore[no-untyped-def]
    """Solve with the damped Hessian of `live` components: Cholesky's factor in `lower`, the solution in `right`."""
    for i in range(count):
        for k in range(i + 1):
            left = hessian[live[i], live[k]]
            if i == k:
                least = LEAST_PIVOT * left
                left *= 1 + damping
            for j in range(k):
                left -= lower[i, j] * lower[k, j]
            if k < i:
                lower[i, k] = left / lower[k, k]
            elif least > 0:
                lower[i, i] = np.sqrt(max(left, least))
            else:  # Pi is zero here, hence the gradient 1: far below zero, so that it goes to its bound
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
    """Return a thread's arrays: phi, step, slope, which, hessian, lower (a row more), tiles, live, sums of tiles."""
    half = (rank + 1) // 2
    tiles = np.empty(8 * half * ((rank + 3) // 4))
    vectors = np.empty(padded + 8), np.empty(rank), np.empty(rank)
    matrices = np.empty((rank, rank)), np.empty((rank + 1, rank))
    which, live = np.empty(rank, np.int64), np.empty(rank, np.int64)
    return (*vectors, which, *matrices, tiles, live, np.empty(tiles.size))
