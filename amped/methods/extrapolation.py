"""Extrapolation between the iterations of ALS, with restarts that keep the fit from falling.

The next iteration begins at ``U + b (U - V)``, where V and U are the factor matrices after the last two iterations
(Mitchell, Ye and De Sterck, Nesterov acceleration of alternating least squares for canonical tensor decomposition:
momentum step size and restart mechanisms, 2020). While fits rise, b grows. If the fit falls, the iteration is repeated
from U, and b shrinks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..backend.device import Array, Device
from ..operators.base import Operator

FIRST, LARGEST, SMALLEST = 0.5, 6.0, 0.25  # sizes of steps b
GROWTH, REDUCTION = 1.2, 0.5  # factors of b after an iteration that raised the fit, and after one that did not
BEGIN = 2  # iterations before the first whose matrices count: until then columns are normalised in other ways

NUMBERS = 1 << 23  # of all factor matrices, at most: three times as many are kept

Scales = NDArray[np.float64]


class Extrapolation:
    """Moves the factor matrices of an operator in host memory. Each rank moves the rows that it owns.

    Parameters
    ----------
    operator : Operator
    modes : sequence of int
        The modes that an iteration solves, in this order. The first one is not moved: it is solved from the others.
    """

    def __init__(self, operator: Operator, modes: Sequence[int]) -> None:
        self._operator, self._modes = operator, modes
        self.restart()

    def restart(self) -> None:
        """Forget the iterations so far."""
        self._size = FIRST
        self._last: list[tuple[Array, Scales]] = []  # of the moved modes, an iteration ago
        self._now: list[Array] = []  # of all modes

    def move(self, scales: Scales) -> Sequence[int]:
        """Move the matrices; return the modes that were moved. Collective.

        Columns are multiplied by `scales`, (N, R), which stay as they are. The first call moves nothing.
        """
        operator, last, moved = self._operator, self._last, self._modes[1:]
        self._now = [operator.owned(mode).copy() for mode in self._modes]
        now = self._now[1:]
        self._last = [(matrix, scales[mode].copy()) for matrix, mode in zip(now, moved, strict=True)]
        for mode, matrix, (before, its_scales) in zip(moved, now, last, strict=bool(last)):
            back = self._size * (its_scales / scales[mode])
            operator.owned(mode)[...] = matrix * matrix.dtype.type(1 + self._size) - before * back.astype(before.dtype)
            operator.publish(mode)
        operator.wait_comm()
        return moved if last else ()

    def accept(self) -> None:
        """Record that the iteration from the moved matrices raised the fit."""
        self._size = min(LARGEST, GROWTH * self._size)

    def undo(self) -> None:
        """Restore the matrices before the last `move`, as the iteration did not raise the fit. Collective."""
        self._size = max(SMALLEST, REDUCTION * self._size)
        for mode, matrix in zip(self._modes, self._now, strict=True):
            self._operator.owned(mode)[...] = matrix
            self._operator.publish(mode)
        self._operator.wait_comm()


def suits(device: Device, shape: Sequence[int], rank: int) -> bool:
    """Return whether copies of the factor matrices are small, and in host memory."""
    return device.on_host and rank * sum(shape) <= NUMBERS
