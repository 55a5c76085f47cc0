"""The phi operation: Phi and log-likelihoods of CP-APR, of one model or several, from the shards of MTTKRP kernels.

Phi_n = [X_(n) / max(B Pi, floor)] Pi^T (Chi and Kolda 2012, Algorithm 3), where Pi is the Khatri-Rao product of the
other modes' factor matrices: an MTTKRP whose values are divided by the model's. Pi is never stored. Phi is the mapped
MTTKRP of `losses.PHI`, with dedicated kernels.

Several models share the factor matrices; each has some of the columns. A *group* consists of adjacent columns of
several models; unused columns of smaller models are zero. On a CPU the columns of a group's models are interleaved:
first one column of each model, then the next of each. Thus vector operations compute the sums over columns of all
models at once. On a GPU the models of a group follow each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import FloatDType

from ..device import NOTHING, Array, Device
from ..registry import Op
from .mttkrp import Kernel, Operands, Share

Key = TypeVar("Key", bound=Hashable)


class GroupShape(NamedTuple):
    """The number of models of a group, and their largest number of columns."""

    models: int
    columns: int


Groups = Mapping[GroupShape, NDArray[np.int64]]
"""First columns of the groups, by shape."""


def joined(groups: Groups, key: Callable[[GroupShape], Key]) -> dict[Key, NDArray[np.int64]]:
    """Return the sorted first columns of all groups whose shapes have the same key, by key."""
    result = defaultdict[Key, list[NDArray[np.int64]]](list)
    for kind, begins in groups.items():
        result[key(kind)].append(begins)
    return {each: np.sort(np.concatenate(begins)) for each, begins in result.items()}


class PhiParams(NamedTuple):
    """Parameters of Phi and log-likelihoods.

    Attributes
    ----------
    floor : float
        Lower bound of divisors (`eps` of the Tensor Toolbox).
    skip : (1,) int32 array, optional
        If nonzero when the work is executed, Phi is neither computed nor written. For several models the array is
        (stride,), with each model's number at its first column.
    groups : Groups, optional
        For several models: the groups to compute; other columns are not written. By default, groups of the largest
        number of models cover all columns.
    """

    floor: float
    skip: Array = None
    groups: Groups | None = None


class PhiProvider(Protocol):
    """A method to compute Phi and log-likelihoods on a device: a provider of the operation.

    Attributes
    ----------
    multi_model : bool
        Whether it computes several models; see `InterleavedPhi`.
    """

    @property
    def multi_model(self) -> bool:
        """See above."""

    def suits(self, kernel: Kernel, share: Share) -> bool:
        """Return whether it supports such nonzeros in that kernel's shards."""

    def prepare(self, kernel: Kernel, share: Share) -> None:
        """Start compiling; return immediately."""

    def bytes(self, kernel: Kernel, share: Share, nnz: int) -> int:
        """Return the bytes of scratch memory that `run` and `add_logs` need."""

    def run(self, shard: Any, operands: Operands, params: PhiParams, new: slice = NOTHING) -> None:
        """Queue the addition of a shard's Phi to the output, without allocating memory or waiting.

        Parameters
        ----------
        shard : Shard
        operands : Operands
            `own` has rows of the matrix B.
        params : PhiParams
        new : slice
            Uninitialised rows of the output, which are set to the shard's sums or zeros.
        """

    def add_logs(self, shard: Any, operands: Operands, params: PhiParams, total: Array) -> None:
        """Queue the addition of ``sum x log(max(m, floor))`` over a shard's nonzeros to `total`, float64.

        `total` is (1,), or (stride,) for several models. `m` is the model's value. Sums are in double precision, in a
        fixed order.
        """

    def copy(self, source: Array, target: Array, params: PhiParams, dtype: FloatDType) -> None:
        """Queue the copy of a row of sums, (stride,) float64; `dtype` is the type of the factors."""


class InterleavedPhi(PhiProvider, Protocol):
    """A provider of Phi of several models, with the multiplicative updates of each model.

    Columns that no model of a group has may be left out. `done` is the `skip` of `PhiParams`. On the CPU,
    `groups` leaves out groups whose models are all done.
    """

    def width(self, dtype: FloatDType) -> int:
        """Return the number of columns of a group."""

    def models(self, rank: int, dtype: FloatDType) -> int:
        """Return the number of models of this rank per group; 0 if the rank is too large."""

    def columns(self, model: int, models: int, dtype: FloatDType) -> slice:
        """Return the columns of a model in a group of `models` models, relative to the group's first column."""

    def measure(self, phi: Array, matrix: Array, groups: Groups, violations: Array, done: Array) -> None:
        """Set each model's violation, float64 and initially 0, to its largest ``|min(B, 1 - Phi)|``; NaN propagates."""

    def apply(
        self, phi: Array, matrix: Array, groups: Groups, violations: Array, facts: Array, tol: float, done: Array
    ) -> None:
        """Multiply B by Phi, or set `done` if a model's violation is below `tol`; skip models that are done.

        `facts`, (stride, 2) float64, receives each model's violation and number of updates.
        """


class HostPhi:
    """Base class of providers of one model's Phi on the host, where work is synchronous."""

    multi_model = False

    def suits(self, kernel: Kernel, share: Share) -> bool:
        return True

    def prepare(self, kernel: Kernel, share: Share) -> None:
        """See `PhiProvider`: nothing can be compiled in advance."""

    def copy(self, source: Array, target: Array, params: PhiParams, dtype: FloatDType) -> None:
        if params.skip is None or not params.skip[0]:
            target[:] = source


PHI = Op[PhiProvider]("phi")


def phi_of(device: Device, kernel: Kernel, share: Share) -> PhiProvider | None:
    """Return the provider of a single model's Phi for a kernel's shards; None if there is none."""
    return PHI.first(device, lambda provider: not provider.multi_model and provider.suits(kernel, share))


def interleaved(device: Device) -> InterleavedPhi | None:
    """Return the device's provider of Phi of several models; None if it has none."""
    provider: Any = PHI.first(device, lambda provider: provider.multi_model)
    result: InterleavedPhi | None = provider
    return result
