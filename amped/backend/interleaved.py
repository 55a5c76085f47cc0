"""The family that computes Phi of several models at once, whose columns are interleaved.

A *group* is some columns of the factor matrices in a row, of several models: first a column of each, then another one
of each. Models of fewer columns have zeros in the others. So sums over columns of one model are computed for all of a
group side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .base import NOTHING, Array
from .mttkrp import Kernel, Share

FAMILY = "interleaved"


Groups = Mapping[int, NDArray[np.int64]]
"""By the number of models in a group: where the columns of each such group begin."""


class Interleaved(Protocol):
    """One way to do so on a device: a provider of the family. See `phi.Phi`, but for what is said here.

    Nothing is computed, or written, of other columns than those of the `groups`. None are groups of the most models, in
    all columns.
    """

    def width(self, dtype: np.dtype[Any]) -> int:
        """Return the number of columns of any group."""

    def models(self, rank: int, dtype: np.dtype[Any]) -> int:
        """Return how many models of so many columns are a group; 0 if they have too many."""

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
        """Queue the addition of a shard's part of the log-likelihoods to `total`, (stride,) float64: of each model in
        the place of its first column."""

    def copy(self, source: Array, target: Array, skip: Array = None) -> None:
        """Queue the copy of a row of sums."""

    def measure(self, phi: Array, matrix: Array, groups: Groups, found: Array) -> None:
        """Write the largest ``|min(B, 1 - Phi)|`` of each column to `found`, (stride,) float64; NaN wins."""

    def apply(self, phi: Array, matrix: Array, groups: Groups, live: Array) -> None:
        """Multiply columns of B that are `live`, (stride,) bool, with those of Phi."""
