"""Array methods of tensors, and conversion to other libraries, which are imported on demand."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..array_types import DType, FloatDType, Floats, HostArray
from ..errors import InputError
from ..host.imports import scipy_module
from .labels import Labelled, Labels, mode_names

MAX_LABEL = 40  # characters of a label in HTML


class Unconverted:
    """Objects that NumPy does not convert to arrays, and stores in arrays only as objects.

    The method named `DENSE` returns the array.
    """

    DENSE: ClassVar[str]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> HostArray:
        if dtype is not None and np.dtype(dtype) == object:  # an element of an object array or a pandas column
            array = np.empty((), object)
            array[()] = self
            return array
        cause = f"a {type(self).__name__} is not converted to an array implicitly, as that may exceed memory"
        saved = ", or .save(path) to write an .npz file" if hasattr(self, "save") else ""
        raise TypeError(f"{cause}: use .{self.DENSE}(){saved}")


class AsArray(Labelled, Unconverted):
    """Array methods of a sparse tensor; the subclass has the nonzeros."""

    DENSE = "todense"
    shape: tuple[int, ...]
    columns: Any  # properties of the subclass
    values: Any
    nnz: Any
    keeps_zeros: Any
    from_columns: Any
    __iter__ = None  # otherwise Python would iterate by `__getitem__`

    @property
    def ndim(self) -> int:
        """The number of modes."""
        return len(self.shape)

    @property
    def dtype(self) -> FloatDType:
        """The type of the values."""
        dtype: FloatDType = self.values.dtype
        return dtype

    def __getitem__(self, key: object) -> Any:
        """Return the part selected by numbers, slices and arrays of indices, with its labels.

        There is at most one selector per mode. A number removes its mode; if one mode remains the result is an array
        with zeros, if none remains a number. Several arrays select all combinations of their indices; no index may be
        repeated.

        Raises
        ------
        InputError
            If an index is out of range, or a mode has none.
        """
        chosen = indices_of(key, self.shape)
        selected, new_columns = np.ones(self.nnz, bool), list[NDArray[np.int32]]()
        for column, indices, length in zip(self.columns, chosen, self.shape, strict=True):
            positions = places_among(column, indices, length)
            selected &= positions >= 0
            new_columns.append(positions)
        remaining = {mode: indices for mode, indices in enumerate(chosen) if not isinstance(indices, int)}
        columns = [new_columns[mode][selected] for mode in remaining]
        values, shape = self.values[selected], [len(indices) for indices in remaining.values()]
        if len(remaining) < 2:
            array = np.zeros(shape, self.dtype)
            array[tuple(columns)] = values if remaining else values.sum()
            return array if remaining else array[()]
        tensor: Self = type(self).from_columns(np.array(columns), values, shape, keep_zeros=self.keeps_zeros)
        if self.labels is not None:
            names: Any = self.labels.names
            units: Any = self.labels.units
            labels = [self.labels[mode][np.asarray(indices)] for mode, indices in remaining.items()]
            query = self.labels.query if len(remaining) == self.ndim else None
            names, units = names and [names[mode] for mode in remaining], units and [units[mode] for mode in remaining]
            tensor.labels = Labels(labels, names, query, units)
        return tensor

    def todense(self) -> Floats:
        """Return the tensor as an array with zeros. Intended for small shapes."""
        array = np.zeros(self.shape, self.dtype)
        array[tuple(self.columns)] = self.values
        return array

    def to_scipy(self) -> Any:
        """Return the tensor as SciPy's `coo_array` with the same number of dimensions."""
        return to_scipy(self)

    def to_sparse(self) -> Any:
        """Return the tensor as PyData's `sparse.COO`; raise `InputError` if the library sparse is not installed."""
        return to_sparse(self)

    def to_pyttb(self) -> Any:
        """Return the tensor as pyttb's `sptensor` in float64; raise `InputError` if pyttb is not installed."""
        return to_pyttb(self)

    def to_torch(self) -> Any:
        """Return the tensor as PyTorch's sparse COO tensor; raise `InputError` if PyTorch is not installed."""
        return to_torch(self)

    def to_xarray(self) -> Any:
        """Return a `DataArray` of a `sparse.COO`, labels as coordinates; raise `InputError` without these libraries."""
        return to_xarray(self)

    def _repr_html_(self) -> str:
        head = f"{self.nnz:,} nonzeros, {self.values.dtype}, density {self.nnz / math.prod(map(float, self.shape)):.1e}"
        return _html("SparseTensor", head, self)


