"""What PDNR and PQNR have in common: where a row begins, how far it is from done, and how far it goes along a step.

`memory` is what a method keeps of a row from one iteration to the next; its first number is set before the first one.
"""

from __future__ import annotations

import numpy as np

from partitioner.host.jit import inner

from ...ops.rowproblems import FAILED, ITERATIONS, KKT
from ..simd.thread_team import inlined
from .model import change, counts_of, gradient, keep

ACTIVE = 1e-3  # components up to this, and to the projected gradient's norm, are at their bound if the gradient says so
ARMIJO, LENGTHS = 1e-4, 11  # of a line search: 1, 1/2, 1/4, ...
RAISED = 0.01  # of the row's counts, all components together


@inlined
def solve_row(row, b, limits, work, sums, memory, seen, aim, learn):  # type: ignore[no-untyped-def]
    """Solve a row problem from `b`, in place.

    Parameters
    ----------
    row : tuple
        See `rowmodel`.
    b : (rank,) array
    limits : tuple
        The most inner iterations, and the KKT violation below which a row is solved.
    work : tuple
        The method's arrays: Phi, the step, and others.
    sums : array
        As long as Phi.
    memory : array
    seen : (3,) array
        See `backend.rowproblems.KKT`.
    aim : callable
        Write the step of a row at `b`, given up to where components count as at their bound; return the slope along it.
    learn : callable
        Take note of what the objective changes by over the whole step.
    """
    phi, step = work[0], work[1]
    _begin(row, b, phi, sums, step, seen)
    for iteration in range(limits[0]):
        if iteration > 0:
            gradient(row, b, phi, sums)
        violation, near = measure(b, phi)
        if violation < limits[1]:
            return
        seen[ITERATIONS] += 1
        downhill = aim(row, b, near, work, memory)
        length, first = _search(row, b, step, downhill)
        learn(memory, first)
        advance(b, phi, step, length, seen)


@inlined
def _begin(row, b, phi, sums, step, seen):  # type: ignore[no-untyped-def]
    """Write the row of Phi at `b`, and note the violation.

    Where a nonzero's model is below the floor all components are raised first, by a small part of the row's counts, if
    that is better: a Newton step no more than doubles it.
    """
    keep(row)
    lowest = gradient(row, b, phi, sums)
    violation, _ = measure(b, phi)
    seen[KKT] = max(seen[KKT], violation)
    if lowest < 0:
        for r in range(b.size):
            step[r] = RAISED * counts_of(row) / b.size
        if change(row, b, step, 1.0) < 0:
            for r in range(b.size):
                b[r] += step[r]
            gradient(row, b, phi, sums)


@inlined
def measure(b, phi):  # type: ignore[no-untyped-def]
    """Return the KKT violation, and up to where components count as at their bound."""
    violation = length = 0.0
    for r in range(b.size):
        moved = min(b[r], 1 - phi[r])
        violation = max(violation, abs(moved))
        length += moved * moved
    return violation, min(ACTIVE, np.sqrt(length))


@inner
def _search(row, b, step, downhill):  # type: ignore[no-untyped-def]
    """Return the length of a step that decreases the objective enough, 0 if none does, and the whole step's change."""
    first, length = np.inf, 1.0
    if downhill >= 0:
        return 0.0, first
    for halving in range(LENGTHS):
        change_now = change(row, b, step, length)
        if halving == 0:
            first = change_now
        if change_now <= ARMIJO * length * downhill:
            return length, first
        length /= 2
    return 0.0, first


@inner
def found(changes, step, downhill):  # type: ignore[no-untyped-def]
    """Return what `_search` does, from what the nonzeros change the objective by for each length."""
    if downhill >= 0:
        return 0.0, np.inf
    length, moved = 1.0, 0.0
    for r in range(step.size):
        moved += step[r]
    for k in range(changes.size):
        if changes[k] + length * moved <= ARMIJO * length * downhill:
            return length, changes[0] + moved
        length /= 2
    return 0.0, changes[0] + moved


@inner
def advance(b, phi, step, length, seen):  # type: ignore[no-untyped-def]
    """Make a step of that length; without one a multiplicative step, which never ascends."""
    if length == 0:
        seen[FAILED] += 1
    for r in range(b.size):
        b[r] = max(b[r] + length * step[r], 0.0) if length > 0 else b[r] * phi[r]
