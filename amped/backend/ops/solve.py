"""The operation that solves rows of a factor matrix."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from ..device import Array, Device
from ..registry import Op


class Sums(NamedTuple):
    """What is added up of a factor matrix while its rows are solved; device arrays in double precision."""

    gram: Array  # (R, R), of the rows as they are stored
    largest: Array  # (R,) magnitudes, one for each column, before it is rounded to the stored type
    dots: Array | None = None  # (R,) inner products of the MTTKRP's columns with those of the factor matrix


class SolverBytes(NamedTuple):
    """Bytes of device memory that a solver keeps from call to call, and that it takes for a while."""

    kept: int = 0
    passing: int = 0


class Solver(Protocol):
    """One way to solve rows on a device: a provider of the operation."""

    name: str
    allocates: bool  # whether `run` allocates memory, so that it cannot be noted down

    def suits(self, rank: int, dtype: np.dtype[np.floating]) -> bool:
        """Tell whether it solves rows of so many columns, stored as `dtype`."""

    def prepare(self, rank: int, dtype: np.dtype[np.floating]) -> None:
        """Begin to compile what solves rows of so many columns, where that takes long, and return at once."""

    def bytes(self, rows: int, rank: int) -> SolverBytes:
        """Return the device memory that solving so many rows takes, small matrices included."""

    def make(self, rows: int, rank: int, dtype: np.dtype[np.floating]) -> Any:
        """Return what `run` needs for up to so many rows: scratch memory and compiled code."""

    def run(self, made: Any, source: Array, inverse: Array, target: Array, sums: Sums) -> None:
        """Queue ``target = source @ inverse``, (rows, R), and add to `sums`, perhaps beside (`Device.wait_side` waits).

        `made` is from `make`.

        All but `target` are in double precision; `inverse` is C-contiguous, as it is read by its address.
        """


SOLVE = Op[Solver]("solve")
"""The last provider suits all."""


def solver(device: Device, rank: int, dtype: np.dtype[np.floating]) -> Solver:
    """Return the first solver that suits rows of this many columns."""
    return SOLVE.require(device, lambda provider: provider.suits(rank, dtype))