class AsDense(Labelled):
    """Array methods of a dense tensor; the subclass has the elements."""

    shape: tuple[int, ...]
    dtype: DType
    array: Any  # method of the subclass

    @property
    def ndim(self) -> int:
        """The number of modes."""
        return len(self.shape)

    def todense(self) -> HostArray:
        """Return the elements with modes in their original order."""
        array: HostArray = self.array()
        return array

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> HostArray:
        return np.array(self.array(), dtype, copy=copy)

    def to_sparse(self) -> Any:
        """Return the tensor as PyData's `sparse.COO`; raise `InputError` if the library sparse is not installed."""
        return library("sparse").COO.from_numpy(self.array())

    def to_pyttb(self) -> Any:
        """Return the tensor as pyttb's `tensor` in float64; raise `InputError` if pyttb is not installed."""
        return library("pyttb").tensor(np.asfortranarray(self.array(), np.float64))

    def to_torch(self) -> Any:
        """Return the tensor as a PyTorch tensor; raise `InputError` if PyTorch is not installed."""
        return library("torch").from_numpy(np.array(self.array()))

    def to_xarray(self) -> Any:
        """Return the tensor as a `DataArray`, labels as coordinates; raise `InputError` if xarray is not installed."""
        return _named(library("xarray"), self.array().copy(), self)

    def _repr_html_(self) -> str:
        return _html("DenseTensor", f"{math.prod(self.shape):,} elements, {self.dtype}", self)


def _html(kind: str, head: str, tensor: Labelled) -> str:
    """Return HTML with one line about a tensor and a row per mode, with its first and last label."""
    labels, rows = tensor.labels, list[str]()
    for mode, (name, length) in enumerate(zip(mode_names(labels, len(tensor.shape)), tensor.shape, strict=True)):
        ends = "" if labels is None else f"<td>{_short(labels[mode][0])}</td><td>{_short(labels[mode][-1])}</td>"
        rows.append(f"<tr><td>{_short(name)}</td><td style='text-align:right'>{length:,}</td>{ends}</tr>")
    titles = ["mode", "length"] + ["first", "last"] * (labels is not None)
    head = f"<b>{kind}</b>: {head}<table><tr>{''.join(f'<th>{title}</th>' for title in titles)}</tr>"
    return f"{head}{''.join(rows)}</table>"


def _short(label: object) -> str:
    from html import escape  # only notebooks show tensors

    text = "(missing)" if label is None or label != label else str(label)
    return escape(text if len(text) <= MAX_LABEL else f"{text[: MAX_LABEL - 1]}…")


Indices = int | range | NDArray[np.int64]


def places_among(column: NDArray[np.int32], chosen: Indices, length: int) -> NDArray[np.int32]:
    """Return the position of each index of a column in `chosen`, or -1 if it is not in it."""
    if isinstance(chosen, range) and chosen == range(length):
        return column
    if isinstance(chosen, int):
        return np.where(column == chosen, np.int32(0), np.int32(-1))
    places = np.full(length, -1, np.int32)
    places[np.asarray(chosen)] = np.arange(len(chosen), dtype=np.int32)
    return places[column]


def indices_of(key: object, shape: Sequence[int]) -> list[Indices]:
    """Return the index or indices selected in each mode; raise `InputError` for other selectors."""
    selectors = list(key) if isinstance(key, tuple) else [key]
    if (dots := [at for at, each in enumerate(selectors) if each is ...])[:1]:
        selectors[dots[0] : dots[0] + 1] = [slice(None)] * (len(shape) + 1 - len(selectors))
    if len(selectors) > len(shape):
        raise InputError(f"{len(selectors)} indices for a tensor of {len(shape)} modes")
    selected = list[Indices]()
    for mode, length in enumerate(shape):
        each = selectors[mode] if mode < len(selectors) else slice(None)
        if isinstance(each, slice):
            selected.append(range(length)[each])
        elif isinstance(each, (list, np.ndarray)):
            selected.append(_index_array(np.asarray(each), mode, length))
        elif not isinstance(each, (int, np.integer)) or isinstance(each, bool):
            raise InputError(f"mode {mode}: {each!r} is not a number, slice or array of indices")
        elif -length <= each < length:
            selected.append(int(each) % length)
        else:
            raise InputError(f"mode {mode}: index {each} is outside its length {length}")
        if not isinstance(selected[-1], int) and not len(selected[-1]):
            raise InputError(f"mode {mode}: {each} selects none of {length} indices: every mode needs at least one")
    return selected


