"""Tests of how evenly blocks share nonzeros."""

from __future__ import annotations

import numpy as np
import pytest

from amped.operators.placement import GridParts
from amped.operators.sources import balance
from amped.operators.sources.blocks import block_of
from amped.operators.sources.sparse import TensorSource
from amped.parallel.mpi import SingleComm
from partitioner.tensors.sparse import SparseTensor

FP64 = np.dtype(np.float64)
SHAPE = (60, 45, 80)


def _source(correlated: bool) -> TensorSource:
    rng = np.random.default_rng(0)
    columns = [np.minimum(rng.zipf(1.5, 20_000), n) - 1 for n in SHAPE]
    if correlated:  # all nonzeros are near the diagonal
        place = rng.integers(0, 40, 20_000)
        columns = [place + rng.integers(0, 5, 20_000) for _ in SHAPE]
    tensor = SparseTensor.from_columns(np.stack(columns).astype(np.int32), np.ones(20_000), SHAPE)
    return TensorSource(tensor, SingleComm())


@pytest.mark.parametrize("parts", [(2, 1, 1), (2, 2, 3), (1, 8, 1)])
def test_whole_small_tensors_are_counted(parts: tuple[int, int, int]) -> None:
    source = _source(correlated=False)
    (counts,) = balance.sampled_blocks(source, [GridParts(parts, (1, 1, 1))], SingleComm(), FP64)
    assert counts.sum() == source.nnz
    assert counts.size == np.prod(parts)
    if parts == (2, 1, 1):
        assert balance.fullest_block(counts) < 1.05


def test_correlated_modes_have_unequal_blocks() -> None:
    grid = GridParts((2, 2, 1), (1, 1, 1))
    (counts,) = balance.sampled_blocks(_source(correlated=True), [grid], SingleComm(), FP64)
    assert balance.fullest_block(counts) > 1.5


def test_a_sample_is_like_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    grid, source = GridParts((2, 2, 1), (1, 1, 1)), _source(correlated=True)
    (whole,) = balance.sampled_blocks(source, [grid], SingleComm(), FP64)
    monkeypatch.setattr(balance, "WINDOWS", 40)
    monkeypatch.setattr(balance, "LENGTH", 30)
    (some,) = balance.sampled_blocks(source, [grid], SingleComm(), FP64)
    assert some.sum() == 1200
    assert np.abs(some / some.sum() - whole / whole.sum()).max() < 0.05


def test_chance_is_not_imbalance() -> None:
    counts = np.random.default_rng(0).poisson(1000, 512)
    assert balance.fullest_block(counts) < 1.05
    assert balance.fullest_block(np.zeros(4, np.int64)) == 1.0
    assert balance.fullest_block(np.array([10])) == 1.0


def test_one_rank_has_the_whole_tensor() -> None:
    source = _source(correlated=False)
    _, block = block_of(source, GridParts((1, 1, 1), (1, 1, 1)), SingleComm(), FP64)
    (counts,) = balance.sampled_blocks(source, [GridParts((1, 1, 1), (1, 1, 1))], SingleComm(), FP64)
    assert counts.tolist() == [block.nonzeros.values.size]
