"""Factor matrices of hypersparse modes without most of their empty rows.

A mode is hypersparse if most of its indices have no nonzeros. Rows of such indices are zero once a mode is solved, so a
decomposition needs them only in its start and in its result. Inside, a matrix has the rows of used indices and a few
spare rows, which belong to the first unused indices. The spare rows of a start stand for all empty rows: they have the
same effect on the first iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats
from partitioner.host.threads import parallel_map, threads_for

from ..backend.rows import blocks_of

T = TypeVar("T")

BLOCK_ROWS = 1 << 13
LEAST_LENGTH = 1 << 16  # of a hypersparse mode: shorter matrices take little time
MOST_KEPT = 0.75  # fraction of a mode's rows above which nothing is gained


class EmptyRows(Protocol):
    """What the empty rows of a start contribute to a decomposition."""

    def spare(self, rank: int) -> int:
        """Return the number of rows that `rows` returns for a matrix of `rank` columns."""

    def part(self, rows: Floats) -> NDArray[np.float64]:
        """Return the contribution of some rows."""

    def rows(self, parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return rows with the contribution of all parts."""


class GramOfEmpty:
    """Least squares and orthonormalisation: the Gram matrix of the empty rows. See `EmptyRows`."""

    def spare(self, rank: int) -> int:
        return rank

    def part(self, rows: Floats) -> NDArray[np.float64]:
        wide = rows.astype(np.float64, copy=False)
        gram: NDArray[np.float64] = wide.T @ wide
        return gram

    def rows(self, parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        values, vectors = np.linalg.eigh(np.sum(parts, axis=0))
        result: NDArray[np.float64] = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T
        return result


class LargestOfEmpty:
    """CP-APR: the largest entries, which bound the KKT violation before the first update. See `EmptyRows`."""

    def spare(self, rank: int) -> int:
        return 1

    def part(self, rows: Floats) -> NDArray[np.float64]:
        largest: NDArray[np.float64] = np.max(rows, axis=0).astype(np.float64)
        return largest

    def rows(self, parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        largest: NDArray[np.float64] = np.max(parts, axis=0)
        return largest[None]


class ZeroOfEmpty:
    """Methods in which empty rows are zero from the start, or have no effect: a row of zeros. See `EmptyRows`."""

    def spare(self, rank: int) -> int:
        return 1

    def part(self, rows: Floats) -> NDArray[np.float64]:
        return np.zeros(rows.shape[1])

    def rows(self, parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        return np.zeros((1, parts[0].size))


class Compaction(NamedTuple):
    """How a method's factor matrices may be compacted."""

    empty: EmptyRows
    whole: Sequence[int] = ()  # modes that keep all rows


class KeptRows:
    """The rows of a mode that compact matrices have: those of the used indices, and spare rows.

    Parameters
    ----------
    used : (used,) int32 array
        The used indices, ascending.
    length : int
        The length of the mode.
    empty : EmptyRows
    rank : int
        The number of columns.

    Attributes
    ----------
    indices : (kept,) int32 array
        The index of each kept row, ascending.
    spare : (spare,) int array
        The positions of the spare rows.
    unused : int
        The number of unused indices.
    """

    def __init__(self, used: NDArray[np.int32], length: int, empty: EmptyRows, rank: int) -> None:
        self.length, self._empty = length, empty
        spare = _first_unused(used, length, empty.spare(rank))
        self.indices = np.sort(np.concatenate([used, spare]))
        self.spare, self.unused = np.searchsorted(self.indices, spare), length - used.size
        self._used = used

    @property
    def nbytes(self) -> int:
        """The size of its arrays."""
        return int(self.indices.nbytes + self._used.nbytes)

    def before(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of kept rows before each index: its position if it is kept."""
        return np.searchsorted(self.indices, rows).astype(np.int64)

    def compact(self, matrix: Floats) -> Floats:
        """Return the kept rows of an (I_n, R) matrix, with spare rows that stand for all empty rows."""
        kept = np.empty((self.indices.size, matrix.shape[1]), matrix.dtype)
        _by_blocks(lambda b: np.take(matrix, self.indices[b], axis=0, out=kept[b], mode="clip"), self.indices.size)
        parts = self._dropped(matrix)
        if parts:  # otherwise the spare rows are as they were before `expand`
            rows = self._empty.rows([*parts, self._empty.part(kept[self.spare])])
            kept[self.spare] = 0
            kept[self.spare[: len(rows)]] = rows
        return kept

    def _dropped(self, matrix: Floats) -> list[NDArray[np.float64]]:
        """Return what rows contribute that are not kept; nothing if they are zero."""

        def part(block: slice) -> NDArray[np.float64] | None:
            first, last = np.searchsorted(self.indices, (block.start, block.stop))
            left = np.ones(block.stop - block.start, bool)
            left[self.indices[first:last] - block.start] = False
            rows = matrix[block][left]
            return self._empty.part(rows) if rows.any() else None

        return [each for each in _by_blocks(part, self.length) if each is not None]

    def expand(self, kept: Floats) -> Floats:
        """Return the (I_n, R) matrix with these rows; others are zero."""
        whole = np.zeros((self.length, kept.shape[1]), kept.dtype)

        def copy(block: slice) -> None:
            whole[self.indices[block]] = kept[block]

        _by_blocks(copy, self.indices.size)
        return whole


def is_hypersparse(length: int, used: int, spare: int) -> bool:
    """Return whether a mode is so long, and so few of its indices are used, that compact matrices save time."""
    return length >= LEAST_LENGTH and used + spare <= MOST_KEPT * length


def _first_unused(used: NDArray[np.int32], length: int, count: int) -> NDArray[np.int32]:
    """Return the first unused indices of a mode, in memory bounded by the number of used ones."""
    unused = np.ones(min(length, used.size + count), bool)
    unused[used[used < unused.size]] = False
    return np.flatnonzero(unused)[:count].astype(np.int32)


def _by_blocks(work: Callable[[slice], T], rows: int) -> list[T]:
    """Call `work` for each block of rows, in threads; return the results in order."""
    blocks = list(blocks_of(rows, BLOCK_ROWS))
    return parallel_map(work, blocks, threads_for(len(blocks)))
