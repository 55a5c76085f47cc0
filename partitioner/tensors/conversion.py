"""Tensors as users of arrays expect them, and as other libraries have them, which are imported when asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .labels import Labelled, Labels, mode_names

LONGEST = 40  # characters of a label that HTML shows


class Unconverted:
    """What NumPy converts neither to an array, nor to an object in one, unless that is its type.

    The method `DENSE` returns the array.
    """

    DENSE: ClassVar[str]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if dtype is not None and np.dtype(dtype) == object:  # as for several in an array, or in a column of pandas
            found = np.empty((), object)
            found[()] = self
            return found
        cause = f"a {type(self).__name__} does not become an array implicitly, as that may exceed memory"
        saved = ", or .save(path) to write an .npz file" if hasattr(self, "save") else ""
        raise TypeError(f"{cause}: use .{self.DENSE}(){saved}")


class AsArray(Labelled, Unconverted):
    """What a sparse tensor has in common with arrays. Its own class has the nonzeros."""

    DENSE = "todense"
    shape: tuple[int, ...]
    columns: Any  # properties of its own class
    values: Any
    nnz: Any
    from_columns: Any
    __iter__ = None  # or Python would call `__getitem__` with 0, 1, ..., until an `IndexError`

    @property
    def ndim(self) -> int:
        """The number of modes, as arrays call it."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """The type of the values."""
        found: np.dtype[np.floating] = self.values.dtype
        return found

    def __getitem__(self, place: Any) -> Any:
        """Return the part that numbers, slices and arrays of indices name, at most one per mode, with its labels.

        A number removes its mode: where one mode is left the part is an array, with zeros; where none is, a number.
        Of several arrays all combinations are meant; none repeats an index.

        Raises
        ------
        InputError
            If an index is out of range, or the part has no nonzero.
        """
        chosen = indices_of(place, self.shape)
        inside, moved = np.ones(self.nnz, bool), list[NDArray[np.int32]]()
        for column, each, length in zip(self.columns, chosen, self.shape, strict=True):
            new = places_among(column, each, length)
            inside &= new >= 0
            moved.append(new)
        kept = {mode: each for mode, each in enumerate(chosen) if not isinstance(each, int)}
        columns = [moved[mode][inside] for mode in kept]
        values, shape = self.values[inside], [len(each) for each in kept.values()]
        if len(kept) < 2:
            array = np.zeros(shape, self.dtype)
            array[tuple(columns)] = values if kept else values.sum()
            return array if kept else array[()]
        if not values.size:
            raise InputError("no nonzeros in this part")
        tensor: Self = type(self).from_columns(np.array(columns), values, shape)
        if self.labels is not None:
            names = self.labels.names
            known = [self.labels[mode][np.asarray(each)] for mode, each in kept.items()]
            query = self.labels.query if len(kept) == self.ndim else None
            tensor.labels = Labels(known, names and [names[mode] for mode in kept], query)
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
        head = f"{self.nnz:,} nonzeros, {self.values.dtype}, density {self.nnz / math.prod(map(float, self.shape)):.1e}"
        return _html("SparseTensor", head, self)


class AsDense(Labelled):
    """What a dense tensor has in common with arrays. Its own class has the elements."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    array: Any  # of its own class

    @property
    def ndim(self) -> int:
        """The number of modes, as arrays call it."""
        return len(self.shape)

    def todense(self) -> NDArray[Any]:
        """Return the elements with the modes in their own order."""
        found: NDArray[Any] = self.array()
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.array(), dtype, copy=copy)

    def to_sparse(self) -> Any:
        """Return PyData's `sparse.COO`; raise `InputError` if that is not installed."""
        return library("sparse").COO.from_numpy(self.array())

    def to_pyttb(self) -> Any:
        """Return pyttb's `tensor`, in float64; raise `InputError` if that is not installed."""
        return library("pyttb").tensor(np.asfortranarray(self.array(), np.float64))

    def to_torch(self) -> Any:
        """Return PyTorch's tensor; raise `InputError` if that is not installed."""
        return library("torch").from_numpy(np.array(self.array()))

    def to_xarray(self) -> Any:
        """Return xarray's `DataArray`, labels as coordinates; raise `InputError` if that is not installed."""
        return _named(library("xarray"), self.array().copy(), self)

    def _repr_html_(self) -> str:
        return _html("DenseTensor", f"{math.prod(self.shape):,} elements, {self.dtype}", self)


def _html(kind: str, head: str, tensor: Labelled) -> str:
    """Return a line about a tensor, and a row for each mode, with its first and its last label."""
    labels, rows = tensor.labels, list[str]()
    for mode, (name, length) in enumerate(zip(mode_names(labels, len(tensor.shape)), tensor.shape, strict=True)):
        ends = "" if labels is None else f"<td>{_short(labels[mode][0])}</td><td>{_short(labels[mode][-1])}</td>"
        rows.append(f"<tr><td>{_short(name)}</td><td style='text-align:right'>{length:,}</td>{ends}</tr>")
    titles = ["mode", "length"] + ["first", "last"] * (labels is not None)
    head = f"<b>{kind}</b>: {head}<table><tr>{''.join(f'<th>{title}</th>' for title in titles)}</tr>"
    return f"{head}{''.join(rows)}</table>"


