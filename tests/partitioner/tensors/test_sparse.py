"""The canonical form of a tensor, and rejected input."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioner.errors import InputError
from partitioner.tensors import ingest, value_range
from partitioner.tensors import sparse as coo
from partitioner.tensors.ingest import MAX_MODE_LENGTH
from partitioner.tensors.sparse import SparseTensor


@st.composite
def nonzeros(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Indices (nnz, order) and small integer values, with repeated coordinates, zeros and cancellations."""
    order, count = draw(st.integers(2, 8)), draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    length = draw(st.sampled_from([1, 2, 3, MAX_MODE_LENGTH]))
    few = rng.integers(0, length, (3, order))
    indices = few[rng.integers(0, 3, (count, order)), np.arange(order)] if draw(st.booleans()) else few[[0] * count]
    return indices, rng.integers(-2, 3, count).astype(draw(st.sampled_from([np.int64, np.float32, np.float64])))


@given(nonzeros())
def test_canonical_form(given_nonzeros: tuple[np.ndarray, np.ndarray]) -> None:
    indices, values = given_nonzeros
    before = indices.copy(), values.copy()
    sums: dict[tuple[int, ...], float] = {}
    for row, value in zip(indices.tolist(), values.tolist(), strict=True):
        sums[tuple(row)] = sums.get(tuple(row), 0) + value
    expected = sorted((row, total) for row, total in sums.items() if total or not values.any())
    if not expected:
        with pytest.raises(InputError, match="zero"):
            SparseTensor(indices, values)
        return
    tensor = SparseTensor(indices, values)
    assert list(map(tuple, tensor.indices.tolist())) == [row for row, _ in expected]
    assert tensor.values.tolist() == [total for _, total in expected]
    assert (tensor.duplicates, tensor.zeros) == (len(values) - len(sums), len(sums) - len(expected))
    assert tensor.shape == tuple(int(c.max()) + 1 for c in indices.T)
    assert (tensor.nnz, tensor.order) == (len(expected), indices.shape[1])
    assert tensor.columns.dtype == np.int32
    assert tensor.columns.flags.c_contiguous
    assert np.array_equal(indices, before[0]), "the caller's arrays must not change"
    assert np.array_equal(values, before[1])


@pytest.mark.parametrize("later", [0, 1 << 20])
def test_explicit_zeros_are_kept_on_request(later: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coo, "LATER", later)
    indices, values = [[1, 0], [0, 1], [2, 2], [0, 1]], [0.0, 2.0, 3.0, -2.0]
    kept = SparseTensor(indices, values, keep_zeros=True)
    assert kept[:2].keeps_zeros
    assert kept[:2].nnz == np.count_nonzero(kept.columns[0] < 2)
    assert kept.indices.tolist() == [[0, 1], [1, 0], [2, 2]]
    assert kept.values.tolist() == [0.0, 0.0, 3.0]
    assert (kept.duplicates, kept.zeros) == (1, 0)
    dropped = SparseTensor(indices, values)
    assert dropped.indices.tolist() == [[2, 2]]
    assert (dropped.duplicates, dropped.zeros) == (1, 2)


def test_sorted_nonzeros_are_not_copied() -> None:
    columns, values = np.array([[0, 0, 5], [1, 2, 0]], np.int32), np.array([1, 2, 3], np.float32)
    tensor = SparseTensor.from_columns(columns, values, (6, 4))
    assert tensor.columns is columns
    assert tensor.values is values
    assert (tensor.duplicates, tensor.zeros) == (0, 0)


