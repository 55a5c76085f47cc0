"""Protocols of operators: the interface between methods and distributed tensors of any kind."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from partitioner.array_types import Floats

from ..backend.device import Array, Clock, Device
from ..backend.exchange import Machine
from ..options import Options
from ..parallel.mpi import Reduction
from .placement import Plan
from .products import Ttmc

Solve = Callable[[Array, Array], None]
"""Called with rows of an MTTKRP, (rows, R) float64, and the same rows of the factor matrix, which it must write."""


class Placed(Protocol):
    """A tensor distributed over the ranks, with all factor matrices on each rank. All methods are collective."""

    machine: Machine
    options: Options
    shape: tuple[int, ...]  # of the tensor, but in hypersparse modes the number of rows held; see `kept_rows`
    ranks: tuple[int, ...]  # columns of each mode's factor matrix
    norm: float  # of the tensor, with values as stored
    whole: bool  # whether this rank holds all rows of the factor matrices; otherwise `factor` exchanges rows
    distribution: str  # "all-gather", "replicated" or a grid; see `amped.options.Options`
    clock: Clock  # seconds of `copy`, `compute`, `exchange` and `solve` per mode
    kernels: list[str]  # the chosen kernel of each mode

    @property
    def plan(self) -> Plan:
        """The plan of this rank."""

    @property
    def order(self) -> int:
        """The number of modes."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of the tensor's modes."""

    def set_factor(self, mode: int, factor: Floats) -> None:
        """Set the factor matrix of a mode on all ranks, from an (I_n, R_n) array in host memory."""

    @property
    def matrices(self) -> Array:
        """All factor matrices as stored, (bytes,) uint8."""

    def factor(self, mode: int, matrices: Array | None = None) -> Floats:
        """Return the (I_n, R_n) factor matrix of a mode in host memory; from a copy of `matrices` if given."""

    def stored(self, mode: int, matrices: Array | None = None) -> Array:
        """Return the factor matrix of a mode as a view of device memory; see `factor` and `rows`."""

    def rows(self, mode: int, matrices: Array | None = None) -> Floats:
        """Return the rows of a factor matrix that the operator holds, as `factor` does; see `kept_rows`."""

    def held(self, mode: int) -> slice:
        """Return the rows of a factor matrix that this rank holds."""

    def compact(self, mode: int, matrix: Floats) -> Floats:
        """Return the rows that the operator holds of an (I_n, R_n) matrix; see `kept_rows`."""

    def expand(self, mode: int, rows: Floats) -> Floats:
        """Return the (I_n, R_n) matrix with these rows; other rows are zero."""

    def changed(self, mode: int) -> None:
        """Report that the caller has written to a factor matrix."""

    def owned(self, mode: int) -> Array:
        """Return the rows of a factor matrix that this rank owns, as an (owned, R_n) view."""

    def publish(self, mode: int, sums: Array | None = None) -> None:
        """All-gather the owned rows of a factor matrix, and sum `sums` over the ranks."""

    def gathered(self, mode: int, rows: Array) -> Floats:
        """All-gather owned rows of a matrix with the rows of a factor matrix, as an (I_n, R_n) host array."""

    def reduce(self, array: Array, reduction: Reduction, mode: int) -> None:
        """Queue the reduction of a small device array over the ranks, in place."""

    def span(self, kind: str, mode: int) -> AbstractContextManager[None]:
        """Time the work queued in the block under `kind`."""

    def wait_comm(self) -> None:
        """Make later work wait for the side stream and for rows in transit."""

    def synchronize(self) -> None:
        """Wait until all queued work is done."""


