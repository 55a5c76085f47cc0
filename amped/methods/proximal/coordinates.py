"""Coordinate descent for one mode whose constraints concern each element by itself: bounds, L1, L2, fixed elements.

One column after the other becomes optimal with the other columns fixed, as in HALS (Cichocki and Phan, Fast local
algorithms for large scale nonnegative matrix and tensor factorizations, 2009). No step increases the objective, and
rows are independent of each other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...backend.rows import blocks_of
from .equations import SharedGram
from .projections import shrunk
from .terms import ModeTerms

SWEEPS = 5  # over the columns
BLOCK = 1 << 16  # numbers of rows that are in a core's cache together

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]


class _Column(NamedTuple):
    """A column, which becomes its `offset` plus the coefficients times all columns, and is then shrunk and bounded.

    Attributes
    ----------
    values, offset : (rows,) array
    coefficients : (R,) array
    threshold : float
        Of the L1 penalty; it is part of `offset` if no entry is negative.
    fixed : (rows,) bool array or None
        Elements that keep their values.
    """

    values: Vector
    offset: Vector
    coefficients: Vector
    threshold: float
    fixed: NDArray[np.bool_] | None


def suits(terms: ModeTerms) -> bool:
    """Return whether the constraints and penalties concern each element by itself."""
    related = terms.shape or terms.ball or terms.smooth or terms.function is not None
    return not related and not terms.free


def descended(equations: SharedGram, terms: ModeTerms, start: Matrix, fixed: NDArray[np.bool_] | None = None) -> Matrix:
    """Return rows whose objective is at most that of `start`, (rows, R); `fixed` elements keep its values."""
    gram, rank = equations.gram, len(equations.gram)
    pivots = gram.diagonal() + terms.l2
    live = np.flatnonzero(pivots > 0).tolist()
    inverses = 1 / np.where(pivots > 0, pivots, 1.0)
    coefficients = gram * -inverses[:, None]
    np.fill_diagonal(coefficients, 0.0)
    thresholds = terms.l1 * inverses
    early = thresholds if terms.low >= 0 else np.zeros(rank)
    result = np.empty_like(start)
    for block in blocks_of(len(start), max(1, BLOCK // rank)):
        rows = np.array(start[block].T, order="C")
        offsets = equations.source[block].T * inverses[:, None]
        offsets -= early[:, None]
        kept = None if fixed is None else fixed[block].T
        columns = [
            _Column(rows[r], offsets[r], coefficients[r], float(thresholds[r]), None if kept is None else kept[r])
            for r in live
        ]
        _sweep(columns, rows, terms)
        result[block] = rows.T
    return result


def _sweep(columns: list[_Column], rows: Matrix, terms: ModeTerms) -> None:
    """Update columns, which are those of the transposed `rows`, in place."""
    low, high, found = terms.low, terms.high, np.empty(rows.shape[1])
    for _ in range(SWEEPS):
        for column in columns:
            np.dot(column.coefficients, rows, found)
            found += column.offset
            shrunken = found if low >= 0 else shrunk(found, column.threshold, terms)
            if high < np.inf:
                shrunken = np.minimum(shrunken, high)
            if column.fixed is None:
                np.maximum(shrunken, low, out=column.values)
            else:
                np.copyto(column.values, np.maximum(shrunken, low), where=~column.fixed)
