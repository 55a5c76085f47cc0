"""The nonnegative operation: solves rows of a factor matrix subject to non-negativity.

It uses hierarchical alternating least squares (HALS): several sweeps set one column after the other to its optimum with
the other columns fixed. No step increases the residual, and rows are independent of each other.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from partitioner.array_types import FloatDType

from ..device import Array, Device
from ..registry import Op
from .solve import SolverBytes, Sums


class System(NamedTuple):
    """The objective of row ``x``: ``x @ gram @ x / 2 - x @ (right * row)``, where ``row`` is a row of an MTTKRP.

    All are C-contiguous device arrays in double precision.
    """

    gram: Array  # (R, R), symmetric; columns whose diagonal entry is 0 are not changed
    right: Array  # (R,)
    begin: Array  # (R,), non-negative: factors by which the columns are multiplied before the first sweep


class NonnegativeSolver(Protocol):
    """A solver of non-negative rows on a device: a provider of the operation."""

    name: str
    allocates: bool  # see `Solver`

    def suits(self, rank: int, dtype: FloatDType) -> bool:
        """Return whether rows of `rank` columns, stored as `dtype`, are supported."""

    def prepare(self, rank: int, dtype: FloatDType) -> None:
        """Start compiling the code for rows of `rank` columns; return immediately."""

    def bytes(self, rows: int, rank: int) -> SolverBytes:
        """Return the device memory for solving `rows` rows, without small matrices."""

    def make(self, rows: int, rank: int, dtype: FloatDType) -> Any:
        """Return the scratch memory and compiled code that `run` needs for up to `rows` rows."""

    def run(self, made: Any, source: Array, system: System, sweeps: int, target: Array, sums: Sums) -> None:
        """Queue `sweeps` over the columns of `target`, (rows, R), starting from its contents, and add to `sums`.

        `made` is the result of `make`; `source` holds the rows of an MTTKRP in double precision. A zero row of `source`
        gives a zero row. Other rows stop early when a sweep hardly changes them (see `hals.SETTLED`).
        """


NONNEGATIVE = Op[NonnegativeSolver]("nonnegative")
"""The last provider supports all ranks."""


def nonnegative_solver(device: Device, rank: int, dtype: FloatDType) -> NonnegativeSolver:
    """Return the first solver of non-negative rows that supports this rank."""
    return NONNEGATIVE.require(device, lambda provider: provider.suits(rank, dtype))
