"""Proximal operators and penalties of a mode's constraints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .projections import project
from .terms import ModeTerms

Matrix = NDArray[np.float64]
Block = Callable[[Matrix, float], Matrix]
"""Takes a matrix and a step."""
NO_STEP = 1e-8  # with which a proximal operator hardly changes a matrix that meets the constraints


class Proximal:
    """The constraints of a mode, except for the ridge `ModeTerms.l2`, as a sum of functions with proximal operators.

    Attributes
    ----------
    blocks : list of callables
        The proximal operators; the results of the first one meet the constraints. Empty for least squares.
    """

    def __init__(self, terms: ModeTerms) -> None:
        self.terms = terms
        self.blocks: list[Block] = []
        if not replace(terms, smooth=0.0, order=1).free:
            self.blocks.append(self.primary)
        if terms.smooth:
            self.blocks.append(self._smoothed)

    def projected(self, matrix: Matrix) -> Matrix:
        """Return the matrix that the run starts from instead of `matrix`: one that meets the constraints."""
        return self._users(matrix, NO_STEP) if self.terms.function is not None else project(matrix, self.terms)

    def penalty(self, matrix: Matrix) -> float:
        """Return the penalty of rows, or of a whole matrix."""
        terms, result = self.terms, 0.0
        if terms.function is not None:
            of_users = getattr(terms.function, "penalty", None)
            return 0.0 if of_users is None else float(of_users(matrix))
        if terms.l1:
            result += terms.l1 * float(np.abs(matrix).sum())
        if terms.l2:
            result += terms.l2 / 2 * float(np.vdot(matrix, matrix))
        if terms.smooth:
            differences = np.diff(matrix, terms.order, axis=0)
            result += terms.smooth / 2 * float(np.vdot(differences, differences))
        return result

    @property
    def curvature(self) -> float:
        """The largest second derivative of the penalty on differences."""
        return float(self.terms.smooth * 4**self.terms.order)

    def gradient(self, matrix: Matrix) -> Matrix | float:
        """Return the gradient of the penalty on differences."""
        terms = self.terms
        if not terms.smooth or len(matrix) <= terms.order:
            return 0.0
        padded = np.pad(np.diff(matrix, terms.order, axis=0), ((terms.order, terms.order), (0, 0)))
        result: Matrix = terms.smooth * (-1) ** terms.order * np.diff(padded, terms.order, axis=0)
        return result

    def primary(self, matrix: Matrix, step: float) -> Matrix:
        """Return the proximal operator of everything but the penalty on differences and the ridge."""
        terms = self.terms
        if terms.function is not None:
            return self._users(matrix, step)
        if terms.l1 and terms.low >= 0:
            matrix = matrix - step * terms.l1
        elif terms.l1:
            matrix = np.sign(matrix) * np.maximum(np.abs(matrix) - step * terms.l1, 0.0)
        return project(matrix, terms)

    def _smoothed(self, matrix: Matrix, step: float) -> Matrix:
        """Solve ``(I + step smooth D'D) Z = matrix``."""
        from scipy.linalg import solveh_banded

        if len(matrix) <= self.terms.order:
            return matrix.copy()
        bands = step * self.terms.smooth * difference_bands(len(matrix), self.terms.order)
        bands[0] += 1.0
        result: Matrix = solveh_banded(bands, matrix, lower=True)
        return result

    def _users(self, matrix: Matrix, step: float) -> Matrix:
        terms, result = self.terms, np.empty(0)
        assert terms.function is not None
        found: Any = terms.function(matrix.copy(), step)
        try:
            result = np.array(found, np.float64)
        except (TypeError, ValueError):
            raise InputError(f"constraint {terms.names[0]}: its result is no matrix: {type(found).__name__}") from None
        if result.shape != matrix.shape or not np.isfinite(result).all():
            cause = "not finite" if result.shape == matrix.shape else f"of shape {result.shape}, not {matrix.shape}"
            raise InputError(f"constraint {terms.names[0]}: its result is {cause}")
        return result


def difference_bands(length: int, order: int) -> Matrix:
    """Return the diagonals of D'D, the main one first, as `scipy.linalg.solveh_banded` takes them."""
    stencil = np.array([1.0, -1.0] if order == 1 else [1.0, -2.0, 1.0])
    bands = np.zeros((order + 1, length))
    for offset in range(order + 1):
        for k in range(order + 1 - offset):
            bands[offset, k : k + length - order] += stencil[k] * stencil[k + offset]
    return bands
