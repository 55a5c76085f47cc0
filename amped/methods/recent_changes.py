"""Recent changes of a search by L-BFGS-B, and the quadratic model that follows from them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..backend.ops.lbfgs import PAIRS, LbfgsVectors, Matrix, Point, PointChange

CURVED = 2e-16  # least curvature of a pair of changes, relative to the squared change of the gradient


class QuadraticModel(NamedTuple):
    """The Hessian of a quadratic model of the objective: ``theta I - W middle W^T``.

    Attributes
    ----------
    theta : float
    vectors : (rows, n) array
        W^T: changes of the gradient and steps in turn. A pair may be unused.
    middle : (rows, rows) array
    grams : (rows, rows) array
        ``W^T W``.
    """

    theta: float
    vectors: Matrix
    middle: Matrix
    grams: Matrix


class RecentChanges:
    """The recent steps of a search and the changes of the gradient, with their inner products.

    The next pass over the vectors writes a new pair.

    Parameters
    ----------
    passes : LbfgsVectors

    Attributes
    ----------
    model : QuadraticModel or None
        The model of these changes, in the compact form of Byrd, Nocedal and Schnabel (1994); None if there are none.
    coming : PointChange or None
        The new pair, if it has not been written yet.
    """

    def __init__(self, passes: LbfgsVectors) -> None:
        self._passes, self._grams = passes, np.zeros((2 * PAIRS, 2 * PAIRS))
        self._vectors: Matrix | None = None  # of a pair in two rows, the change of the gradient first
        self.forget()

    def forget(self) -> None:
        """Discard the changes."""
        self._slots = list[int]()  # of the pairs, the oldest first
        self._rows = 0
        self.coming: PointChange | None = None
        self.model: QuadraticModel | None = None

    @property
    def exist(self) -> bool:
        """Whether there are changes."""
        return bool(self._slots)

    @property
    def vectors(self) -> Matrix:
        """The vectors in use, (rows, n), including those of a new pair."""
        if self._vectors is None:
            self._vectors = self._passes.empty(2 * PAIRS)
        return self._vectors[: self._rows]

    def add(self, point: Point, new: Point) -> None:
        """Add the change from a point to another one, which replaces the oldest if there are `PAIRS`."""
        slot = self._slots.pop(0) if len(self._slots) == PAIRS else min(set(range(PAIRS)) - {*self._slots})
        self._slots.append(slot)
        self._rows, self.coming = max(self._rows, 2 * slot + 2), PointChange(2 * slot, point, new)

    def complete(self, products: Matrix) -> None:
        """Take the inner products of all vectors with those of a new pair, (rows, 2), if there is one.

        The pair is discarded if the gradient's change has no positive curvature.
        """
        if self.coming is None:
            return
        first, self.coming = self.coming.row, None
        self._grams[: self._rows, first : first + 2] = products
        self._grams[first : first + 2, : self._rows] = products.T
        if not self._grams[first, first + 1] > CURVED * self._grams[first, first]:
            self._slots.pop()
        self.model = self._built() if self._slots else None

    def _built(self) -> QuadraticModel:
        changes, steps = 2 * np.array(self._slots), 2 * np.array(self._slots) + 1
        grams, last = self._grams[: self._rows, : self._rows].copy(), changes[-1]
        theta = float(grams[last, last] / grams[last, last + 1])
        mixed = grams[np.ix_(steps, changes)]
        lower = np.tril(mixed, -1) / theta
        inverse = np.block([[-np.diag(np.diag(mixed)), lower.T], [lower, grams[np.ix_(steps, steps)] / theta]])
        middle, places = np.zeros_like(grams), np.concatenate([changes, steps])
        middle[np.ix_(places, places)] = np.linalg.inv(inverse)
        return QuadraticModel(theta, self.vectors, middle, grams)
