"""A file format that is one class and one entry in the list of readers."""

from __future__ import annotations

import json
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import mmwrite, savemat
from scipy.sparse import coo_array
from tensors import hard_nonzeros

import amped
from amped.errors import InputError
from amped.operators.sources.sparse import open_source
from amped.parallel.mpi import Comm, on_root
from partitioner.readers import ReadOptions, formats, is_dense, is_divisible, is_table, line_where, read
from partitioner.readers.pieces import ArrayPart
from partitioner.readers.reader import Reader
from partitioner.tensors.sparse import SparseTensor

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(1, 3)]


class RowsReader(Reader):
    """A list of rows ``[i, j, ..., value]`` in JSON."""

    name, extensions = "rows", (".rows",)

    def __init__(self, divisible: bool) -> None:
        self.divisible, self.read = divisible, list[int]()

    def is_divisible(self, path: str | PathLike[str]) -> bool:
        return self.divisible

    def line_where(self, path: str | PathLike[str], wrong: Callable[[float], bool]) -> int | None:
        return 17

    def part(self, path: str | PathLike[str], form: ReadOptions, part: int, of: int, **how: Any) -> ArrayPart:
        rows = np.array(json.loads(Path(path).read_text()))
        begin, end = (len(rows) * k // of for k in (part, part + 1)) if self.divisible else (0, len(rows) * (part == 0))
        self.read.append(end - begin)
        return ArrayPart(rows[begin:end, :-1].T, rows[begin:end, -1])


@pytest.mark.parametrize("divisible", [False, True])
def test_a_format_that_is_one_class_is_read_by_any_number_of_ranks(
    comm: Comm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, divisible: bool
) -> None:
    reader, path = RowsReader(divisible), comm.bcast(tmp_path) / "T.Rows"
    monkeypatch.setattr(formats, "READERS", (*formats.READERS, reader))
    columns, values = hard_nonzeros()["spread"]
    on_root(comm, lambda: path.write_text(json.dumps(np.vstack([columns, values]).T.tolist())))
    expected = SparseTensor(columns.T, values)

    source = open_source(path, comm)
    assert (source.shape, source.nnz) == (expected.shape, expected.nnz)
    share = len(values) // comm.size
    assert (abs(reader.read[0] - share) <= 1) if divisible else (reader.read[0] == len(values) * (comm.rank == 0))
    found = source.tensor()
    if comm.rank == 0:
        assert isinstance(found, SparseTensor)
        assert np.array_equal(found.columns, expected.columns)
        assert np.array_equal(found.values, expected.values)

    assert is_divisible(path) == divisible
    assert line_where(path, lambda value: value < 0) == 17
    assert not is_dense(path)
    assert not is_table(path)
    alone = read(path)
    assert isinstance(alone, SparseTensor)
    assert alone.nnz == expected.nnz
    with pytest.raises(InputError, match="a tensor, not a table"):
        read(path, keys=["a", "b"])


@pytest.mark.parametrize("name", ["s.mtx", "d.mtx", "m.mat:S", "m.mat:D"])
def test_matrices_and_arrays_of_other_programs_are_read_by_any_number_of_ranks(
    comm: Comm, tmp_path: Path, name: str
) -> None:
    folder, rng = comm.bcast(tmp_path), np.random.default_rng(0)
    dense = rng.random((6, 5))
    sparse = coo_array(np.where(dense > 0.5, dense, 0))

    def write() -> None:
        mmwrite(folder / "s.mtx", sparse)
        mmwrite(folder / "d.mtx", dense)
        savemat(folder / "m.mat", {"S": sparse, "D": dense})

    on_root(comm, write)
    how: dict[str, Any] = {"max_iters": 2, "device": "cpu", "precision": "fp64"}
    expected = amped.cp_als(dense if "d" in name.lower() else sparse, 2, **how)
    assert amped.cp_als(f"{folder}/{name}", 2, **how).fits == pytest.approx(expected.fits)
