"""Sorted copies, and their distribution to ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from oracle import Case, cases

from partitioner.host.ranks import SingleRank
from partitioner.shards.partition import (
    BALANCE,
    CountedRows,
    Cut,
    DistributedRows,
    SortedTensor,
    counted_rows,
    cut_mode,
    equal_offsets,
    even_offsets,
    mode_order,
)


@st.composite
def sorted_rows(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Sorted output indices, and the length of their mode: empty rows, heavy rows, a single row among them."""
    counts = draw(st.lists(st.sampled_from([0, 0, 1, 2, 3, 50, 400]), min_size=1, max_size=12).filter(any))
    first, spread = draw(st.sampled_from([0, 5])), draw(st.sampled_from([1, 1000]))
    rows = np.repeat(np.arange(len(counts)) * spread + first, counts).astype(np.int32)
    return rows, int(rows[-1]) + 1 + draw(st.sampled_from([0, 1, 2**30]))


PARTS = st.integers(1, 9) | st.sampled_from([100, 5000])


@given(sorted_rows(), PARTS)
def test_offsets_are_equal_within_the_balance(given_rows: tuple[np.ndarray, int], parts: int) -> None:
    rows, _ = given_rows
    offsets = equal_offsets(rows, parts)
    assert offsets.shape == (parts + 1,)
    assert offsets[0] == 0
    assert offsets[-1] == rows.size
    assert np.all(np.diff(offsets) >= 0)
    ideal = rows.size / parts * np.arange(parts + 1)
    assert np.all(np.abs(offsets - ideal) <= BALANCE * rows.size / parts + 1)


@given(sorted_rows(), PARTS)
def test_every_row_has_one_owner_and_every_split_row_a_head(given_rows: tuple[np.ndarray, int], parts: int) -> None:
    rows, length = given_rows
    cut = cut_mode(rows, length, parts)
    assert np.array_equal(cut.nonzeros, equal_offsets(rows, parts))
    assert cut.rows[0] == 0
    assert cut.rows[-1] == length
    assert np.all(np.diff(cut.rows) >= 0), "contiguous ranges: every row is owned exactly once"
    part_of = np.repeat(np.arange(parts), np.diff(cut.nonzeros))
    present, first = np.unique(rows, return_index=True)
    owner = np.searchsorted(cut.rows, present, "right") - 1
    assert np.array_equal(owner, part_of[first]), "the first part that has nonzeros of a row owns it"
    for p in range(parts):
        start, stop = cut.nonzeros[p], cut.nonzeros[p + 1]
        split = start < stop and start > 0 and rows[start] == rows[start - 1]
        assert cut.heads[p] == (rows[start] if split else -1)
    touched = [np.unique(rows[part_of == p]) for p in np.unique(part_of)]
    seen, times = np.unique(np.concatenate(touched), return_counts=True)
    assert np.array_equal(cut.split_rows, seen[times > 1])


@given(sorted_rows(), PARTS)
def test_counted_rows_are_cut_as_sorted_ones(given_rows: tuple[np.ndarray, int], parts: int) -> None:
    rows, length = given_rows
    assume(length < 2**20)
    counted, by_row = (
        cut_mode(CountedRows(np.bincount(rows, minlength=length)), length, parts),
        cut_mode(rows, length, parts),
    )
    for name in Cut.__dataclass_fields__:
        assert np.array_equal(getattr(counted, name), getattr(by_row, name)), name


@given(sorted_rows(), st.integers(1, 9))
def test_rows_of_any_mode_are_counted_as_sorted_ones(given_rows: tuple[np.ndarray, int], parts: int) -> None:
    """However long a mode is, and though its nonzeros are in no order."""
    rows, length = given_rows
    shuffled = np.random.default_rng(0).permutation(rows)
    expected = cut_mode(rows, length, parts)
    for counted in (counted_rows(shuffled, length), DistributedRows(shuffled, length, SingleRank())):
        cut = cut_mode(counted, length, parts)
        for name in Cut.__dataclass_fields__:
            assert np.array_equal(getattr(cut, name), getattr(expected, name)), name


@given(sorted_rows(), PARTS)
def test_imbalance(given_rows: tuple[np.ndarray, int], parts: int) -> None:
    rows, length = given_rows
    cut = cut_mode(rows, length, parts)
    counts = np.diff(cut.nonzeros)
    assert cut.imbalance == pytest.approx((counts.max() - counts.mean()) / counts.mean())
    assert cut.imbalance <= 2 * BALANCE + parts / rows.size


@pytest.mark.parametrize("shift", [0, 4, -5, 6, -7, 500])
def test_a_cut_moves_to_a_row_boundary_that_is_near(shift: int) -> None:
    rows = np.repeat(np.array([3, 8], np.int32), [1000 + shift, 1000 - shift])
    near = abs(shift) <= BALANCE * 1000
    cut = cut_mode(rows, 10, 2)
    assert cut.nonzeros.tolist() == [0, 1000 + shift if near else 1000, 2000]
    split = 3 if shift > 0 else 8
    assert cut.split_rows.tolist() == ([] if near else [split])
    assert cut.heads.tolist() == [-1, -1 if near else split]
    assert cut.rows.tolist() == [0, 8 if near else split + 1, 10]


@given(sorted_rows(), st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_cuts_move_to_where_parts_take_equal_times(given_rows: tuple[np.ndarray, int], rates: list[int]) -> None:
    rows, length = given_rows
    offsets, parts = equal_offsets(rows, len(rates)), len(rates)
    rate = np.array(rates, np.float64)
    targets = even_offsets(offsets, rate * np.diff(offsets))
    clock = np.interp(targets, offsets, np.concatenate([[0], np.cumsum(rate * np.diff(offsets))]))
    assert np.abs(np.diff(clock) - clock[-1] / parts).max() <= rate.max()  # of one nonzero, at both ends
    cut = cut_mode(rows, length, parts, targets)
    assert (cut.nonzeros[0], cut.nonzeros[-1], cut.rows[0], cut.rows[-1]) == (0, rows.size, 0, length)
    assert np.all(np.diff(cut.nonzeros) >= 0)
    assert np.abs(cut.nonzeros - targets).max() <= BALANCE * rows.size / parts


def test_one_row_over_many_parts() -> None:
    cut = cut_mode(np.full(10, 4, np.int32), 7, 3)
    assert cut.nonzeros.tolist() == [0, 3, 6, 10]
    assert cut.rows.tolist() == [0, 5, 5, 7]
    assert cut.heads.tolist() == [-1, 4, 4]
    assert cut.split_rows.tolist() == [4]


def test_more_parts_than_nonzeros() -> None:
    cut = cut_mode(np.array([2, 5], np.int32), 6, 5)
    assert sorted(np.diff(cut.nonzeros)) == [0, 0, 0, 1, 1]
    assert np.all(cut.heads == -1)
    assert np.diff(cut.rows).sum() == 6


@given(cases(max_order=8, max_nonzeros=60))
def test_a_mode_copy_is_sorted_by_its_mode_then_the_others(case: Case) -> None:
    tensor = case.tensor
    for mode in range(tensor.order):
        modes = mode_order(tensor.order, mode)
        assert modes == [mode] + [m for m in range(tensor.order) if m != mode]
        perm = np.lexsort(tensor.columns[modes[::-1]])
        copy = SortedTensor(tensor, mode)
        for k, m in enumerate(modes):
            assert np.array_equal(copy.column(k), tensor.columns[m][perm])
        assert np.array_equal(copy.values, tensor.values[perm])