def test_many_nonzeros_are_sorted_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coo, "LATER", 3)
    indices, values = np.array([[2, 1], [0, 3], [2, 1]], np.int8), np.array([1.0, 2.0, 3.0])
    tensor = SparseTensor(indices, values)
    indices[:], values[:] = 0, 0  # the caller's arrays may change
    (columns, given_values), ordered = tensor.raw
    assert (columns.tolist(), given_values.tolist(), ordered) == ([[2, 0, 2], [1, 3, 1]], [1, 2, 3], False)
    assert tensor.shape == (3, 4)
    assert (tensor.nnz, tensor.duplicates, tensor.zeros) == (2, 1, 0)
    assert tensor.columns.tolist() == [[0, 2], [3, 1]]
    assert tensor.values.tolist() == [2, 4]
    assert tensor.raw[1]
    heard = list[int]()
    for ready in (False, True):
        again = SparseTensor([[2, 1], [0, 7], [2, 1]], [1.0, 2.0, 3.0])
        if ready:
            again.columns  # noqa: B018  which are sorted now
        again.when_merged(lambda duplicates, bounds: heard.append(duplicates))
        assert len(heard) == ready + ready
        compact = again.compacted()
        assert (compact.shape, compact.indices.tolist(), compact.values.tolist()) == ((2, 2), [[0, 1], [1, 0]], [2, 4])
        assert heard == [1] * (1 + ready)
    few = SparseTensor([[2, 1], [0, 3]], [1.0, 2.0])
    assert few.raw[1]
    with pytest.raises(InputError, match="negative index"):
        SparseTensor([[2, 1], [0, -3], [2, 1]], [1.0, 2.0, 3.0])
    cancelled = SparseTensor.from_columns(np.array([[0, 0, 1], [0, 0, 1]]), np.array([1.0, -1.0, 0]), path="t.npz")
    for _ in range(2):
        with pytest.raises(InputError, match=r"^t\.npz: .*every value is zero"):
            cancelled.columns  # noqa: B018
    with pytest.raises(InputError, match="every value is zero"):
        cancelled.raw  # noqa: B018  the memory holds sums


@pytest.mark.parametrize("order", ["C", "F"])
def test_blocks_of_nonzeros_are_taken_side_by_side(monkeypatch: pytest.MonkeyPatch, order: Any) -> None:
    monkeypatch.setattr(ingest, "MOST", 7)
    rng = np.random.default_rng(0)
    for nonzeros in (1, 6, 7, 8, 50):
        indices, values = rng.permutation(nonzeros * 3).reshape(nonzeros, 3), rng.random(nonzeros)
        tensor = SparseTensor(np.array(indices, order=order), values)
        assert tensor.shape == tuple(indices.max(axis=0) + 1)
        assert tensor.indices.tolist() == sorted(indices.tolist())
        assert tensor.values.tolist() == values[np.argsort(indices[:, 0])].tolist()
        values[-1] = np.nan
        with pytest.raises(InputError, match=f"nonzero {nonzeros - 1} is not finite"):
            SparseTensor(indices, values)


def test_a_sorted_zero_is_dropped() -> None:
    tensor = SparseTensor([[0, 0], [0, 1], [1, 0]], [1.0, -0.0, 2.0])
    assert tensor.indices.tolist() == [[0, 0], [1, 0]]
    assert (tensor.duplicates, tensor.zeros) == (0, 1)


def test_duplicates_are_summed_in_double_precision() -> None:
    tensor = SparseTensor([[0, 0]] * 3, np.array([1e8, 1, -1e8], np.float32))
    assert tensor.values.tolist() == [1.0]
    values = np.array([2**24, 1, 1, 1, 1], np.float32)  # 2**24 + 1 is no float32: a sum in float32 stays there
    assert SparseTensor([[0, 0]] * 5, values).values.tolist() == [2**24 + 4]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_duplicates_that_sum_past_the_largest_number_are_refused(dtype: type) -> None:
    with pytest.raises(InputError):
        SparseTensor([[0, 0], [0, 0]], np.full(2, np.finfo(dtype).max, dtype))


@pytest.mark.parametrize(
    ("given_dtype", "kept"),
    [("f4", "f4"), ("f8", "f8"), ("f2", "f8"), (">f4", "f8"), (">f8", "f8"), ("i8", "f8"), ("u1", "f8")],
)
def test_value_types(given_dtype: str, kept: str) -> None:
    tensor = SparseTensor([[0, 0], [1, 1]], np.array([3, 4], given_dtype))
    assert tensor.values.dtype == np.dtype(kept)
    assert tensor.values.dtype.isnative
    assert tensor.values.tolist() == [3, 4]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64])
def test_index_types(dtype: type) -> None:
    assert SparseTensor(np.array([[7, 0], [0, 100]], dtype), [1.0, 2.0]).indices.tolist() == [[0, 100], [7, 0]]


def test_the_longest_mode() -> None:
    last = MAX_MODE_LENGTH - 1
    tensor = SparseTensor([[last, 0, last], [0, last, 0], [last, 0, 0]], [1.0, 2.0, 3.0])
    assert tensor.shape == (MAX_MODE_LENGTH,) * 3
    assert tensor.indices.tolist() == [[0, last, 0], [last, 0, 0], [last, 0, last]]
    assert tensor.values.tolist() == [2, 3, 1]


