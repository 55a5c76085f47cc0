"""The equations of many rows, against NumPy's least squares and SciPy's non-negative ones."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import nnls

from amped.backend.systems import Pairs, solve_systems

COUNTS = [0, 1, 3, 4, 9, 40]  # equations of each row


def equations(rank: int, scale: float = 1.0) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray, np.ndarray]:
    """Return the coefficients and values of each row, and the systems of their normal equations."""
    rng = np.random.default_rng(rank)
    pis = [rng.random((count, rank)) * scale ** rng.integers(-1, 2, rank) for count in COUNTS]
    values = [rng.standard_normal(count) for count in COUNTS]
    matrices = np.stack([pi.T @ pi for pi in pis], axis=-1)
    rights = np.stack([pi.T @ x for pi, x in zip(pis, values, strict=True)], axis=-1)
    return pis, values, matrices, rights


@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("ridge", [0.0, 0.5])
@pytest.mark.parametrize("rank", [1, 2, 4, 12])
def test_the_shortest_solutions(rank: int, ridge: float, scale: float) -> None:
    pis, values, matrices, rights = equations(rank, scale)
    before = matrices.copy()
    rows, deficient = solve_systems(matrices, rights, ridge, 0, np.zeros_like(rights))
    np.testing.assert_array_equal(matrices, before)
    for row, pi, x in zip(rows.T, pis, values, strict=True):
        expected = (
            np.linalg.solve(pi.T @ pi + ridge * np.eye(rank), pi.T @ x)
            if ridge
            else np.linalg.lstsq(pi, x, rcond=None)[0]
        )
        np.testing.assert_allclose(row, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max(initial=0))
    assert deficient == (0 if ridge else sum(0 < count < rank for count in COUNTS))


def test_equal_columns() -> None:
    """The matrix is singular although there are enough equations."""
    pi = np.random.default_rng(0).random((9, 2))[:, [0, 1, 0]]
    x = np.arange(9.0)
    rows, deficient = solve_systems((pi.T @ pi)[..., None], (pi.T @ x)[:, None], 0.0, 0, np.zeros((3, 1)))
    np.testing.assert_allclose(rows[:, 0], np.linalg.lstsq(pi, x, rcond=None)[0], rtol=1e-9)
    assert deficient == 1


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_non_negative_rows(rank: int) -> None:
    pis, values, matrices, rights = equations(rank)
    rows, deficient = solve_systems(matrices, rights, 0.0, 20000, np.ones_like(rights))
    assert rows.min() >= 0
    assert deficient == 0
    for row, pi, x in zip(rows.T, pis, values, strict=True):
        least = nnls(pi, x)[1] if len(x) else 0.0
        np.testing.assert_allclose(np.linalg.norm(pi @ row - x), least, rtol=1e-6, atol=1e-12)


def test_pairs() -> None:
    factor, pairs = np.random.default_rng(0).random((3, 5)), Pairs(3)
    products = pairs.products(factor)
    np.testing.assert_array_equal(products[pairs.index], factor[:, None] * factor)
