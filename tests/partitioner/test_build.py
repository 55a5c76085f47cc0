"""Stores built in little memory have the same files as those built in memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from command import finish, python_line, run_partitioner
from forms import exhaustive
from tensors import files_of, hard_nonzeros, write_store

from partitioner import build
from partitioner.build import partition
from partitioner.errors import InputError
from partitioner.readers import ReadOptions, read
from partitioner.readers.arrays import npz
from partitioner.shards import sorted_runs
from partitioner.sorting.tables import DiskTable
from partitioner.store.format import Store
from partitioner.tensors.sparse import SparseTensor

CASES = hard_nonzeros()
CORES = 16  # each thread takes memory
REPEATED = {("many duplicates", 40), ("half sums to zero", 40), ("single precision", 100)}
"""Many small pieces take seconds, and these cases others in the same way: rows that have more than a piece."""


@contextmanager
def little_memory(limit: int, samples: int = 16) -> Iterator[None]:
    """Let few nonzeros exhaust the memory."""
    with (
        mock.patch.object(build, "_limit", return_value=limit),
        mock.patch.object(sorted_runs, "SAMPLES", samples),
        mock.patch.object(npz, "ROWS", 70),
    ):
        yield


def save(path: Path, columns: np.ndarray, values: np.ndarray) -> Path:
    np.savez(path, indices=columns.T, values=values)
    return path


@pytest.mark.parametrize(
    ("name", "limit"),
    [  # every second one by default; 100 cuts 3000 nonzeros into more runs than samples; less is for rows with more
        pytest.param(name, limit, marks=[pytest.mark.exhaustive] * ((name, limit) in REPEATED or (n + k) % 2))
        for n, name in enumerate(CASES)
        for k, limit in enumerate((40, 100, 999, 2999))
        if limit > 40 or name not in ("spread", "order 6", "one row has most", "single precision")
    ],
)
def test_a_store_made_in_pieces_is_the_one_made_in_memory(tmp_path: Path, name: str, limit: int) -> None:
    columns, values = CASES[name]
    path = save(tmp_path / "t.npz", columns, values)
    whole = write_store(SparseTensor(columns.T, values), tmp_path / "whole")
    with little_memory(limit):
        assert partition(path, tmp_path / "pieces").nnz == whole.nnz
    assert files_of(tmp_path / "pieces") == files_of(whole.path)
    assert sorted(os.listdir(tmp_path)) == ["pieces", "t.npz", "whole"]


@pytest.mark.parametrize("limit", [100, 2999])
def test_a_compact_store_made_in_pieces_is_the_one_made_in_memory(tmp_path: Path, limit: int) -> None:
    columns, values = CASES["spread"]
    path = save(tmp_path / "t.npz", columns, values)
    whole = write_store(read(path, compact=True), tmp_path / "whole")
    with little_memory(limit):
        store = partition(path, tmp_path / "pieces", form=ReadOptions(compact=True))
    assert files_of(store.path) == files_of(whole.path)
    assert [each.tolist() for each in store.labels() or ()] == [np.unique(column).tolist() for column in columns]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_duplicates_are_summed_in_their_order_whatever_the_pieces(tmp_path: Path, dtype: str) -> None:
    values = np.random.default_rng(0).standard_cauchy(2000).astype(dtype)
    columns = np.random.default_rng(1).integers(0, 2, (2, 2000)) * 1000
    totals = {}
    for key, value in zip(columns.T.tolist(), values.tolist(), strict=True):
        totals[tuple(key)] = totals.get(tuple(key), 0.0) + value
    path = save(tmp_path / "t.npz", columns, values)
    for limit in (33, 500, 5000):
        with little_memory(limit):
            store = partition(path, tmp_path / f"store{limit}")
        assert store.duplicates == 1996
        assert store.mode(0).values[:].tolist() == [np.dtype(dtype).type(totals[key]) for key in sorted(totals)]


def test_few_samples_still_cut_at_the_keys(tmp_path: Path) -> None:
    columns, values = CASES["one row has most"]
    whole = write_store(SparseTensor(columns.T, values), tmp_path / "whole")
    for samples in (1, 3):
        with little_memory(100, samples):
            partition(save(tmp_path / "t.npz", columns, values), tmp_path / f"pieces{samples}")
        assert files_of(tmp_path / f"pieces{samples}") == files_of(whole.path)


def test_no_more_nonzeros_are_merged_together_than_fit(tmp_path: Path) -> None:
    seen: list[int] = []
    kept = sorted_runs.Runs._exchanged

    def spy(self: Any, slices: Any) -> Any:
        found = kept(self, slices)
        seen.append(found[1].size)
        return found

    for columns, values in CASES.values():
        path = save(tmp_path / "t.npz", columns, values)
        with little_memory(500, 200), mock.patch.object(sorted_runs.Runs, "_exchanged", spy):
            partition(path, tmp_path / "store", force=True)
    assert len(seen) > 3 * len(CASES)
    assert max(seen) <= 500


@pytest.mark.parametrize("limit", [40, 10_000])
@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("1 1 1\n" * 200 + "1 x 1\n" + "1 1 1\n" * 10, "line 201: index 'x' of mode 1 is not an integer"),
        ("1 1 1\n1 1 -1\n" * 100, "every value is zero"),
        ("1 1 1e308\n" * 100, "sum of duplicates overflows"),
        ("1 1 1e308\n1 1 1e308\n" + "1 1 -1e308\n" * 100, "sum of duplicates overflows"),
        ("# nothing\n", "no nonzeros"),
    ],
)
def test_what_is_wrong_is_told_the_same(tmp_path: Path, text: str, cause: str, limit: int) -> None:
    path = tmp_path / "t.tns"
    path.write_text(text)
    with little_memory(limit), pytest.raises(InputError, match=re.escape(cause)) as caught:
        partition(path, tmp_path / "store")
    assert str(caught.value).startswith(str(path))
    assert os.listdir(tmp_path) == ["t.tns"]


@pytest.mark.parametrize("calls", [0, 3, 10])
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, calls: int) -> None:
    path = save(tmp_path / "t.npz", *CASES["spread"])
    write, left = DiskTable.write, [calls]

    def fail_later(*arguments: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        write(*arguments)

    message = "store: cannot write the store: No space left"
    patched = mock.patch.object(DiskTable, "write", fail_later)
    with little_memory(500), patched, pytest.raises(InputError, match=message) as caught:
        partition(path, tmp_path / "store")
    assert caught.value.path == str(tmp_path / "store")
    assert os.listdir(tmp_path) == ["t.npz"]


def test_a_store_can_be_partitioned_again(tmp_path: Path) -> None:
    store = write_store(SparseTensor(CASES["few"][0].T, CASES["few"][1]), tmp_path / "store")
    partition(store.path, tmp_path / "again")
    assert files_of(tmp_path / "again") == files_of(store.path)


@pytest.mark.parametrize("memory", ["0", "-1G", "lots", "1X"])
def test_memory_must_be_a_number_of_bytes(tmp_path: Path, memory: str) -> None:
    result = run_partitioner(tmp_path / "t.npz", "--output", tmp_path / "store", f"--memory={memory}")
    assert result.code == 2
    assert f"argument --memory: '{memory}' is not a number of bytes" in result.err
    assert result.err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(("nonzeros", "budget"), [(7_000_000, 384 << 20), exhaustive(20_000_000, 512 << 20)])
def test_memory_stays_within_the_budget(tmp_path: Path, nonzeros: int, budget: int) -> None:
    """Several times as many bytes as there is room for beside Python, its libraries and the threads' buffers."""
    rng = np.random.default_rng(0)
    shape, path = (20_000, 5_000, 3_000), tmp_path / "t.npz"
    columns = np.stack([rng.integers(0, length, nonzeros, dtype=np.int32) for length in shape], axis=1)
    np.savez(path, indices=columns, values=rng.random(nonzeros))
    del columns
    script = tmp_path / "peak.py"
    script.write_text(
        "import sys\nfrom partitioner.__main__ import main\nfrom partitioner.host import threads\n"
        "from amped.report.metrics import peak_resident_bytes\n"
        f"threads._affinity_cores, threads._cgroup_cores = (lambda: frozenset(range({CORES}))), (lambda: {CORES})\n"
        "code = main(sys.argv[1:])\nprint(peak_resident_bytes())\nsys.exit(code)\n"
    )
    done = finish(python_line(path, "--output", tmp_path / "store", "--memory", budget, "--quiet", script=script))
    assert done.code == 0, done.err
    assert int(done.out) <= budget
    assert Store(tmp_path / "store").nnz + Store(tmp_path / "store").duplicates == nonzeros
