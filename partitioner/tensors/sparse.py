"""The sparse tensor in coordinate (COO) form, always in lexicographic order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from os import PathLike
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..array_types import FloatDType, Floats, HostArray, Integers
from ..errors import InputError
from ..sorting.sort import Sort, SortOptions, sort_nonzeros, strictly_increasing
from ..sorting.tables import Nonzeros
from .conversion import AsArray
from .device_arrays import on_host
from .ingest import check_kinds, check_lengths, checked_shape, refuse_masked, room_for, take, whole_lengths, with_zeros
from .labels import Labels
from .used_indices import distinct, labels_of, renumbered
from .value_range import ValueRange, ends, grain, norm, squares

T = TypeVar("T")

LATER = 1 << 20  # nonzeros from which on sorting is deferred, as a GPU may do it


MergeCallback = Callable[[int, Callable[[], ValueRange]], None]
"""Called with the number of merged duplicates, and a function that returns bounds on the values."""


class SparseTensor(AsArray):
    """A sparse tensor: the indices and values of its nonzeros.

    Nonzeros are stored in lexicographic order of their indices. Duplicates are summed and zeros dropped, unless they
    are kept, and both are counted. If all values are zero, they are kept; if there are none, which needs a `shape`,
    one zero is stored. A million nonzeros or more are sorted at the first use, since `cp_als` and `mttkrp`
    can sort them on a GPU; everything else is checked on construction.

    Parameters
    ----------
    indices : (nnz, order) array-like of int
        Indices, counted from 0.
    values : (nnz,) array-like of float
        Values; float32 is kept, other types are converted to float64.
    shape : sequence of int, optional
        Mode lengths; by default one more than the highest index of each mode.
    keep_zeros : bool
        Keep explicit zeros: elements that are observed to be zero, if absent elements are unknown.

    Attributes
    ----------
    columns : (order, nnz) int32 array
        The indices, one contiguous row per mode.
    values : (nnz,) float32 or float64 array
        The values.
    shape : tuple of int
        Mode lengths.
    duplicates, zeros : int
        Number of nonzeros merged with an earlier one of equal indices, and of sums of zero that were dropped.
    labels : tuple of (I_n,) arrays, or None
        Labels of the indices: values of table keys, or after `compacted` the original indices. Can be set to one
        sequence of numbers, times or strings per mode.
    build_bytes : int
        Peak memory of the construction in bytes.

    Raises
    ------
    InputError
        If the order is not in 2..8, there is neither a value nor a `shape`, an index lies outside `shape`, a mode is
        longer than 2**31 - 1, or a value is not finite. Also, when nonzeros are sorted, if a sum of duplicates
        overflows, or all sums, but not all values, are zero.

    Examples
    --------
    >>> X = SparseTensor([[0, 2, 1], [3, 0, 1], [0, 2, 1]], [1.0, 2.0, 4.0], shape=(4, 3, 2))
    >>> X.nnz, X.duplicates, X.values.tolist()
    (2, 1, [5.0, 2.0])
    >>> X[0, 2, 1], X[3].shape
    (np.float64(5.0), (3, 2))
    """

    _columns: NDArray[np.int32]
    _values: Floats
    _build_bytes: int
    _path: str | PathLike[str] | None = None
    _keep_zeros = False
    _merge_error: InputError | None = None  # error when duplicates were summed in place
    _on_merged: MergeCallback | None = None

    kind: ClassVar[str] = "sparse"
    noun: ClassVar[str] = "nonzeros"
    own_mask: ClassVar[str] = "stored"  # selects the elements that it has
    gaps = False
    has_nan: ClassVar[bool] = False
    has_gaps: ClassVar[bool] = False

    def __init__(
        self,
        indices: ArrayLike,
        values: ArrayLike,
        shape: Sequence[int] | None = None,
        *,
        keep_zeros: bool = False,
    ) -> None:
        for name, array in (("indices", indices), ("values", values)):
            refuse_masked(array, name)
        table = on_host(indices)
        if table.ndim != 2:
            raise InputError(f"indices have {table.ndim} dimensions, expected (nnz, order)")
        self._keep_zeros = keep_zeros
        self._fill(table.T, on_host(values), shape, sort_nonzeros, owned=False)

    @classmethod
    def from_columns(
        cls,
        columns: Integers,
        values: HostArray,
        shape: Sequence[int] | None = None,
        *,
        path: str | PathLike[str] | None = None,
        sort: Sort = sort_nonzeros,
        keep_zeros: bool = False,
    ) -> SparseTensor:
        """Create a tensor from (order, nnz) columns, without a copy if they are int32 and sorted.

        Takes ownership: the arrays may be sorted in place and must not change afterwards. Errors name `path`.
        """
        tensor = cls.__new__(cls)
        tensor._path, tensor._keep_zeros = path, keep_zeros
        try:
            tensor._fill(columns, values, shape, sort, owned=True)
        except InputError as error:
            raise InputError(error.cause, path=path) from None
        return tensor

    def _fill(
        self, columns: HostArray, values: HostArray, shape: Sequence[int] | None, sort: Sort, owned: bool
    ) -> None:
        """Check and store nonzeros. They are copied unless `owned`, since the caller may change its arrays later."""
        refuse_masked(columns, "indices")
        refuse_masked(values, "values")
        if self._path is None and shape is not None:
            columns, values = with_zeros(columns, values, len(columns))
        check_kinds(columns, values)
        if self._path is None and not values[0] and not values.any():
            self._keep_zeros = True
        narrow: FloatDType = np.dtype(np.float32 if values.dtype == np.float32 else np.float64)
        self._columns, self._values = room_for(columns, np.dtype(np.int32), owned), room_for(values, narrow, owned)
        counts = take((columns, values), (self._columns, self._values))
        if not counts.finite:
            at = int(np.argmin(np.isfinite(self._values)))
            reason = "too large for a double" if np.isfinite(values[at]) else "not finite"
            raise InputError(f"value of nonzero {at} is {reason}")
        self.shape = checked_shape(counts, shape)
        self._sort, self._ordered, self._merge_counts = sort, False, (0, 0)
        original = 0 if not owned or self._columns is columns else columns.nbytes  # the caller still has the original
        self._build_bytes = self._columns.nbytes + self._values.nbytes + original
        if values.size < LATER:
            self._settle()

    def _settle(self) -> None:
        """Sort and merge the nonzeros, once."""
        if self._merge_error is not None:
            raise self._merge_error
        if self._ordered:
            return
        if not (strictly_increasing(self._columns) and (self._keep_zeros or np.all(self._values))):
            columns, values = self._columns, self._values
            writable = columns.flags.writeable and values.flags.writeable
            options = SortOptions(merge=True, keep_zeros=self._keep_zeros, overwrite=writable)
            merged = self._sort(columns, values, range(self.order), self.shape, **options)
            try:
                check_merged(merged.values.size, bool(np.all(np.isfinite(merged.values))))
            except InputError as error:
                self._merge_error = InputError(error.cause, path=self._path)
                raise self._merge_error from None
            self._columns, self._values, scratch, *repaired = merged
            self._merge_counts = repaired[0], repaired[1]
            self._build_bytes += scratch + (0 if writable else columns.nbytes + values.nbytes)
        self._ordered = True
        self.merged(self._merge_counts[0], self.value_range)

    def when_merged(self, callback: MergeCallback) -> None:
        """Call `callback` as soon as duplicates are merged, on the host or a device; at once if they are already."""
        self._on_merged = callback
        if self._ordered:
            self.merged(self._merge_counts[0], self.value_range)

    def merged(self, duplicates: int, values: Callable[[], ValueRange]) -> None:
        """Report that duplicates were merged: their number, and a function that returns bounds on the values."""
        callback, self._on_merged = self._on_merged, None
        if callback is not None:
            callback(duplicates, values)

    @property
    def raw(self) -> tuple[Nonzeros, bool]:
        """The nonzeros in their current state, and whether they are sorted and merged."""
        if self._merge_error is not None:
            raise self._merge_error
        return (self._columns, self._values), self._ordered

    @property
    def columns(self) -> NDArray[np.int32]:
        """The indices, one contiguous row per mode."""
        self._settle()
        return self._columns

    @property
    def values(self) -> Floats:
        """The values."""
        self._settle()
        return self._values

    @property
    def duplicates(self) -> int:
        """Number of nonzeros merged with an earlier one of equal indices."""
        self._settle()
        return self._merge_counts[0]

    @property
    def zeros(self) -> int:
        """Number of sums of zero that were dropped."""
        self._settle()
        return self._merge_counts[1]

    @property
    def keeps_zeros(self) -> bool:
        """Whether explicit zeros are kept."""
        return self._keep_zeros

    @property
    def build_bytes(self) -> int:
        """Peak memory of the construction in bytes."""
        return self._build_bytes

    def set_merge_counts(self, duplicates: int, zeros: int) -> None:
        """Set the numbers of duplicates and zeros that were merged and dropped before the tensor was stored."""
        self._merge_counts = duplicates, zeros

    @property
    def elements(self) -> Floats:
        """The stored elements, flat."""
        return self.values

    def places(self) -> NDArray[np.int32]:
        """Return the indices of the stored elements, (order, n)."""
        return self.columns

    def present(self) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Return the indices, (order, n), and the values of the stored elements."""
        return self.columns, np.asarray(self.values, np.float64)

    def nonzero_places(self) -> NDArray[np.int32]:
        """Return the indices of the stored elements that are not zero, (order, n)."""
        return np.compress(self.values != 0, self.columns, axis=1)

    def at(self, columns: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return the elements at distinct places; zeros where none is stored.

        Parameters
        ----------
        columns : array
            Distinct indices, (order, n).

        Returns
        -------
        (n,) float64 array
            The elements.
        """
        if self.columns is columns:
            return self.values.astype(np.float64)
        count, values = columns.shape[1], np.zeros(columns.shape[1])
        both = np.concatenate(
            [columns, self.columns], axis=1
        )  # sorted together, a place and its element are neighbours
        together = sort_nonzeros(both, np.arange(both.shape[1], dtype=np.float64), range(self.order), self.shape)
        found = np.flatnonzero(np.all(together.columns[:, 1:] == together.columns[:, :-1], axis=0))
        numbers = together.values.astype(np.int64)
        values[numbers[found]] = self.values[numbers[found + 1] - count]
        return values

    def with_gaps(self) -> SparseTensor:
        """Return the tensor itself: it has no missing elements."""
        return self

    def in_memory(self) -> SparseTensor:
        """Return the tensor itself: its elements are in host memory."""
        return self

    def compacted(self, base: int = 0) -> SparseTensor:
        """Return the tensor with the used indices of each mode renumbered in ascending order.

        Parameters
        ----------
        base : int
            If indices have no labels, the old indices counted from `base` become labels.
        """
        used = [distinct(column, n) for column, n in zip(self.columns, self.shape, strict=True)]
        tensor = copy(self)
        tensor._columns = np.empty_like(self.columns)
        for mode, column in enumerate(self.columns):
            tensor._columns[mode] = renumbered(column, used[mode])
        tensor.shape = tuple(indices.size for indices in used)
        if self.labels is None:
            tensor._labels = Labels(labels_of(indices, base) for indices in used)
        else:
            tensor._labels = self.labels.taken(used)
        tensor._build_bytes += self.columns.nbytes
        return tensor

    def lengthen(self, shape: Sequence[int]) -> None:
        """Increase the mode lengths in place.

        Parameters
        ----------
        shape : sequence of int
            New mode lengths. Raises `InputError` if one is shorter than the current length.
        """
        lengths = whole_lengths(shape)
        try:
            check_lengths(self.shape, lengths)
        except InputError as error:
            raise InputError(error.cause, path=self._path) from None
        self.shape = lengths

    @property
    def indices(self) -> NDArray[np.int32]:
        """The indices as an (nnz, order) view."""
        return self.columns.T

    @property
    def order(self) -> int:
        """The number of modes."""
        return len(self.shape)

    @property
    def nnz(self) -> int:
        """The number of nonzeros."""
        return int(self.columns.shape[1])

    @property
    def nbytes(self) -> int:
        """Current size of indices and values in bytes."""
        return int(self._columns.nbytes + self._values.nbytes)

    def norm(self) -> float:
        """Return the Frobenius norm, computed in double precision."""
        range_ = self._ends()
        return norm(range_, squares(self.values, range_))

    def value_range(self) -> ValueRange:
        """Return bounds on the values."""
        return ValueRange(*self._ends(), grain(self.values))

    def _ends(self) -> tuple[float, float]:
        """Return the lowest and highest value; raise `InputError` if a caller has set a value that is not finite."""
        range_ = ends(self.values)
        if not all(map(math.isfinite, range_)):
            at = int(np.argmin(np.isfinite(self.values)))
            raise InputError(f"value of nonzero {at} is {self.values[at]}: every value must be finite", path=self._path)
        return range_

    def __repr__(self) -> str:
        names = f", modes {', '.join(self.labels.names)}" if self.labels is not None and self.labels.names else ""
        return f"SparseTensor(shape={self.shape}, nnz={self.nnz}, values={self.values.dtype}{names})"


def check_merged(nonzeros: int, finite: bool) -> None:
    """Raise `InputError` if no nonzero is left after duplicates were summed, or sums are not `finite`."""
    if not nonzeros:
        raise InputError("no nonzeros: every value is zero")
    if not finite:
        raise InputError("sum of duplicates overflows")
