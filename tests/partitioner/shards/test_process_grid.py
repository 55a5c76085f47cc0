"""Tests of the distribution of nonzeros and rows over a grid of ranks."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from partitioner.shards.partition import counted_rows, cut_mode
from partitioner.shards.process_grid import ProcessGrid, places

SHAPE = (40, 7, 300)


def _zipf(count: int = 30_000) -> np.ndarray:
    rng = np.random.default_rng(0)
    drawn = [np.minimum(rng.zipf(1.3, count), length).astype(np.int32) - 1 for length in SHAPE]
    return np.unique(np.stack(drawn), axis=1)


def _grid(columns: np.ndarray, parts: tuple[int, ...], nodes: tuple[int, ...] = (1, 1, 1)) -> ProcessGrid:
    cuts = [cut_mode(counted_rows(c, n), n, p) for c, n, p in zip(columns, SHAPE, parts, strict=True)]
    spans = [
        np.array([[np.sum(c < row), np.sum(c <= row)] for row in cut.split_rows], np.int64).reshape(-1, 2)
        for c, cut in zip(columns, cuts, strict=True)
    ]
    return ProcessGrid(tuple(cuts), tuple(spans), nodes)


@pytest.mark.parametrize("parts", [(1, 1, 1), (2, 1, 1), (1, 1, 4), (2, 3, 2), (1, 12, 1), (64, 1, 1)])
def test_blocks_have_their_nonzeros_and_rows_have_one_owner(parts):
    columns = _zipf()
    grid = _grid(columns, parts)
    ranks = grid.ranks_of(columns)
    for rank, mode in product(range(grid.ranks), range(3)):
        rows, mine = grid.rows(mode, rank), columns[mode][ranks == rank]
        assert np.all((mine >= rows.start) & (mine < rows.stop))
        owned, owners = grid.owned(mode, rank), grid.owners(mode, rank)
        assert rows.start <= owned.start <= owned.stop <= rows.stop
        assert owners.size == len(grid.layer(mode, rank)) + 1
    for mode, length in enumerate(SHAPE):
        owned = [grid.owned(mode, rank) for rank in range(grid.ranks)]
        assert np.array_equal(np.sort(np.concatenate([np.arange(s.start, s.stop) for s in owned])), np.arange(length))


def test_blocks_are_even_although_rows_are_heavy():
    columns = _zipf(200_000)
    grid = _grid(columns, (4, 1, 1))
    counts = np.bincount(grid.ranks_of(columns), minlength=4)
    assert grid.cuts[0].split_rows.size
    assert counts.max() < 1.05 * counts.mean()


def test_rows_that_are_split_in_two_modes_are_split_independently():
    """Their numbers differ in the bits in which the numbers of the modes do."""
    numbers = np.arange(10_000, dtype=np.int32)
    for rows in ((1, 2), (1, 1), (0, 3)):
        columns = np.stack([np.full_like(numbers, rows[0]), np.full_like(numbers, rows[1]), numbers])
        cuts = [cut_mode(counted_rows(c, n), n, p) for c, n, p in zip(columns, (4, 4, 10_000), (2, 2, 1), strict=True)]
        spans = np.array([[0, numbers.size]])
        grid = ProcessGrid(tuple(cuts), (spans, spans, np.empty((0, 2), np.int64)), (1, 1, 1))
        assert np.all(np.bincount(grid.ranks_of(columns), minlength=4) > 2_300)


def test_ranks_of_a_node_are_neighbours():
    flat, nested = places((4, 2), (1, 1)), places((4, 2), (2, 1))
    assert sorted(map(tuple, flat)) == sorted(map(tuple, nested)) == list(product(range(4), range(2)))
    # The first node has the first two layers of mode 0, and both of mode 1.
    assert set(map(tuple, nested[:4])) == set(product(range(2), range(2)))
