"""Sorting on a GPU gives the same nonzeros, and bytewise identical stores, as on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pytest
from command import run_partitioner
from hypothesis import given
from hypothesis import strategies as st
from tensors import files_of, hard_nonzeros, random_nonzeros

from partitioner import build
from partitioner.build import partition
from partitioner.cuda.sort_keys import MOST, WORD, passes, place_bits
from partitioner.errors import InputError
from partitioner.host.ranks import SingleRank
from partitioner.shards import sorted_runs
from partitioner.shards.sorters import make_sorter, probe
from partitioner.sorting.sort import Sorted, sort_nonzeros
from partitioner.tensors.ingest import MAX_MODE_LENGTH

needs_gpu = pytest.mark.skipif(bool(probe()), reason=probe())
LONG = MAX_MODE_LENGTH - 1
CASES = hard_nonzeros() | {
    f"order {order}, 31 bits each": random_nonzeros((LONG,) * order, 3000, order) for order in range(2, 7)
}
CASES["equal in the first 124 bits"] = np.vstack([np.full((4, 3000), LONG), CASES["spread"][0]]), CASES["spread"][1]
CASES["sums need double precision"] = np.zeros((2, 3000), np.int64), CASES["single precision"][1]
HOW: list[dict[str, Any]] = [
    *({"merge": merge, "overwrite": overwrite} for merge in (False, True) for overwrite in (False, True)),
    {"dtype": np.dtype(np.float32)},
]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The sort on a GPU, which copies few nonzeros at a time."""
    cuda_sort = pytest.importorskip("partitioner.cuda.sort")
    cuda_copies = pytest.importorskip("partitioner.cuda.copies")
    monkeypatch.setattr(cuda_copies, "PIECE", 4096)
    cuda_copies.copies.cache_clear()
    assert isinstance(cuda_sort, ModuleType)
    yield cuda_sort
    cuda_copies.copies.cache_clear()


def keys(columns: np.ndarray, fields: Any, nonzeros: int, order: np.ndarray) -> np.ndarray:
    """Return the words of a pass, as the GPU makes them."""
    words = np.arange(nonzeros, dtype=np.uint64)
    for mode, down, bits, up in fields:
        part = columns[mode][order].astype(np.uint64) >> np.uint64(down) & np.uint64((1 << bits) - 1)
        words |= part << np.uint64(up)
    return words


@given(st.data())
def test_passes_over_words_sort(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.sampled_from([1, 2, 3, 1000, 2**20 + 1, 2**31 - 1]), min_size=1, max_size=8))
    nonzeros = data.draw(st.integers(1, 200))
    modes = data.draw(st.permutations(range(len(lengths))))[: data.draw(st.integers(1, len(lengths)))]
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    columns = np.array([rng.choice(rng.integers(0, length, 5), nonzeros) for length in lengths])
    order = np.arange(nonzeros)
    for fields in passes(modes, lengths, nonzeros):
        words = np.sort(keys(columns, fields, nonzeros, order))
        order = order[(words & np.uint64((1 << place_bits(nonzeros)) - 1)).astype(np.int64)]
    assert np.array_equal(order, np.lexsort([columns[m] for m in reversed(modes)]))


