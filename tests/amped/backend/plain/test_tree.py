"""MTTKRPs, Phi and log-likelihoods from a tree of nonzeros, compared with their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import coo_mttkrp

from amped.backend.plain.tree import Tree

SHAPES = {2: (5, 7), 3: (4, 6, 5), 4: (3, 4, 1, 6), 5: (2, 3, 2, 3, 2)}
RANK = 3


def nonzeros(shape: tuple[int, ...], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nonzeros in order, each coordinate once."""
    rng = np.random.default_rng(count)
    cells = np.sort(rng.choice(np.prod(shape), min(count, int(np.prod(shape))), replace=False))
    return np.array(np.unravel_index(cells, shape), np.int32), rng.integers(1, 9, cells.size).astype(np.float64)


def factors_of(shape: tuple[int, ...], seed: int = 0) -> list[np.ndarray]:
    """Return random factor matrices."""
    rng = np.random.default_rng(seed)
    return [rng.random((length, RANK)) for length in shape]


def others(factors: list[np.ndarray], mode: int) -> list[np.ndarray | None]:
    """Return the factor matrices of the other modes."""
    return [None if m == mode else factor for m, factor in enumerate(factors)]


@pytest.mark.parametrize("count", [1, 2, 30])
@pytest.mark.parametrize("order", SHAPES)
def test_mttkrp_in_a_sweep_and_in_any_order(order: int, count: int) -> None:
    shape = SHAPES[order]
    columns, values = nonzeros(shape, count)
    tree, factors = Tree(list(columns), values, shape), factors_of(shape)
    for step, mode in enumerate([*range(order), *range(order), *reversed(range(order)), 1, 1]):
        expected = coo_mttkrp(columns, values, factors, mode)
        np.testing.assert_allclose(tree.mttkrp(mode, others(factors, mode)), expected, rtol=1e-13, atol=1e-13)
        factors[mode] = factors_of(shape, 1 + step)[mode]


def test_factors_that_are_changed_in_place() -> None:
    shape = SHAPES[3]
    columns, values = nonzeros(shape, 30)
    tree, factors = Tree(list(columns), values, shape), factors_of(shape)
    tree.mttkrp(0, others(factors, 0))
    factors[2][1] += 1
    expected = coo_mttkrp(columns, values, factors, 0)
    np.testing.assert_allclose(tree.mttkrp(0, others(factors, 0)), expected, rtol=1e-13)


@pytest.mark.parametrize("order", SHAPES)
def test_phi_and_logs(order: int) -> None:
    shape = SHAPES[order]
    columns, values = nonzeros(shape, 30)
    tree, factors = Tree(list(columns), values, shape), factors_of(shape)
    for mode in [*range(order), 0]:
        model = np.ones((values.size, RANK))
        for column, factor in zip(columns, factors, strict=True):
            model *= factor[column]
        m = np.maximum(model.sum(axis=1), 0.05)
        expected = coo_mttkrp(columns, values / m, factors, mode)
        found = tree.phi(mode, others(factors, mode), factors[mode], 0.05)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)
        assert tree.logs(mode, others(factors, mode), factors[mode], 0.05) == pytest.approx(values @ np.log(m), 1e-12)
        factors[mode] = factors_of(shape, mode + 7)[mode]


@pytest.mark.parametrize("order", SHAPES)
def test_ttmc(order: int) -> None:
    shape, rng = SHAPES[order], np.random.default_rng(3)
    columns, values = nonzeros(shape, 30)
    tree, factors = Tree(list(columns), values, shape), [rng.random((n, 2 + m % 2)) for m, n in enumerate(shape)]
    for mode in range(order):
        expected = np.zeros((shape[mode], int(np.prod([f.shape[1] for m, f in enumerate(factors) if m != mode]))))
        for place, value in zip(columns.T, values, strict=True):
            row = np.ones(1)
            for m, factor in enumerate(factors):
                row = row if m == mode else np.kron(row, factor[place[m]])
            expected[place[mode]] += value * row
        np.testing.assert_allclose(tree.ttmc(mode, others(factors, mode)), expected, rtol=1e-12)
