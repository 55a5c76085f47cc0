"""Inverses of the small matrices of CP-ALS, with NumPy or CuPy, and the divisors of columns out of range."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..device import Array
from ..ops.equations import ACCURACY, CONDITION, CUTOFF, Terms

VANISHED = 1e-30  # of the longest component: shorter ones are of no consequence


def noise_limit(terms: Terms, fit: float) -> float:
    """Return up to which condition number single precision suffices after an iteration with that fit."""
    return terms.noise * (1.0 if np.isnan(fit) else max(1 - fit, ACCURACY))


def widened(largest: Any, divisor: Any) -> Any:
    """Return what columns are to be divided by whose largest stored numbers were out of range.

    It differs from `divisor` by powers of two: so rows are rounded as if they were not divided. A component that has
    all but vanished beside the others is not enlarged: its scale would fall from mode to mode until it is 0.
    """
    lengths = largest * divisor
    grown = divisor * np.exp2(np.round(np.log2(np.where(largest > 0, largest, 1.0))))
    return np.where(lengths > VANISHED * lengths.max(), grown, 1.0)


def inverted(gram: Array, most: float, xp: Any) -> tuple[Array, float]:
    """Return the (pseudo-)inverse of a positive semidefinite matrix, and its condition number or a larger number.

    It is exact where it is above `most`.
    """
    try:
        inverse = xp.linalg.inv(gram)
    except np.linalg.LinAlgError:
        return pseudo_inverse(gram, CUTOFF, xp)
    condition = float(xp.linalg.norm(gram) * xp.linalg.norm(inverse))
    if condition <= min(CONDITION, most):
        return (inverse + inverse.T) / 2, condition
    return pseudo_inverse(gram, CUTOFF, xp)


def pseudo_inverse(gram: Array, cutoff: float, xp: Any = np) -> tuple[Array, float]:
    """Return the Moore-Penrose inverse of a symmetric positive semidefinite matrix, and its condition number.

    It solves rank-deficient least squares with the smallest norm, so that nothing becomes NaN. Eigenvalues below
    `cutoff` times the largest count as 0. Rounding of an inverse whose numbers are 1e15 as large as those of the matrix
    changes all components of a solution by tenths, not only those along the small eigenvalues.
    """
    values, vectors = xp.linalg.eigh(gram)  # ascending
    kept = values > cutoff * values[-1]
    values, vectors = values[kept], vectors[:, kept]
    return (vectors / values) @ vectors.T, float(values[-1] / values[0]) if values.size else 1.0
