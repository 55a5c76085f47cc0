"""Files that all ranks read together: the same shares as rank 0 deals of a tensor in its memory."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from tensors import hard_nonzeros, write_tns

from amped.errors import InputError
from amped.operators.source import DealtSource, TensorSource, open_source
from amped.parallel.mpi import Comm, on_root
from partitioner import runs
from partitioner.coo import SparseTensor
from partitioner.shards import Cut

pytestmark = pytest.mark.mpi
CASES = {name: (c, v) for name, (c, v) in hard_nonzeros().items() if c.max() < 10**6}  # modes whose rows are counted


@pytest.fixture
def folder(comm: Comm, tmp_path: Path) -> Path:
    """A folder that all ranks see."""
    return comm.bcast(tmp_path)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ["tns", "npz"])
def test_shares_are_those_of_a_tensor_in_memory(comm: Comm, folder: Path, name: str, kind: str) -> None:
    columns, values = CASES[name]
    path = folder / f"t.{kind}"
    on_root(
        comm,
        lambda: write_tns(path, columns, values) if kind == "tns" else np.savez(path, indices=columns.T, values=values),
    )
    whole = TensorSource(SparseTensor(columns.T, values) if comm.rank == 0 else None, comm)
    with mock.patch.object(runs, "SAMPLES", 50):
        dealt = DealtSource(path, comm)
    for fact in ("shape", "nnz", "duplicates", "zeros", "value_range"):
        assert getattr(dealt, fact) == getattr(whole, fact)
    assert dealt.norm == pytest.approx(whole.norm, rel=1e-14)
    assert dealt.digest() == whole.digest()
    for mode in range(len(whole.shape)):
        cut, other = whole.cut(mode, comm.size), dealt.cut(mode, comm.size)
        for field in Cut.__dataclass_fields__:
            assert np.array_equal(getattr(cut, field), getattr(other, field)), field
        for dtype in (np.dtype("f4"), np.dtype("f8")):
            shares = zip(whole.load(mode, cut, dtype), dealt.load(mode, cut, dtype), strict=True)
            for expected, found in shares:
                assert found.dtype == expected.dtype
                assert np.array_equal(found, expected)
    tensor, expected_tensor = dealt.tensor(), whole.tensor()
    if tensor is not None and expected_tensor is not None:
        assert np.array_equal(tensor.columns, expected_tensor.columns)
        assert np.array_equal(tensor.values, expected_tensor.values)
    assert (tensor is None) == (comm.rank > 0)


def test_ranks_that_are_several_read_together(comm: Comm, folder: Path) -> None:
    path = folder / "t.tns"
    on_root(comm, lambda: write_tns(path, *CASES["few"]))
    assert isinstance(open_source(path, comm), DealtSource if comm.size > 1 else TensorSource)


def test_a_wrong_line_is_told_on_all_ranks(comm: Comm, folder: Path) -> None:
    path = folder / "t.tns"
    on_root(comm, lambda: path.write_text("1 1 1\n" * 200 + "1 x 1\n" + "1 1 1\n" * 90))
    with pytest.raises(InputError) as caught:
        open_source(path, comm)
    assert str(caught.value) == f"{path}, line 201: index 'x' of mode 1 is not an integer"
