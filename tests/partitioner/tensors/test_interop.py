"""Tensors of other libraries: conversion from them, and back without changes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_stub import OnDevice

import amped
from amped.errors import InputError
from partitioner.tensors.device_arrays import is_on_gpu
from partitioner.tensors.interop import factors_of, tensor_of
from partitioner.tensors.labels import Labels, as_labels

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
    with pytest.raises(InputError, match="fill value 1"):
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


class Exported:
    """An array of a library whose only interface is DLPack."""

    def __init__(self, array: np.ndarray, device: tuple[int, int] = (1, 0)) -> None:
        self._array, self._device = array, device

    def __dlpack__(self, **options: Any) -> Any:
        if self._device[0] not in (1, 2):
            raise BufferError("memory of another device")
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


def test_dlpack() -> None:
    array = ARRAY.copy()
    dense = tensor_of(Exported(array))
    assert isinstance(dense, amped.DenseTensor)
    assert np.array_equal(dense.array(), ARRAY)
    assert np.shares_memory(dense.memory[:], array), "not copied"
    assert [is_on_gpu(Exported(array, device)) for device in ((1, 0), (2, 0), (13, 1))] == [False, True, True]
    with pytest.raises(InputError, match="cannot convert a Exported to an array: memory of another device"):
        amped.DenseTensor(Exported(array, (7, 0)))  # of Vulkan
    factors = amped.cp_als(Exported(array), 2, max_iters=1, device="cpu").factors
    assert np.shares_memory(np.from_dlpack(factors[0]), factors[0])


def test_anndata() -> None:
    anndata = pytest.importorskip("anndata")
    pandas = pytest.importorskip("pandas")
    sparse = pytest.importorskip("scipy.sparse")
    obs = pandas.DataFrame(index=[f"cell {n}" for n in range(6)])
    var = pandas.DataFrame(index=pandas.Index([f"gene {n}" for n in range(5)], name="symbol"))
    dense, layers = ARRAY[:, :, 0], {f"layer {n}": sparse.csr_matrix(ARRAY[:, :, n]) for n in range(4)}
    one = anndata.AnnData(dense, obs, var, layers={"counts": 2 * dense})
    found = tensor_of(one)
    assert isinstance(found, amped.DenseTensor)
    assert np.array_equal(found.array(), dense)
    assert found.labels is not None
    assert (found.labels.names, found.labels[1].tolist()) == (("obs", "var"), var.index.tolist())
    several = anndata.AnnData(sparse.csr_matrix(dense), obs, var, layers=layers)
    stacked = tensor_of(several)
    assert isinstance(stacked, amped.SparseTensor)
    assert np.array_equal(stacked.todense(), ARRAY.transpose(2, 0, 1))
    assert stacked.labels is not None
    assert stacked.labels.names == ("layer", "obs", "var")
    assert stacked.labels[0].tolist() == [*layers]
    part = tensor_of(several[2:])  # a view, whose matrices have types of AnnData
    assert isinstance(part, amped.SparseTensor)
    assert np.array_equal(part.todense(), ARRAY.transpose(2, 0, 1)[:, 2:])
    several.layers["dense"] = dense
    assert isinstance(tensor_of(several), amped.DenseTensor)
    model = amped.cp_als(several, 2, max_iters=2, device="cpu")
    assert model.labels is not None
    assert model.labels[1].tolist() == obs.index.tolist()
    with pytest.raises(InputError, match="an AnnData object without X"):
        tensor_of(anndata.AnnData(obs=obs, var=var))


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


def test_xarray_of_sparse_and_of_some_coordinates() -> None:
    xarray = pytest.importorskip("xarray")
    part = tensor_of(xarray.DataArray(ARRAY, coords={"who": list("abcdef")}, dims=["who", "size", "day"]))
    assert part is not None
    assert part.labels is not None
    assert part.labels.names == ("who", "size", "day")
    assert [each.tolist() for each in part.labels[:2]] == [list("abcdef"), [0, 1, 2, 3, 4]]
    pytest.importorskip("sparse")
    labelled = amped.SparseTensor(TENSOR.indices, TENSOR.values, TENSOR.shape)
    labelled.labels = Labels(map(as_labels, LABELS), ["who", "size", "day"])
    again = tensor_of(labelled.to_xarray())
    same(again)
    assert again is not None
    assert again.labels is not None
    assert again.labels.names == labelled.labels.names
    for found, want in zip(again.labels, labelled.labels, strict=True):
        assert found.tolist() == want.tolist()
    labelled.labels = Labels(map(as_labels, LABELS), ["who", "who", "day"])
    assert labelled.to_xarray().dims == ("mode_0", "mode_1", "mode_2"), "dimensions have different names"


PACKED = np.arange(24, dtype=np.int16).reshape(2, 3, 4)


@pytest.mark.parametrize(("attributes", "wanted"), [
    ({"scale_factor": 0.5, "add_offset": 10.0}, PACKED * 0.5 + 10),
    ({"scale_factor": "0.5"}, PACKED * 0.5),
    ({"_FillValue": np.int16(-1), "valid_range": [0, 30], "units": "m"}, PACKED),
    ({"_FillValue": np.int16(3)}, r"element \[0, 0, 3\] is 3, a missing value \(_FillValue\): replace such"),
    ({"missing_value": [7, 5]}, "a missing value \\(missing_value\\)"),
    ({"valid_max": 22}, r"element \[1, 2, 3\] is above 22"),
    ({"scale_factor": 0.0}, "attribute scale_factor is 0.0: expected one finite number other than 0"),
])  # fmt: skip
def test_attributes_of_xarray_apply(attributes: dict[str, Any], wanted: Any) -> None:
    xarray = pytest.importorskip("xarray")
    array = xarray.DataArray(PACKED, dims=["x", "y", "z"], attrs=attributes)
    for given in (array, array.variable, array.transpose("z", "x", "y")):
        if isinstance(wanted, str):
            with pytest.raises(InputError, match=wanted if given.dims[0] == "x" else None):
                tensor_of(given)
            continue
        found = tensor_of(given)
        assert found is not None
        assert np.array_equal(np.asarray(found), wanted if given.dims[0] == "x" else wanted.transpose(2, 0, 1))
    assert np.array_equal(PACKED.ravel(), np.arange(24)), "the caller's own"


def test_what_xarray_has_decoded_is_not_decoded_again(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("zarr")
    dataset = xarray.Dataset({"v": (("x", "y", "z"), PACKED / 2 + 1)}, {"x": ("x", [1.5, 2.5])})
    dataset["v"].attrs["valid_max"] = np.int16(30)  # of the numbers in the file
    how = {"dtype": "i2", "scale_factor": 0.25, "add_offset": 1.0, "_FillValue": -9}
    coordinate = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -9}
    dataset.to_zarr(tmp_path / "a.zarr", encoding={"v": how, "x": coordinate}, consolidated=False)
    raw = xarray.open_zarr(tmp_path / "a.zarr", mask_and_scale=False, chunks=None, consolidated=False)
    assert raw["v"].dtype == np.int16
    with pytest.raises(InputError, match="is above 30, the largest valid one"):
        tensor_of(raw["v"])
    del raw["v"].attrs["valid_max"]
    for each in (raw, xarray.open_zarr(tmp_path / "a.zarr", chunks=None, consolidated=False)):
        found = tensor_of(each["v"])
        assert found is not None
        assert np.array_equal(np.asarray(found), PACKED / 2 + 1)
        assert found.labels is not None
        assert found.labels[0].tolist() == [1.5, 2.5]
    raw["x"].attrs["_FillValue"] = raw["x"].values[1]
    with pytest.raises(InputError, match="coordinate 'x': element"):
        tensor_of(raw["v"])


def test_attributes_of_sparse_xarray() -> None:
    xarray, sparse = pytest.importorskip("xarray"), pytest.importorskip("sparse")

    def given(**attributes: Any) -> Any:
        return xarray.DataArray(sparse.COO.from_numpy(PACKED), dims=["x", "y", "z"], attrs=attributes)

    found = tensor_of(given(scale_factor=0.5))
    assert isinstance(found, amped.SparseTensor)
    assert found.values.tolist() == (np.arange(1, 24) / 2).tolist()
    with pytest.raises(InputError, match=r"fill value 2\.0: expected 0"):
        tensor_of(given(add_offset=2.0))
    for missing in (0, 5):
        with pytest.raises(InputError, match=f"is {missing}, a missing value"):
            tensor_of(given(_FillValue=missing))


def test_dense_tensors_go_out_and_come_back() -> None:
    tensor = amped.DenseTensor(ARRAY)
    tensor.labels = LABELS  # type: ignore[assignment]
    assert (tensor.ndim, tensor.todense() is not None) == (3, True)
    assert np.array_equal(np.asarray(tensor), ARRAY)
    for name, library in (("to_pyttb", "pyttb"), ("to_torch", "torch"), ("to_xarray", "xarray")):
        if importlib.util.find_spec(library):
            again = tensor_of(getattr(tensor, name)())
            assert isinstance(again, amped.DenseTensor)
            assert np.array_equal(again.array(), ARRAY)
    if importlib.util.find_spec("sparse"):
        same(tensor_of(tensor.to_sparse()))
    assert "2024-01-01" in tensor._repr_html_()


def test_no_object_array_is_made_of_a_tensor_or_model() -> None:
    model = amped.KruskalTensor(np.ones(2), [np.ones((3, 2))] * 3)
    tucker = amped.TuckerTensor(np.ones((2, 2, 2)), [np.ones((3, 2))] * 3)
    semisparse = amped.SemiSparseTensor(np.array([[0, 0], [1, 2]]), np.ones((2, 2), np.float32), 0, (2, 5, 4))
    for each in (TENSOR, semisparse, model, tucker):
        with pytest.raises(TypeError, match=rf"a {type(each).__name__} is not converted to an array") as caught:
            np.asarray(each)
        method = str(caught.value).partition("use .")[2].partition("()")[0]
        assert getattr(each, method)().shape == each.shape
        with pytest.raises(TypeError, match=method):
            np.float64(2) * each
        several = np.array([each, each], dtype=object)
        assert several.shape == (2,)
        assert several[1] is each
    assert tensor_of(semisparse) is None, "its class converts it"
    with pytest.raises(InputError, match=r"factors: expected matrices: .* use \.todense\(\)"):
        amped.mttkrp(TENSOR, [TENSOR, TENSOR, TENSOR], 0)  # type: ignore[list-item]


def test_truth_values_count() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    found = tensor_of(sparse.coo_array(ARRAY[:, :, 0] != 0))
    assert found is not None
    assert set(found.values.tolist()) == {1.0}  # type: ignore[union-attr]
    assert amped.SparseTensor([[0, 1]], [True]).values.tolist() == [1]


def test_frames_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ARRAY[:, :, 0], index=pandas.Index(list("abcdef"), name="who"))
    found = tensor_of(frame)
    assert isinstance(found, amped.DenseTensor)
    assert np.array_equal(found.array(), ARRAY[:, :, 0])
    assert found.labels is not None
    assert found.labels.names == ("who", "mode 1")
    assert found.labels[0].tolist() == list("abcdef")
    with pytest.raises(InputError, match=r"X: a table: amped\.from_frame"):
        amped.cp_als(pandas.DataFrame({"who": ["a", "b"], "what": [1, 2]}), 2)


@pytest.mark.parametrize("order", [2, 3, 5])
def test_models_are_tensors_and_starts(order: int) -> None:
    shape = (4, 3, 5, 2, 3)[:order]
    matrices = [RNG.standard_normal((length, 2)) for length in shape]
    weights, core = np.array([2.0, 0.5]), RNG.standard_normal((2,) * order)
    letters = "abcde"[:order]
    told = ",".join(f"{letter}{letter.upper()}" for letter in letters)
    cp = amped.KruskalTensor(weights, matrices)
    wanted = np.einsum(f"Z,{','.join(letter + 'Z' for letter in letters)}->{letters}", weights, *matrices)
    models: list[tuple[Any, Any]] = [(cp, wanted)]
    tucker = amped.TuckerTensor(core, matrices)
    compressed = np.einsum(f"{letters.upper()},{told}->{letters}", core, *matrices)
    models.append((tucker, compressed))
    for library in ("pyttb", "tensorly"):
        if importlib.util.find_spec(library):
            models += [
                (getattr(model, f"to_{library}")(), want) for model, want in ((cp, wanted), (tucker, compressed))
            ]
    for model, want in models:
        found = tensor_of(model)
        assert isinstance(found, amped.DenseTensor)
        assert np.allclose(found.array(), want)
        start = factors_of(model)
        assert start is not None
        assert np.allclose(start[0], matrices[0] * (weights if want is wanted else 1))
    assert np.allclose(cp.full(), wanted)
    for pair in ((weights, matrices), (None, matrices), (core, matrices)):
        start = factors_of(pair)
        assert start is not None
        assert np.array_equal(start[-1], matrices[-1])
    with pytest.raises(InputError, match=r"weights of shape \(3,\)"):
        factors_of((np.ones(3), matrices))


def test_other_libraries_models_and_matrices() -> None:
    tensorly = pytest.importorskip("tensorly")
    model = amped.cp_als(TENSOR, 2, max_iters=3, tol=0, device="cpu", precision="fp64")
    want = amped.core_consistency(TENSOR, model, device="cpu", precision="fp64")
    for other in (model.to_tensorly(), (model.weights, model.factors), tensorly.cp_tensor.CPTensor(tuple(model))):
        assert amped.core_consistency(TENSOR, other, device="cpu", precision="fp64") == pytest.approx(want)
        assert np.array_equal(
            amped.mttkrp(TENSOR, other, 0, device="cpu"), amped.mttkrp(TENSOR, model, 0, device="cpu")
        )
    with pytest.raises(InputError, match="model is of type int: expected a CP model"):
        amped.core_consistency(TENSOR, 3, device="cpu")  # type: ignore[arg-type]


def test_a_model_that_memory_has_no_room_for() -> None:
    model = amped.KruskalTensor(np.ones(1), [np.ones((1 << 20, 1))] * 3)
    with pytest.raises(InputError, match="as a dense tensor, this model of 1048576 x 1048576 x 1048576 needs"):
        tensor_of(model)


def test_models_of_torch_as_starts() -> None:
    torch = pytest.importorskip("torch")
    matrices = [torch.rand(length, 2, requires_grad=True) for length in ARRAY.shape]
    plain = [each.detach().numpy() for each in matrices]
    how: Any = {"max_iters": 1, "device": "cpu"}
    for given in (matrices, (None, matrices)):
        found, want = amped.cp_als(TENSOR, 2, init=given, **how), amped.cp_als(TENSOR, 2, init=plain, **how)
        assert np.array_equal(found.factors[1], want.factors[1])


PLACES: list[Any] = [
    np.s_[1:4, :, -2:], np.s_[2:], np.s_[...], np.s_[..., 1:3], np.s_[1:5, ..., ::2], np.s_[::-1, 4:1:-2], np.s_[2],
    np.s_[:, np.int64(-1)], np.s_[1, 2], np.s_[..., 3, 1:], np.s_[1, 2, 3], np.s_[-1, -1, -1], np.s_[0, :, 0],
    np.s_[[2, 0]], np.s_[1:, np.array([4, -4])], np.s_[..., np.array([True, False, True, True])],
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_parts(place: Any) -> None:
    tensor = amped.SparseTensor(TENSOR.indices, TENSOR.values, TENSOR.shape)
    tensor.labels = Labels(map(as_labels, LABELS), ["who", "size", "day"])
    found, want = tensor[place], ARRAY[place]
    if want.ndim < 2:
        assert np.array_equal(found, want)
        assert found.dtype == np.float32
        return
    assert np.array_equal(found.todense(), want)
    assert tensor.labels is not None
    grid = np.meshgrid(*(np.arange(len(each)) for each in tensor.labels), indexing="ij")
    for mode, (name, labels) in enumerate(zip(found.labels.names, found.labels, strict=True)):
        at = ["who", "size", "day"].index(name)
        rows = np.moveaxis(grid[at][place], mode, 0).reshape(len(labels), -1)[:, 0]
        assert labels.tolist() == tensor.labels[at][rows].tolist()


def test_parts_that_are_none() -> None:
    arrays = [0, 0], [0, -6], [9], [[0]], [0.5], [True], []
    for wrong in (*arrays, (slice(None),) * 4, slice(4, 4), None, 6, -7, 1.0, True, (..., ...), "a"):
        with pytest.raises(InputError, match="mode"):
            TENSOR[wrong]
    for none in ([], np.zeros(6, bool), slice(4, 4)):
        with pytest.raises(InputError, match="selects none of 6 indices: every mode needs at least one"):
            TENSOR[none]


def test_shape() -> None:
    tensor = amped.SparseTensor(TENSOR.indices, TENSOR.values, TENSOR.shape)
    tensor.labels = [["<b>bold</b>", *"bcdef"], *LABELS[1:]]
    assert (tensor.ndim, tensor.dtype, tensor.nnz) == (3, np.float32, np.count_nonzero(ARRAY))
    assert np.array_equal(tensor.todense(), ARRAY)
    shown = tensor._repr_html_()
    assert f"{tensor.nnz:,}" in shown
    assert "&lt;b&gt;bold" in shown
    assert "<b>bold" not in shown


@pytest.mark.parametrize("given", [3, "x.tns", [[1, 2], [3, 4]], None, object()])
def test_what_is_no_tensor_is_left(given: Any) -> None:
    assert tensor_of(given) is None


def test_nonzeros_on_a_gpu() -> None:
    indices, values = np.array([[0, 1], [1, 1]]), np.array([2.0, 3.0])
    found = amped.SparseTensor(OnDevice(indices), OnDevice(values), (2, 2))  # type: ignore[arg-type]
    assert found.todense().tolist() == [[0, 2], [0, 3]]


@pytest.mark.gpu
def test_sparse_matrices_on_a_gpu() -> None:
    sparse = pytest.importorskip("cupyx.scipy.sparse")
    for kind in (sparse.coo_matrix, sparse.csr_matrix):
        found = tensor_of(kind(sparse.eye(3)))
        assert isinstance(found, amped.SparseTensor)
        assert np.array_equal(found.todense(), np.eye(3))
