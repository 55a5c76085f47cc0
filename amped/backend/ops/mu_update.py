"""The elementwise work of CP-APR's multiplicative updates, on rows of one mode's matrix (Chi and Kolda 2012).

Between two visits of a mode its matrix A has columns of unit sum; while the mode is updated it is B, A times the
weights. Of an entry of A that is nearly zero the last bit says whether it is to be shifted away from zero at the next
visit: so checkpoints have that, and it takes no memory.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ..device import Array, Device
from ..registry import Op


class MuUpdate(Protocol):
    """Queues work on rows: `matrix` and `phi` are (rows, R) views, of the factors' type and float64.

    `done` is a (1,) int32 device array: nothing happens where it is not 0.
    """

    def begin(self, matrix: Array, weights: Array, kappa: Array | float, least: float) -> None:
        """Make B of A: add `kappa` to entries below `least` whose last bit is set, and multiply columns with `weights`.

        These are (R,) float64, as is `kappa` if it is not the same of all columns.
        """

    def measure(self, phi: Array, matrix: Array, violation: Array, done: Array) -> None:
        """Set `violation`, (1,) float64 and 0 so far, to the largest ``|min(B, 1 - Phi)|``; NaN wins."""

    def apply(self, phi: Array, matrix: Array, violation: Array, fact: Array, tol: float, done: Array) -> None:
        """Multiply B with Phi, or set `done` if the violation is below `tol`.

        `fact`, (2,) float64: gets the violation, and one more update if there was one.
        """

    def add_columns(self, matrix: Array, sums: Array) -> None:
        """Add the sums of columns to `sums`, (R,) float64, in the same order every time."""

    def end(self, phi: Array, matrix: Array, sums: Array, least: float) -> None:
        """Make A of B: divide columns by their sums, where these are not 0.

        The last bit of entries below `least` is set where Phi, that of the last update, is above 1, and else cleared.
        """


class MuUpdateProvider(Protocol):
    """What does this work on a device."""

    def bytes(self, rank: int) -> int:
        """Return the device memory that `make` takes."""

    def prepare(self, dtype: np.dtype[Any]) -> None:
        """Begin to compile, and return at once."""

    def make(self, device: Device, rank: int, dtype: np.dtype[Any]) -> MuUpdate:
        """Return the work on matrices of `rank` columns."""


MU_UPDATE = Op[MuUpdateProvider]("mu_update")
"""Every device has a provider."""
