"""Packed counts: the store equals that of the same nonzeros in columns."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from forms import in_turn
from tensors import files_of, write_store

from partitioner.errors import InputError
from partitioner.host import checksums
from partitioner.store import packed
from partitioner.store.format import Store
from partitioner.store.packed import PackedTensor, layout_of, sort_keys
from partitioner.tensors.sparse import SparseTensor

pytestmark = pytest.mark.in_turn

SHAPES = [(5, 1, 9), (300, 70), (1, 1, 1, 1), (3, 4, 5, 6, 7, 2), (2**20, 2**20, 2**23)]


def keys_of(columns: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    layout = layout_of(shape)
    assert layout is not None
    return np.bitwise_or.reduce(columns.astype(np.int64) << layout.shifts[:, None], axis=0)


def drawn(shape: tuple[int, ...], count: int, skewed: bool) -> np.ndarray:
    rng = np.random.default_rng(len(shape))
    columns = np.array([rng.integers(0, length, count) for length in shape])
    if skewed:
        columns[:, rng.random(count) < 0.8] = np.array(shape)[:, None] // 2
        columns[-1, rng.random(count) < 0.5] = shape[-1] // 2
    return columns


@pytest.mark.parametrize(("skewed", "budget"), [(False, 1 << 30), (True, 1 << 30), (True, 1000)])
@pytest.mark.parametrize(("shape", "threads"), in_turn(SHAPES, [1, 3]), ids=str)
def test_store(
    tmp_path: Path, shape: tuple[int, ...], threads: int, skewed: bool, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, number in (("RANGE", 100), ("PART", 64)):
        monkeypatch.setattr(packed, name, number)
    monkeypatch.setattr(checksums, "BLOCK", 512)
    columns = drawn(shape, 1000, skewed)
    tensor = SparseTensor(columns.T, np.ones(1000), shape)
    (tmp_path / "packed").mkdir()
    found = PackedTensor(keys_of(columns, shape), shape, None, threads)
    monkeypatch.setattr(checksums, "SYNC_BYTES", 700)
    found.write(tmp_path / "packed", budget)
    whole = write_store(tensor, tmp_path / "whole")
    assert files_of(tmp_path / "packed") == files_of(whole.path)
    assert found.duplicates == tensor.duplicates
    assert Store(tmp_path / "packed").tensor().nnz == tensor.nnz


@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", [*SHAPES[:-1], (2**20, 2**20, 2**22)], ids=str)
def test_sums(
    tmp_path: Path, shape: tuple[int, ...], threads: int, skewed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, number in (("RANGE", 100), ("PART", 64)):
        monkeypatch.setattr(packed, name, number)
    columns = drawn(shape, 1000, skewed)
    rng = np.random.default_rng(3)
    values = np.where(rng.random(1000) < 0.3, rng.integers(-2, 3, 1000), rng.standard_normal(1000) * 1e3)
    tensor = SparseTensor(columns.T, values, shape)
    keys = keys_of(columns, shape)
    halves = np.array([keys >> packed.HALF, keys & packed.LOWER], np.int32)
    (tmp_path / "packed").mkdir()
    found = PackedTensor(halves, shape, None, threads, values.copy())
    found.write(tmp_path / "packed")
    assert files_of(tmp_path / "packed") == files_of(write_store(tensor, tmp_path / "whole").path)
    assert (found.duplicates, found.zeros) == (tensor.duplicates, tensor.zeros)


@pytest.mark.parametrize(
    ("values", "message"), [([1.0, -1.0], "every value is zero"), ([1.7e308, 1.7e308], "sum of duplicates overflows")]
)
def test_sums_that_are_none(values: list[float], message: str) -> None:
    halves = np.zeros((2, 2), np.int32)
    with pytest.raises(InputError, match=message):
        PackedTensor(halves, (2, 2), None, 1, np.array(values))


def test_counts_beyond_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "EXACT", 5)
    for most, dtype in ((5, np.float32), (6, np.float64)):
        values = PackedTensor(np.repeat(np.arange(4), most), (2, 2), None, 1).values
        assert values.dtype == dtype
        assert values.tolist() == [most] * 4


def test_indices_that_do_not_fit() -> None:
    assert layout_of((2**31 - 1, 2**31 - 1)) is not None
    assert layout_of((2**31 - 1, 2**31 - 1, 2)) is not None
    assert layout_of((2**31 - 1, 2**31 - 1, 3)) is None


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_sort(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "PART", 10)
    for size in (0, 1, 11, 1000):
        keys = np.random.default_rng(size).integers(0, 500, size)
        expected = np.sort(keys)
        sort_keys(keys, threads)
        assert np.array_equal(keys, expected)


def test_manifest_is_the_same(tmp_path: Path) -> None:
    columns = drawn((5, 6), 50, False)
    (tmp_path / "packed").mkdir()
    PackedTensor(keys_of(columns, (5, 6)), (5, 6), None, 1).write(tmp_path / "packed")
    whole = write_store(SparseTensor(columns.T, np.ones(50), (5, 6)), tmp_path / "whole").path
    one, other = (json.loads((path / "manifest.json").read_text()) for path in (tmp_path / "packed", whole))
    assert one == other
