"""Tests of the bytes that distributions exchange, against rings that are played step by step."""

from __future__ import annotations

import numpy as np
import pytest

from amped.operators.distributions.traffic import (
    RankDistribution,
    RowFormat,
    all_gather,
    exchange_bytes,
    reduce_scatter,
)
from partitioner.shards.partition import counted_rows, cut_mode
from partitioner.shards.process_grid import ProcessGrid

SHAPE = (40, 7, 300)
ROWS = RowFormat(rank=5, columns=8, itemsize=4)
GRIDS = [((2, 1, 1), (1, 1, 1)), ((1, 1, 4), (1, 1, 2)), ((2, 3, 2), (2, 1, 1)), ((1, 12, 1), (1, 1, 1))]


class Wires:
    """Counts the bytes that ranks send to each other."""

    def __init__(self, ranks: int) -> None:
        self.sent, self.received = np.zeros(ranks, int), np.zeros(ranks, int)

    def send(self, sender: int, receiver: int, nbytes: int) -> None:
        self.sent[sender] += nbytes
        self.received[receiver] += nbytes

    def gather(self, ring: list[int], parts: list[int]) -> None:
        """Each step passes on what came in the step before."""
        size = len(ring)
        for step in range(size - 1):
            for k in range(size):
                self.send(ring[k], ring[(k + 1) % size], parts[(k - step) % size])

    def reduce(self, ring: list[int], parts: list[int]) -> None:
        """The sums of a part start at the rank after its owner and end there."""
        size = len(ring)
        for part in range(size):
            for step in range(size - 1):
                self.send(ring[(part + 1 + step) % size], ring[(part + 2 + step) % size], parts[part])

    def reduce_all(self, numbers: int, itemsize: int = 8) -> None:
        ranks = list(range(self.sent.size))
        parts = [itemsize * (numbers * (k + 1) // len(ranks) - numbers * k // len(ranks)) for k in ranks]
        self.reduce(ranks, parts)
        self.gather(ranks, parts)

    @property
    def total(self) -> list[int]:
        return (self.sent + self.received).tolist()


def _columns() -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.stack([np.minimum(rng.zipf(1.3, 3000), length).astype(np.int32) - 1 for length in SHAPE])


def _cuts(columns: np.ndarray, parts: tuple[int, ...]) -> list:
    return [cut_mode(counted_rows(c, n), n, p) for c, n, p in zip(columns, SHAPE, parts, strict=True)]


def _small(ranks: int) -> int:
    return (ROWS.rank + 2 + ranks) * ROWS.rank


@pytest.mark.parametrize(("parts", "nodes"), GRIDS)
def test_grids_exchange_what_their_rings_send(parts, nodes):
    cuts = _cuts(_columns(), parts)
    grid = ProcessGrid(tuple(cuts), (), nodes)
    wires = Wires(grid.ranks)
    for mode, cut in enumerate(cuts):
        for layer in {grid.layer(mode, rank) for rank in range(grid.ranks)}:
            owned = [len(range(*grid.owned(mode, rank).indices(SHAPE[mode]))) for rank in layer]
            wires.reduce(list(layer), [rows * ROWS.columns * 8 for rows in owned])
            wires.gather(list(layer), [rows * ROWS.columns * ROWS.itemsize for rows in owned])
        wires.reduce_all(_small(grid.ranks))
        wires.reduce_all(cut.split_rows.size * ROWS.columns)
        wires.reduce_all(cut.split_rows.size * ROWS.rank, ROWS.itemsize)
    assert any(cut.split_rows.size for cut in cuts) or max(parts) == 2
    assert exchange_bytes(RankDistribution("grid", grid.ranks, parts, nodes), cuts, ROWS) == wires.total


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_all_gather_exchanges_what_its_rings_send(ranks):
    cuts = _cuts(_columns(), (ranks,) * 3)
    wires = Wires(ranks)
    for cut in cuts:
        wires.gather(list(range(ranks)), [int(rows) * ROWS.columns * ROWS.itemsize for rows in np.diff(cut.rows)])
        for numbers in (_small(ranks), cut.split_rows.size * ROWS.columns):
            wires.reduce_all(numbers)
    assert exchange_bytes(RankDistribution("all-gather", ranks), cuts, ROWS) == wires.total


def test_one_copy_of_the_nonzeros_sums_all_rows_but_those_of_mode_0():
    cuts = _cuts(_columns(), (4, 4, 4))
    wires = Wires(4)
    for mode, cut in enumerate(cuts):
        owned = [int(rows) for rows in np.diff(cut.rows)]
        wires.gather([0, 1, 2, 3], [rows * ROWS.columns * ROWS.itemsize for rows in owned])
        wires.reduce_all(_small(4))
        if mode == 0:
            wires.reduce_all(cut.split_rows.size * ROWS.columns)
        else:
            wires.reduce([0, 1, 2, 3], [rows * ROWS.columns * 8 for rows in owned])
    assert exchange_bytes(RankDistribution("all-gather", 4, one_copy=True), cuts, ROWS) == wires.total


def test_replicated_tensors_exchange_nothing():
    cuts = _cuts(_columns(), (1, 1, 1))
    assert exchange_bytes(RankDistribution("replicated", 4), cuts, ROWS) == [0] * 4


def test_what_is_sent_is_received():
    parts = np.array([[3, 0, 5, 1], [2, 2, 2, 9]])
    for traffic in (all_gather(parts), reduce_scatter(parts)):
        assert np.array_equal(np.roll(traffic.sent, 1, axis=-1), traffic.received)