def test_norm_is_in_double_precision() -> None:
    values = np.array([1e30, 2e30, 1e-30], np.float32)
    tensor = SparseTensor([[0, 0], [0, 1], [1, 1]], values)
    assert tensor.norm() == pytest.approx(np.linalg.norm(values.astype(np.float64)), rel=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("values", "grain"),
    [
        ([1, 7, 3], 1),
        ([-5, -5], 1),
        ([0.5, 2, -7.5], 0.5),
        ([4, 3, -0.25], 0.25),
        ([2.0**-8, 1], 2.0**-8),
        ([2.0**-9, 1], 0),
        ([1 + 2.0**-9], 0),
        ([0.1, 0.2], 0),
        ([1e-20, 1e20], 0),
        ([2.0**24 + 2, 2.0**30, -1], 1),
        ([2.0**100], 1),
        ([2.0**20 + 0.125, -(2.0**20)], 0.125),
    ],
)
def test_what_bounds_the_values(dtype: type, values: list[float], grain: float) -> None:
    stored = np.array(values, dtype)
    found = SparseTensor([[0, k] for k in range(len(values))], stored).value_range()
    assert found == (float(stored.min()), float(stored.max()), grain)
    assert found.largest == abs(stored).max()


@given(st.integers(0, 9), st.integers(0, 2**32 - 1))
def test_the_grain_is_the_largest(places: int, seed: int) -> None:
    whole = np.random.default_rng(seed).integers(-1000, 1000, 20) * 2 + 1  # odd: no larger grain will do
    found = SparseTensor([[0, k] for k in range(20)], whole * 2.0**-places).value_range()
    assert found == (whole.min() * 2.0**-places, whole.max() * 2.0**-places, 2.0**-places if places <= 8 else 0)


def test_one_value_of_another_block_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_range, "BLOCK", 3)
    for at, value in itertools.product(range(8), (-0.5, 99.5, 2.0**-8)):
        values = np.arange(1.0, 9)
        values[at] = value
        grain = 0.5 if value != 2.0**-8 else 2.0**-8
        assert SparseTensor([[0, k] for k in range(8)], values).value_range() == (values.min(), values.max(), grain)


@pytest.mark.parametrize(
    ("indices", "values", "shape", "cause"),
    [
        (np.empty((0, 3), int), [], None, "no nonzeros"),
        ([0, 1], [1.0, 2.0], None, "dimensions"),
        ([[0], [1]], [1.0, 2.0], None, "order 1"),
        ([[0] * 9], [1.0], None, "order 9"),
        ([[0.0, 1.0]], [1.0], None, "expected integers"),
        ([[0, 1]], [1.0, 2.0], None, "1 coordinates"),
        ([[0, 1]], [[1.0]], None, "1 coordinates"),
        ([[0, 1]], [1j], None, "real"),
        ([[0, 1]], ["1"], None, "real"),
        ([[0, 1], [0, 0]], [1.0, np.nan], None, "nonzero 1 is not finite"),
        ([[0, 1]], [-np.inf], None, "not finite"),
        ([[0, -1]], [1.0], None, "negative index -1 in mode 1"),
        ([[0, -1]], [1.0], (1, 1), "negative index -1 in mode 1"),
        ([[0, 3]], [1.0], (1, 3), "index 3 of mode 1"),
        ([[0, 3]], [1.0], (1, 4, 1), "3 modes"),
        ([[0, 0]], [1.0], (1, 0), "length 0 of mode 1"),
        ([[0, 0]], [1.0], (9.9, 9), "shape (9.9, 9): expected an integer"),
        ([[0, 0]], [1.0], (9, 9.0), "expected an integer"),
        ([[0, 0]], [1.0], ("9", 9), "expected an integer"),
        ([[0, 0]], [1.0], 9, "shape 9: expected an integer for each mode"),
        (np.ma.masked_equal([[0, 0], [1, 1]], 1), [1.0, 2.0], None, "indices has masked entries"),
        (
            [[0, 0], [1, 1]],
            np.ma.masked_greater([1.0, 2.0], 1.5),
            None,
            "values has masked entries: masked arrays are not supported; fill",
        ),
        ([[0, 0]], [1.0], (2**31, 1), "length 2147483648 of mode 0"),
        ([[0, 2**31 - 1]], [1.0], None, "mode 1"),
        ([[2**32, 0]], [1.0], None, "mode 0"),
        (np.array([[2**63 + 1, 0]], np.uint64), [1.0], None, "mode 0"),
        ([[0, 0], [1, 1], [0, 0]], [1.0, 0.0, -1.0], None, "every value is zero"),
    ],
)
def test_refused(indices: Any, values: Any, shape: Any, cause: str) -> None:
    with pytest.raises(InputError, match=re.escape(cause)):
        SparseTensor(indices, values, shape)


