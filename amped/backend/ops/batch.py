"""The operation that keeps the small matrices of several runs of CP-ALS, and solves their rows, by one launch for all.

A *batch* has places for runs. A run has columns of its own in factor matrices that all share. What its numbers are is
said in `equations`, and so is what each step computes. A run that raises a flag is left as it is, until it is taken
out; for others nothing changes.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..device import Array
from ..registry import Op
from .equations import ConstraintBounds, EquationsStatus, Terms


class Case(NamedTuple):
    """What a batch is made for."""

    terms: Terms  # `rank` is that of the run of most columns
    dtype: np.dtype[np.floating]  # of factor matrices
    places: int
    rows: int  # that are solved of a mode, at most
    bounds: ConstraintBounds | None = None  # where factor matrices are constrained
    sweeps: int = 0  # over the columns of those without negative numbers


class RunStart(NamedTuple):
    """What a run goes on from."""

    told: EquationsStatus
    best: float  # fit so far
    grams: NDArray[np.float64]  # (N, R, R), of the columns as they are stored
    weights: NDArray[np.float64] | None = None  # (R,) norms of the components; None at a start


class RunStatus(NamedTuple):
    """What the host is told of each run after an iteration."""

    flags: int
    fit: float
    squares: float  # see `EquationsStatus`


class RunStopped(NamedTuple):
    """What another method goes on from."""

    told: EquationsStatus
    mode: int  # the one that is solved next
    weights: NDArray[np.float64]  # (R,)


class Batch(Protocol):
    """One batch. All but `put`, `take` and `told` queue work, in this order for each mode: `prepare`, `solve`, `totals`
    are added up over the ranks, `finish`; after the last mode `fit`.

    Attributes
    ----------
    totals : (places, R + 2 + ranks, R) device array
        See `Equations.totals`.
    dots : (places, blocks, R) device array
        See `Equations.dots`.
    facts : (places, ...) float64 device array, or None
        What `tell` writes; None where the host takes part, so that no work can be noted down.
    """

    totals: Array
    dots: Array
    facts: Array | None

    def put(self, place: int, columns: slice, start: RunStart) -> None:
        """Begin to compute a run, which has these columns."""

    def take(self, place: int) -> RunStopped:
        """Wait for what is queued, free a place, and return where its run stands."""

    def prepare(self, mode: int) -> None:
        """Make what rows are solved with, and clear `totals`."""

    def solve(self, mode: int, source: Array, target: Array, again: bool = False) -> None:
        """Solve rows of all runs from those of an MTTKRP, both (rows, columns of all), and add up; perhaps beside.

        `again`: after `widen`, of the runs that it was for.
        """

    def widen(self, mode: int) -> None:
        """Change what columns are divided by, of runs that are out of `RANGE`, and clear their `totals`.

        Of those of other runs only one rank keeps its own, so that they can be added up over the ranks once more.
        """

    def finish(self, mode: int, again: bool = False) -> None:
        """Take the norms out of the columns; `again`: of runs that `widen` was for."""

    def multiply(self, source: Array, target: Array) -> None:
        """Write the `dots` of runs whose fits are `NEAR` 1."""

    def fit(self, exact: bool = False) -> None:
        """Compute fits; `exact`: from `dots`, of the runs whose fits are `NEAR` 1."""

    def tell(self) -> None:
        """Queue the writing of `facts`."""

    def told(self) -> list[RunStatus]:
        """Wait for what is queued; return what it told, of each place."""

    def read(self, memory: NDArray[np.uint8]) -> list[RunStatus]:
        """Return what a copy of the memory of `facts` tells."""


class BatchProvider(Protocol):
    """One way to keep batches on a device: a provider of the operation."""

    most: int  # columns of a run

    def bytes(self, order: int, rank: int, parts: int, places: int, rows: int) -> int:
        """Return the device memory that a batch takes on one of so many process ranks; see `Case` and `Terms`."""

    def make(self, case: Case) -> Batch:
        """Return a batch without runs."""


BATCH = Op[BatchProvider]("batch")