class Operator(Placed, Protocol):
    """A placed tensor that computes MTTKRPs."""

    def set_factor(self, mode: int, factor: Floats, columns: slice | None = None) -> None:
        """See `Placed`; `columns` restricts it to some columns."""

    def factor(self, mode: int, matrices: Array | None = None, columns: slice | None = None) -> Floats:
        """See `Placed`; `columns` restricts it to some columns."""

    def forget(self) -> None:
        """Discard partial results for later modes: the next MTTKRP starts from the elements."""

    def kept(self) -> Hashable:
        """Return a key of the valid partial results for later modes; None if there are none."""

    def resume(self, kept: Hashable) -> None:
        """Continue with these partial results, which captured work has computed."""

    def computed(self, mode: int) -> Array:
        """Return the rows of a factor matrix that this rank owns or contributes to, as a (rows, R) view.

        All ranks that contribute to a row get the same Phi, and must update the row in the same way.
        """

    def mttkrp(
        self,
        mode: int,
        solve: Solve | None = None,
        then: Sequence[int] = (),
        double: bool = False,
        sums: Array | None = None,
    ) -> Array:
        """Queue the MTTKRP of a mode with the factor matrices of the other modes; return without waiting.

        Parameters
        ----------
        mode : int
        solve : callable, optional
            See `Solve`. It is called with each block of owned rows once the block is complete. The solved rows are sent
            to all ranks, or used for the next mode, while other rows are computed.
        then : sequence of int
            The next modes, as far as known: their streamed shards are copied in advance.
        double : bool
            Compute all products in double precision from numbers stored in single precision. Not supported for 16-bit
            factor matrices. The first call compiles code for seconds.
        sums : (any shape) float64 device array, optional
            Summed over the ranks together with the last rows that are sent; `solve` queues its computation.

        Returns
        -------
        (owned, R) float64 device array
            The rows that this rank owns, valid until the next call.
        """


class ValueAndGradients(NamedTuple):
    """A loss of a tensor at some factor matrices.

    Attributes
    ----------
    value : float
        The sum of the loss over all elements that count, of all ranks.
    gradients : list of (owned, R) float64 device arrays
        For each mode the gradient with respect to the rows that this rank owns.
    vector : device array
        All gradients, one after the other; they are views of it.
    """

    value: float
    gradients: list[Array]
    vector: Array

    @classmethod
    def empty(cls, shapes: Sequence[tuple[int, int]], device: Device) -> ValueAndGradients:
        """Return uninitialised gradients of matrices of some shapes."""
        return cls.of(device.empty((sum(rows * columns for rows, columns in shapes),), np.float64), shapes)

    @classmethod
    def of(cls, vector: Array, shapes: Sequence[tuple[int, int]]) -> ValueAndGradients:
        """Return the gradients in a vector."""
        ends = np.cumsum([0, *(rows * columns for rows, columns in shapes)]).tolist()
        parts = zip(pairwise(ends), shapes, strict=True)
        return cls(0.0, [vector[begin:end].reshape(shape) for (begin, end), shape in parts], vector)

    def joined(self, modes: Sequence[int], xp: Any) -> Array:
        """Return the gradients of some modes, ascending, one after the other; `xp` is the array module."""
        if len(modes) == len(self.gradients):
            return self.vector
        return xp.concatenate([self.gradients[mode].reshape(-1) for mode in modes])


class Gradient(Protocol):
    """Evaluates a loss of a placed tensor."""

    @property
    def operator(self) -> Placed:
        """The tensor and the factor matrices."""

    def evaluate(self) -> ValueAndGradients:
        """Return the loss and its gradient at the factor matrices that the operator holds. Collective."""


class CoreOperator(Placed, Protocol):
    """A placed tensor that computes TTMc, for Tucker decompositions. All methods are collective."""

    @property
    def summed(self) -> int:
        """Number of terms of the longest sum in the factor matrices' precision, unless TTMc is `double`."""

    def compute(self, product: Ttmc, mode: int, then: Sequence[int] = ()) -> Array:
        """Queue the tensor times the transposed factor matrices of all modes but one, unfolded in that mode.

        Parameters
        ----------
        product : Ttmc
            If `double`, all products are in double precision, from numbers stored in single precision. The first call
            may compile code for seconds.
        mode : int
        then : sequence of int
            See `Operator.mttkrp`.

        Returns
        -------
        (owned, product of the other ranks) float64 device array
            The rows that this rank owns, the last mode's columns varying fastest; valid until the next call.
        """


def in_turn(mode: int, order: int, among: Container[int] | None = None) -> list[int]:
    """Return all modes, or those in `among`, in cyclic order after `mode`; `mode` itself comes last."""
    every = [(mode + k) % order for k in range(1, order + 1)]
    return every if among is None else [each for each in every if each in among]
