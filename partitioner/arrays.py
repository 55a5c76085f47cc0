"""A sparse tensor as users of arrays expect it, and as other libraries have it, which are imported when asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .errors import InputError
from .labels import Labelled, Labels, mode_names


class AsArray(Labelled):
    """What a sparse tensor has in common with arrays. Its own class has the nonzeros."""

    shape: tuple[int, ...]
    columns: Any  # properties of its own class
    values: Any
    nnz: Any
    from_columns: Any

    @property
    def ndim(self) -> int:
        """The number of modes, as arrays call it."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """The type of the values."""
        found: np.dtype[np.floating] = self.values.dtype
        return found

    def __getitem__(self, place: Any) -> Self:
        """Return the part within slices of step 1, one a mode at most; it has its labels."""
        ranges = ranges_of(place, self.shape)
        inside = np.ones(self.nnz, bool)
        for column, each in zip(self.columns, ranges, strict=True):
            inside &= (column >= each.start) & (column < each.stop)
        columns = self.columns[:, inside] - np.array([[each.start] for each in ranges], np.int32)
        shape = [each.stop - each.start for each in ranges]
        tensor: Self = type(self).from_columns(columns, self.values[inside], shape)
        if self.labels is not None:
            known = [names[each] for names, each in zip(self.labels, ranges, strict=True)]
            tensor.labels = Labels(known, self.labels.names)
        return tensor

    def todense(self) -> NDArray[np.floating]:
        """Return the tensor with its zeros, as an array: for small shapes."""
        array = np.zeros(self.shape, self.dtype)
        array[tuple(self.columns)] = self.values
        return array

    def to_scipy(self) -> Any:
        """Return SciPy's `coo_array`, of as many dimensions."""
        return to_scipy(self)

    def to_sparse(self) -> Any:
        """Return PyData's `sparse.COO`; raise `InputError` if that is not installed."""
        return to_sparse(self)

    def to_pyttb(self) -> Any:
        """Return pyttb's `sptensor`, in float64; raise `InputError` if that is not installed."""
        return to_pyttb(self)

    def to_torch(self) -> Any:
        """Return PyTorch's sparse COO tensor; raise `InputError` if that is not installed."""
        return to_torch(self)

    def to_xarray(self) -> Any:
        """Return xarray's `DataArray` of a `sparse.COO`, labels as coordinates; raise `InputError` without these."""
        return to_xarray(self)

    def _repr_html_(self) -> str:
        names = mode_names(self.labels, len(self.shape))
        rows = "".join(
            f"<tr><td>{escape(name)}</td><td style='text-align:right'>{length:,}</td></tr>"
            for name, length in zip(names, self.shape, strict=True)
        )
        head = f"{self.nnz:,} nonzeros, {self.values.dtype}, density {self.nnz / math.prod(map(float, self.shape)):.1e}"
        return f"<b>SparseTensor</b>: {head}<table><tr><th>mode</th><th>length</th></tr>{rows}</table>"


def ranges_of(place: Any, shape: Sequence[int]) -> list[slice]:
    """Return the range of each mode that slices name; raise `InputError` if they are others."""
    given = place if isinstance(place, tuple) else (place,)
    if len(given) > len(shape) or not all(isinstance(each, slice) for each in given):
        raise InputError(f"a tensor of {len(shape)} modes is cut by as many slices at most")
    found = []
    for mode, length in enumerate(shape):
        begin, end, step = given[mode].indices(length) if mode < len(given) else (0, length, 1)
        if step != 1 or end <= begin:
            raise InputError(f"mode {mode}: {given[mode]} leaves nothing of {length} indices, or has steps")
        found.append(slice(begin, end))
    return found


def to_scipy(tensor: AsArray) -> Any:
    """Return a sparse tensor as SciPy's `coo_array`, of as many dimensions."""
    from scipy.sparse import coo_array

    return coo_array((tensor.values, tuple(tensor.columns)), shape=tensor.shape)


def to_sparse(tensor: AsArray) -> Any:
    """Return a sparse tensor as PyData's `sparse.COO`; raise `InputError` if that is not installed."""
    sparse = library("sparse")
    return sparse.COO(tensor.columns, tensor.values, shape=tensor.shape, has_duplicates=False, sorted=True)


def to_pyttb(tensor: AsArray) -> Any:
    """Return a sparse tensor as pyttb's `sptensor`, in float64; raise `InputError` if that is not installed."""
    subs = np.ascontiguousarray(tensor.columns.T, np.int64)
    return library("pyttb").sptensor(subs, tensor.values.astype(np.float64)[:, None], tensor.shape)


def to_torch(tensor: AsArray) -> Any:
    """Return a sparse tensor as PyTorch's sparse COO tensor; raise `InputError` if that is not installed."""
    torch = library("torch")
    columns = torch.from_numpy(tensor.columns.astype(np.int64))
    return torch.sparse_coo_tensor(columns, torch.from_numpy(np.array(tensor.values)), tensor.shape, is_coalesced=True)


def to_xarray(tensor: AsArray) -> Any:
    """Return a sparse tensor as xarray's `DataArray` of a `sparse.COO`, its labels as coordinates.

    Raise `InputError` if either library is not installed.
    """
    xarray, array = library("xarray"), to_sparse(tensor)
    names = tensor.labels.names if tensor.labels is not None and tensor.labels.names else None
    dims = list(names or (f"mode_{mode}" for mode in range(len(tensor.shape))))
    labels = [] if tensor.labels is None else [plain(each) for each in tensor.labels]
    coords = dict(zip(dims, labels, strict=False))
    return xarray.DataArray(array, coords=coords, dims=dims)


def plain(labels: Any) -> Any:
    """Return labels as libraries take them that know no strings of variable length: as objects."""
    return labels.astype(object) if labels.dtype.kind == "T" else labels


def library(name: str) -> Any:
    """Return a library; raise `InputError` if it is not installed."""
    try:
        return __import__(name)
    except ImportError:
        raise InputError(f"{name} is not installed") from None
