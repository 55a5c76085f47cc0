"""Counting sorts, against NumPy's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioner.sorting import sort
from partitioner.sorting.sort import DIGIT_BITS, SortOptions, sort_nonzeros, stable_argsort, strictly_increasing

LENGTHS = (1, 2, 3, 1000, 2**DIGIT_BITS - 1, 2**DIGIT_BITS, 2**DIGIT_BITS + 1, 2**24 + 1, 2**31 - 1)


@st.composite
def tables(draw: st.DrawFn) -> tuple[np.ndarray, list[int]]:
    """Columns of indices with many ties, both ends of each range among them."""
    lengths = draw(st.lists(st.sampled_from(LENGTHS), min_size=1, max_size=4))
    count = draw(st.integers(0, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    few = [np.append(rng.integers(0, length, 3), [0, length - 1]) for length in lengths]
    return np.array([rng.choice(values, count) for values in few], np.int32), lengths


@given(tables())
def test_stable_argsort_is_lexsort(table: tuple[np.ndarray, list[int]]) -> None:
    columns, lengths = table
    expected = np.lexsort(columns[::-1])
    assert np.array_equal(stable_argsort(list(columns), lengths), expected)


@pytest.mark.parametrize("length", LENGTHS)
def test_many_keys_over_the_whole_range(length: int) -> None:
    keys = np.random.default_rng(length).integers(0, length, 100_003, np.int32)
    for dtype in (np.dtype(np.int64), np.dtype(np.uint32)):
        found = stable_argsort([keys], [length], dtype)
        assert found.dtype == dtype
        assert np.array_equal(found, np.argsort(keys, kind="stable"))


@given(tables())
def test_strictly_increasing(table: tuple[np.ndarray, list[int]]) -> None:
    columns = table[0]
    rows = [tuple(row) for row in columns.T]
    assert strictly_increasing(columns) == all(a < b for a, b in pairwise(rows))
    distinct = np.unique(columns, axis=1)
    assert strictly_increasing(distinct)


@contextmanager
def small_buckets() -> Iterator[None]:
    """Let a few nonzeros fill several buckets, and few bits make a key, so that all of them take part."""
    with mock.patch.multiple(sort, BUCKET=8, BIN_BITS=5):
        yield


@given(tables(), st.data())
def test_nonzeros_are_sorted_stably_by_some_modes(table: tuple[np.ndarray, list[int]], data: st.DataObject) -> None:
    columns, lengths = table
    modes = data.draw(st.lists(st.sampled_from(range(len(lengths))), unique=True))
    dtype, threads = data.draw(st.sampled_from([None, np.dtype("f4"), np.dtype("f8")])), data.draw(st.integers(1, 3))
    values = np.arange(columns.shape[1], dtype=data.draw(st.sampled_from(["f4", "f8"])))
    given_columns, given_values = columns.copy(), values.copy()
    expected = np.lexsort(columns[modes][::-1]) if modes else np.arange(values.size)
    with small_buckets():
        found = sort_nonzeros(columns, values, modes, lengths, dtype=dtype, threads=threads)
    assert np.array_equal(found.columns, columns[:, expected])
    assert np.array_equal(found.values, values[expected])
    assert found.values.dtype == (dtype or values.dtype)
    assert (found.duplicates, found.zeros) == (0, 0)
    assert np.array_equal(columns, given_columns), "what is given does not change unless asked"
    assert np.array_equal(values, given_values)


@given(
    tables(), st.sampled_from([np.float32, np.float64]), st.integers(1, 3), st.booleans(), st.booleans(), st.booleans()
)
def test_duplicates_are_merged(
    table: tuple[np.ndarray, list[int]], dtype: type, threads: int, small: bool, overwrite: bool, keep: bool
) -> None:
    columns, lengths = table
    values = np.random.default_rng(columns.shape[1]).integers(-1, 2, columns.shape[1]).astype(dtype)
    sums: dict[tuple[int, ...], float] = {}
    for row, value in zip(columns.T.tolist(), values.tolist(), strict=True):
        sums[tuple(row)] = sums.get(tuple(row), 0.0) + value
    left = {row: total for row, total in sorted(sums.items()) if total or keep}
    memory = columns, values
    with small_buckets() if small else nullcontext():
        options = SortOptions(merge=True, keep_zeros=keep, overwrite=overwrite, threads=threads)
        found = sort_nonzeros(columns, values, range(len(lengths)), lengths, **options)
    assert [tuple(row) for row in found.columns.T.tolist()] == list(left)
    assert found.values.tolist() == list(left.values())
    assert (found.duplicates, found.zeros) == (len(values) - len(sums), len(sums) - len(left))
    for given_array, array in zip(memory, found, strict=False):
        assert not array.size or np.shares_memory(given_array, array) == overwrite


def test_duplicates_are_summed_in_their_order() -> None:
    values = np.random.default_rng(3).standard_cauchy(200_000)
    columns = np.random.default_rng(4).integers(0, 20, (2, values.size), np.int32)
    totals = np.zeros((20, 20))
    np.add.at(totals, tuple(columns), values)  # one after the other
    for threads in (1, 2, 5):
        found = sort_nonzeros(columns, values, [0, 1], [20, 20], merge=True, threads=threads)
        assert np.array_equal(found.values, totals.ravel())


@pytest.mark.parametrize("heavy", [0.0, 0.9])
def test_many_nonzeros_in_many_buckets(heavy: float) -> None:
    lengths, nonzeros = (70_000, 3, 2**31 - 1, 2**31 - 1, 9), 300_000
    rng = np.random.default_rng(5)
    columns = np.array([rng.integers(0, length, nonzeros) for length in lengths], np.int32)
    columns[0, rng.random(nonzeros) < heavy] = 69_999
    values = np.arange(nonzeros, dtype=np.float64)
    for modes in ([0, 1, 2, 3, 4], [2], [0], [4, 0]):
        expected = np.lexsort(columns[modes][::-1])
        found = sort_nonzeros(columns, values, modes, lengths, threads=2)
        assert np.array_equal(found.values, expected)
        assert np.array_equal(found.columns, columns[:, expected])