def _index_array(array: HostArray, mode: int, length: int) -> NDArray[np.int64]:
    """Return non-negative indices from an array of indices or a mask."""
    if array.dtype.kind == "b" and array.shape == (length,):
        array = np.flatnonzero(array)
    if not array.size and array.ndim == 1:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(f"mode {mode}: {array.dtype} of shape {array.shape}: expected indices, or a mask of the mode")
    if array.min() < -length or array.max() >= length:
        raise InputError(f"mode {mode}: an index is outside its length {length}")
    indices = array.astype(np.int64) % length
    if np.unique(indices).size < indices.size:
        raise InputError(f"mode {mode}: an index occurs twice")
    return indices


def to_scipy(tensor: AsArray) -> Any:
    """Return a sparse tensor as SciPy's `coo_array` with the same number of dimensions."""
    return scipy_module("sparse").coo_array((tensor.values.copy(), tuple(tensor.columns.copy())), shape=tensor.shape)


def to_sparse(tensor: AsArray) -> Any:
    """Return a sparse tensor as PyData's `sparse.COO`; raise `InputError` if the library sparse is not installed."""
    sparse = library("sparse")
    columns, values = tensor.columns.copy(), tensor.values.copy()
    return sparse.COO(columns, values, shape=tensor.shape, has_duplicates=False, sorted=True)


def to_pyttb(tensor: AsArray) -> Any:
    """Return a sparse tensor as pyttb's `sptensor` in float64; raise `InputError` if pyttb is not installed."""
    subs = np.ascontiguousarray(tensor.columns.T, np.int64)
    return library("pyttb").sptensor(subs, tensor.values.astype(np.float64)[:, None], tensor.shape)


def to_torch(tensor: AsArray) -> Any:
    """Return a sparse tensor as PyTorch's sparse COO tensor; raise `InputError` if PyTorch is not installed."""
    torch = library("torch")
    columns = torch.from_numpy(tensor.columns.astype(np.int64))
    flags = {"is_coalesced": True, "check_invariants": False}  # guaranteed by `SparseTensor`
    with warnings.catch_warnings():  # some versions warn although the flag says that nothing is checked
        warnings.filterwarnings("ignore", "Sparse invariant checks", UserWarning)
        return torch.sparse_coo_tensor(columns, torch.from_numpy(np.array(tensor.values)), tensor.shape, **flags)


def to_xarray(tensor: AsArray) -> Any:
    """Return a sparse tensor as xarray's `DataArray` of a `sparse.COO`, with labels as coordinates.

    Raise `InputError` if either library is not installed.
    """
    return _named(library("xarray"), to_sparse(tensor), tensor)


def _named(xarray: ModuleType, array: Any, tensor: Labelled) -> Any:
    """Return an array as a `DataArray`. Dimensions are table keys or numbers; labels are coordinates."""
    names = tensor.labels.names if tensor.labels is not None and tensor.labels.names else None
    if names is None or len(set(names)) < len(names):
        names = tuple(f"mode_{mode}" for mode in range(len(tensor.shape)))
    labels = [] if tensor.labels is None else [plain(each) for each in tensor.labels]
    return xarray.DataArray(array, coords=dict(zip(names, labels, strict=False)), dims=names)


def plain(labels: Any) -> Any:
    """Return labels with variable-length strings as objects, for libraries that do not support them."""
    return labels.astype(object) if labels.dtype.kind == "T" else labels


def library(name: str) -> Any:
    """Import and return a library; raise `InputError` if it is not installed."""
    try:
        return __import__(name)
    except ImportError:
        raise InputError(f"{name} is not installed: run pip install {name}") from None
