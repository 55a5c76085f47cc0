"""Inverses of the small matrices of CP-ALS, with NumPy or CuPy, and new divisors for columns out of range."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from ..device import Array
from ..ops.equations import ACCURACY, CONDITION, CUTOFF, Terms

VANISHED = 1e-30  # components shorter than this fraction of the longest one are negligible


def noise_limit(terms: Terms, fit: float) -> float:
    """Return the largest condition number for which single precision suffices after an iteration with this fit."""
    return terms.noise * (1.0 if np.isnan(fit) else max(1 - fit, ACCURACY))


def widened(largest: Any, divisor: Any) -> Any:
    """Return new divisors for columns whose largest stored magnitudes are out of range.

    They differ from `divisor` by powers of two, so that division does not affect rounding. Components that are
    negligible compared with the others are not enlarged: their scales would decrease from mode to mode down to 0.
    """
    lengths = largest * divisor
    grown = divisor * np.exp2(np.round(np.log2(np.where(largest > 0, largest, 1.0))))
    return np.where(lengths > VANISHED * lengths.max(), grown, 1.0)


def inverted(gram: Array, most: float, xp: ModuleType) -> tuple[Array, float]:
    """Return the (pseudo-)inverse of a positive semidefinite matrix, and its condition number or an upper bound.

    Condition numbers above `most` are exact.
    """
    try:
        inverse = xp.linalg.inv(gram)
    except np.linalg.LinAlgError:
        return pseudo_inverse(gram, CUTOFF, xp)
    condition = float(xp.linalg.norm(gram) * xp.linalg.norm(inverse))
    if condition <= min(CONDITION, most):
        return (inverse + inverse.T) / 2, condition
    return pseudo_inverse(gram, CUTOFF, xp)


def pseudo_inverse(gram: Array, cutoff: float, xp: ModuleType = np) -> tuple[Array, float]:
    """Return the Moore-Penrose inverse of a symmetric positive semidefinite matrix, and its condition number.

    It gives the minimum-norm solution of rank-deficient least-squares problems, without NaN. Eigenvalues below
    `cutoff` times the largest count as 0: the rounding errors of an inverse that is 1e15 times as large as the matrix
    would change all components of a solution noticeably, not only those along small eigenvalues.
    """
    values, vectors = xp.linalg.eigh(gram)  # ascending
    kept = values > cutoff * values[-1]
    values, vectors = values[kept], vectors[:, kept]
    return (vectors / values) @ vectors.T, float(values[-1] / values[0]) if values.size else 1.0
