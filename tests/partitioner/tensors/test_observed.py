"""Observed elements: the same from dense and sparse tensors, masks and weights."""

from __future__ import annotations

import numpy as np
import pytest

from partitioner.errors import InputError
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.observed import observed_elements, with_weights
from partitioner.tensors.sparse import SparseTensor
from partitioner.tensors.stored import Stored

RNG = np.random.default_rng(5)
SHAPE = (4, 5, 3)
X = RNG.integers(-2, 3, SHAPE).astype(np.float64)
SEEN = RNG.random(SHAPE) < 0.6
WEIGHTS = SEEN * RNG.integers(1, 4, SHAPE)


def sparse(array: np.ndarray) -> SparseTensor:
    return SparseTensor(np.argwhere(array), array[array != 0].astype(np.float64), array.shape)


def as_arrays(tensor: SparseTensor) -> tuple[np.ndarray, np.ndarray]:
    """Return the elements, and which are stored."""
    stored = np.zeros(tensor.shape, bool)
    stored[tuple(tensor.columns)] = True
    return tensor.todense(), stored


@pytest.mark.parametrize("tensor", [DenseTensor(X), sparse(X)], ids=["dense", "sparse"])
@pytest.mark.parametrize("mask", [DenseTensor(SEEN), sparse(SEEN)], ids=["dense mask", "sparse mask"])
def test_a_mask_selects_elements(tensor: SparseTensor | DenseTensor, mask: SparseTensor | DenseTensor) -> None:
    elements, weights = observed_elements(tensor, mask)
    values, stored = as_arrays(elements)
    np.testing.assert_array_equal(stored, SEEN)
    np.testing.assert_array_equal(values, X * SEEN)
    assert weights is None
    assert elements.zeros == 0


@pytest.mark.parametrize("tensor", [DenseTensor(X), sparse(X)], ids=["dense", "sparse"])
@pytest.mark.parametrize("sparse_weights", [False, True])
def test_weights_select_elements(tensor: SparseTensor | DenseTensor, sparse_weights: bool) -> None:
    given = sparse(WEIGHTS) if sparse_weights else DenseTensor(WEIGHTS)
    few = RNG.random(SHAPE) < 0.7
    for mask, seen in ((None, SEEN), (DenseTensor(few), SEEN & few)):
        elements, weights = observed_elements(tensor, mask, given)
        values, stored = as_arrays(elements)
        np.testing.assert_array_equal(stored, seen)
        np.testing.assert_array_equal(values, X * seen)
        np.testing.assert_array_equal(weights, WEIGHTS[tuple(elements.columns)])


def test_elements_other_than_nan_are_observed() -> None:
    array = np.where(SEEN, X, np.nan)
    elements, _ = observed_elements(DenseTensor(np.asfortranarray(array)))
    values, stored = as_arrays(elements)
    np.testing.assert_array_equal(stored, SEEN)
    np.testing.assert_array_equal(values, X * SEEN)


def test_weights_become_a_mode() -> None:
    observed = observed_elements(DenseTensor(X), weights=DenseTensor(WEIGHTS))
    tensor, scales, total = with_weights(observed)
    assert total == WEIGHTS.sum()
    assert tensor.shape == (*SHAPE, 3)
    np.testing.assert_allclose(scales**2, [1, 2, 3])
    np.testing.assert_allclose(tensor.todense().sum(axis=3), X * np.sqrt(WEIGHTS))
    assert tensor.nnz == SEEN.sum()


@pytest.mark.parametrize(
    ("tensor", "mask", "weights", "cause"),
    [
        (X, SEEN[:3], None, r"mask has shape \(3, 5, 3\), the tensor \(4, 5, 3\)"),
        (X, None, WEIGHTS[:, :2], r"weights has shape \(4, 2, 3\)"),
        (X, None, WEIGHTS - 2.0, "weights: -[12].0 is not a number of at least 0"),
        (X, None, np.full(SHAPE, np.nan), "weights: nan is not a number of at least 0"),
        (X, SEEN * 0, None, "no element is observed"),
        (np.full(SHAPE, np.nan), None, None, "no element is observed"),
        (np.where(SEEN, X, np.nan), np.ones(SHAPE), None, r"element \[\d, \d, \d\] is observed, but is nan"),
        (np.where(SEEN, X, np.inf), None, None, "is observed, but is inf"),
    ],
)
def test_wrong_input_is_refused(tensor: np.ndarray, mask: object, weights: object, cause: str) -> None:
    others = [None if each is None else DenseTensor(each) for each in (mask, weights)]
    with pytest.raises(InputError, match=cause):
        observed_elements(DenseTensor(tensor), *others)


class CountedElements:
    """Elements like those of a file, with the number of times that they were read."""

    def __init__(self, array: np.ndarray) -> None:
        self._array, self.shape, self.dtype, self.reads = array, array.shape, array.dtype, 0

    def __getitem__(self, place: tuple[slice, ...]) -> np.ndarray:
        self.reads += 1
        return self._array[place]


@pytest.mark.parametrize("weighted", [False, True])
def test_a_file_is_read_once(weighted: bool) -> None:
    stored = [CountedElements(np.where(SEEN, X, np.nan).astype(np.float32)), CountedElements(WEIGHTS)]
    tensor, weights = (DenseTensor(Stored(each)) for each in stored)
    elements, _ = observed_elements(tensor, weights=weights if weighted else None)
    assert [each.reads for each in stored] == [1, int(weighted)]
    values, seen = as_arrays(elements)
    np.testing.assert_array_equal(seen, SEEN)
    np.testing.assert_array_equal(values, X * SEEN)
