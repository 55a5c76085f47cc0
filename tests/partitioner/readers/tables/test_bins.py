"""Time bins: empty ones are added if bins are regular, and only then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from partitioner.readers.tables.bins import FEW, filled
from partitioner.tensors.labels import TEXT


def moments(*texts: str, dtype: str = "M8[us]") -> Any:
    return np.array(texts, dtype)


@pytest.mark.parametrize(
    ("used", "function", "unit", "size", "first", "last"),
    [
        (np.array([3, 17]), "hour", None, 24, 0, 23),
        (np.array([3, 17]), "date_part", "hour", 24, 0, 23),
        (np.array([3, 7]), "date_part", "isodow", 7, 1, 7),
        (np.array([12]), "month", None, 12, 1, 12),
        (np.array([2, 31]), "day", None, 31, 1, 31),
        (np.array([2019, 2024]), "year", None, 6, 2019, 2024),
        (np.array(["Friday", "Monday"], TEXT), "dayname", None, 7, "Monday", "Sunday"),
        (np.array(["May"], TEXT), "monthname", None, 12, "January", "December"),
        # Numbers that are no part of a time have no bins between them.
        (np.array([3, 17]), None, None, 2, 3, 17),
        (np.array([3, 17]), "round", None, 2, 3, 17),
        (np.array([3, 99]), "hour", None, 2, 3, 99),
        (np.array(["a", "c"], TEXT), None, None, 2, "a", "c"),
    ],
)
def test_parts_of_a_time(used: Any, function: str | None, unit: str | None, size: int, first: Any, last: Any) -> None:
    found = filled(used, function, unit)
    assert (found.labels.size, found.labels[0], found.labels[-1]) == (size, first, last)
    assert found.labels.dtype == used.dtype
    assert found.labels[found.places].tolist() == used.tolist()


@pytest.mark.parametrize(
    ("used", "function", "unit", "size"),
    [
        (moments("2026-01-01T03", "2026-01-01T06", "2026-01-02T00"), "date_trunc", "hour", 22),
        (moments("2026-01-05", "2026-01-19"), "date_trunc", "day", 15),
        (moments("2026-01-05", "2026-01-19"), "date_trunc", "week", 3),
        (moments("2025-11-01", "2026-03-01"), "date_trunc", "month", 5),
        (moments("2025-01-01", "2026-01-01"), "date_trunc", "quarter", 5),
        (moments("2000-01-01", "2026-01-01"), "date_trunc", "year", 27),
        (moments("2026-01-01", "2026-01-03", "2026-01-05", dtype="M8[D]"), None, None, 5),
        (moments("2026-01-01", "2026-03-01", dtype="M8[D]"), None, None, 3),
        (moments("2024-01-01", "2026-01-01", dtype="M8[D]"), None, None, 3),
        (moments("2026-01-05", "2026-01-26", dtype="M8[D]"), None, None, 4),
        (moments("2026-01-01T00:00", "2026-01-01T00:15", "2026-01-01T01:00"), "time_bucket", None, 5),
        (moments("1600-01-01", "1600-01-04", dtype="M8[D]"), None, None, 4),
        (moments("2026-01-01", dtype="M8[D]"), None, None, 1),
        (moments(), "date_trunc", "day", 0),
        (np.array([0, 7200], "m8[s]").astype("m8[us]"), None, None, 3),
        # Too few of the bins would be used, or there are none.
        (moments("1900-01-01", "2026-01-01T00:00:01"), None, None, 2),
        (moments("1970-01-01", "9999-12-31", dtype="M8[D]"), None, None, 2),
        (moments("2026-01-01T00:00", "2026-01-01T01:01", "2026-01-01T03:00"), None, None, 3),
        (moments("2026-01-01T00:00", "2026-01-01T00:01", "2026-01-01T00:03"), None, None, 4),
        (moments("2026-01-01T00:00:00.000000001", "2026-01-02", dtype="M8[ns]"), None, None, 2),
    ],
)
def test_times(used: Any, function: str | None, unit: str | None, size: int) -> None:
    found = filled(used, function, unit)
    assert found.labels.size == size
    assert found.labels.dtype == used.dtype
    assert np.array_equal(found.labels[found.places], used)
    assert np.all(found.labels[1:] > found.labels[:-1])


def test_many_labels_tell_their_step() -> None:
    mondays = np.arange("2026-01-05", "2026-06-01", 7, dtype="M8[D]")
    assert filled(mondays[np.arange(mondays.size) % 5 != 1], None, None).labels.size == mondays.size
    assert filled(mondays[:20:2], "date_trunc", "day").labels.size == 18 * 7 + 1


def test_dense_bins_are_filled_however_many() -> None:
    seconds = np.arange(4 * FEW).astype("M8[s]")
    used = seconds[np.random.default_rng(0).random(seconds.size) < 0.5]
    assert filled(used, None, None).labels.size == int((used[-1] - used[0]).astype(int)) + 1
    assert filled(used[::8], "date_trunc", "second").labels.size == used[::8].size
