"""Tensors of other libraries, taken as they are; none of these is imported for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .coo import SparseTensor
from .dense import DenseTensor
from .errors import InputError
from .labels import Labels, as_labels, plain_times
from .lowrank import factors_of, full, parts_of

__all__ = ["AnyTensor", "factors_of", "tensor_of"]

AnyTensor = SparseTensor | DenseTensor
KEYS = "a table: amped.from_frame(frame, keys=[...]) says which column each mode is"


def tensor_of(given: Any) -> AnyTensor | None:
    """Return the tensor that an object of another library stands for, or that an array is; None if it is neither.

    SciPy's and PyData's sparse arrays, pyttb's `sptensor` and `tensor`, PyTorch's sparse and dense tensors, xarray's
    `DataArray` (its coordinates become labels), pandas's `DataFrame` of numbers (a matrix), CP and Tucker models of
    any library (the dense tensor that they stand for), and whatever NumPy or CuPy take for an array. Duplicates are
    summed.

    Raises
    ------
    InputError
        If it is one of these, and its shape or its values are none of a tensor.
    """
    known = TAKEN.get((type(given).__module__.partition(".")[0], type(given).__name__))
    if known is None:
        known = next((take for library, take in BY_LIBRARY if library(given)), None)
    if known is not None:
        return known(given)
    if not isinstance(given, (tuple, list)) and (parts := parts_of(given)) is not None:
        tensor = DenseTensor(full(*parts))
        tensor.labels = getattr(given, "labels", None)
        return tensor
    if hasattr(given, "__array__") or hasattr(given, "__cuda_array_interface__"):
        return DenseTensor(given)
    return None


def _of_scipy(given: Any) -> SparseTensor:
    found = given.tocoo()
    return SparseTensor.from_columns(np.array(found.coords), _numbers(found.data), found.shape)


def _of_pydata(given: Any) -> SparseTensor:
    found = given if hasattr(given, "coords") else given.asformat("coo")
    if found.fill_value != 0:
        raise InputError(f"a sparse array whose absent elements are {found.fill_value}: expected 0")
    return SparseTensor.from_columns(np.array(found.coords), _numbers(found.data), found.shape)


def _of_torch(given: Any) -> AnyTensor:
    given = given.detach()
    if str(given.layout) == "torch.strided":
        return DenseTensor(given)
    found = given.to_sparse().coalesce().cpu()
    return SparseTensor.from_columns(found.indices().numpy(), _numbers(found.values().numpy()), tuple(found.shape))


def _of_sptensor(given: Any) -> SparseTensor:
    if not given.nnz:
        raise InputError("no nonzeros")
    return SparseTensor(np.asarray(given.subs), _numbers(np.asarray(given.vals)).reshape(-1), given.shape)


def _numbers(values: Any) -> Any:
    """Return values of a caller's as numbers that nobody else has: truth values count 1."""
    return np.array(values, np.float64 if values.dtype.kind == "b" else None)


def _of_xarray(given: Any) -> AnyTensor:
    tensor = _of_pydata(given.data) if _is_pydata(given.data) else DenseTensor(given.values)
    if given.coords.keys() & set(given.dims):
        # A dimension without a coordinate is numbered, as xarray has it.
        tensor.labels = Labels((_index(given[name].values) for name in given.dims), [str(name) for name in given.dims])
    return tensor


def _of_pandas(given: Any) -> DenseTensor:
    """Return a frame of numbers as a matrix; a table of events is refused."""
    if not all(getattr(kind, "kind", "O") in "biuf" for kind in given.dtypes):
        raise InputError(KEYS)
    tensor = DenseTensor(given.to_numpy())
    names = [str(each.name) if each.name is not None else f"mode {mode}" for mode, each in enumerate(given.axes)]
    tensor.labels = Labels((_index(each.to_numpy()) for each in given.axes), names)
    return tensor


def _index(given: Any) -> Any:
    """Return an index of pandas's or xarray's as labels: what has several levels as text."""
    if given.dtype.kind == "O" and not all(isinstance(each, str) or each is None for each in given):
        given = np.array([None if each is None or each != each else str(each) for each in given], object)
    labels = as_labels(given)
    return plain_times(labels) if labels.dtype.kind == "M" else labels


def _no_table(given: Any) -> DenseTensor:
    raise InputError(KEYS)


def _is_pydata(given: Any) -> bool:
    return type(given).__module__.startswith("sparse.") and hasattr(given, "fill_value")


TAKEN: dict[tuple[str, str], Callable[[Any], AnyTensor]] = {
    ("pyttb", "sptensor"): _of_sptensor,
    ("pyttb", "tensor"): lambda given: DenseTensor(given.data),
    ("xarray", "DataArray"): _of_xarray,
    ("pandas", "DataFrame"): _of_pandas,
    ("polars", "DataFrame"): _no_table,
    ("polars", "LazyFrame"): _no_table,
    ("pyarrow", "Table"): _no_table,
    ("duckdb", "DuckDBPyRelation"): _no_table,
}
"""By library and type."""

BY_LIBRARY: list[tuple[Callable[[Any], bool], Callable[[Any], AnyTensor]]] = [
    (lambda given: type(given).__module__.startswith("scipy.sparse") and hasattr(given, "tocoo"), _of_scipy),
    (_is_pydata, _of_pydata),
    (lambda given: type(given).__module__ == "torch" and hasattr(given, "layout"), _of_torch),
]
"""What has several types."""
