"""The solve operation: computes rows of a factor matrix from an MTTKRP and an inverse matrix."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from partitioner.array_types import FloatDType

from ..device import Array, Device
from ..registry import Op


class Sums(NamedTuple):
    """Sums over the rows of a factor matrix, computed while rows are solved; device arrays in double precision."""

    gram: Array  # (R, R), of the stored rows
    largest: Array  # (R,), the largest magnitude of each column before rounding to the stored type
    dots: Array | None = None  # (R,), inner products of the columns of the MTTKRP and the factor matrix


class SolverBytes(NamedTuple):
    """Device memory of a solver, in bytes: permanent and temporary."""

    kept: int = 0
    passing: int = 0


class Solver(Protocol):
    """A solver of rows on a device: a provider of the operation."""

    name: str
    allocates: bool  # whether `run` allocates memory and so cannot be captured

    def suits(self, rank: int, dtype: FloatDType) -> bool:
        """Return whether rows of `rank` columns, stored as `dtype`, are supported."""

    def prepare(self, rank: int, dtype: FloatDType) -> None:
        """Start compiling the code for rows of `rank` columns; return immediately."""

    def bytes(self, rows: int, rank: int) -> SolverBytes:
        """Return the device memory for solving `rows` rows, including small matrices."""

    def make(self, rows: int, rank: int, dtype: FloatDType) -> Any:
        """Return the scratch memory and compiled code that `run` needs for up to `rows` rows."""

    def run(self, made: Any, source: Array, inverse: Array, target: Array, sums: Sums) -> None:
        """Queue ``target = source @ inverse``, (rows, R), and add to `sums`, possibly on the side stream.

        `made` is the result of `make`. All arrays except `target` are in double precision; `inverse` is C-contiguous.
        """


SOLVE = Op[Solver]("solve")
"""The last provider supports all ranks."""


def solver(device: Device, rank: int, dtype: FloatDType) -> Solver:
    """Return the first solver that supports this rank."""
    return SOLVE.require(device, lambda provider: provider.suits(rank, dtype))
