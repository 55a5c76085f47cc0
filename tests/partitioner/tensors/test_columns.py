"""Columns in files that change while they are in use.

On a CPU: a GPU streams from a copy in page-locked memory.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import make_operator, mttkrp_all, random_factors, random_nonzeros, small_pieces
from tensors import write_store

from amped.operators.sources.sparse import StoreSource
from amped.operators.sparse.operator import SparseOperator
from amped.parallel.mpi import SingleComm
from partitioner.errors import InputError
from partitioner.host import checksums
from partitioner.store.format import FORMAT, VERSION, Store
from partitioner.tensors.columns import IndexBounds, StoredColumn
from partitioner.tensors.sparse import SparseTensor

SHAPE = (60, 50, 70_000)
COLUMNS, VALUES = random_nonzeros(1, SHAPE, 3000)
FACTORS = random_factors(1, SHAPE, 3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_store(SparseTensor(COLUMNS.T, VALUES, SHAPE), tmp_path / "store").path


def operator(path: Path, placement: str) -> SparseOperator:
    source = StoreSource(Store(path), SingleComm())
    with small_pieces(500):
        return make_operator(source, FACTORS, SingleComm(), placement=placement, device="cpu")


def cut_short(file: Path) -> None:
    os.truncate(file, 1000)


def rewritten(file: Path) -> None:
    """Every index becomes two billion; the time of the change is that of another second."""
    size = file.stat().st_size
    with open(file, "r+b") as content:
        content.seek(128)
        content.write(np.full((size - 128) // 4, 2_000_000_000, np.int32).tobytes())
    os.utime(file, (1, 1))


@pytest.mark.parametrize("change", [cut_short, rewritten])
def test_what_is_in_memory_does_not_change(path: Path, change: Any) -> None:
    one = operator(path, "resident")
    before = mttkrp_all(one, range(3))
    for file in path.glob("*.npy"):
        change(file)
    for a, b in zip(before, mttkrp_all(one, range(3)), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("change", [cut_short, rewritten])
@pytest.mark.parametrize("name", ["mode0.index2.npy", "mode0.values.npy"])
def test_what_is_streamed_is_refused_by_name(path: Path, change: Any, name: str) -> None:
    one = operator(path, "stream")
    before = mttkrp_all(one, range(3))
    assert np.array_equal(mttkrp_all(one, [1])[0], before[1])
    change(path / name)
    with pytest.raises(InputError, match=f"{path / name}: damaged file of the store: .*in use"):
        mttkrp_all(one, range(3))


def test_a_store_that_is_replaced_is_read_to_its_end(path: Path) -> None:
    one = operator(path, "stream")
    before = mttkrp_all(one, range(3))
    write_store(SparseTensor([[0, 0, 0], [1, 1, 1]], [1.0, 2.0]), path, force=True)
    for a, b in zip(before, mttkrp_all(one, range(3)), strict=True):
        assert np.array_equal(a, b)


def test_an_index_out_of_bounds_is_never_used_whatever_the_times_say(path: Path) -> None:
    one = operator(path, "stream")
    file = path / "mode1.index2.npy"
    times = file.stat()
    rewritten(file)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(InputError, match=f"{file}: an index is outside 0[.][.]69999"):
        mttkrp_all(one, range(3))


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("placement", ["resident", "stream"])
@pytest.mark.parametrize("index", [-1, 60, 5])
def test_output_indices_are_those_of_the_mode_and_ascend(path: Path, verify: bool, placement: str, index: int) -> None:
    """Their checksums are right: they were written so."""
    copy = shutil.copytree(path, path.with_name("other"))
    rows = np.load(copy / "mode0.index0.npy")
    rows[500] = index
    (copy / "mode0.index0.npy").unlink()
    entry = checksums.write_array(copy / "mode0.index0.npy", rows)
    manifest = checksums.read_manifest(copy, "store", FORMAT, VERSION)
    checksums.write_manifest(copy, manifest | {"files": manifest["files"] | {"mode0.index0.npy": entry}})
    source = StoreSource(Store(copy, verify), SingleComm())
    cause = "not in ascending order" if index == 5 else "an index is outside 0[.][.]59"
    with pytest.raises(InputError, match=f"mode0.index0.npy: .*{cause}"):
        make_operator(source, FACTORS, SingleComm(), placement=placement)


def test_columns_are_those_of_the_file_however_they_are_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.load(path / "mode2.index0.npy")
    column = Store(path).mode(2).column(1)
    assert isinstance(column, StoredColumn)
    for keep in (0, 7, whole.size):
        held = column.load(keep)
        assert np.array_equal(held, whole)
        for part in (slice(0, 7), slice(3, 5), slice(5, 9), slice(8, None), slice(4, 4)):
            assert np.array_equal(held[part], whole[part])
        assert [held[0], held[6], held[7], held[-1]] == whole[[0, 6, 7, -1]].tolist()
    assert np.array_equal(column.part(10, 20)[2:4], whole[12:14])
    with pytest.raises(InputError, match=r"an index is outside 0\.\.3,"):
        column.part(0, whole.size, IndexBounds(0, 4))[:]


def test_order_is_checked_from_block_to_block(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Store(path).mode(0).column(0)
    monkeypatch.setattr(checksums, "BLOCK", 128 + 4 * 100)
    monkeypatch.setattr(rows._file, "_verify", False)
    ascending = np.arange(rows.size, dtype=np.int32) % 200  # falls where every second block ends

    def fill(array: np.ndarray, at: int, verify: bool = False) -> None:
        array[:] = ascending[at : at + array.size] // 4

    monkeypatch.setattr(rows._file, "fill", fill)
    with pytest.raises(InputError, match="not in ascending order"):
        rows.load(rows.size)
