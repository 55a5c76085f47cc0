"""Which indices are used: the same for short modes and for long ones."""

from __future__ import annotations

import tracemalloc
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioner.tensors import used_indices
from partitioner.tensors.used_indices import count_runs, distinct, distinct_runs, is_long, labels_of, renumbered


@given(st.lists(st.integers(0, 50), max_size=40), st.sampled_from([51, 2**31 - 1]))
def test_used_indices_and_their_new_numbers(rows: list[int], length: int) -> None:
    given_rows = np.array(rows, np.int32)
    used = distinct(given_rows, length)
    assert used.dtype == np.int32
    assert used.tolist() == sorted(set(rows))
    if rows:
        found = renumbered(given_rows, used)
        assert found.dtype == np.int32
        assert np.array_equal(used[found], given_rows)
        for block in (1, 3, 100):
            with mock.patch.object(used_indices, "BLOCK", block):
                assert count_runs(np.sort(given_rows)) == used.size
                assert np.array_equal(distinct_runs(np.sort(given_rows)), used)
                assert np.array_equal(renumbered(given_rows, used), found)
    assert labels_of(used, 1).tolist() == [row + 1 for row in used.tolist()]


def test_labels_of_the_highest_index() -> None:
    assert labels_of(np.array([2**31 - 2], np.int32), 1).tolist() == [2**31 - 1]


@pytest.mark.parametrize("length", [2**31 - 1, 1_700_000_000])
def test_long_modes_take_no_memory(length: int) -> None:
    rows = np.array([length - 1, 5, length - 1, 0], np.int32)
    assert is_long(length, rows.size)
    tracemalloc.start()
    try:
        assert renumbered(rows, distinct(rows, length)).tolist() == [2, 1, 2, 0]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
