"""Tensors of other libraries: taken, and given back the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import amped
from amped.errors import InputError
from partitioner.foreign import factors_of, tensor_of

RNG = np.random.default_rng(0)
ARRAY = np.where(RNG.random((6, 5, 4)) < 0.3, RNG.standard_normal((6, 5, 4)), 0).astype(np.float32)
TENSOR = amped.SparseTensor(np.argwhere(ARRAY), ARRAY[ARRAY != 0], ARRAY.shape)
LABELS = [list("abcdef"), np.arange(5) * 0.5, np.array(["2024-01-01"], "M8[D]") + np.arange(4)]


def same(found: Any, want: amped.SparseTensor = TENSOR) -> None:
    assert isinstance(found, amped.SparseTensor)
    assert found.shape == want.shape
    assert np.array_equal(found.columns, want.columns)
    assert np.array_equal(found.values, want.values)


def test_scipy() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    matrix = ARRAY[:, :, 0]
    want = amped.SparseTensor(np.argwhere(matrix), matrix[matrix != 0], matrix.shape)
    for kind in ("coo", "csr", "csc", "dok", "lil"):
        same(tensor_of(getattr(sparse, f"{kind}_array")(matrix)), want)
        same(tensor_of(getattr(sparse, f"{kind}_matrix")(matrix)), want)
    same(tensor_of(TENSOR.to_scipy()))
    twice = sparse.coo_array(([1.0, 2.0], ([0, 0], [1, 1])), shape=(3, 3))
    assert tensor_of(twice).values.tolist() == [3]  # type: ignore[union-attr]
    assert twice.nnz == 2, "the caller's own"


def test_pydata_sparse() -> None:
    sparse = pytest.importorskip("sparse")
    same(tensor_of(sparse.COO.from_numpy(ARRAY)))
    same(tensor_of(sparse.GCXS.from_numpy(ARRAY)))
    same(tensor_of(TENSOR.to_sparse()))
    with pytest.raises(InputError, match="absent elements are 1"):
        tensor_of(sparse.COO.from_numpy(np.ones((2, 3)), fill_value=1.0))


def test_pyttb() -> None:
    pyttb = pytest.importorskip("pyttb")
    given = TENSOR.to_pyttb()
    assert isinstance(given, pyttb.sptensor)
    double = amped.SparseTensor(TENSOR.indices, TENSOR.values.astype(np.float64), TENSOR.shape)
    same(tensor_of(given), double)
    dense = tensor_of(pyttb.tensor(ARRAY.astype(np.float64)))
    assert isinstance(dense, amped.DenseTensor)
    assert np.array_equal(dense.array(), ARRAY)
    model = amped.cp_als(given, 2, max_iters=2, tol=0, device="cpu", seed=1)
    again = amped.cp_als(TENSOR, 2, max_iters=2, tol=0, device="cpu", seed=1)
    assert np.allclose(model.fits, again.fits, atol=1e-6)
    assert np.allclose(model.to_pyttb().full().data, model.full(), atol=1e-6)


def test_tensorly() -> None:
    tensorly = pytest.importorskip("tensorly")
    model = amped.cp_als(TENSOR, 3, max_iters=3, tol=0, device="cpu", precision="fp64")
    weights, factors = model
    assert np.allclose(tensorly.cp_to_tensor(model.to_tensorly()), model.full())
    assert np.allclose(tensorly.cp_to_tensor((weights, factors)), model.full())
    for init in (model, model.to_tensorly(), model.to_pyttb() if pytest.importorskip("pyttb") else None):
        found = amped.cp_als(TENSOR, 3, init=init, max_iters=1, tol=0, device="cpu", precision="fp64")
        assert found.fits[0] >= model.fits[-1] - 1e-9
    first = factors_of(model)
    assert first is not None
    assert np.allclose(first[0], factors[0] * weights)
    assert factors_of(factors) is None


def test_torch() -> None:
    torch = pytest.importorskip("torch")
    same(tensor_of(torch.from_numpy(ARRAY).to_sparse()))
    same(tensor_of(TENSOR.to_torch()))
    dense = tensor_of(torch.from_numpy(ARRAY).requires_grad_())
    assert isinstance(dense, amped.DenseTensor)
    assert np.array_equal(dense.array(), ARRAY)


def test_xarray() -> None:
    xarray = pytest.importorskip("xarray")
    dims = ["who", "size", "day"]
    dense = tensor_of(xarray.DataArray(ARRAY, coords=dict(zip(dims, LABELS, strict=True)), dims=dims))
    assert isinstance(dense, amped.DenseTensor)
    assert dense.labels is not None

    assert dense.labels[0].tolist() == list("abcdef")
    model = amped.cp_als(dense, 2, max_iters=2, device="cpu")
    assert model.labels is not None
    assert model.labels[1].tolist() == [0, 0.5, 1, 1.5, 2]
    assert tensor_of(xarray.DataArray(ARRAY)).labels is None  # type: ignore[union-attr]
    pytest.importorskip("sparse")
    labelled = amped.SparseTensor(TENSOR.indices, TENSOR.values, TENSOR.shape)
    labelled.labels = LABELS  # type: ignore[assignment]
    found = labelled.to_xarray()
    assert found.coords["mode_0"].values.tolist() == list("abcdef")
    assert np.array_equal(found.data.todense(), ARRAY)


def test_parts_and_shape() -> None:
    tensor = amped.SparseTensor(TENSOR.indices, TENSOR.values, TENSOR.shape)
    tensor.labels = LABELS  # type: ignore[assignment]
    assert (tensor.ndim, tensor.dtype, tensor.nnz) == (3, np.float32, np.count_nonzero(ARRAY))
    assert np.array_equal(tensor.todense(), ARRAY)
    part = tensor[1:4, :, -2:]
    assert np.array_equal(part.todense(), ARRAY[1:4, :, -2:])
    assert part.labels is not None
    assert part.labels[0].tolist() == ["b", "c", "d"]
    assert np.array_equal(tensor[2:].todense(), ARRAY[2:])
    for wrong in ((slice(None),) * 4, 3, slice(0, 6, 2), slice(4, 4), slice(None, None, -1)):
        with pytest.raises(InputError, match=r"modes|mode 0"):
            tensor[wrong]
    assert f"{tensor.nnz:,}" in tensor._repr_html_()


@pytest.mark.parametrize("given", [3, "x.tns", [[1, 2], [3, 4]], None, object()])
def test_what_is_no_tensor_is_left(given: Any) -> None:
    assert tensor_of(given) is None
