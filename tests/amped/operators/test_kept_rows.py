"""Compact matrices of hypersparse modes."""

from __future__ import annotations

import numpy as np
import pytest

from amped.operators import kept_rows
from amped.operators.kept_rows import EmptyRows, GramOfEmpty, KeptRows, LargestOfEmpty

USED = np.array([0, 1, 3, 17, 18, 40_000], np.int32)
LENGTH, RANK = 50_000, 5


def matrix(dtype: str = "f8") -> np.ndarray:
    return np.random.default_rng(0).random((LENGTH, RANK)).astype(dtype)


@pytest.mark.parametrize("empty", [GramOfEmpty(), LargestOfEmpty()])
def test_used_rows_are_kept_and_the_rest_becomes_zero(empty: EmptyRows) -> None:
    kept, whole = KeptRows(USED, LENGTH, empty, RANK), matrix()
    assert kept.indices.size == USED.size + empty.spare(RANK)
    assert set(kept.indices) - set(USED) == set([2, 4, 5, 6, 7][: empty.spare(RANK)]), "the first unused indices"
    back = kept.expand(kept.compact(whole))
    np.testing.assert_array_equal(back[USED], whole[USED])
    others = np.setdiff1d(np.arange(LENGTH), kept.indices)
    assert not back[others].any()
    np.testing.assert_array_equal(kept.compact(back), back[kept.indices], "nothing is lost a second time")


@pytest.mark.parametrize(("dtype", "tolerance"), [("f8", 1e-14), ("f4", 3e-7)])
def test_spare_rows_have_the_gram_matrix_of_empty_ones(dtype: str, tolerance: float) -> None:
    whole = matrix(dtype)
    compact = KeptRows(USED, LENGTH, GramOfEmpty(), RANK).compact(whole).astype(float)
    gram = whole.T.astype(float) @ whole.astype(float)
    np.testing.assert_allclose(compact.T @ compact, gram, rtol=tolerance)


def test_a_spare_row_has_the_largest_entries_of_empty_ones() -> None:
    whole = matrix()
    whole[[5, 49_999]] = [[2], [3]]
    whole[2, 1] = 9
    compact = KeptRows(USED, LENGTH, LargestOfEmpty(), RANK).compact(whole)
    np.testing.assert_array_equal(compact[2], [3, 9, 3, 3, 3])


def test_some_columns_can_be_set_alone() -> None:
    whole = matrix()[:, :2]
    compact = KeptRows(USED, LENGTH, GramOfEmpty(), RANK).compact(whole)
    np.testing.assert_allclose(compact.T @ compact, whole.T @ whole, rtol=1e-13)


def test_positions_of_rows() -> None:
    kept = KeptRows(USED, LENGTH, LargestOfEmpty(), RANK)  # 0, 1, 2, 3, 17, 18, 40000
    assert kept.before(np.array([0, 3, 4, 17, 19, LENGTH])).tolist() == [0, 3, 4, 4, 6, 7]


def test_modes_that_are_short_or_well_used_are_not_hypersparse() -> None:
    least = kept_rows.LEAST_LENGTH
    assert kept_rows.is_hypersparse(least, least // 2, 8)
    assert not kept_rows.is_hypersparse(least - 1, 2, 8)
    assert not kept_rows.is_hypersparse(least, least - least // 5, 8)
    assert not kept_rows.is_hypersparse(least, 3 * least // 4, 8), "spare rows count"
