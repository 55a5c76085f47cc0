"""Nonzeros as a tree of index prefixes, and MTTKRPs of all modes from it by SciPy's sparse products.

Nonzeros that share their first indices share a node. What is contracted below a node serves all modes above it, and
products of factor rows along a path serve all modes below: in a sweep over the modes each of them is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array, csr_array

Matrix = NDArray[np.float64]
POSITION = np.dtype(np.int32)


class Tree:
    """The tree of nonzeros in lexicographic order, each coordinate once.

    Level `m` has a node for each distinct prefix of ``m + 1`` indices; the nonzeros are the last level.
    """

    def __init__(self, columns: Sequence[NDArray[Any]], values: NDArray[Any], lengths: Sequence[int]) -> None:
        self.columns, self.values, self.lengths = columns, np.asarray(values, np.float64), tuple(lengths)
        self._last = last = len(columns) - 1
        starts = _starts(columns)
        self._indices = [column[first] for column, first in zip(columns, starts, strict=True)]
        ends = [np.append(np.searchsorted(below, at), below.size) for at, below in pairwise(starts)]
        ends = [each.astype(POSITION) for each in ends]  # of the children of each node, in the next level
        self._parents = [np.repeat(np.arange(each.size - 1, dtype=POSITION), np.diff(each)) for each in ends]
        shape = starts[last - 1].size, lengths[last]
        self._leaves = csr_array((self.values, columns[last], ends[-1]), shape=shape)
        self._sums = [_sum_over(end) for end in ends[:-1]]  # of the children of each node
        self._rows = [_into_rows(self._indices[m], lengths[m]) for m in range(1, last)]  # of the nodes of a row
        self._known: list[Matrix | None] = [None] * len(columns)  # factor matrices, as they were used last
        self._below: list[Matrix | None] = [None] * last  # what is contracted below the nodes of each level
        self._path: list[Matrix | None] = [None] * last  # products of the factor rows down to the nodes of each level
        self._rest: tuple[int, Matrix] | None = None  # of each nonzero, for one mode: the product of the other rows
        self._gathers = list[Any]()  # what adds nonzeros to the rows of each mode; made when it is needed

    @property
    def nbytes(self) -> int:
        """The bytes that it takes beside the nonzeros, without products."""
        matrices = (*self._sums, *self._rows)
        held = sum(m.data.nbytes + m.indices.nbytes + m.indptr.nbytes for m in matrices) + self._leaves.indptr.nbytes
        return int(held + sum(array.nbytes for array in (*self._indices[:-1], *self._parents)))

    def mttkrp(self, mode: int, factors: Sequence[NDArray[Any] | None]) -> Matrix:
        """Return the MTTKRP of a mode, (I_mode, R); `factors` has a matrix for each other mode."""
        self._look(factors)
        if mode == self._last:
            found = self._leaves.T @ self._product(mode - 1)
        elif mode:
            path = np.take(self._product(mode - 1), self._parents[mode - 1], axis=0)
            path *= self._contracted(mode)
            found = self._rows[mode - 1] @ path
        else:
            below = self._contracted(0)
            found = np.zeros((self.lengths[0], below.shape[1]))
            found[self._indices[0]] = below
        return found  # type: ignore[no-any-return]

    def ttmc(self, mode: int, factors: Sequence[NDArray[Any] | None]) -> Matrix:
        """Return the TTMc of a mode, (I_mode, product of the other columns); the last mode's columns vary fastest."""
        last, inputs = self._last, list[Any](factors)
        rows = [None if m == mode else np.take(inputs[m], self._indices[m], axis=0) for m in range(last)]
        path: Any = None  # Kronecker products of the rows down to the nodes of a level
        for level in range(mode):
            above = None if path is None else np.take(path, self._parents[level - 1], axis=0)
            path = rows[level] if above is None else _kronecker(above, rows[level])
        if mode == last:
            return self._leaves.T @ path  # type: ignore[no-any-return]
        below = self._leaves @ inputs[last]
        for level in range(last - 1, mode, -1):
            below = self._sums[level - 1] @ _kronecker(rows[level], below)
        if path is None:
            found = np.zeros((self.lengths[0], below.shape[1]))
            found[self._indices[0]] = below
            return found
        path = np.take(path, self._parents[mode - 1], axis=0)
        return self._rows[mode - 1] @ _kronecker(path, below)  # type: ignore[no-any-return]

    def phi(self, mode: int, factors: Sequence[NDArray[Any] | None], own: Matrix, floor: float) -> Matrix:
        """Return the MTTKRP of a mode, of values that are divided by the model's; `own` is the mode's matrix."""
        rest = self._others(mode, factors)
        self._gathers = self._gathers or list(map(_into_rows, self.columns, self.lengths))
        gather = self._gathers[mode]
        gather.data = self.values / np.maximum(_products(own, self.columns[mode], rest), floor)
        return gather @ rest  # type: ignore[no-any-return]

    def logs(self, mode: int, factors: Sequence[NDArray[Any] | None], own: Matrix, floor: float) -> float:
        """Return the sum of each value times the logarithm of the model's."""
        model = _products(own, self.columns[mode], self._others(mode, factors))
        return float(self.values @ np.log(np.maximum(model, floor)))

    def _others(self, mode: int, factors: Sequence[NDArray[Any] | None]) -> Matrix:
        """Return the products of the rows of all modes but one, for each nonzero."""
        self._look(factors)
        if self._rest is None or self._rest[0] != mode:
            first, *others = (m for m in range(self._last + 1) if m != mode)
            found = np.take(self._factor(first), self.columns[first], axis=0)
            for m in others:
                found *= np.take(self._factor(m), self.columns[m], axis=0)
            self._rest = mode, found
        return self._rest[1]

    def _look(self, factors: Sequence[NDArray[Any] | None]) -> None:
        """Take the factor matrices; drop what was computed of those that have changed."""
        for m, factor in enumerate(factors):
            known = self._known[m]
            if factor is None or (known is not None and np.array_equal(known, factor)):
                continue
            self._known[m] = np.array(factor, np.float64, order="C")
            if self._rest is not None and self._rest[0] != m:
                self._rest = None
            for level in range(min(m, self._last)):
                self._below[level] = None
            for level in range(m, self._last):
                self._path[level] = None

    def _factor(self, mode: int) -> Matrix:
        found = self._known[mode]
        assert found is not None
        return found

    def _contracted(self, level: int) -> Matrix:
        """Return the sums over the nonzeros below each node, times the rows of the modes below."""
        found = self._below[level]
        if found is None and level == self._last - 1:
            found = self._leaves @ self._factor(self._last)
        elif found is None:
            below = np.take(self._factor(level + 1), self._indices[level + 1], axis=0)
            below *= self._contracted(level + 1)
            found = self._sums[level] @ below
        self._below[level] = found
        return found

    def _product(self, level: int) -> Matrix:
        """Return the product of the rows of the modes down to each node."""
        found = self._path[level]
        if found is None:
            found = np.take(self._factor(level), self._indices[level], axis=0)
            if level:
                found *= np.take(self._product(level - 1), self._parents[level - 1], axis=0)
        self._path[level] = found
        return found


