"""The mu_update operation: the elementwise work of CP-APR's multiplicative updates (Chi and Kolda 2012).

Between updates, the matrix A of a mode has columns of unit sum. During an update it is B, A times the weights. The last
bit of a tiny entry of A marks whether the next update must shift it away from zero. Thus checkpoints include the marks,
which need no additional memory.
"""

from __future__ import annotations

from typing import Protocol

from partitioner.array_types import FloatDType

from ..device import Array, Device
from ..registry import Op


class MuUpdate(Protocol):
    """Queues work on rows. `matrix`, of the factors' type, and `phi`, float64, are (rows, R) views.

    `done` is a (1,) int32 device array; if it is nonzero, the work has no effect.
    """

    def begin(self, matrix: Array, weights: Array, kappa: Array | float, least: float) -> None:
        """Convert A to B: add `kappa` to entries below `least` whose last bit is set, and multiply by `weights`.

        `weights` is (R,) float64, as is `kappa` if it differs between columns.
        """

    def measure(self, phi: Array, matrix: Array, violation: Array, done: Array) -> None:
        """Set `violation`, (1,) float64 and initially 0, to the largest ``|min(B, 1 - Phi)|``; NaN propagates."""

    def apply(self, phi: Array, matrix: Array, violation: Array, fact: Array, tol: float, done: Array) -> None:
        """Multiply B by Phi, or set `done` if the violation is below `tol`.

        `fact`, (2,) float64, receives the violation, and its number of updates is incremented after an update.
        """

    def add_columns(self, matrix: Array, sums: Array) -> None:
        """Add the column sums to `sums`, (R,) float64, in a fixed order."""

    def end(self, phi: Array, matrix: Array, sums: Array, least: float) -> None:
        """Convert B to A: divide columns by their sums, unless these are 0.

        The last bit of entries below `least` is set if Phi of the last update is above 1, and cleared otherwise.
        """


class MuUpdateProvider(Protocol):
    """A provider of the operation."""

    def bytes(self, rank: int) -> int:
        """Return the device memory that `make` allocates."""

    def prepare(self, dtype: FloatDType) -> None:
        """Start compiling; return immediately."""

    def make(self, device: Device, rank: int, dtype: FloatDType) -> MuUpdate:
        """Return the update for matrices of `rank` columns."""


MU_UPDATE = Op[MuUpdateProvider]("mu_update")
"""Every device has a provider."""
