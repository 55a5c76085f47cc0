"""Phi of several models at once, each of which has some columns of the same factor matrices.

A *group* is some columns in a row, of several models. Models of fewer columns have zeros in the others. On a CPU the
models of a group are interleaved: first a column of each, then another one of each. So sums over columns of one model
are computed for all of a group side by side. On a GPU they lie one after the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..device import NOTHING, Array
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
    found = defaultdict[Key, list[NDArray[np.int64]]](list)
    for kind, begins in groups.items():
        found[key(kind)].append(begins)
    return {each: np.sort(np.concatenate(begins)) for each, begins in found.items()}


class Interleaved(Protocol):
    """One way to do so on a device: a provider of the operation. See `phi.Phi`, but for what is said here.

    Nothing is computed, or written, of other columns than those of the `groups`, and columns that none of a group's
    models has may be left out. None are groups of the most models, in all columns. What is told of models, (stride,),
    has a number of each in the place of its first column.

    `done` is such an int32 array. Where work is queued, nothing is computed or written of models where it is not 0 when
    the work's turn comes. On a host groups of which all models are done are left out of `groups`.
    """

    def width(self, dtype: np.dtype[Any]) -> int:
        """Return the number of columns of any group."""

    def models(self, rank: int, dtype: np.dtype[Any]) -> int:
        """Return how many models of so many columns are a group; 0 if they have too many."""

    def columns(self, model: int, models: int, dtype: np.dtype[Any]) -> slice:
        """Return the columns that a model has in a group of so many, counted from the group's first."""

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
        groups: Groups | None = None,
        done: Array = None,
    ) -> None:
        """Queue the addition of a shard's Phi to `out`."""

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
        """Queue the addition of a shard's part of the log-likelihoods to `total`, float64."""

    def copy(self, source: Array, target: Array, groups: Groups, dtype: np.dtype[Any], done: Array = None) -> None:
        """Queue the copy of a row of sums, of models of such numbers."""

    def measure(self, phi: Array, matrix: Array, groups: Groups, violations: Array, done: Array) -> None:
        """Set each model's violation, float64 and 0 so far, to its largest ``|min(B, 1 - Phi)|``; NaN wins."""

    def apply(
        self, phi: Array, matrix: Array, groups: Groups, violations: Array, facts: Array, tol: float, done: Array
    ) -> None:
        """Multiply B with Phi, or set `done` if a model's violation is below `tol`; not where it is set already.

        `facts`, (stride, 2) float64: a model's get the violation, and one more update if there was one.
        """


INTERLEAVED = Op[Interleaved]("interleaved")
