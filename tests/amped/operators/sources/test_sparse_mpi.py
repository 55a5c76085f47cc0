"""Files that all ranks read together: the same shares as rank 0 deals of a tensor in its memory."""

from __future__ import annotations

import warnings
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from tensors import hard_nonzeros, write_tns

from amped.errors import InputError
from amped.operators.sources.distributed import DistributedFile
from amped.operators.sources.sparse import TensorSource, open_source
from amped.parallel.mpi import Comm, on_root
from partitioner.errors import InputWarning
from partitioner.readers import ReadOptions, read
from partitioner.shards import sorted_runs
from partitioner.shards.partition import Cut
from partitioner.tensors.sparse import SparseTensor

pytestmark = pytest.mark.mpi
CASES = hard_nonzeros()


@pytest.fixture
def folder(comm: Comm, tmp_path: Path) -> Path:
    """A folder that all ranks see."""
    return comm.bcast(tmp_path)


@pytest.mark.parametrize("name", CASES)
def test_rows_of_trees_are_counted(comm: Comm, folder: Path, name: str) -> None:
    """Ranks that read a file together count those of their shares, which may be split at another mode."""
    columns, values = CASES[name]
    path, tensor = folder / "t.npz", SparseTensor(columns.T, values)
    on_root(comm, lambda: np.savez(path, indices=columns.T, values=values))
    whole, shares = TensorSource(tensor, comm).tree_rows(), DistributedFile(path, comm).tree_rows()
    assert whole is not None
    assert shares is not None
    assert whole / 2 <= shares <= 2 * comm.size * whole if comm.size > 1 else shares == whole
    assert comm.allgather((whole, shares)) == [(whole, shares)] * comm.size


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("kind", "keep"), [("tns", False), ("npz", False), ("tns", True)])
def test_shares_are_those_of_a_tensor_in_memory(comm: Comm, folder: Path, name: str, kind: str, keep: bool) -> None:
    columns, values = CASES[name]
    if keep:
        values = np.where(np.arange(values.size) % 3, values, 0)
    path = folder / f"t.{kind}"
    on_root(
        comm,
        lambda: write_tns(path, columns, values) if kind == "tns" else np.savez(path, indices=columns.T, values=values),
    )
    whole = TensorSource(SparseTensor(columns.T, values, keep_zeros=keep) if comm.rank == 0 else None, comm)
    with mock.patch.object(sorted_runs, "SAMPLES", 50):
        dealt = DistributedFile(path, comm, form=ReadOptions(keep_zeros=keep))
    assert not keep or whole.zeros == 0
    for fact in ("shape", "nnz", "duplicates", "zeros", "value_range"):
        assert getattr(dealt, fact) == getattr(whole, fact)
    assert dealt.norm == pytest.approx(whole.norm, rel=1e-14)
    assert dealt.digest() == whole.digest()
    for mode in range(len(whole.shape)):
        assert np.array_equal(dealt.used_indices(mode), whole.used_indices(mode))
        cut, other = whole.cut(mode, comm.size), dealt.cut(mode, comm.size)
        for field in Cut.__dataclass_fields__:
            assert np.array_equal(getattr(cut, field), getattr(other, field)), field
        for dtype in (np.dtype("f4"), np.dtype("f8")):
            shares = zip(whole.load(mode, cut, dtype), dealt.load(mode, cut, dtype), strict=True)
            for expected, found in shares:
                assert found.dtype == expected.dtype
                assert np.array_equal(found, expected)
            of_fibres = zip(whole.by_fibre(mode, dtype), dealt.by_fibre(mode, dtype), strict=True)
            assert all(
                found.dtype == expected.dtype and np.array_equal(found, expected) for expected, found in of_fibres
            )
    tensor, expected_tensor = dealt.tensor(), whole.tensor()
    if tensor is not None and expected_tensor is not None:
        assert np.array_equal(tensor.columns, expected_tensor.columns)
        assert np.array_equal(tensor.values, expected_tensor.values)
    assert (tensor is None) == (comm.rank > 0)


@pytest.mark.parametrize("name", ["spread", "one row has most", "few"])
def test_used_indices_are_numbered_anew(comm: Comm, folder: Path, name: str) -> None:
    columns, values = CASES[name]
    path = folder / "t.tns"
    on_root(comm, lambda: write_tns(path, columns, values))
    whole, dealt = read(path, compact=True), DistributedFile(path, comm, form=ReadOptions(compact=True))
    assert dealt.shape == whole.shape
    labels = whole.labels, dealt.labels
    for mode, (expected, found) in enumerate(zip(*map(tuple, filter(None, labels)), strict=True)):
        assert np.array_equal(found, expected)
        assert np.array_equal(found, np.unique(columns[mode]) + 1)
    source = TensorSource(whole if comm.rank == 0 else None, comm)
    assert source.digest() == dealt.digest()
    assert [dealt.used(mode) for mode in range(len(dealt.shape))] == list(dealt.shape)
    assert [source.used(mode) for mode in range(len(dealt.shape))] == list(dealt.shape)


def test_lines_without_values(comm: Comm, folder: Path) -> None:
    path = folder / "t.tns"
    on_root(comm, lambda: path.write_text("# of events\n" + "1 2 3\n4 2 1\n1 2 3\n" * 99))
    source = open_source(path, comm, form=ReadOptions(no_values=True))
    assert (source.shape, source.nnz, source.duplicates) == ((4, 2, 3), 2, 295)
    assert source.value_range == (99, 198, 1)


def test_a_warning_of_keys_is_given_once(comm: Comm, folder: Path) -> None:
    path = folder / "t.tns"
    on_root(comm, lambda: path.write_text("1 2 3\n4 2 1\n1 2 3\n" * 99))
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        open_source(path, comm)
    assert comm.allgather(sum(issubclass(each.category, InputWarning) for each in given)) == [1] + [0] * (comm.size - 1)


def test_ranks_that_are_several_read_together(comm: Comm, folder: Path) -> None:
    path = folder / "t.tns"
    on_root(comm, lambda: write_tns(path, *CASES["few"]))
    assert isinstance(open_source(path, comm), DistributedFile if comm.size > 1 else TensorSource)


def test_a_wrong_line_is_told_on_all_ranks(comm: Comm, folder: Path) -> None:
    path = folder / "t.tns"
    on_root(comm, lambda: path.write_text("1 1 1\n" * 200 + "1 x 1\n" + "1 1 1\n" * 90))
    with pytest.raises(InputError) as caught:
        open_source(path, comm)
    assert str(caught.value) == f"{path}, line 201: index 'x' of mode 1 is not an integer"
