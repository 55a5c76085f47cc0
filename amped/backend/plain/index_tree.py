"""The distinct index tuples of some modes as a tree of prefixes, with the sums and products along it."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Element, Floats, Integers
from partitioner.host.imports import scipy_module

from .splits import prefix_starts

csc_array, csr_array = scipy_module("sparse").csc_array, scipy_module("sparse").csr_array

Matrix = NDArray[np.float64]
Factors = Sequence[Floats | None]
"""A matrix for each mode, or None where the result does not depend on it."""
POSITION = np.dtype(np.int32)


class IndexTree:
    """The distinct index tuples of consecutive modes, its leaves, as a tree of prefixes. Factor matrices are cached.

    Level `m` has a node for each distinct prefix of ``m + 1`` indices. With a single mode, each index is a leaf.

    Parameters
    ----------
    columns : sequence of arrays
        The leaves' indices of each mode; tuples ascend lexicographically.
    lengths : sequence of int
        The modes' lengths.
    """

    def __init__(self, columns: Sequence[Integers], lengths: Sequence[int]) -> None:
        self.order = len(lengths)
        starts = [np.flatnonzero(differs) for differs in prefix_starts(columns)] if self.order > 1 else []
        self.leaves = starts[-1].size if starts else lengths[0]
        self._indices = [column[start].astype(POSITION) for column, start in zip(columns, starts, strict=False)]
        ends = [np.append(np.searchsorted(below, at), below.size).astype(POSITION) for at, below in pairwise(starts)]
        self._parents = [np.repeat(np.arange(end.size - 1, dtype=POSITION), np.diff(end)) for end in ends]
        self._child_sums = [_interval_sums(end) for end in ends]  # from each level to the one above it
        self._row_sums = [_row_sums(*each) for each in zip(self._indices, lengths, strict=False)]
        self._factors: list[Matrix | None] = [None] * self.order
        # By level: products of the factor rows down to each node, and sums over the leaves below it.
        self._paths: list[Matrix | None] = [None] * self.order
        self._contracted: list[Matrix | None] = [None] * self.order

    def without_factors(self) -> IndexTree:
        """Return the same tree for other factor matrices."""
        result = copy(self)
        result._factors = [None] * self.order
        result._paths = [None] * self.order
        result._contracted = [None] * self.order
        return result

    @property
    def nbytes(self) -> int:
        """The bytes of the tree, without factor matrices and products."""
        sums = (*self._child_sums, *self._row_sums)
        matrices = sum(int(each.data.nbytes + each.indices.nbytes + each.indptr.nbytes) for each in sums)
        return matrices + sum(array.nbytes for array in (*self._indices, *self._parents))

    def update(self, mode: int, factor: Floats) -> bool:
        """Set the factor matrix of a mode; return whether it has changed. Products of the old one are discarded."""
        known = self._factors[mode]
        if known is not None and np.array_equal(known, factor):
            return False
        self._factors[mode] = np.array(factor, np.float64, order="C")
        self._paths[mode:] = [None] * (self.order - mode)
        self._contracted[:mode] = [None] * mode
        return True

    def products(self) -> Matrix:
        """Return the product of the factor rows of each leaf, (leaves, R)."""
        return self._factor(0) if self.order == 1 else self._path(self.order - 1)

    def mttkrp(self, mode: int, leaf_rows: Matrix) -> Matrix:
        """Return the sum over leaves, for each index of a mode, of a leaf's row times the other modes' factor rows."""
        if self._contracted[-1] is not leaf_rows:
            self._contracted = [*[None] * (self.order - 1), leaf_rows]
        if self.order == 1:
            return leaf_rows
        rows = self._sums_below(mode)
        if mode:
            path = np.take(self._path(mode - 1), self._parents[mode - 1], axis=0)
            rows = np.multiply(path, rows, out=path)
        return self._row_sums[mode] @ rows  # type: ignore[no-any-return]

    def kronecker_rows(self, factors: Factors) -> Floats:
        """Return the Kronecker product of the factor rows of each leaf; the last mode's columns vary fastest."""
        if self.order == 1:
            return required(factors[0])
        rows = np.take(required(factors[0]), self._indices[0], axis=0)
        for mode in range(1, self.order):
            own = np.take(required(factors[mode]), self._indices[mode], axis=0)
            rows = _kronecker(np.take(rows, self._parents[mode - 1], axis=0), own)
        return rows

    def ttmc(self, mode: int, factors: Factors, leaf_rows: Floats) -> Floats:
        """Return what `mttkrp` does with Kronecker products; the columns of `leaf_rows` vary fastest."""
        if self.order == 1:
            return leaf_rows
        rows = [None if f is None else np.take(f, at, axis=0) for f, at in zip(factors, self._indices, strict=True)]
        below = leaf_rows
        for level in range(self.order - 1, mode, -1):
            below = self._child_sums[level - 1] @ _kronecker(required(rows[level]), below)
        if mode:
            path = required(rows[0])
            for level in range(1, mode):
                path = _kronecker(np.take(path, self._parents[level - 1], axis=0), required(rows[level]))
            below = _kronecker(np.take(path, self._parents[mode - 1], axis=0), below)
        return self._row_sums[mode] @ below  # type: ignore[no-any-return]

    def _factor(self, mode: int) -> Matrix:
        return required(self._factors[mode])

    def _path(self, level: int) -> Matrix:
        """Return the product of the factor rows down to each node of a level."""
        path = self._paths[level]
        if path is None:
            path = np.take(self._factor(level), self._indices[level], axis=0)
            if level:
                path *= np.take(self._path(level - 1), self._parents[level - 1], axis=0)
            self._paths[level] = path
        return path

    def _sums_below(self, level: int) -> Matrix:
        """Return the sum over the leaves below each node of a level, times the factor rows of the modes below."""
        rows = self._contracted[level]
        if rows is None:
            below = np.take(self._factor(level + 1), self._indices[level + 1], axis=0)
            below *= self._sums_below(level + 1)
            rows = self._contracted[level] = self._child_sums[level] @ below
        return required(rows)


def required(matrix: NDArray[Element] | None) -> NDArray[Element]:
    assert matrix is not None
    return matrix


def _kronecker(one: Floats, other: Floats) -> Floats:
    """Return the Kronecker product of each row of a matrix with that of another."""
    product: Floats = (one[:, :, None] * other[:, None, :]).reshape(len(one), -1)
    return product


def _interval_sums(ends: Integers) -> Any:
    """Return the matrix whose product with rows is the sum of each interval ``ends[i]`` to ``ends[i + 1]``."""
    count = int(ends[-1])
    return csr_array((np.ones(count), np.arange(count, dtype=POSITION), ends), shape=(ends.size - 1, count))


def _row_sums(indices: Integers, length: int) -> Any:
    """Return the matrix that sums rows with the same index."""
    parts = np.ones(indices.size), indices, np.arange(indices.size + 1, dtype=POSITION)
    return csc_array(parts, shape=(length, indices.size))
