"""Labels: a round trip through files, and rejection of everything else."""

from __future__ import annotations

import io
import pickle
from datetime import date, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest

from partitioner.errors import InputError
from partitioner.tensors.interop import tensor_of
from partitioner.tensors.labels import TEXT, Labels, as_labels, find, named, of_parts, to_parts

TEXTS = ["a,b", '"quoted"', "new\nline", "", "\N{GRINNING FACE}", "x" * 10_000, "nul\0byte", None]
KINDS: list[Any] = [
    np.array([3, -(2**60)]),
    np.array([0.5, np.nan, np.inf]),
    np.array([False, True]),
    np.array(["2026-01-01", "NaT"], "M8[D]"),
    np.array(["2026-01-01T01:02:03.000004"], "M8[us]"),
    np.array([5, 7], "m8[s]"),
    np.array([1, 2], np.uint8),  # as the bytes of text are
    np.array(TEXTS, TEXT),
    np.array([], TEXT),
]


@pytest.mark.parametrize("labels", KINDS, ids=lambda each: str(each.dtype))
def test_round_trip(labels: Any) -> None:
    found = of_parts(to_parts(labels))
    assert found.dtype == labels.dtype
    assert found.shape == labels.shape
    assert found.tolist() == labels.tolist() or np.array_equal(found, labels, equal_nan=True)


EAST = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        ([date(2026, 1, 2), None], np.array(["2026-01-02", "NaT"], "M8[D]")),
        ([datetime(2026, 1, 2), datetime(2026, 1, 2, 3)], np.array(["2026-01-02T00", "2026-01-02T03"], "M8[s]")),
        ([datetime(2026, 1, 1, 1, tzinfo=EAST)], np.array(["2025-12-31T23:00"], "M8[s]")),
        ([timedelta(hours=1)], np.array([3_600_000_000], "m8[us]")),
        (np.array([3, 2.5], object), np.array([3, 2.5])),
        (
            [datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=EAST)],
            ["2026-01-01 00:00:00", "2026-01-01 00:00:00+02:00"],
        ),
        ([True, None], ["True", None]),
        (np.array(["2026-01-01", "NaT"], "M8[ns]"), np.array(["2026-01-01", "NaT"], "M8[D]")),
        (np.array(["2026-01"], "M8[M]"), np.array(["2026-01"], "M8[M]")),
    ],
)
def test_dates_times_and_objects(objects: Any, expected: Any) -> None:
    found, expected = as_labels(objects), expected if isinstance(expected, np.ndarray) else np.array(expected, TEXT)
    assert found.dtype == expected.dtype
    assert [str(each) for each in found] == [str(each) for each in expected]


def test_times_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    times = pandas.date_range("2026-03-29", periods=2, tz="Europe/Berlin")
    assert as_labels(times).tolist() == [datetime(2026, 3, 28, 23), datetime(2026, 3, 29, 22)]
    assert np.isnat(as_labels([times[0], pandas.NaT])).tolist() == [False, True]
    frame = pandas.DataFrame(np.eye(2), index=[date(2026, 1, 1), date(2026, 1, 3)])
    labels = tensor_of(frame).labels
    assert labels[0].dtype == "M8[D]"


def test_sequences_of_different_lengths_are_refused() -> None:
    with pytest.raises(InputError, match="expected one number, time or text per index"):
        as_labels([[1, 2], [3]])


def test_an_archive_holds_them_without_pickle() -> None:
    labels = Labels([KINDS[0], np.array(TEXTS, TEXT)], ["carrier", "hour(time, 'x')"])
    file = io.BytesIO()
    np.savez(file, **named(labels))
    file.seek(0)
    with np.load(file, allow_pickle=False) as archive:
        found = find(dict(archive), 2)
    assert found is not None
    assert found.names == labels.names
    assert [each.tolist() for each in found] == [each.tolist() for each in labels]


def test_an_archive_without_names() -> None:
    found = find(named(Labels([KINDS[0]])), 1)
    assert found is not None
    assert found.names is None
    assert find({}, 1) is None


def test_ranks_exchange_them() -> None:
    labels = Labels([KINDS[0], np.array(TEXTS, TEXT)], ["a", "b"])
    found = pickle.loads(pickle.dumps(labels))
    assert found.names == labels.names
    assert [each.tolist() for each in found] == [each.tolist() for each in labels]


@pytest.mark.parametrize("given", [["a", "b"], np.array(["a", "b"]), np.array(["a", "b"], object)])
def test_strings_of_any_kind_are_taken(given: Any) -> None:
    assert as_labels(given).dtype == TEXT


@pytest.mark.parametrize("given", [[1j], np.array([b"a"]), np.array([(1,)], "i4,")])
def test_other_kinds_are_refused(given: Any) -> None:
    with pytest.raises(InputError, match="labels are"):
        as_labels(given)


def test_one_label_for_each_index() -> None:
    assert Labels.of(None, (2,)) is None
    for wrong in ([["a"]], [["a", "b"], [1]], [[["a", "b"]]]):
        with pytest.raises(InputError, match="labels of shapes"):
            Labels.of(wrong, (2,))


def test_the_checksum_tells_labels_apart() -> None:
    texts = [["a", "b"], ["ab", ""], ["a", None], ["a", "None"], ["a", ""]]
    sums = {Labels([np.array(each, TEXT)]).checksum() for each in texts}
    assert len(sums) == len(texts)


@pytest.mark.parametrize(
    ("what", "damaged"),
    [
        ("offsets", np.array([0, 1, 3])),
        ("offsets", np.array([0, 3, 2])),
        ("offsets", np.array([1, 2, 2])),
        ("offsets", np.array([0, -1, 2])),
        ("offsets", np.array([], np.int64)),
        ("offsets", np.array([0.0, 1, 2])),
        ("offsets", np.zeros((3, 1), np.int64)),
        ("missing", np.array([2])),
        ("missing", np.array([-1])),
        ("", np.array([0xFF, 0xFF], np.uint8)),
        ("", np.array([1, 2], np.int64)),
        ("", np.array([["a"]])),
    ],
)
def test_damaged_text_is_refused(what: str, damaged: Any) -> None:
    with pytest.raises(ValueError):
        of_parts({**to_parts(np.array(["a", "b"], TEXT)), what: damaged})
