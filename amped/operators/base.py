"""What methods ask of a tensor that is placed on ranks, whatever kind it is of."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from numpy.typing import NDArray

from ..backend.device import Array, Clock
from ..backend.exchange import Machine
from ..options import Options
from ..parallel.mpi import Reduction
from .placement import Plan
from .products import Ttmc

Solve = Callable[[Array, Array], None]
"""Called with rows of an MTTKRP, (rows, R) float64, and the same rows of the factor matrix, which it is to write."""


class Placed(Protocol):
    """A tensor on all ranks, with a factor matrix for each mode on each of them. Its methods are collective."""

    machine: Machine
    options: Options
    shape: tuple[int, ...]
    ranks: tuple[int, ...]  # columns of each mode's factor matrix
    norm: float  # of the tensor, its values as they are held
    clock: Clock  # seconds of `copy`, `compute`, `exchange` and `solve` for each mode
    kernels: list[str]  # the one chosen for each mode

    @property
    def plan(self) -> Plan:
        """What this rank holds."""

    @property
    def order(self) -> int:
        """The number of modes."""

    def set_factor(self, mode: int, factor: NDArray[Any]) -> None:
        """Give every rank the (I_n, R_n) factor matrix of one mode, in host memory."""

    @property
    def matrices(self) -> Array:
        """All factor matrices as they are stored, (bytes,) uint8."""

    def factor(self, mode: int, matrices: Array | None = None) -> NDArray[Any]:
        """Return the (I_n, R_n) factor matrix of one mode in host memory, or that of a copy of `matrices`."""

    def changed(self, mode: int) -> None:
        """Note that a factor matrix was written by others."""

    def owned(self, mode: int) -> Array:
        """Return the rows of a factor matrix that this rank owns, as an (owned, R_n) view."""

    def publish(self, mode: int, sums: Array | None = None) -> None:
        """All-gather the owned rows of a factor matrix, and add up `sums` over the ranks."""

    def reduce(self, array: Array, reduction: Reduction, mode: int) -> None:
        """Queue the combination of a small device array over the ranks, in place."""

    def span(self, kind: str, mode: int) -> AbstractContextManager[None]:
        """Count the work queued within under `kind`."""

    def wait_comm(self) -> None:
        """Let the work that is queued from now on wait for all that was queued beside it, and for rows on their way."""

    def synchronize(self) -> None:
        """Wait until all queued work is done."""


class Operator(Placed, Protocol):
    """A placed tensor whose MTTKRPs are computed."""

    def set_factor(self, mode: int, factor: NDArray[Any], columns: slice | None = None) -> None:
        """See `Placed`; or only some columns."""

    def factor(self, mode: int, matrices: Array | None = None, columns: slice | None = None) -> NDArray[Any]:
        """See `Placed`; or only some columns."""

    def forget(self) -> None:
        """Keep nothing that was computed for modes to come: the next MTTKRP begins with the elements."""

    def kept(self) -> Hashable:
        """Return what was computed for modes to come and is still of use; None if nothing is."""

    def resume(self, kept: Hashable) -> None:
        """Go on as if that had been computed: work that was noted down has done it."""

    def computed(self, mode: int) -> Array:
        """Return the rows of a factor matrix that this rank owns or computes a part of, as a (rows, R) view.

        Of the latter each rank has the same Phi: each is to update them in the same way.
        """

    def mttkrp(
        self,
        mode: int,
        solve: Solve | None = None,
        then: Sequence[int] = (),
        double: bool = False,
        sums: Array | None = None,
    ) -> Array:
        """Queue the MTTKRP of one mode from the factor matrices of the others; wait for nothing.

        Parameters
        ----------
        mode : int
        solve : callable, optional
            See `Solve`. It is called with blocks of owned rows as they are done, and these are sent to all ranks
            while others are computed, or used for the mode that follows.
        then : sequence of int
            The modes to come, as far as they are known: what is streamed for them is copied ahead.
        double : bool
            Compute all products in double precision, from numbers that are held in single precision; not of factor
            matrices in 16 bits. The first time takes seconds, to compile code.
        sums : (any shape) float64 device array, optional
            Added up over the ranks with the last rows that are sent; `solve` has queued what it is.

        Returns
        -------
        (owned, R) float64 device array
            The rows that this rank owns; valid until the next call.
        """

    def gathered(self, mode: int, rows: Array) -> NDArray[Any]:
        """All-gather owned rows, as `mttkrp` returns them, into a whole (I_n, R) matrix in host memory."""


class CoreOperator(Placed, Protocol):
    """What Tucker decompositions need of a tensor of any kind. Collective, too."""

    @property
    def summed(self) -> int:
        """Terms of the longest sum that is rounded to the factor matrices' precision, unless TTMc is `double`."""

    def compute(self, product: Ttmc, mode: int, then: Sequence[int] = ()) -> Array:
        """Queue the tensor times the transposed factor matrices of all modes but one, unfolded in that mode.

        Parameters
        ----------
        product : Ttmc
            If it is `double`, all products are in double precision, from numbers that are held in single precision. The
            first time may take seconds, to compile code.
        mode : int
        then : sequence of int
            See `Operator.mttkrp`.

        Returns
        -------
        (owned, product of the other ranks) float64 device array
            The rows that this rank owns, the last mode's columns fastest; valid until the next call.
        """


def in_turn(mode: int, order: int, among: Container[int] | None = None) -> list[int]:
    """Return the modes that follow `mode` where all, or some `among` them, are computed in turn; `mode` comes last."""
    every = [(mode + k) % order for k in range(1, order + 1)]
    return every if among is None else [each for each in every if each in among]
