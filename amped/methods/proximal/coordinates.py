"""Coordinate descent for one mode whose constraints concern each element by itself: bounds, L1, L2, fixed elements.

One column after the other becomes optimal with the other columns fixed, as in HALS (Cichocki and Phan, Fast local
algorithms for large scale nonnegative matrix and tensor factorizations, 2009). No step increases the objective, and
rows are independent of each other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...backend.rows import blocks_of
from .equations import SharedGram
from .projections import shrunk
from .terms import ModeTerms

SWEEPS = 5  # over the columns
BLOCK = 1 << 16  # numbers of rows that are in a core's cache together

Matrix = NDArray[np.float64]


Column = tuple[Matrix, Matrix, float, NDArray[np.bool_] | None]
"""A column, its coefficients, the threshold of the L1 penalty, and the elements that keep their values."""


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
    # A column becomes its coefficients times the columns and, below them, the right-hand sides.
    coefficients = np.zeros((rank, 2 * rank))
    np.multiply(gram, -inverses[:, None], out=coefficients[:, :rank])
    coefficients.reshape(-1)[:: 2 * rank + 1] = 0.0
    coefficients.reshape(-1)[rank :: 2 * rank + 1] = inverses
    thresholds = (terms.l1 * inverses).tolist()
    result = np.empty_like(start)
    for block in blocks_of(len(start), max(1, BLOCK // rank)):
        stack = np.concatenate([start[block].T, equations.source[block].T])
        held = None if fixed is None else fixed[block].T
        columns = [(stack[r], coefficients[r], thresholds[r], None if held is None else held[r]) for r in live]
        _sweep(columns, stack, terms)
        result[block] = stack[:rank].T
    return result


def _sweep(columns: list[Column], stack: Matrix, terms: ModeTerms) -> None:
    """Update columns, which are rows of `stack`, in place."""
    low, high, found = terms.low, terms.high, np.empty(stack.shape[1])
    for _ in range(SWEEPS):
        for column, coefficients, threshold, held in columns:
            np.dot(coefficients, stack, found)
            shrunken = shrunk(found, threshold, terms)
            if high < np.inf:
                shrunken = np.minimum(shrunken, high)
            if held is None:
                np.maximum(shrunken, low, out=column)
            else:
                np.copyto(column, np.maximum(shrunken, low), where=~held)
