"""MTTKRPs, Phi and log-likelihoods from a tree of nonzeros, compared with their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from losses import HUBER, LOGIT, oracle_systems
from oracle import coo_mttkrp

from amped.backend.plain.splits import tree_rows
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


@pytest.mark.parametrize("shape", [*SHAPES.values(), (30, 2, 3, 40), (3, 40, 30, 2), (90, 80, 70)])
@pytest.mark.parametrize("count", [1, 30, 500])
def test_rows_are_counted_without_making_trees(shape: tuple[int, ...], count: int) -> None:
    columns, values = nonzeros(shape, count)
    tree, order = Tree(list(columns), values, shape), len(shape)
    groups = [(0, tree.split), (tree.split, order)]
    prefixes = [columns[begin:m] for begin, end in groups if end - begin > 1 for m in range(begin + 1, end + 1)]
    nodes = sum(np.unique(each, axis=1).shape[1] for each in prefixes)
    assert tree_rows(list(columns), shape) == nodes + sum(min(length, values.size) for length in shape)


def test_factors_that_are_changed_in_place() -> None:
    shape = SHAPES[3]
    columns, values = nonzeros(shape, 30)
    tree, factors = Tree(list(columns), values, shape), factors_of(shape)
    tree.mttkrp(0, others(factors, 0))
    factors[2][1] += 1
    expected = coo_mttkrp(columns, values, factors, 0)
    np.testing.assert_allclose(tree.mttkrp(0, others(factors, 0)), expected, rtol=1e-13)


@pytest.mark.parametrize("order", SHAPES)
def test_squares_of_rows(order: int) -> None:
    shape = SHAPES[order]
    columns, values = nonzeros(shape, 30)
    tree, factors = Tree(list(columns), values, shape), factors_of(shape)
    rows = [factor[column] for factor, column in zip(factors, columns, strict=True)]
    squares = np.square(values - np.prod(rows, axis=0).sum(axis=1))
    for mode in range(order):
        by_row = np.bincount(columns[mode], squares, shape[mode])
        for some in (None, slice(1, None), np.array([0, shape[mode] - 1])[: shape[mode]]):
            expected = by_row.sum() if some is None else by_row[some].sum()
            assert tree.squares(mode, others(factors, mode), factors[mode], some) == pytest.approx(expected, rel=1e-12)


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
        phi = tree.phi(mode, others(factors, mode), factors[mode], 0.05)
        np.testing.assert_allclose(phi, expected, rtol=1e-12, atol=1e-13)
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


def test_pairs_of_indices_that_repeat_are_split_in_the_middle() -> None:
    """Each pair of the first two modes occurs with several pairs of the last two, and the modes are long."""
    rng, shape = np.random.default_rng(4), (40, 30, 9, 10)
    pairs = np.sort(rng.choice(40 * 30, 6, replace=False)), np.sort(rng.choice(9 * 10, 8, replace=False))
    one, other = (np.array(np.unravel_index(p, s)) for p, s in zip(pairs, (shape[:2], shape[2:]), strict=True))
    columns = np.concatenate([np.repeat(one, 8, axis=1), np.tile(other, 6)]).astype(np.int32)
    values, factors = rng.random(48), factors_of(shape)
    tree = Tree(list(columns), values, shape)
    assert tree.split == 2
    for mode in [0, 1, 2, 3, 3, 1]:
        expected = coo_mttkrp(columns, values, factors, mode)
        np.testing.assert_allclose(tree.mttkrp(mode, others(factors, mode)), expected, rtol=1e-13, atol=1e-13)
        model = np.prod([f[c] for f, c in zip(factors, columns, strict=True)], axis=0).sum(axis=1)
        expected = coo_mttkrp(columns, values / model, factors, mode)
        np.testing.assert_allclose(tree.phi(mode, others(factors, mode), factors[mode], 1e-9), expected, rtol=1e-12)
        factors[mode] = rng.random(factors[mode].shape)


@pytest.mark.parametrize("order", SHAPES)
def test_row_systems(order: int) -> None:
    shape = SHAPES[order]
    columns, values = nonzeros(shape, 30)
    tree, factors = Tree(list(columns), values, shape), factors_of(shape)
    for step, mode in enumerate([*range(order), 0, 0, 1]):
        for maps in (HUBER.maps(), LOGIT.maps()):
            expected = oracle_systems(columns, values, factors, mode, maps)
            got = tree.row_systems(mode, others(factors, mode), factors[mode], maps)
            assert tree.mttkrp(mode, others(factors, mode)).shape == factors[mode].shape  # shares partial results
            np.testing.assert_allclose(got[np.unique(columns[mode])], expected[np.unique(columns[mode])], rtol=1e-12)
        factors[mode] = factors_of(shape, 1 + step)[mode]