def _short(label: Any) -> str:
    text = "(missing)" if label is None or label != label else str(label)
    return escape(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…")


Indices = int | range | NDArray[np.int64]


def places_among(column: NDArray[np.int32], chosen: Indices, length: int) -> NDArray[np.int32]:
    """Return the place of each index of a column among the chosen ones, -1 where it is not among them."""
    if isinstance(chosen, range) and chosen == range(length):
        return column
    if isinstance(chosen, int):
        return np.where(column == chosen, np.int32(0), np.int32(-1))
    places = np.full(length, -1, np.int32)
    places[np.asarray(chosen)] = np.arange(len(chosen), dtype=np.int32)
    return places[column]


def indices_of(place: Any, shape: Sequence[int]) -> list[Indices]:
    """Return the index or indices of each mode that numbers, slices and arrays name; refuse others."""
    given = list(place) if isinstance(place, tuple) else [place]
    if (dots := [at for at, each in enumerate(given) if each is ...])[:1]:
        given[dots[0] : dots[0] + 1] = [slice(None)] * (len(shape) + 1 - len(given))
    if len(given) > len(shape):
        raise InputError(f"{len(given)} indices for a tensor of {len(shape)} modes")
    found = list[Indices]()
    for mode, length in enumerate(shape):
        each = given[mode] if mode < len(given) else slice(None)
        if isinstance(each, slice):
            found.append(range(length)[each])
            if not found[-1]:
                raise InputError(f"mode {mode}: {each} leaves nothing of {length} indices")
        elif isinstance(each, (list, np.ndarray)):
            found.append(_index_array(np.asarray(each), mode, length))
        elif not isinstance(each, (int, np.integer)) or isinstance(each, bool):
            raise InputError(f"mode {mode}: {each!r} is no number, slice or array of indices")
        elif -length <= each < length:
            found.append(int(each) % length)
        else:
            raise InputError(f"mode {mode}: index {each} is outside its length {length}")
    return found


def _index_array(given: NDArray[Any], mode: int, length: int) -> NDArray[np.int64]:
    """Return indices of a mode, given as such or as a mask, counted from 0."""
    if given.dtype.kind == "b" and given.shape == (length,):
        given = np.flatnonzero(given)
    if given.ndim != 1 or given.dtype.kind not in "iu" or not given.size:
        raise InputError(f"mode {mode}: {given.dtype} of shape {given.shape}: expected indices, or a mask of the mode")
    if given.min() < -length or given.max() >= length:
        raise InputError(f"mode {mode}: an index is outside its length {length}")
    indices = given.astype(np.int64) % length
    if np.unique(indices).size < indices.size:
        raise InputError(f"mode {mode}: an index is given twice")
    return indices


def to_scipy(tensor: AsArray) -> Any:
    """Return a sparse tensor as SciPy's `coo_array`, of as many dimensions."""
    from scipy.sparse import coo_array

    return coo_array((tensor.values.copy(), tuple(tensor.columns.copy())), shape=tensor.shape)


def to_sparse(tensor: AsArray) -> Any:
    """Return a sparse tensor as PyData's `sparse.COO`; raise `InputError` if that is not installed."""
    sparse = library("sparse")
    columns, values = tensor.columns.copy(), tensor.values.copy()
    return sparse.COO(columns, values, shape=tensor.shape, has_duplicates=False, sorted=True)


def to_pyttb(tensor: AsArray) -> Any:
    """Return a sparse tensor as pyttb's `sptensor`, in float64; raise `InputError` if that is not installed."""
    subs = np.ascontiguousarray(tensor.columns.T, np.int64)
    return library("pyttb").sptensor(subs, tensor.values.astype(np.float64)[:, None], tensor.shape)


def to_torch(tensor: AsArray) -> Any:
    """Return a sparse tensor as PyTorch's sparse COO tensor; raise `InputError` if that is not installed."""
    torch = library("torch")
    columns = torch.from_numpy(tensor.columns.astype(np.int64))
    how = {"is_coalesced": True, "check_invariants": False}  # they are kept here
    return torch.sparse_coo_tensor(columns, torch.from_numpy(np.array(tensor.values)), tensor.shape, **how)


def to_xarray(tensor: AsArray) -> Any:
    """Return a sparse tensor as xarray's `DataArray` of a `sparse.COO`, its labels as coordinates.

    Raise `InputError` if either library is not installed.
    """
    return _named(library("xarray"), to_sparse(tensor), tensor)


def _named(xarray: Any, array: Any, tensor: Labelled) -> Any:
    """Return an array as xarray's `DataArray`: dimensions are keys of a table, or numbers; labels are coordinates."""
    names = tensor.labels.names if tensor.labels is not None and tensor.labels.names else None
    if names is None or len(set(names)) < len(names):
        names = tuple(f"mode_{mode}" for mode in range(len(tensor.shape)))
    labels = [] if tensor.labels is None else [plain(each) for each in tensor.labels]
    return xarray.DataArray(array, coords=dict(zip(names, labels, strict=False)), dims=names)


def plain(labels: Any) -> Any:
    """Return labels as libraries take them that know no strings of variable length: as objects."""
    return labels.astype(object) if labels.dtype.kind == "T" else labels


def library(name: str) -> Any:
    """Return a library; raise `InputError` if it is not installed."""
    try:
        return __import__(name)
    except ImportError:
        raise InputError(f"{name} is not installed") from None
