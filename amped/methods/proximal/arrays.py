"""The arrays on which constraints are computed: NumPy's, or those of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...backend.device import Array, Device
from ...backend.ops.admm_steps import ADMM_STEPS, AdmmStepsProvider
from ...backend.ops.isotonic import ISOTONIC, Isotonic
from ...backend.rows import down

Matrix = NDArray[np.float64]


def _itself(array: Array) -> Any:
    return array


class Arrays(NamedTuple):
    """The array module of a device, and what it computes beyond that.

    Attributes
    ----------
    xp : module
        NumPy or CuPy.
    isotonic : Isotonic, optional
        Isotonic and unimodal regression on the device. None: on the host.
    steps : AdmmStepsProvider, optional
        What ADMM computes beside proximal operators, in few launches.
    to_host : callable
        Copies a device array to host memory.
    """

    xp: Any = np
    isotonic: Isotonic | None = None
    steps: AdmmStepsProvider | None = None
    to_host: Callable[[Array], Any] = _itself

    @classmethod
    def of(cls, device: Device) -> Arrays:
        """Return the arrays of a device."""
        if device.on_host:
            return HOST
        return cls(device.xp, ISOTONIC.first(device), ADMM_STEPS.first(device), device.to_host)

    @property
    def on_host(self) -> bool:
        """Whether the arrays are NumPy's."""
        return self.xp is np

    def by_host(self, function: Callable[[Matrix], Matrix], matrix: Array) -> Array:
        """Return the result of a function of NumPy arrays; copies the matrix to the host and back on a GPU."""
        return function(matrix) if self.on_host else self.xp.asarray(function(self.to_host(matrix)))

    def numbers(self, numbers: list[Any]) -> Array:
        """Return an array of numbers, or of arrays, that are on the device."""
        return np.array(numbers) if self.on_host else self.xp.stack([self.xp.asarray(each) for each in numbers])

    def square(self, matrix: Array) -> Any:
        """Return the sum of squares as a number on the device."""
        flat = matrix.reshape(-1)
        return flat.dot(flat)

    def column_squares(self, matrix: Array) -> Array:
        """Return the sum of squares of each column, (R,)."""
        return down(self.xp, self.xp.sum, self.xp.square(matrix))

    def dot(self, one: Array, other: Array) -> Any:
        """Return the inner product of two matrices as a number on the device."""
        return one.reshape(-1).dot(other.reshape(-1))


HOST = Arrays()
