"""Extrapolation between iterations, with restarts that keep the objective from rising.

The next iteration begins at ``U + b (U - V)``, where V and U are the factor matrices after the last two iterations:
for ALS by Mitchell, Ye and De Sterck (Nesterov acceleration of alternating least squares for canonical tensor
decomposition: momentum step size and restart mechanisms, 2020), for non-negative factors, where negative numbers become
zero, by Ang, Cohen, Gillis and Hien (Accelerating block coordinate descent for nonnegative tensor factorization, 2021).
While the objective falls, b grows. If it rises, the iteration is repeated from U, and b shrinks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..backend.device import Array, Device
from ..operators.base import Placed
from .driver import MethodState
from .updates import DivergedError

FIRST, LARGEST, SMALLEST = 0.5, 6.0, 0.25  # sizes of steps b
GROWTH, REDUCTION = 1.2, 0.5  # factors of b after an iteration that lowered the objective, and after one that did not
BEGIN = 2  # iterations before the first whose matrices count: until then columns are normalised in other ways

QUIET = 4  # as `BaseMethod.quiet`: one change is small if an extrapolation was undone, and large later

NUMBERS = 1 << 23  # of all factor matrices, at most: three times as many are kept

Matrix = NDArray[np.float64]


class Extrapolated(Protocol):
    """A method whose iterations may begin at other factor matrices. All methods are collective."""

    state: MethodState

    def merit(self) -> float:
        """Return what rises: the fit, the log-likelihood or the negative objective."""

    def iterate(self, stop: Callable[[], bool], left: int = 1) -> bool:
        """Compute an iteration; see `Method.step`."""

    def reload(self, moved: Sequence[int] = ()) -> None:
        """Continue from the state and the operator's factor matrices, of which those of `moved` are new."""

    def column_scales(self, mode: int) -> Matrix | None:
        """Return the factors of the columns of a mode as stored, (R_n,), which stay as they are; None: all are 1."""


class Extrapolation:
    """Moves the factor matrices of an operator. Each rank moves the rows that it owns.

    Parameters
    ----------
    operator : Placed
    modes : sequence of int
        The modes that an iteration solves, in this order. The first one is not moved: it is solved from the others.
    nonnegative : sequence of int
        Modes in which negative numbers become zero.
    arrays : sequence of str
        Arrays of the state that move with the factor matrices; their negative numbers become zero.
    """

    def __init__(
        self, operator: Placed, modes: Sequence[int], nonnegative: Sequence[int] = (), arrays: Sequence[str] = ()
    ) -> None:
        self._operator, self._modes, self._nonnegative, self._arrays = operator, modes, nonnegative, arrays
        self.restart()

    def restart(self) -> None:
        """Forget the iterations so far."""
        self._size = FIRST
        self._last: list[tuple[Array, Matrix | None]] = []  # of the moved modes, an iteration ago
        self._last_arrays = dict[str, Matrix]()
        self._now: list[Array] = []  # of all modes

    def step(self, method: Extrapolated, stop: Callable[[], bool]) -> bool:
        """Compute an iteration from extrapolated matrices, or from the matrices as they are if that is worse."""
        state, before, merit = method.state, method.state.copy(), method.merit()
        moved = self._move(method)
        if not moved:
            return method.iterate(stop)
        method.reload(moved)
        try:
            complete = method.iterate(stop)
        except DivergedError:
            complete = True
        if complete and state.iterations > before.iterations and method.merit() >= merit:
            self._size = min(LARGEST, GROWTH * self._size)
            return True
        self._undo()
        state.arrays, state.series = before.arrays, before.series
        state.iterations, state.mode = before.iterations, before.mode
        method.reload()
        return complete and method.iterate(stop)

    def _move(self, method: Extrapolated) -> Sequence[int]:
        """Move the matrices; return the modes that were moved: none in the first call. Collective."""
        operator, last, moved, state = self._operator, self._last, self._modes[1:], method.state
        self._now = [operator.owned(mode).copy() for mode in self._modes]
        now, scales = self._now[1:], [method.column_scales(mode) for mode in moved]
        self._last = [(matrix, None if s is None else s.copy()) for matrix, s in zip(now, scales, strict=True)]
        for mode, matrix, its_scales, (before, old_scales) in zip(moved, now, scales, last, strict=bool(last)):
            back = self._size if its_scales is None or old_scales is None else self._size * (old_scales / its_scales)
            operator.owned(mode)[...] = self._ahead(matrix, before, back, mode in self._nonnegative)
            operator.publish(mode)
        for name in self._arrays:
            array = state.arrays[name]
            if last:
                before = self._last_arrays[name]
                state.arrays[name] = np.maximum(array + self._size * (array - before), 0.0)
            self._last_arrays[name] = array
        operator.wait_comm()
        return moved if last else ()

    def _ahead(self, matrix: Array, before: Array, back: Matrix | float, nonnegative: bool) -> Array:
        """Return ``matrix + b (matrix - before)``; `back`: b for each column of `before`."""
        device, number = self._operator.machine.device, matrix.dtype.type
        factor = number(back) if isinstance(back, float) else device.to_device(back.astype(matrix.dtype))
        moved = matrix * number(1 + self._size) - before * factor
        return device.xp.maximum(moved, number(0)) if nonnegative else moved

    def _undo(self) -> None:
        """Restore the matrices before the last move, as the iteration was not better. Collective."""
        self._size = max(SMALLEST, REDUCTION * self._size)
        for mode, matrix in zip(self._modes, self._now, strict=True):
            self._operator.owned(mode)[...] = matrix
            self._operator.publish(mode)
        self._operator.wait_comm()


def suits(device: Device, shape: Sequence[int], rank: int) -> bool:
    """Return whether copies of the factor matrices are small, and in host memory."""
    return device.on_host and rank * sum(shape) <= NUMBERS
