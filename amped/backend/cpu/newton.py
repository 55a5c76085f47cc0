"""PDNR: a row problem by projected damped Newton steps (Hansen, Plantenga, Kolda 2015, section 3.1).

Two things differ from the paper, as rows got stuck on real tensors:

- A step that leaves the bounds is not cut off there by the line search, which need not descend then. Its components
  that would become negative are set to zero in the quadratic model, and the others solved again, until none is
  negative: so the objective is searched on a segment within the bounds.
- Damping is relative to the diagonal of the Hessian, as the scale of rows differs by orders of magnitude.
"""

from __future__ import annotations

import numpy as np

from partitioner.jit import inner

from .rowmodel import change, counts_of, curvature, gradient, keep
from .team import inlined

KKT, ITERATIONS, FAILED = range(3)
"""What is noted of rows: largest first violation, inner iterations, and steps whose line search failed."""

ACTIVE = 1e-3  # components up to this, and to the projected gradient's norm, are at their bound if the gradient says so
DAMPING, MORE, LESS = 1e-5, 3.5, 2 / 7
POOR, GOOD = 0.25, 0.75  # actual over predicted decrease
ARMIJO, HALVINGS = 1e-4, 10
RAISED = 0.01  # of the row's counts, all components together
LEAST_PIVOT = 1e-14  # of the diagonal: what rounding leaves of it


@inner
def newton(row, b, limits, work, seen):  # type: ignore[no-untyped-def]
    """Solve a row problem from `b`, in place.

    Parameters
    ----------
    row : tuple
        See `rowmodel`.
    b : (rank,) array
    limits : tuple
        The most inner iterations, and the KKT violation below which a row is solved.
    work : tuple
        See `work_of`.
    seen : (3,) array
        See `KKT`.
    """
    phi, step, slope, which, hessian, _, tiles, _ = work
    damping = DAMPING
    begin(row, b, phi, step, seen)
    for iteration in range(limits[0]):
        if iteration > 0:
            gradient(row, b, phi)
        violation, near = measure(b, phi)
        if violation < limits[1]:
            return
        seen[ITERATIONS] += 1
        count, free = _split(b, phi, near, which, step)
        curvature(row, b, which, count, tiles, hessian)
        for i in range(count):
            slope[i] = 1 - phi[which[i]]
        _direct(b, count, free, damping, work)
        predicted = downhill = 0.0
        for i in range(count):
            downhill += slope[i] * step[which[i]]
            for k in range(count):
                predicted += step[which[i]] * hessian[i, k] * step[which[k]] / 2
        predicted += downhill
        length, first = search(row, b, step, downhill)
        damping = _damped(damping, first, predicted)
        advance(b, phi, step, length, seen)


@inner
def begin(row, b, phi, step, seen):  # type: ignore[no-untyped-def]
    """Write the row of Phi at `b`, and note the violation.

    Where a nonzero's model is below the floor all components are raised first, by a small part of the row's counts, if
    that is better: a Newton step no more than doubles it.
    """
    keep(row)
    lowest = gradient(row, b, phi)
    violation, _ = measure(b, phi)
    seen[KKT] = max(seen[KKT], violation)
    if lowest < 0:
        for r in range(b.size):
            step[r] = RAISED * counts_of(row) / b.size
        if change(row, b, step, 1.0) < 0:
            for r in range(b.size):
                b[r] += step[r]
            gradient(row, b, phi)


@inlined
def measure(b, phi):  # type: ignore[no-untyped-def]
    """Return the KKT violation, and up to where components count as at their bound."""
    violation = length = 0.0
    for r in range(b.size):
        violation = max(violation, abs(min(b[r], 1 - phi[r])))
        moved = min(b[r], 1 - phi[r])
        length += moved * moved
    return violation, min(ACTIVE, np.sqrt(length))


@inner
def _split(b, phi, near, which, step):  # type: ignore[no-untyped-def]
    """List the components that may move: those that are free, then those that go to their bound. Count all, and free.

    Components at zero that the gradient holds there are left out.
    """
    free = 0
    for r in range(b.size):
        step[r] = -b[r]
        if b[r] > near or phi[r] > 1:
            which[free] = r
            free += 1
    count = free
    for r in range(b.size):
        if 0 < b[r] <= near and phi[r] <= 1:
            which[count] = r
            count += 1
    return count, free


@inner
def _direct(b, count, free, damping, work):  # type: ignore[no-untyped-def]
    """Set `step` to the damped Newton step within the bounds.

    `live` lists places in `which`: those solved for, then those whose step is known.
    """
    _, step, slope, which, hessian, lower, _, live = work
    for i in range(count):
        live[i] = i
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


@inlined
def _damped(damping, first, predicted):  # type: ignore[no-untyped-def]
    """Return the next damping, by how well the model predicted the whole step's change."""
    ratio = first / predicted if predicted < 0 else 0.0
    if ratio < POOR:
        return damping * MORE
    return damping * LESS if ratio > GOOD else damping


@inner
def search(row, b, step, downhill):  # type: ignore[no-untyped-def]
    """Return the length of a step that decreases the objective enough, 0 if none does, and the whole step's change."""
    first, length = np.inf, 1.0
    if downhill >= 0:
        return 0.0, first
    for halving in range(HALVINGS + 1):
        change_now = change(row, b, step, length)
        if halving == 0:
            first = change_now
        if change_now <= ARMIJO * length * downhill:
            return length, first
        length /= 2
    return 0.0, first


@inner
def advance(b, phi, step, length, seen):  # type: ignore[no-untyped-def]
    """Make a step of that length; without one a multiplicative step, which never ascends."""
    if length == 0:
        seen[FAILED] += 1
    for r in range(b.size):
        b[r] = max(b[r] + length * step[r], 0.0) if length > 0 else b[r] * phi[r]


@inner
def work_of(rank, padded):  # type: ignore[no-untyped-def]
    """Return a thread's arrays: phi, step, slope, which, hessian, lower (a row more), tiles, and live."""
    half = (rank + 1) // 2
    tiles = np.empty(8 * half * ((rank + 3) // 4))
    vectors = np.empty(padded + 8), np.empty(rank), np.empty(rank)
    matrices = np.empty((rank, rank)), np.empty((rank + 1, rank))
    return (*vectors, np.empty(rank, np.int64), *matrices, tiles, np.empty(rank, np.int64))
