"""The rows of the slices that a model has so far, while it is updated with further ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..methods.incremental import EarlierSlices

Matrix = NDArray[np.float64]

AT_MOST = 256  # updates whose changes of the earlier rows are postponed


class SliceRows:
    """Rows of slices and their weights. Changes of all rows by (R, R) matrices are postponed, so that they cost little.

    Parameters
    ----------
    rows : (n, R) array
    weights : (n,) array
        The weight of each slice after forgetting.
    """

    def __init__(self, rows: Matrix, weights: Matrix) -> None:
        self._rows, self._weights = [rows], [weights]
        self._changes = list[Matrix]()  # that of the rows in `_rows[:k + 1]` is at k
        self._sums = EarlierSlices.of(rows, weights)
        self._count = len(rows)

    def __len__(self) -> int:
        return self._count

    @property
    def sums(self) -> EarlierSlices:
        """The sums over all rows, weighted."""
        return self._sums

    def settle(self) -> tuple[Matrix, Matrix]:
        """Return all rows and weights, after the postponed changes."""
        change, rows = np.eye(self._rows[0].shape[1]), [self._rows[-1]]
        for each, later in zip(reversed(self._rows[:-1]), reversed(self._changes), strict=True):
            change = later @ change
            rows.append(each @ change)
        self._rows, self._weights = [np.concatenate(rows[::-1])], [np.concatenate(self._weights)]
        self._changes.clear()
        return self._rows[0], self._weights[0]

    def take(self, places: NDArray[np.int64]) -> tuple[Matrix, EarlierSlices]:
        """Return the rows at some places, and the sums over the others."""
        if not places.size:
            return np.zeros((0, self._rows[0].shape[1])), self._sums
        rows, weights = self.settle()
        others = np.ones(len(rows), bool)
        others[places] = False
        return rows[places], EarlierSlices.of(rows[others], weights[others])

    def forget(self, forgetting: float) -> None:
        """Multiply all weights by a number."""
        if forgetting < 1:
            for weights in self._weights:
                weights *= forgetting
            self._sums = EarlierSlices(*(forgetting * each for each in self._sums))

    def replace(
        self, places: NDArray[np.int64], known: Matrix, new: Matrix, earlier: EarlierSlices, change: Matrix | None
    ) -> None:
        """Set the rows at some places to `known` ones, append `new` ones, and change the others, all after an update.

        `earlier` are the sums over the others before the change. The weights of known and new rows become 1.
        """
        if change is not None:
            earlier = EarlierSlices(change.T @ earlier.gram @ change, earlier.sums @ change)
        if places.size:
            rows, weights = self.settle()
            changed = rows if change is None else rows @ change
            changed[places], weights[places] = known, 1.0
            self._rows, change = [changed], None
        current = EarlierSlices.of(np.vstack([known, new]), np.ones(len(known) + len(new)))
        self._sums = EarlierSlices(*(one + other for one, other in zip(earlier, current, strict=True)))
        self._changes.append(np.eye(new.shape[1]) if change is None else change)
        self._rows.append(new)
        self._weights.append(np.ones(len(new)))
        self._count += len(new)
        if len(self._changes) > AT_MOST:
            self.settle()