def test_a_shape_of_any_integers_and_a_mask_of_nothing() -> None:
    indices, values = np.ma.masked_equal([[0, 1]], 9), np.ma.masked_equal([2.0], 9)
    tensor = SparseTensor(indices, values, np.array([3, 4], np.int16))
    assert tensor.shape == (3, 4)
    assert tensor.values.tolist() == [2.0]
    with pytest.raises(InputError, match="masked"):
        SparseTensor.from_columns(np.ma.masked_equal([[0, 1], [0, 1]], 1), np.ones(2))


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble])
def test_values_that_overflow_are_refused_or_taken_without_a_warning(dtype: type) -> None:
    indices = [[0, 0], [1, 1]]
    largest = np.finfo(np.float32 if dtype == np.float32 else np.float64).max
    tensor = SparseTensor(indices, np.array([largest, 0.3], dtype))
    assert tensor.value_range().high == largest
    assert tensor.value_range().grain == 0
    assert tensor.norm() == largest
    if np.finfo(dtype).max > np.finfo(np.float64).max:
        with pytest.raises(InputError, match="value of nonzero 1 is too large for a double"):
            SparseTensor(indices, np.array([1, np.finfo(dtype).max], dtype))
    for bad in (np.inf, -np.inf, np.nan):
        tensor.values[1] = bad  # by a caller, later
        for found in (tensor.norm, tensor.value_range):
            with pytest.raises(InputError, match=f"value of nonzero 1 is {bad}: every value must be finite"):
                found()


def test_compacted() -> None:
    given = SparseTensor([[7, 10**9, 2], [7, 5, 2], [3, 5, 4]], [1.0, 2.0, 3.0], (9, 2 * 10**9, 9))
    tensor = given.compacted(base=1)
    assert tensor.shape == (2, 2, 2)
    assert tensor.indices.tolist() == [[0, 0, 1], [1, 0, 0], [1, 1, 0]]
    assert tensor.values.tolist() == [3, 2, 1]
    assert tensor.labels is not None
    assert [each.tolist() for each in tensor.labels] == [[4, 8], [6, 10**9 + 1], [3, 5]]
    assert given.labels is None
    assert given.shape == (9, 2 * 10**9, 9)
    again = SparseTensor.from_columns(tensor.columns[:, 1:], tensor.values[1:], tensor.shape)
    again.labels = tensor.labels
    assert [each.tolist() for each in again.compacted().labels or ()] == [[8], [6, 10**9 + 1], [3]]


def test_an_error_names_the_file() -> None:
    with pytest.raises(InputError, match=r"^some/file\.npz: negative"):
        SparseTensor.from_columns(np.array([[-1], [0]]), np.ones(1), path="some/file.npz")


def test_labels_are_one_for_each_index() -> None:
    tensor = SparseTensor([[0, 1], [1, 0]], [1.0, 2.0], (2, 3))
    tensor.labels = [["a", "b"], [1.5, 2.5, 3.5]]  # type: ignore[assignment]
    assert tensor.labels is not None
    assert [each.tolist() for each in tensor.labels] == [["a", "b"], [1.5, 2.5, 3.5]]
    for wrong in ([["a", "b"]], [["a"], [1, 2, 3]], [["a", "b"], [[1, 2, 3]]]):
        with pytest.raises(InputError, match="labels of shapes"):
            tensor.labels = wrong  # type: ignore[assignment]
    tensor.labels = None
    assert tensor.labels is None


def test_longer_modes() -> None:
    tensor = SparseTensor([[0, 1], [1, 0]], [1.0, 2.0])
    tensor.lengthen((2, 5))
    assert tensor.shape == (2, 5)
    for wrong in ((1, 5), (2, 4), (2,), (2, 2**31), (2, 5.5)):
        with pytest.raises(InputError):
            tensor.lengthen(wrong)  # type: ignore[arg-type]
    assert tensor.shape == (2, 5)
