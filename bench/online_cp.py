"""OnlineCP (Zhou, Vinh, Bailey, Jia and Davidson, KDD 2016) in NumPy and SciPy, for sparse slices of the last mode."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import mul

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

Matrix = NDArray[np.float64]
Elements = tuple[NDArray[np.int64], Matrix]
"""Indices, (order, n), and values."""


class OnlineCP:
    """A model whose last mode grows; see Algorithm 1 of the paper.

    Parameters
    ----------
    factors : sequence of (I_n, R) arrays
        A model of the first slices, without weights.
    first : Elements
        The first slices.
    """

    def __init__(self, factors: Sequence[Matrix], first: Elements) -> None:
        *self.factors, rows = (np.array(factor, np.float64) for factor in factors)
        self.rows = [rows]
        grams = [factor.T @ factor for factor in [*self.factors, rows]]
        self._sums = [mttkrp(first, [*self.factors, rows], mode) for mode in range(len(self.factors))]
        self._grams = [_product(grams, mode) for mode in range(len(self.factors))]

    def add(self, new: Elements, slices: int) -> None:
        """Append slices, whose indices in the last mode are counted from 0."""
        grams = [factor.T @ factor for factor in self.factors]
        none = np.zeros((slices, len(grams[0])))
        rows = mttkrp(new, [*self.factors, none], len(grams)) @ np.linalg.pinv(_product(grams))
        own = rows.T @ rows
        updated = []
        for mode, factor in enumerate(self.factors):
            self._sums[mode] = self._sums[mode] + mttkrp(new, [*self.factors, rows], mode)
            self._grams[mode] = self._grams[mode] + own * _product(grams, mode)
            updated.append(self._sums[mode] @ np.linalg.pinv(self._grams[mode]))
            assert factor.shape == updated[-1].shape
        self.factors = updated
        self.rows.append(rows)


def mttkrp(elements: Elements, factors: Sequence[Matrix], mode: int) -> Matrix:
    """Return the MTTKRP of a list of elements."""
    columns, values = elements
    products = np.repeat(values[:, None], factors[0].shape[1], axis=1)
    for m, factor in enumerate(factors):
        if m != mode:
            products *= factor[columns[m]]
    ones = np.ones(values.size)
    summing = csr_array((ones, (columns[mode], np.arange(values.size))), shape=(len(factors[mode]), values.size))
    result: Matrix = summing @ products
    return result


def _product(grams: Sequence[Matrix], without: int | None = None) -> Matrix:
    """Return the elementwise product of Gram matrices."""
    return reduce(mul, (gram for mode, gram in enumerate(grams) if mode != without))
