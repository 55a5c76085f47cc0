"""The Phi operation: what CP-APR computes from the shards of MTTKRP kernels, of one model or of several.

Phi_n = [X_(n) / max(B Pi, floor)] Pi^T (Chi and Kolda 2012, Algorithm 3), Pi being the Khatri-Rao product of the other
modes' factor matrices: an MTTKRP whose values are divided by the model's. Pi is never stored. It is the mapped MTTKRP
of `losses.PHI`, with kernels of its own.

Several models have some columns each of the same factor matrices. A *group* is adjacent columns of several models.
Models of fewer columns have zeros in the others. On a CPU the models of a group are interleaved: first a column of
each, then another one of each. So sums over columns of one model are computed for all of a group side by side. On a GPU
they lie one after the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..device import NOTHING, Array, Device
from ..registry import Op
from .mttkrp import Kernel, Share

Key = TypeVar("Key", bound=Hashable)


class GroupShape(NamedTuple):
    """Of groups: for how many models they have room, and the most columns that one of these has."""

    models: int
    columns: int


Groups = Mapping[GroupShape, NDArray[np.int64]]
"""By their kind: where the columns of each group begin."""


def joined(groups: Groups, key: Callable[[GroupShape], Key]) -> dict[Key, NDArray[np.int64]]:
    """Return where the groups begin whose kinds have the same key."""
    result = defaultdict[Key, list[NDArray[np.int64]]](list)
    for kind, begins in groups.items():
        result[key(kind)].append(begins)
    return {each: np.sort(np.concatenate(begins)) for each, begins in result.items()}


class PhiProvider(Protocol):
    """One way to compute Phi and log-likelihoods on a device: a provider of the operation.

    Attributes
    ----------
    several : bool
        Whether it computes several models: then `run` and the others take `groups`; see `InterleavedPhi`.
    """

    @property
    def multi_model(self) -> bool:
        """See above."""

    def suits(self, kernel: Kernel, share: Share) -> bool:
        """Tell whether it computes such nonzeros from that kernel's shards."""

    def prepare(self, kernel: Kernel, share: Share) -> None:
        """Begin to compile, and return at once."""

    def bytes(self, kernel: Kernel, share: Share, nnz: int) -> int:
        """Return the bytes of scratch memory that `run` and `add_logs` are given, at most."""

    def run(
        self,
        shard: Any,
        factors: Sequence[Array],
        own: Array,
        floor: float,
        out: Array,
        new: slice = NOTHING,
        scratch: Array = None,
        skip: Array = None,
        groups: Groups | None = None,
    ) -> None:
        """Queue the addition of a shard's Phi to `out`; allocate nothing, wait for nothing.

        Parameters
        ----------
        shard : Shard
        factors : sequence of (I_m, stride) arrays
            The input modes' factor matrices, ascending.
        own : (rows, stride) array
            The output mode's matrix B, of the same type: its rows of the share.
        floor : float
            The least that a value is divided by (`eps` of the Tensor Toolbox).
        out : (rows, stride) float64 array
            Of the share.
        new : slice
            Rows of `out` that hold nothing yet: they get the shard's sums, or zeros.
        scratch : (bytes,) uint8 array
        skip : (1,) int32 array, optional
            Nothing is computed, and `out` not written, if this is not 0 when the work's turn comes. Of several models
            it is (stride,), with a number of each in the place of its first column.
        groups : Groups, optional
            Of several models: nothing is computed, or written, of other columns. None are groups of the most models, in
            all columns.
        """

    def add_logs(
        self,
        shard: Any,
        factors: Sequence[Array],
        own: Array,
        floor: float,
        total: Array,
        scratch: Array = None,
        groups: Groups | None = None,
    ) -> None:
        """Queue the addition of ``sum x log(max(m, floor))`` over a shard's nonzeros to `total`, float64.

        It is (1,), or (stride,) of several models. `m` is the model's value, as in `run`. Sums are in double
        precision, in the same order every time.
        """

    def copy(
        self,
        source: Array,
        target: Array,
        skip: Array = None,
        groups: Groups | None = None,
        dtype: np.dtype[Any] | None = None,
    ) -> None:
        """Queue the copy of a row of sums, (stride,) float64, of models in numbers of a type; see `run`."""


class InterleavedPhi(PhiProvider, Protocol):
    """Phi of several models, and what is done with it model by model.

    Columns that no model of a group has may be left out. `done` is the `skip` of `PhiProvider.run`. On the CPU,
    `groups` leaves out groups whose models are all done.
    """

    def width(self, dtype: np.dtype[Any]) -> int:
        """Return the number of columns of any group."""

    def models(self, rank: int, dtype: np.dtype[Any]) -> int:
        """Return how many models of so many columns are a group; 0 if they have too many."""

    def columns(self, model: int, models: int, dtype: np.dtype[Any]) -> slice:
        """Return the columns that a model has in a group of so many, counted from the group's first."""

    def measure(self, phi: Array, matrix: Array, groups: Groups, violations: Array, done: Array) -> None:
        """Set each model's violation, float64 and 0 so far, to its largest ``|min(B, 1 - Phi)|``; NaN wins."""

    def apply(
        self, phi: Array, matrix: Array, groups: Groups, violations: Array, facts: Array, tol: float, done: Array
    ) -> None:
        """Multiply B with Phi, or set `done` if a model's violation is below `tol`; not where it is set already.

        `facts`, (stride, 2) float64: a model's get the violation, and one more update if there was one.
        """


PHI = Op[PhiProvider]("phi")


def phi_of(device: Device, kernel: Kernel, share: Share) -> PhiProvider | None:
    """Return what computes the Phi of such nonzeros from a kernel's shards, of one model, if anything does."""
    return PHI.first(device, lambda provider: not provider.multi_model and provider.suits(kernel, share))


def interleaved(device: Device) -> InterleavedPhi | None:
    """Return what computes Phi of several models, if anything does."""
    result: Any = PHI.first(device, lambda provider: provider.multi_model)
    multi_model: InterleavedPhi | None = result
    return multi_model
