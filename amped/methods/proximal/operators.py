"""Proximal operators and penalties of a mode's constraints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.host.imports import scipy_module

from ...backend.device import Array
from ...backend.ops.admm_steps import EntryTerms
from ...errors import InputError
from .arrays import HOST, Arrays
from .projections import project, shrunk
from .terms import ModeTerms

Matrix = NDArray[np.float64]
Block = Callable[[Array, Any], Array]
"""Takes a matrix and a step."""
NO_STEP = 1e-8  # with which a proximal operator hardly changes a matrix that meets the constraints


class Proximal:
    """The constraints of a mode, except for the ridge `ModeTerms.l2`, as a sum of functions with proximal operators.

    Parameters
    ----------
    terms : ModeTerms
    arrays : Arrays
        Those of the matrices.
    fixed : (rows, R) bool array, optional
        Elements that keep the values of `hold`.

    Attributes
    ----------
    fixed : (rows, R) bool array or None
        See the parameter.
    blocks : list of callables
        The proximal operators; the results of the first one meet the constraints. Empty for least squares.
    """

    def __init__(self, terms: ModeTerms, arrays: Arrays = HOST, fixed: Array = None) -> None:
        self.terms, self.arrays, self.fixed = terms, arrays, fixed
        self._values: Array = None
        self.blocks: list[Block] = []
        if not replace(terms, smooth=0.0, order=1).free:
            self.blocks.append(self.primary)
        if terms.smooth:
            self.blocks.append(self.smoothed)

    def entries(self, step: Any) -> EntryTerms | None:
        """Return the first proximal operator if it is one of entries."""
        terms = self.terms
        if terms.shape or terms.function is not None or self.fixed is not None or self.blocks[:1] != [self.primary]:
            return None
        return EntryTerms(terms.low, terms.high, step * terms.l1, terms.ball)

    def hold(self, matrix: Array) -> None:
        """Take the values of the fixed elements from a matrix."""
        self._values = matrix if self.fixed is not None else None

    def projected(self, matrix: Array) -> Array:
        """Return the matrix that the run starts from instead of `matrix`: one that meets the constraints."""
        self.hold(matrix)
        if self.terms.function is not None:
            return self._users(matrix, NO_STEP)
        return self._with_fixed(project(matrix, self.terms, self.arrays))

    def penalty(self, matrix: Array) -> Any:
        """Return the penalty of rows, or of a whole matrix, as a number on the device."""
        terms, result, arrays = self.terms, 0.0, self.arrays
        if terms.function is not None:
            of_users = getattr(terms.function, "penalty", None)
            return 0.0 if of_users is None else float(of_users(matrix))
        if terms.l1:
            result += terms.l1 * abs(matrix).sum()
        if terms.l2:
            result += terms.l2 / 2 * arrays.square(matrix)
        if terms.smooth:
            result += terms.smooth / 2 * arrays.square(arrays.xp.diff(matrix, terms.order, axis=0))
        return result

    @property
    def curvature(self) -> float:
        """The largest second derivative of the penalty on differences."""
        return float(self.terms.smooth * 4**self.terms.order)

    def gradient(self, matrix: Array) -> Array | float:
        """Return the gradient of the penalty on differences."""
        terms, xp = self.terms, self.arrays.xp
        if not terms.smooth or len(matrix) <= terms.order:
            return 0.0
        padded = xp.pad(xp.diff(matrix, terms.order, axis=0), ((terms.order, terms.order), (0, 0)))
        return terms.smooth * (-1) ** terms.order * xp.diff(padded, terms.order, axis=0)

    def primary(self, matrix: Array, step: Any) -> Array:
        """Return the proximal operator of everything but the penalty on differences and the ridge.

        `step` is a number, or a column of one for each row if the constraints do not relate rows.
        """
        terms = self.terms
        if terms.function is not None:
            return self._users(matrix, step)
        matrix = shrunk(matrix, step * terms.l1, terms, self.arrays.xp)
        return self._with_fixed(project(matrix, terms, self.arrays))

    def smoothed(self, matrix: Array, step: float) -> Array:
        """Solve ``(I + step smooth D'D) Z = matrix``."""
        order = self.terms.order
        if len(matrix) <= order:
            return matrix.copy()
        if not self.arrays.on_host:
            return smoothed_by_fft(matrix, step * self.terms.smooth, order, self.arrays.xp)
        bands = step * self.terms.smooth * difference_bands(len(matrix), order)
        bands[0] += 1.0
        return scipy_module("linalg").solveh_banded(bands, matrix, lower=True)

    def _with_fixed(self, matrix: Array) -> Array:
        if self.fixed is None:
            return matrix
        assert self._values is not None
        return self.arrays.xp.where(self.fixed, self._values, matrix)

    def _users(self, matrix: Array, step: float) -> Array:
        terms, xp = self.terms, self.arrays.xp
        assert terms.function is not None
        where = f"constraint {terms.names[0]}: "
        try:
            returned = terms.function(matrix.copy(), step)
        except Exception as error:
            if not self.arrays.on_host:
                error.add_note(f"{where}on a GPU, the function takes CuPy arrays; on device 'cpu', NumPy arrays")
            raise
        try:
            result = xp.array(returned, np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"{where}its result is no matrix: {error}") from error
        if result.shape != matrix.shape:
            raise InputError(f"{where}its result is of shape {result.shape}, not {matrix.shape}")
        if not bool(xp.isfinite(result).all()):
            raise InputError(f"{where}its result is not finite")
        return result


def difference_bands(length: int, order: int) -> Matrix:
    """Return the diagonals of D'D, the main one first, as `scipy.linalg.solveh_banded` takes them."""
    stencil = np.array([1.0, -1.0] if order == 1 else [1.0, -2.0, 1.0])
    bands = np.zeros((order + 1, length))
    for offset in range(order + 1):
        for k in range(order + 1 - offset):
            bands[offset, k : k + length - order] += stencil[k] * stencil[k + offset]
    return bands


def smoothed_by_fft(matrix: Array, weight: float, order: int, xp: Any) -> Array:
    """Solve ``(I + weight D'D) Z = matrix`` for differences of order 1 or 2, of more than `order` rows.

    First differences of a matrix followed by its mirror image are periodic, so that the Fourier transform solves them.
    Second differences D lack two rows of the square of that operator; these are subtracted as in the formula of
    Woodbury.
    """
    length = len(matrix)
    right = matrix
    if order == 2:
        edges = xp.zeros((length, 2))
        edges[0, 0] = edges[length - 1, 1] = 1.0
        edges[1, 0] -= 1.0
        edges[length - 2, 1] -= 1.0
        right = xp.concatenate([matrix, edges], axis=1)
    frequencies = 2.0 - 2.0 * xp.cos(xp.pi * xp.arange(length + 1) / length)
    transformed = (
        xp.fft.rfft(xp.concatenate([right, right[::-1]]), axis=0) / (1.0 + weight * frequencies**order)[:, None]
    )
    solved = xp.fft.irfft(transformed, n=2 * length, axis=0)[:length]
    if order == 1:
        return xp.ascontiguousarray(solved)
    rows, corners = solved[:, :-2], solved[:, -2:]
    (a, b), (c, d) = xp.eye(2) - weight * (edges.T @ corners)
    inverse = xp.stack([xp.stack([d, -b]), xp.stack([-c, a])]) / (a * d - b * c)
    return rows + weight * corners @ (inverse @ (edges.T @ rows))
