"""Similarity of CP components: within one model, and between two models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats
from partitioner.host.imports import scipy_module

Factors = Sequence[Floats]
ROWS = 1 << 16  # rows converted to double precision at once


def factor_match(one: Factors, other: Factors) -> float:
    """Return the factor match score of two models of one tensor: from 0, nothing in common, to 1, the same components.

    Components are matched one to one so that the sum of their congruences is largest; the score is the mean of these
    over the components of the smaller model. A congruence is the product over the modes of the magnitudes of the
    cosines between columns (Tomasi and Bro 2006, without the term of the weights).
    """
    alike = np.ones((one[0].shape[1], other[0].shape[1]))
    for first, second in zip(one, other, strict=True):
        alike *= np.abs(cosines(first, second))
    if not alike.size:
        return 0.0
    return float(np.mean([alike[pair] for pair in assigned(alike)]))


def assigned(alike: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Return the pairs of rows and columns, one to one, whose entries have the largest sum."""
    assert np.isfinite(alike).all()
    positive = scipy_module("sparse").csr_array(alike - alike.min() + 1)  # zeros would be missing edges
    matching = scipy_module("sparse.csgraph")  # scipy.optimize takes longer to import
    rows, columns = matching.min_weight_full_bipartite_matching(positive, maximize=True)
    return sorted(zip(rows.tolist(), columns.tolist(), strict=True))


def cosines(one: Floats, other: Floats) -> NDArray[np.float64]:
    """Return the cosine of each column of one matrix with each column of another; 0 for columns of zeros."""
    product: NDArray[np.float64] = _units(one).T @ _units(other)
    return product


def congruences(factors: Factors) -> NDArray[np.float64]:
    """Return the congruence of each pair of components of a model, (R, R).

    The congruence (Tucker) is the product over the modes of the cosines between the columns: 1 for equal components, 0
    for orthogonal ones, and -1 for components that are equal but for their sign, which cancel each other.
    """
    products = np.ones((factors[0].shape[1],) * 2)
    for factor in factors:
        parts = (factor[at : at + ROWS].astype(np.float64) for at in range(0, len(factor), ROWS))
        gram = sum((part.T @ part for part in parts), np.zeros_like(products))
        lengths = np.sqrt(np.diag(gram))
        products *= gram / np.outer(*[np.where(lengths > 0, lengths, 1)] * 2)
    return products


def _units(factor: Floats) -> NDArray[np.float64]:
    """Scale the columns to unit 2-norm; columns of zeros stay zero."""
    exact = factor.astype(np.float64)
    lengths = np.linalg.norm(exact, axis=0)
    units: NDArray[np.float64] = exact / np.where(lengths > 0, lengths, 1)
    return units
