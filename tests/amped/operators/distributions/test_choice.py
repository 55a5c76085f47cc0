"""Tests of the choice of a distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from amped.operators.distributions.choice import choose, grids
from amped.operators.distributions.forecast import Measured, Workload, forecast
from amped.operators.distributions.machine_model import H100, NVLINK, MachineModel
from amped.operators.distributions.traffic import RankDistribution, RowFormat, exchange_bytes
from partitioner.shards.partition import CountedRows, Cut, cut_mode

GPUS = MachineModel(H100, NVLINK)


def _work(shape: tuple[int, ...], nnz: int, measured: Measured | None = None) -> Workload:
    """Return the workload of a tensor with equally many nonzeros in all rows."""

    @cache
    def rows(length: int) -> CountedRows:
        return CountedRows(np.diff(nnz * np.arange(length + 1) // length))

    def cut(mode: int, parts: int) -> Cut:
        return cut_mode(rows(shape[mode]), shape[mode], parts)

    return Workload(shape, nnz, RowFormat(32, 32, 4), cut, measured)


LONG = _work((300_000, 200_000, 4_000_000), 200_000_000)
TINY = _work((183, 24, 1140, 1717), 300_000)


@pytest.mark.parametrize(("shape", "ranks", "nodes"), [((50, 3, 400), 12, 1), ((50, 60, 400), 16, 4)])
def test_grids_are_all_products_of_the_ranks(shape, ranks, nodes):
    found = list(grids(shape, ranks, nodes))
    assert len(set(found)) == len(found)
    expected = {
        (a, b, ranks // (a * b))
        for a in range(1, ranks + 1)
        for b in range(1, ranks + 1)
        if ranks % (a * b) == 0 and a <= shape[0] and b <= shape[1]
    }
    assert {grid.parts for grid in found} == expected
    assert all(math.prod(grid.nodes) == nodes for grid in found)
    assert all(p % n == 0 for grid in found for p, n in zip(grid.parts, grid.nodes, strict=True))


def test_a_long_mode_is_cut_and_its_rows_do_not_travel():
    best = choose(LONG, GPUS, 8)[0].distribution
    assert best.parts == (1, 1, 8)


def test_nodes_are_separated_by_the_longest_mode():
    best = choose(LONG, replace(GPUS, links=replace(NVLINK, network=1e9)), 16)[0].distribution
    assert best.name == "grid"
    assert best.nodes == (1, 1, 2)


def test_a_tiny_tensor_is_replicated_where_every_rank_has_a_device():
    assert choose(TINY, GPUS, 8)[0].distribution.name == "replicated"
    assert choose(TINY, replace(GPUS, replicates=False), 8)[0].distribution.name != "replicated"


def test_slow_kernels_make_distribution_worthwhile():
    slow = replace(TINY, measured=Measured(kernels=1.0, rest=1e-4))
    assert choose(slow, GPUS, 8)[0].distribution.name != "replicated"


def test_candidates_are_in_the_order_of_their_times_with_exact_bytes():
    found = choose(LONG, GPUS, 12)
    times = [each.seconds.total for each in found]
    assert times == sorted(times)
    assert {"all-gather", "replicated", "grid"} == {each.distribution.name for each in found}
    for each in found:
        assert each.bytes == exchange_bytes(each.distribution, LONG.cuts(each.distribution), LONG.rows)


def test_one_rank_has_nothing_to_choose():
    (found,) = choose(LONG, GPUS, 1)
    assert found.bytes == [0]
    assert found.seconds.exchange == 0


def test_measured_times_replace_estimates():
    found = forecast(RankDistribution("all-gather", 1), replace(LONG, measured=Measured(0.05, 0.01)), GPUS)
    assert found.seconds.kernels == pytest.approx(0.05)
    assert found.seconds.total == pytest.approx(0.06)


def test_the_fullest_block_sets_the_time_of_kernels():
    grid = RankDistribution("grid", 4, (1, 1, 4), (1, 1, 1))
    even = forecast(grid, LONG, GPUS).seconds.kernels
    assert forecast(grid, LONG, GPUS, 1.6).seconds.kernels > 1.5 * even


def test_uneven_blocks_fall_back():
    even = choose(LONG, GPUS, 8)
    asked: list[RankDistribution] = []

    def fullest(grids: Sequence[RankDistribution]) -> list[float]:
        asked.extend(grids)
        return [5.0, *(1.0 for _ in grids[1:])]

    uneven = choose(LONG, GPUS, 8, fullest=fullest)
    assert asked[0] == even[0].distribution
    assert uneven[0].distribution != even[0].distribution
    assert {each.distribution for each in uneven} == {each.distribution for each in even}
    assert next(each.fullest for each in uneven if each.distribution == asked[0]) == 5.0


def test_exchange_hides_behind_kernels_where_it_overlaps():
    at = RankDistribution("all-gather", 4)
    plain, hidden = (forecast(at, LONG, replace(GPUS, overlap=overlap)).seconds for overlap in (0.0, 0.5))
    assert plain.exchange - hidden.exchange == pytest.approx(min(plain.exchange / 2, plain.kernels), rel=0.3)
    assert hidden.kernels == plain.kernels


def test_grids_of_512_ranks_are_pruned():
    found = choose(_work((3000, 2000, 70_000, 500), 10_000_000), GPUS, 512, most=4)
    assert sum(each.distribution.name == "grid" for each in found) == 4


def test_one_part_is_not_cut():
    def refuse(mode: int, parts: int) -> Cut:
        raise AssertionError("one part needs no counts")

    work = replace(LONG, cut=refuse)
    assert forecast(RankDistribution("replicated", 4), work, GPUS).bytes == [0] * 4
