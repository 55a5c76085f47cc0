"""The rows of a factor matrix while a model is updated: an update reads and writes only the rows of its elements."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import FloatDType, Floats

from ..backend.rows import blocks_of
from ..methods.incremental import RowTotals
from ..models.columns import column_norms

Matrix = NDArray[np.float64]
Places = NDArray[np.int64]

WELL = 1e4  # condition number up to which the common factor of the rows is postponed
BLOCK = 1 << 13  # rows that are converted at a time, so that caches hold them
MOST = 256  # changes of all rows that are postponed, at most


class ModelRows:
    """Rows as stored, times a common (R, R) matrix: a change of all rows costs as little as that of the matrix.

    Parameters
    ----------
    rows : (I, R) array
    dtype : dtype
        Of the stored rows.
    weights : (I,) array
        In sums over rows.
    """

    def __init__(self, rows: Floats, dtype: FloatDType, weights: Matrix) -> None:
        self._rows, self._weights = np.array(rows, dtype, order="C"), np.array(weights)
        self._factor: Matrix = np.eye(rows.shape[1])
        self._inverse: Matrix = np.eye(rows.shape[1])
        self._count, self._changes, self._forgotten = len(rows), 0, bool((self._weights != 1).any())
        self.sums = self._summed()

    def __len__(self) -> int:
        return self._count

    @property
    def weights(self) -> Matrix:
        """The weights of the rows."""
        return self._weights[: self._count]

    def _summed(self) -> RowTotals:
        rank = len(self._factor)
        gram, sums = np.zeros((rank, rank)), np.zeros(rank)
        for block in blocks_of(self._count, BLOCK):
            rows, weights = self._rows[block].astype(np.float64, copy=False), self.weights[block]
            gram += (rows.T * weights if self._forgotten else rows.T) @ rows
            sums += weights @ rows
        return RowTotals(gram, sums)

    def norms(self, norm: int, signed: bool) -> Matrix:
        """Return the 1-norms or 2-norms of the columns; `signed`: entries may be negative."""
        if self._forgotten or (norm == 1 and signed):
            return column_norms(self.matrix(np.eye(len(self._factor))), norm)
        return np.sqrt(np.maximum(np.diag(self.sums.gram), 0)) if norm == 2 else np.maximum(self.sums.sums, 0)

    def scale(self, numbers: Matrix) -> None:
        """Multiply the columns by numbers."""
        self._multiply(np.diag(numbers))
        self.sums = self.sums.changed(np.diag(numbers))

    def take(self, places: Places) -> tuple[Matrix, RowTotals]:
        """Return the rows at distinct places, and the sums over the other rows."""
        if not places.size:
            return np.empty((0, len(self._factor))), self.sums
        rows = self._rows[places].astype(np.float64) @ self._factor
        if places.size == self._count:
            return rows, self.sums.times(0.0)
        own = RowTotals.of(rows, self._weights[places])
        return rows, self.sums.plus(own.times(-1.0))

    def forget(self, forgetting: float) -> None:
        """Multiply all weights by a number."""
        if forgetting < 1:
            self._forgotten = True
            self.weights[...] *= forgetting
            self.sums = self.sums.times(forgetting)

    def replace(self, places: Places, known: Matrix, new: Matrix, others: RowTotals, change: Matrix | None) -> None:
        """Multiply all rows by `change`, then set those at some places and append new ones; their weights become 1.

        `others` are the sums over rows at other places before the change.
        """
        if change is not None:
            self._multiply(change)
            others = others.changed(change)
        self._lengthen(self._count + len(new))
        written = np.concatenate([places, np.arange(self._count - len(new), self._count)])
        rows = np.concatenate([known, new])
        self._rows[written], self._weights[written] = rows @ self._inverse, 1.0
        self.sums = others.plus(RowTotals.of(rows, np.ones(len(rows))))

    def _multiply(self, change: Matrix) -> None:
        """Multiply all rows by a matrix, later if possible."""
        self._factor, self._changes = self._factor @ change, self._changes + 1
        try:
            self._inverse = np.linalg.inv(self._factor).astype(np.float64, copy=False)
            condition = float(np.linalg.norm(self._factor) * np.linalg.norm(self._inverse))
        except np.linalg.LinAlgError:
            condition = np.inf
        if condition > WELL * len(self._factor) or self._changes > MOST:
            self._rows[: self._count] = self.matrix(np.eye(len(self._factor)))
            self._factor = self._inverse = np.eye(len(self._factor))
            self._changes = 0

    def _lengthen(self, count: int) -> None:
        if count > len(self._rows):
            room = max(count, 2 * len(self._rows)) if count < self._count + len(self._rows) else count
            rows, weights = np.zeros((room, len(self._factor)), self._rows.dtype), np.ones(room)
            rows[: self._count], weights[: self._count] = self._rows[: self._count], self.weights
            self._rows, self._weights = rows, weights
        self._count = count

    def matrix(self, change: Matrix) -> Floats:
        """Return all rows times a matrix, in the stored type."""
        result, total = np.empty((self._count, len(change)), self._rows.dtype), self._factor @ change
        for block in blocks_of(self._count, BLOCK):
            result[block] = self._rows[: self._count][block].astype(np.float64, copy=False) @ total
        return result
