"""Stores built by several ranks have the same files as those built by one."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from tensors import files_of, hard_nonzeros, write_store, write_tns

from amped.parallel.mpi import Comm
from partitioner import build
from partitioner.build import partition
from partitioner.errors import InputError
from partitioner.host import ranks, threads
from partitioner.host.ranks import world
from partitioner.readers import ReadOptions, read
from partitioner.shards import sorted_runs
from partitioner.store.staging import drafted
from partitioner.tensors.sparse import SparseTensor

pytestmark = pytest.mark.mpi
CASES = hard_nonzeros()
# 100 cuts 3000 nonzeros into more runs than there are samples; less is for rows that have more than that.
MANY_RUNS = {
    name: 100 if name in ("spread", "order 6", "one row has most", "single precision") else 50 for name in CASES
}


@pytest.fixture
def folder(comm: Comm, tmp_path: Path) -> Path:
    """A folder that all ranks see."""
    return comm.bcast(tmp_path)


@pytest.mark.parametrize(
    ("name", "limit"),
    [*product(CASES, (600, 10**6)), *(pytest.param(*case, marks=pytest.mark.ranks(3)) for case in MANY_RUNS.items())],
)
@pytest.mark.parametrize("kind", ["tns", "npz"])
def test_the_store_is_the_same_on_any_number_of_ranks(
    comm: Comm, folder: Path, name: str, limit: int, kind: str
) -> None:
    columns, values = CASES[name]
    path = folder / f"t.{kind}"
    if comm.rank == 0:
        write_tns(path, columns, values) if kind == "tns" else np.savez(path, indices=columns.T, values=values)
        write_store(SparseTensor(columns.T, values), folder / "one")
    comm.allgather(None)
    with mock.patch.object(build, "_limit", return_value=limit), mock.patch.object(sorted_runs, "SAMPLES", 16):
        store = partition(path, folder / "all", ranks=world())
    assert store.path == folder / "all"
    expected, found = files_of(folder / "one"), files_of(folder / "all")
    assert found == expected
    comm.allgather(None)
    if comm.rank == 0:
        assert sorted(f.name for f in folder.iterdir()) == ["all", "one", path.name]


def test_explicit_zeros_are_kept_on_request(comm: Comm, folder: Path) -> None:
    columns, values = CASES["spread"]
    values = np.where(np.arange(values.size) % 3, values, 0)
    path = folder / "t.tns"
    if comm.rank == 0:
        write_tns(path, columns, values)
    comm.allgather(None)
    with mock.patch.object(build, "_limit", return_value=600), mock.patch.object(sorted_runs, "SAMPLES", 16):
        store = partition(path, folder / "all", ranks=world(), form=ReadOptions(keep_zeros=True))
    if comm.rank == 0:
        expected, stored = SparseTensor(columns.T, values, keep_zeros=True), store.tensor()
        assert not stored.values.all()
        assert np.array_equal(stored.columns, expected.columns)
        assert np.array_equal(stored.values, expected.values)
        assert store.zeros == 0
    comm.allgather(None)


@pytest.mark.parametrize("limit", [600, 10**6])
def test_a_compact_store_is_the_same_on_any_number_of_ranks(comm: Comm, folder: Path, limit: int) -> None:
    path = folder / "t.tns"
    if comm.rank == 0:
        write_tns(path, *CASES["spread"])
        write_store(read(path, compact=True), folder / "one")
    comm.allgather(None)
    with mock.patch.object(build, "_limit", return_value=limit), mock.patch.object(sorted_runs, "SAMPLES", 16):
        store = partition(path, folder / "all", ranks=world(), form=ReadOptions(compact=True))
    assert files_of(folder / "all") == files_of(folder / "one")
    labels = store.labels()
    assert labels is not None
    assert [each.tolist() for each in labels] == [(np.unique(c) + 1).tolist() for c in CASES["spread"][0]]
    comm.allgather(None)


@pytest.mark.parametrize("line", [1, 150, 300])
def test_a_wrong_line_is_told_on_all_ranks(comm: Comm, folder: Path, line: int) -> None:
    path = folder / "t.tns"
    if comm.rank == 0:
        lines = ["1 1 1"] * 300
        lines[line - 1] = "1 0 1"
        path.write_text("\n".join(lines))
    comm.allgather(None)
    with pytest.raises(InputError) as caught:
        partition(path, folder / "store", ranks=world())
    told = "indices count from 1; if they count from 0, use index_base=0"
    assert str(caught.value) == f"{path}, line {line}: index '0' of mode 1: {told}"
    comm.allgather(None)
    if comm.rank == 0:
        assert [f.name for f in folder.iterdir()] == ["t.tns"]


def test_a_store_that_exists_is_told_on_all_ranks(comm: Comm, folder: Path) -> None:
    with pytest.raises(InputError, match="exists already"):
        partition(folder / "t.tns", folder, ranks=world())


@pytest.mark.parametrize("when", ["at the start", "at the end"])
def test_a_target_that_another_run_has_is_told_on_all_ranks(
    comm: Comm, folder: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Be it claimed by that run, or made by it meanwhile."""
    path, target = folder / "t.tns", folder / "store"
    if comm.rank == 0:
        path.write_text("1 1 1.5\n2 2 2.0\n")
    comm.allgather(None)
    whole = build._Build.run

    def made_meanwhile(work: Any) -> None:
        whole(work)
        if comm.rank == 0:
            target.mkdir()

    if when == "at the start":
        with drafted(target) if comm.rank == 0 else nullcontext():
            comm.allgather(None)
            with pytest.raises(InputError, match="writes there"):
                partition(path, target, ranks=world())
            comm.allgather(None)
    else:
        monkeypatch.setattr(build._Build, "run", made_meanwhile)
        with pytest.raises(InputError, match="created by another process meanwhile"):
            partition(path, target, ranks=world())
    comm.allgather(None)
    assert {each.name for each in folder.iterdir()} == {"t.tns", "store"}


@pytest.mark.parametrize("message", [8, 24, 1 << 30])
def test_swap(comm: Comm, message: int) -> None:
    everyone = world()
    for dtype in ("i4", "f8"):
        arrays: list[Any] = [np.arange(7 * r, dtype=dtype) + r for r in range(comm.size)]
        for shift in range(comm.size):
            to, source = (comm.rank + shift) % comm.size, (comm.rank - shift) % comm.size
            into = np.empty_like(arrays[source])
            with mock.patch.object(ranks, "MESSAGE", message):
                everyone.swap(arrays[comm.rank], to, into, source)
            assert np.array_equal(into, arrays[source])


def test_threads_are_shared(comm: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "usable_cores", lambda: 8)
    assert threads.fair_threads(world()) == max(1, 8 // comm.size)