def test_fields_fill_words_and_do_not_overlap() -> None:
    lengths = [MAX_MODE_LENGTH] * 8
    found = passes(range(8), lengths, MOST)
    assert len(found) == -(-8 * 31 // (WORD - 31))
    for fields in found:
        taken = sum(((1 << bits) - 1) << up for _, _, bits, up in fields)
        assert taken.bit_count() == sum(field.bits for field in fields)
        assert taken >> WORD == 0
        assert taken & MOST == 0
    assert all(sum(f.bits for fields in found for f in fields if f.mode == mode) == 31 for mode in range(8))


@pytest.mark.skipif(not probe(), reason="this machine has a GPU")
def test_cuda_without_a_gpu_is_told(tmp_path: Path) -> None:
    result = run_partitioner(tmp_path / "t.tns", "--output", tmp_path / "store", "--device", "cuda")
    assert result.code == 2
    assert result.err.startswith("amped-partition: error: --device cuda: ")
    assert result.err.count("\n") == 1


def test_a_device_that_there_is_not(tmp_path: Path) -> None:
    result = run_partitioner(tmp_path / "t.tns", "--output", tmp_path / "store", "--device", "abacus")
    assert result.code == 2
    assert "abacus" in result.err
    with pytest.raises(InputError, match="device 'abacus': expected auto, cpu, cuda"):
        partition(tmp_path / "t.tns", tmp_path / "store", device="abacus")  # type: ignore[arg-type]


def test_auto_takes_what_there_is(tmp_path: Path) -> None:
    columns, values = CASES["few"]
    np.savez(tmp_path / "t.npz", indices=columns.T, values=values)
    stores = [partition(tmp_path / "t.npz", tmp_path / device, device=device).path for device in ("cpu", "auto")]
    assert files_of(stores[0]) == files_of(stores[1])


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("limit", [10**6, 999, 100])
@pytest.mark.parametrize("name", CASES)
def test_the_store_is_the_same_as_by_the_cpu(tmp_path: Path, small_pieces: ModuleType, name: str, limit: int) -> None:
    columns, values = CASES[name]
    np.savez(tmp_path / "t.npz", indices=columns.T, values=values)
    with mock.patch.object(build, "_limit", return_value=limit), mock.patch.object(sorted_runs, "SAMPLES", 16):
        partition(tmp_path / "t.npz", tmp_path / "cpu")
        with mock.patch.object(small_pieces, "sort_nonzeros", side_effect=AssertionError("sorted by the CPU")):
            partition(tmp_path / "t.npz", tmp_path / "cuda", device="cuda")
    assert files_of(tmp_path / "cuda") == files_of(tmp_path / "cpu")


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("most", [100, 999])
def test_what_does_not_fit_on_the_device_is_sorted_in_runs(tmp_path: Path, small_pieces: ModuleType, most: int) -> None:
    seen: list[int] = []
    sort = small_pieces.CudaSorter.sort

    def spy(self: Any, columns: Any, values: Any, *arguments: Any, **how: Any) -> Sorted:
        seen.append(values.size)
        done: Sorted = sort(self, columns, values, *arguments, **how)
        return done

    for name in ("spread", "many duplicates", "order 6"):
        columns, values = CASES[name]
        np.savez(tmp_path / f"{name}.npz", indices=columns.T, values=values)
        partition(tmp_path / f"{name}.npz", tmp_path / f"{name} cpu")
        patches = {"most": lambda *_: most, "sort": spy}
        with mock.patch.multiple(small_pieces.CudaSorter, **patches), mock.patch.object(sorted_runs, "SAMPLES", 500):
            partition(tmp_path / f"{name}.npz", tmp_path / f"{name} cuda", device="cuda")
        assert files_of(tmp_path / f"{name} cuda") == files_of(tmp_path / f"{name} cpu")
    assert len(seen) > 30
    assert max(seen) <= most


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("1 1 1\n1 1 -1\n" * 100, "every value is zero"),
        ("1 1 1e308\n" * 100, "sum of duplicates overflows"),
        ("# nothing\n", "no nonzeros"),
    ],
)
@pytest.mark.parametrize("limit", [40, 10_000])
def test_what_is_wrong_is_told_as_by_the_cpu(tmp_path: Path, text: str, cause: str, limit: int) -> None:
    path = tmp_path / "t.tns"
    path.write_text(text)
    with mock.patch.object(build, "_limit", return_value=limit), pytest.raises(InputError, match=cause) as caught:
        partition(path, tmp_path / "store", device="cuda")
    assert str(caught.value).startswith(str(path))
    assert [file.name for file in tmp_path.iterdir()] == ["t.tns"]


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("nonzeros", [1, 2, 255, 257, 3_000_000])
def test_nonzeros_are_sorted_as_by_the_cpu(nonzeros: int, dtype: str, how: dict[str, Any]) -> None:
    """With pieces of the usual size; a thirtieth of the nonzeros are at one coordinate."""
    sort, lengths = make_sorter("cuda", SingleRank()).sort, (700, 2**31 - 1, 3)
    columns, values = random_nonzeros(lengths, nonzeros, 0)
    columns[1] %= max(1, nonzeros // 800)
    columns[:, :: nonzeros // 30 + 1] = np.array([[300], [1], [2]])
    values = values.astype(dtype)
    values[::7] = np.rint(values[::7])
    for modes in (range(3), [1]) if not how.get("merge") else (range(3),):
        expected = sort_nonzeros(columns.copy(), values.copy(), modes, lengths, **how)
        found = sort(columns.copy(), values.copy(), modes, lengths, **how)
        assert found.columns.tobytes() == expected.columns.tobytes()
        assert found.values.tobytes() == expected.values.tobytes()
        assert found.values.dtype == expected.values.dtype
        assert found._replace(columns=0, values=0, scratch=0) == expected._replace(columns=0, values=0, scratch=0)


@needs_gpu
@pytest.mark.gpu
def test_what_is_larger_than_the_device_goes_to_the_cpu() -> None:
    sorter = make_sorter("cuda", SingleRank())
    sorter.share_memory(10**12)  # type: ignore[attr-defined]
    columns, values = CASES["spread"]
    lengths = [int(column.max()) + 1 for column in columns]
    found, expected = (sort(columns, values, range(3), lengths) for sort in (sorter.sort, sort_nonzeros))
    assert np.array_equal(found.columns, expected.columns)
    assert np.array_equal(found.values, expected.values)


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("elements", [0, 1, 31, 32, 4095, 4096, 4097, 70_000, 5_000_000])
def test_selections(elements: int) -> None:
    """Starts of runs, positions of a range of indices, and counts of indices equal NumPy's."""
    import cupy

    from partitioner.cuda import sort

    rng, length = np.random.default_rng(elements), 1000
    columns = [rng.integers(0, 3, elements).cumsum().astype(np.int32) // 7, rng.integers(0, 2, elements, np.int32)]
    for count in (0, 1, 2):
        changes = np.arange(elements) == 0
        for column in columns[:count]:
            changes[1:] |= np.diff(column) != 0
        starts = sort.starts([cupy.asarray(column) for column in columns[:count]], elements).get()
        np.testing.assert_array_equal(starts, [*np.flatnonzero(changes), elements])
    column = rng.zipf(1.5, elements).clip(1, length).astype(np.int32) - 1
    on_device = cupy.asarray(column)
    np.testing.assert_array_equal(sort.counts(on_device, length).get(), np.bincount(column, minlength=length))
    for low, high in ((0, length), (1, 4), (5, 5), (length, 2 * length)):
        between = np.flatnonzero((column >= low) & (column < high))
        np.testing.assert_array_equal(sort.between(on_device, low, high).get(), between)