def _starts(columns: Sequence[NDArray[Any]]) -> list[NDArray[np.int64]]:
    """Return where the nodes of each level begin."""
    found, differs = list[NDArray[np.int64]](), np.zeros(max(0, columns[0].size - 1), bool)
    for column in columns[:-1]:
        differs = differs | (column[1:] != column[:-1])
        found.append(np.concatenate([[0], np.flatnonzero(differs) + 1]))
    return [*found, np.arange(columns[0].size)]


def _products(own: Matrix, rows: NDArray[Any], others: Matrix) -> NDArray[np.float64]:
    """Return the inner product of a row of `own` with what it is multiplied with, for each nonzero."""
    found: NDArray[np.float64] = np.einsum("pr,pr->p", np.take(own, rows, axis=0), others)
    return found


def _kronecker(one: Any, other: Any) -> Matrix:
    """Return the Kronecker product of each row of a matrix with that of another."""
    found: Matrix = (one[:, :, None] * other[:, None, :]).reshape(len(one), -1)
    return found


def _sum_over(ends: NDArray[Any]) -> Any:
    """Return the matrix that adds up rows between ends."""
    count = int(ends[-1])
    parts = np.ones(count), np.arange(count, dtype=POSITION), ends
    return csr_array(parts, shape=(ends.size - 1, count))


def _into_rows(indices: NDArray[Any], length: int) -> Any:
    """Return the matrix that adds each row to the one of its index."""
    parts = np.ones(indices.size), indices, np.arange(indices.size + 1, dtype=POSITION)
    return csc_array(parts, shape=(length, indices.size))
