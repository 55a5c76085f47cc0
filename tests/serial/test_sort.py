"""Counting sorts, against NumPy's."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioner.sort import DIGIT_BITS, merge_duplicates, stable_argsort, strictly_increasing

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


@given(tables(), st.sampled_from([np.float32, np.float64]))
def test_merge_duplicates(table: tuple[np.ndarray, list[int]], dtype: type) -> None:
    columns = np.ascontiguousarray(table[0][:, np.lexsort(table[0][::-1])])
    values = np.random.default_rng(columns.shape[1]).integers(-1, 2, columns.shape[1]).astype(dtype)
    sums: dict[tuple[int, ...], float] = {}
    for row, value in zip(columns.T, values, strict=True):
        sums[tuple(row)] = sums.get(tuple(row), 0.0) + float(value)
    left = {row: total for row, total in sums.items() if total}
    kept, distinct = merge_duplicates(columns, values)
    assert (kept, distinct) == (len(left), len(sums))
    assert [tuple(row) for row in columns[:, :kept].T] == list(left)
    assert values[:kept].tolist() == list(left.values())
