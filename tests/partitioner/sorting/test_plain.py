"""NumPy's sorts give the results of the compiled ones, to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from partitioner.host.worth import SETTING
from partitioner.sorting import plain
from partitioner.sorting.sort import Sorted, sort_nonzeros, stable_argsort, strictly_increasing

LENGTHS = (5, 1 << 20, 3, (1 << 31) - 1)


@pytest.fixture(params=["always", "never"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Take one of both paths."""
    monkeypatch.setenv(SETTING, request.param)
    return str(request.param)


def nonzeros(kind: str, count: int, order: int = 4, dtype: Any = np.float64) -> tuple[np.ndarray, np.ndarray]:
    """Return nonzeros of some kind."""
    rng = np.random.default_rng(count)
    lengths = LENGTHS[:order]
    top = [min(n, 3) for n in lengths] if kind == "duplicates" else lengths
    columns = np.stack([rng.integers(0, n, count) for n in top]).astype(np.int32)
    values = rng.standard_normal(count).astype(dtype) * dtype(1e3)
    if kind == "cancelling":
        columns, values = np.repeat(columns, 2, axis=1), np.stack([values, -values], 1).ravel()
    if kind == "sorted":
        columns = columns[:, np.lexsort(columns[::-1])]
    return columns, values


@contextmanager
def on_path(monkeypatch: pytest.MonkeyPatch, path: str) -> Iterator[None]:
    """Take a path within."""
    with monkeypatch.context() as changes:
        changes.setenv(SETTING, path)
        yield


def same(one: Sorted, other: Sorted) -> None:
    """Assert that two sorts gave the same."""
    for left, right in zip(one[:2], other[:2], strict=True):
        assert left.dtype == right.dtype
        assert left.tobytes() == right.tobytes()
        assert left.flags.c_contiguous == right.flags.c_contiguous
    assert one[3:] == other[3:]


@pytest.mark.parametrize("count", [1, 2, 1000])
@pytest.mark.parametrize("kind", ["random", "duplicates", "cancelling", "sorted"])
@pytest.mark.parametrize(("merge", "keep"), [(False, False), (True, False), (True, True)])
def test_sorts_are_the_same(kind: str, count: int, merge: bool, keep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for path in ("always", "never"):
        with on_path(monkeypatch, path):
            columns, values = nonzeros(kind, count)
            found.append(sort_nonzeros(columns, values, range(4), LENGTHS, merge=merge, keep_zeros=keep))
    same(*found)


@pytest.mark.parametrize(("given", "dtype"), [(np.float32, np.float64), (np.float64, np.float32), (np.float32, None)])
def test_casts_are_the_same(given: Any, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for path in ("always", "never"):
        with on_path(monkeypatch, path):
            columns, values = nonzeros("duplicates", 500, 3, given)
            wanted = None if dtype is None else np.dtype(dtype)
            found.append(sort_nonzeros(columns, values, [2, 0], LENGTHS[:3], dtype=wanted))
    same(*found)


def test_results_overwrite_what_was_given(path: str) -> None:
    columns, values = nonzeros("duplicates", 300, 3)
    done = sort_nonzeros(columns, values, range(3), LENGTHS[:3], merge=True, overwrite=True)
    assert np.shares_memory(done.columns, columns)
    assert np.shares_memory(done.values, values)
    assert done.duplicates + done.zeros + done.values.size == 300
    assert strictly_increasing(done.columns)


def test_a_sum_that_a_narrow_type_rounds_to_zero_is_kept(path: str) -> None:
    columns, values = np.zeros((2, 2), np.int32), np.array([1e-30, 1e-30])
    done = sort_nonzeros(columns, values, range(2), (1, 1), dtype=np.dtype(np.float32), merge=True)
    assert done.values.size == 1
    assert done.duplicates == 1


@pytest.mark.parametrize("count", [0, 1, 2000])
@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_orders_are_the_same(count: int, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    columns, _ = nonzeros("duplicates", count)
    found = []
    for path in ("always", "never"):
        with on_path(monkeypatch, path):
            found.append(stable_argsort(list(columns), LENGTHS, np.dtype(dtype)))
    if count:
        assert found[0].dtype == found[1].dtype
        np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ([[0], [5]], True),
        ([[0, 0, 1], [1, 2, 0]], True),
        ([[0, 0, 1], [1, 1, 0]], False),
        ([[0, 1, 0], [1, 1, 1]], False),
        ([[0, 0], [2, 1]], False),
        ([[1, 1], [1, 1]], False),
    ],
)
def test_increasing(columns: list[list[int]], expected: bool, path: str) -> None:
    assert strictly_increasing(np.array(columns, np.int32)) is expected


def test_keys_longer_than_a_word() -> None:
    lengths = [(1 << 31) - 1] * 4
    columns = np.random.default_rng(0).integers(0, 3, (4, 200)).astype(np.int32)
    columns[1, 100:] = (1 << 31) - 2
    np.testing.assert_array_equal(plain.order_of(list(columns), lengths), np.lexsort(columns[::-1]))


def test_without_modes_nonzeros_keep_their_order(path: str) -> None:
    columns, values = nonzeros("random", 20)
    found = sort_nonzeros(columns, values, [], LENGTHS)
    np.testing.assert_array_equal(found.columns, columns)
    np.testing.assert_array_equal(found.values, values)
