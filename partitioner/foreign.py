"""Tensors of other libraries, taken as they are; none of these is imported for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .coo import SparseTensor
from .dense import DenseTensor
from .errors import InputError

AnyTensor = SparseTensor | DenseTensor


def tensor_of(given: Any) -> AnyTensor | None:
    """Return the tensor that an object of another library stands for, or that an array is; None if it is neither.

    SciPy's and PyData's sparse arrays, pyttb's `sptensor` and `tensor`, PyTorch's sparse and dense tensors, xarray's
    `DataArray` (its coordinates become labels), and whatever NumPy or CuPy take for an array. Duplicates are summed.

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
    if hasattr(given, "__array__") or hasattr(given, "__cuda_array_interface__"):
        return DenseTensor(given)
    return None


def factors_of(given: Any) -> list[NDArray[Any]] | None:
    """Return the factor matrices of a CP model of any library, its weights in the first one; None if it is none.

    A model is an object with `weights`, and `factors` (amped, TensorLy) or `factor_matrices` (pyttb).
    """
    factors = getattr(given, "factors", getattr(given, "factor_matrices", None))
    if factors is None or not hasattr(given, "weights"):
        return None
    matrices = [np.asarray(each) for each in factors]
    if given.weights is not None and matrices:
        matrices[0] = matrices[0] * np.asarray(given.weights)
    return matrices


def _of_scipy(given: Any) -> SparseTensor:
    found = given.tocoo()
    return SparseTensor.from_columns(np.array(found.coords), np.array(found.data), found.shape)


def _of_pydata(given: Any) -> SparseTensor:
    found = given if hasattr(given, "coords") else given.asformat("coo")
    if found.fill_value != 0:
        raise InputError(f"a sparse array whose absent elements are {found.fill_value}: expected 0")
    return SparseTensor.from_columns(np.array(found.coords), np.array(found.data), found.shape)


def _of_torch(given: Any) -> AnyTensor:
    given = given.detach()
    if str(given.layout) == "torch.strided":
        return DenseTensor(given)
    found = given.to_sparse().coalesce().cpu()
    return SparseTensor.from_columns(found.indices().numpy(), found.values().numpy(), tuple(found.shape))


def _of_sptensor(given: Any) -> SparseTensor:
    return SparseTensor(np.asarray(given.subs), np.asarray(given.vals).reshape(-1), given.shape)


def _of_xarray(given: Any) -> DenseTensor:
    tensor = DenseTensor(given.values)
    if all(name in given.coords for name in given.dims):
        tensor.labels = [given.coords[name].values for name in given.dims]
    return tensor


TAKEN: dict[tuple[str, str], Callable[[Any], AnyTensor]] = {
    ("pyttb", "sptensor"): _of_sptensor,
    ("pyttb", "tensor"): lambda given: DenseTensor(given.data),
    ("xarray", "DataArray"): _of_xarray,
}
"""By library and type."""

BY_LIBRARY: list[tuple[Callable[[Any], bool], Callable[[Any], AnyTensor]]] = [
    (lambda given: type(given).__module__.startswith("scipy.sparse") and hasattr(given, "tocoo"), _of_scipy),
    (lambda given: type(given).__module__.startswith("sparse.") and hasattr(given, "fill_value"), _of_pydata),
    (lambda given: type(given).__module__ == "torch" and hasattr(given, "layout"), _of_torch),
]
"""What has several types."""
