"""Common code of PDNR and PQNR: the start of a row, the stopping test, and the line search.

`memory` holds a method's state of a row between iterations; the caller sets its first number.
"""

from __future__ import annotations

import numpy as np

from partitioner.host.jit import inner

from ...ops.rowproblems import FAILED, ITERATIONS, KKT
from ...row_constants import ACTIVE, ARMIJO, LENGTHS, RAISED
from ..simd.thread_team import inlined
from .model import change, counts_of, gradient, keep


@inlined
def solve_row(row, b, limits, work, sums, memory, status, aim, learn):  # type: ignore[no-untyped-def]
    """Solve a row problem from `b`, in place.

    Parameters
    ----------
    row : tuple
        See `model`.
    b : (rank,) array
    limits : tuple
        The maximum number of inner iterations, and the KKT violation below which a row is solved.
    work : tuple
        The method's work arrays: Phi, the step, and others.
    sums : array
        Scratch of the size of Phi.
    memory : array
    status : (3,) array
        See `ops.rowproblems.KKT`.
    aim : callable
        Computes the step of a row at `b`, given the bound up to which components count as active; returns the slope.
    learn : callable
        Takes the change of the objective by the whole step.
    """
    phi, step = work[0], work[1]
    _begin(row, b, phi, sums, step, status)
    for iteration in range(limits[0]):
        if iteration > 0:
            gradient(row, b, phi, sums)
        violation, near = measure(b, phi)
        if violation < limits[1]:
            return
        status[ITERATIONS] += 1
        downhill = aim(row, b, near, work, memory)
        length, first = _search(row, b, step, downhill)
        learn(memory, first)
        advance(b, phi, step, length, status)


@inlined
def _begin(row, b, phi, sums, step, status):  # type: ignore[no-untyped-def]
    """Compute the row of Phi at `b`, and record the violation.

    If the model is below the floor at a nonzero, all components are first raised by a small part of the row's counts if
    this decreases the objective, because a Newton step can at most double the model.
    """
    keep(row)
    lowest = gradient(row, b, phi, sums)
    violation, _ = measure(b, phi)
    status[KKT] = max(status[KKT], violation)
    if lowest < 0:
        for r in range(b.size):
            step[r] = RAISED * counts_of(row) / b.size
        if change(row, b, step, 1.0) < 0:
            for r in range(b.size):
                b[r] += step[r]
            gradient(row, b, phi, sums)


@inlined
def measure(b, phi):  # type: ignore[no-untyped-def]
    """Return the KKT violation, and the bound up to which components count as active."""
    violation = length = 0.0
    for r in range(b.size):
        moved = min(b[r], 1 - phi[r])
        violation = max(violation, abs(moved))
        length += moved * moved
    return violation, min(ACTIVE, np.sqrt(length))


@inner
def _search(row, b, step, downhill):  # type: ignore[no-untyped-def]
    """Return the first step length with sufficient decrease (0 if none), and the change by the whole step."""
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
def choose_length(changes, step, downhill):  # type: ignore[no-untyped-def]
    """Like `_search`, from the changes of the objective by the nonzeros for each length."""
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
def advance(b, phi, step, length, status):  # type: ignore[no-untyped-def]
    """Take a step of this length; if it is 0, take a multiplicative step, which never ascends."""
    if length == 0:
        status[FAILED] += 1
    for r in range(b.size):
        b[r] = max(b[r] + length * step[r], 0.0) if length > 0 else b[r] * phi[r]
