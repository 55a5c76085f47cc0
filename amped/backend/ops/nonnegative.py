"""The operation that solves rows of a factor matrix under the constraint that no number is negative.

Hierarchical alternating least squares: one column after the other gets the best numbers there are for it while the
others stay, in several sweeps. No step makes the distance larger, and each row is solved for itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from ..device import Array, Device
from ..registry import Op
from .solve import SolverBytes, Sums


class System(NamedTuple):
    """What rows `x` are to minimise, ``x @ gram @ x / 2 - x @ (right * row)``, for each row of an MTTKRP.

    Device arrays in double precision, C-contiguous.
    """

    gram: Array  # (R, R), symmetric; columns whose diagonal entry is 0 stay as they are
    right: Array  # (R,)
    begin: Array  # (R,) what the columns of the matrix are multiplied with before all else; not negative


class NonnegativeSolver(Protocol):
    """One way to solve rows on a device: a provider of the operation."""

    name: str
    allocates: bool  # see `Solver`

    def suits(self, rank: int, dtype: np.dtype[np.floating]) -> bool:
        """Tell whether it solves rows of so many columns, stored as `dtype`."""

    def prepare(self, rank: int, dtype: np.dtype[np.floating]) -> None:
        """Begin to compile what solves rows of so many columns, where that takes long, and return at once."""

    def bytes(self, rows: int, rank: int) -> SolverBytes:
        """Return the device memory that solving so many rows takes, small matrices left out."""

    def make(self, rows: int, rank: int, dtype: np.dtype[np.floating]) -> Any:
        """Return what `run` needs for up to so many rows: scratch memory and compiled code."""

    def run(self, made: Any, source: Array, system: System, sweeps: int, target: Array, sums: Sums) -> None:
        """Queue `sweeps` over the columns of `target`, (rows, R), from what it holds, and add to `sums`.

        `made` is from `make`, `source` holds the rows of an MTTKRP in double precision. One of zeros gives a row of
        zeros at once; another ends before when a sweep has hardly changed it (`hals.SETTLED`).
        """


NONNEGATIVE = Op[NonnegativeSolver]("nonnegative")
"""The last provider suits all."""


def nonnegative_solver(device: Device, rank: int, dtype: np.dtype[np.floating]) -> NonnegativeSolver:
    """Return the first solver of non-negative rows that suits this many columns."""
    return NONNEGATIVE.require(device, lambda provider: provider.suits(rank, dtype))
