"""The least-squares problems of a mode's rows: minimise ``-<b, z> + <z G, z> / 2`` for each row z.

G is the same for all rows if all elements of a tensor are known. Otherwise each row has its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...backend.device import Array
from ...backend.ops.equations import CONDITION

Matrix = NDArray[np.float64]

NEARLY_FREE = 1e-8  # part of the mean eigenvalue by which singular matrices are shifted
REPEATS = 3  # of a solution with shifted matrices


class Solve(NamedTuple):
    """Solves equations for rows, (rows, R): by a function, which multiplies them by `inverse` if that is not None."""

    function: Callable[[Array], Array]
    inverse: Array = None

    def __call__(self, right: Array) -> Array:
        return self.function(right)


class RowEquations(Protocol):
    """The problems of some rows.

    Attributes
    ----------
    source : (rows, R) array
        The vectors b, on the device.
    """

    source: Array

    def multiplied(self, rows: Array) -> Array:
        """Return the product of each row with its matrix."""

    def ridged(self, ridge: float) -> RowEquations:
        """Return the problems with `ridge` added to the matrices' diagonals."""

    def shifted(self, shift: Any, scale: Any) -> Solve:
        """Return a function that solves for `scale` times rows, (rows, R), with `shift` added to the diagonals."""

    def sizes(self) -> Any:
        """Return the mean eigenvalue of each matrix: a number if it is common, else a (rows, 1) array."""

    def bounds(self) -> Any:
        """Return an upper bound of the largest eigenvalue of each matrix, in the form of `sizes`."""

    def least_squares(self, start: Array) -> Array:
        """Return solutions: the shortest ones, or, of rows with their own matrices, those nearest to `start`."""


class SharedGram:
    """Rows with a common matrix; see `RowEquations`.

    Parameters
    ----------
    source : (rows, R) array
        On the device.
    gram : (R, R) array
        In host memory.
    xp : module
        That of the device's arrays.
    """

    def __init__(self, source: Array, gram: Matrix, xp: Any = np) -> None:
        self.source, self.gram, self._xp = source, gram, xp
        self._on_device = gram if xp is np else xp.asarray(gram)

    def multiplied(self, rows: Array) -> Array:
        return rows @ self._on_device

    def ridged(self, ridge: float) -> SharedGram:
        if not ridge:
            return self
        return SharedGram(self.source, self.gram + ridge * np.eye(len(self.gram)), self._xp)

    def shifted(self, shift: float, scale: float) -> Solve:
        """See `RowEquations`: with a shift of the size of the eigenvalues, the inverse is accurate."""
        matrix = self.gram.copy()
        matrix.reshape(-1)[:: len(matrix) + 1] += shift
        inverse = self._xp.asarray(np.ascontiguousarray(scale * np.linalg.inv(matrix)))
        return Solve(lambda right: right @ inverse, inverse)

    def sizes(self) -> float:
        return float(np.trace(self.gram)) / len(self.gram) or 1.0

    def bounds(self) -> float:
        return float(np.linalg.norm(self.gram, 2))

    def least_squares(self, start: Array) -> Array:
        return self.source @ self._xp.asarray(_pseudo_inverse(self.gram))


def _pseudo_inverse(matrix: Matrix) -> Matrix:
    """Return the inverse of a symmetric matrix, or its pseudo-inverse if it is nearly singular."""
    try:
        inverse: Matrix = np.asarray(np.linalg.inv(matrix), np.float64)
        if np.vdot(matrix, matrix) * np.vdot(inverse, inverse) <= CONDITION**2:
            return inverse
    except np.linalg.LinAlgError:
        pass
    return np.asarray(np.linalg.pinv(matrix, hermitian=True), np.float64)


class RowGrams:
    """Rows with their own matrices; see `RowEquations`.

    Parameters
    ----------
    source : (rows, R) array
    grams : (rows, R, R) array
        On the device, like `source`.
    xp : module
    """

    def __init__(self, source: Array, grams: Array, xp: Any = np) -> None:
        self.source, self._grams, self._xp = source, grams, xp
        self._each = xp.arange(grams.shape[1])

    @property
    def traces(self) -> Array:
        """The trace of each matrix, (rows, 1)."""
        return self._grams[:, self._each, self._each].sum(axis=1, keepdims=True)

    def multiplied(self, rows: Array) -> Array:
        return self._xp.matmul(self._grams, rows[:, :, None])[:, :, 0]

    def ridged(self, ridge: float) -> RowGrams:
        return RowGrams(self.source, self._moved(ridge), self._xp) if ridge else self

    def shifted(self, shift: Any, scale: Any) -> Solve:
        matmul, inverses = self._xp.matmul, self._xp.linalg.inv(self._moved(shift))
        inverses *= scale if isinstance(scale, float) else scale[:, :, None]
        return Solve(lambda right: matmul(inverses, right[:, :, None])[:, :, 0])

    def sizes(self) -> Array:
        sizes = self.traces / self._grams.shape[1]
        return self._xp.where(sizes > 0, sizes, 1.0)

    def bounds(self) -> Array:
        bounds = self._xp.sqrt(self._xp.square(self._grams).sum(axis=(1, 2)))[:, None]
        return self._xp.where(bounds > 0, bounds, 1.0)

    def least_squares(self, start: Array) -> Array:
        """See `RowEquations`: by the proximal point method, whose steps end near a solution of singular equations."""
        shift, rows = NEARLY_FREE * self.sizes(), start
        solve = self.shifted(shift, 1.0)
        for _ in range(REPEATS):
            rows = solve(self.source + shift * rows)
        return rows

    def _moved(self, shift: Any) -> Array:
        """Return the matrices with a number, or a (rows, 1) array, added to the diagonals."""
        grams = self._xp.array(self._grams)
        grams[:, self._each, self._each] += shift
        return grams
