"""The sparse tensor in coordinate (COO) form, always in lexicographic order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import copy
from operator import index
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import InputError
from .indices import Labels, distinct, labels_of, renumbered
from .sort import Sort, sort_nonzeros, strictly_increasing

MIN_ORDER = 2
MAX_ORDER = 8
MAX_MODE_LENGTH = 2**31 - 1
BLOCK = 1 << 20  # values processed together
FINEST_GRAIN = 8  # binary digits after the point


class ValueRange(NamedTuple):
    """Bounds on the values of a tensor.

    Attributes
    ----------
    low, high : float
        The smallest and the largest value.
    grain : float
        The largest power of two, from 1 down to 2**-8, of which all values are multiples; 0 if there is none.
    """

    low: float
    high: float
    grain: float

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return max(abs(self.low), abs(self.high))

    def exact_in(self, dtype: np.dtype[Any]) -> bool:
        """Return whether values are surely not rounded in this type: multiples of the grain with few enough digits."""
        return dtype == np.float64 or 0 < self.largest <= self.grain * 2.0 ** (np.finfo(dtype).nmant + 1)


class SparseTensor:
    """A sparse tensor: the indices and values of its nonzeros.

    Nonzeros are kept in lexicographic order of their indices, each coordinate once and no value zero:
    duplicates are summed and zeros dropped on construction, and counted.

    Parameters
    ----------
    indices : (nnz, order) array-like of int
        Coordinates, counted from 0.
    values : (nnz,) array-like of float
        Values; kept in float32 when given so, otherwise float64.
    shape : sequence of int, optional
        Mode lengths; by default one more than the highest index of each mode.

    Attributes
    ----------
    columns : (order, nnz) int32 array
        The indices, one contiguous row for each mode.
    values : (nnz,) float32 or float64 array
    shape : tuple of int
    duplicates, zeros : int
        How many nonzeros were merged into an equal coordinate, and how many coordinates summed to zero.
    labels : tuple of (I_n,) arrays, or None
        What the indices stand for: after `compacted`, what they were before.
    build_bytes : int
        Peak memory of its construction.

    Raises
    ------
    InputError
        If the order is not in 2..8, there is no nonzero, an index lies outside `shape`,
        a mode is longer than 2**31 - 1, or a value is not finite.
    """

    def __init__(self, indices: ArrayLike, values: ArrayLike, shape: Sequence[int] | None = None) -> None:
        for name, array in (("indices", indices), ("values", values)):
            refuse_masked(array, name)
        table = np.asarray(indices)
        if table.ndim != 2:
            raise InputError(f"indices have {table.ndim} dimensions, expected (nnz, order)")
        # Copies, as sorted input is kept as it is and the caller may change its arrays later.
        self._fill(np.array(table.T, order="C"), np.array(values), shape, sort_nonzeros)

    @classmethod
    def from_columns(
        cls,
        columns: NDArray[np.integer[Any]],
        values: NDArray[Any],
        shape: Sequence[int] | None = None,
        *,
        path: str | PathLike[str] | None = None,
        sort: Sort = sort_nonzeros,
    ) -> SparseTensor:
        """Build from (order, nnz) columns, without a copy if they are int32 and sorted already.

        Takes ownership: the arrays are sorted in place and must not change afterwards. Errors name `path`.
        """
        tensor = cls.__new__(cls)
        try:
            tensor._fill(columns, values, shape, sort)
        except InputError as error:
            raise InputError(error.cause, path=path) from None
        return tensor

    def _fill(self, columns: NDArray[Any], values: NDArray[Any], shape: Sequence[int] | None, sort: Sort) -> None:
        refuse_masked(columns, "indices")
        refuse_masked(values, "values")
        self.shape = _checked_shape(columns, values, shape)
        narrow = values.dtype if values.dtype in (np.float32, np.float64) else np.dtype(np.float64)
        self.columns: NDArray[np.int32] = np.ascontiguousarray(columns, np.int32)
        self.values: NDArray[np.floating] = np.ascontiguousarray(values, narrow)
        self.duplicates = self.zeros = 0
        self.labels: Labels | None = None
        given = 0 if self.columns is columns else columns.nbytes  # a cast made a copy; the caller holds the original
        self.build_bytes = self.nbytes + given
        if not (strictly_increasing(self.columns) and np.all(self.values)):
            self._canonicalise(sort)
        if not self.nnz:
            raise InputError("no nonzeros: every value is zero")

    def _canonicalise(self, sort: Sort) -> None:
        writable = self.columns.flags.writeable and self.values.flags.writeable
        done = sort(self.columns, self.values, range(self.order), self.shape, merge=True, overwrite=writable)
        self.columns, self.values, room, self.duplicates, self.zeros = done
        self.build_bytes += room + (0 if writable else self.nbytes)
        if not np.all(np.isfinite(self.values)):
            raise InputError("duplicates sum past the largest number")

    def compacted(self, base: int = 0) -> SparseTensor:
        """Return the tensor with the used indices of each mode numbered anew, in ascending order.

        Its `labels` are those that the indices have, or else the old indices, counted from `base`.
        """
        tensor, used = copy(self), [distinct(column, n) for column, n in zip(self.columns, self.shape, strict=True)]
        tensor.columns = np.empty_like(self.columns)
        for mode, column in enumerate(self.columns):
            tensor.columns[mode] = renumbered(column, used[mode])
        tensor.shape = tuple(indices.size for indices in used)
        if self.labels is None:
            tensor.labels = tuple(labels_of(indices, base) for indices in used)
        else:
            tensor.labels = tuple(known[indices] for known, indices in zip(self.labels, used, strict=True))
        tensor.build_bytes += self.columns.nbytes
        return tensor

    @property
    def indices(self) -> NDArray[np.int32]:
        """The coordinates as an (nnz, order) view."""
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
        """The bytes of the indices and values."""
        return int(self.columns.nbytes + self.values.nbytes)

    def norm(self) -> float:
        """Return the Frobenius norm, computed in double precision."""
        range_ = ends(self.values)
        return norm(range_, squares(self.values, range_))

    def value_range(self) -> ValueRange:
        """Return bounds on the values."""
        return ValueRange(*ends(self.values), grain(self.values))

    def __repr__(self) -> str:
        return f"SparseTensor(shape={self.shape}, nnz={self.nnz}, values={self.values.dtype})"


def ends(values: NDArray[np.floating]) -> tuple[float, float]:
    """Return the smallest and the largest value."""
    return float(values.min()), float(values.max())


def grain(values: NDArray[np.floating]) -> float:
    """Return the `ValueRange.grain` of some values."""
    exponent = 0
    for block in _blocks(values):
        while not np.array_equal(scaled := np.ldexp(block, exponent), np.rint(scaled)):
            exponent += 1
            if exponent > FINEST_GRAIN:
                return 0.0
    return 2.0**-exponent


def squares(values: NDArray[np.floating], range_: tuple[float, float]) -> list[float]:
    """Return the sum of squares of each block of `BLOCK` values, scaled against overflow and underflow."""
    largest = max(map(abs, range_))
    return [float(np.square(block.astype(np.float64) / largest).sum()) for block in _blocks(values)]


def norm(range_: tuple[float, float], sums: Sequence[float]) -> float:
    """Return the Frobenius norm from the smallest and the largest value and the `squares` of all."""
    return max(map(abs, range_)) * math.sqrt(sum(sums))


def _blocks(values: NDArray[np.floating]) -> Iterator[NDArray[np.floating]]:
    return (values[b : b + BLOCK] for b in range(0, values.size, BLOCK))


def _checked_shape(columns: NDArray[Any], values: NDArray[Any], shape: Sequence[int] | None) -> tuple[int, ...]:
    order, nonzeros = columns.shape
    check_order(order)
    if not np.issubdtype(columns.dtype, np.integer):
        raise InputError(f"indices are {columns.dtype}, expected integers")
    if values.ndim != 1 or values.size != nonzeros:
        raise InputError(f"{nonzeros} coordinates but values of shape {values.shape}")
    if values.dtype.kind not in "iuf":
        raise InputError(f"values are {values.dtype}, expected real numbers")
    if not nonzeros:
        raise InputError("no nonzeros")
    if not np.all(np.isfinite(values)):
        raise InputError(f"value of nonzero {int(np.argmin(np.isfinite(values)))} is not finite")
    highest = [int(c.max()) for c in columns]
    lengths = tuple(h + 1 for h in highest) if shape is None else _whole_lengths(shape)
    if len(lengths) != order:
        raise InputError(f"shape has {len(lengths)} modes, the indices have {order}")
    for mode, (column, high, length) in enumerate(zip(columns, highest, lengths, strict=True)):
        if int(column.min()) < 0:
            raise InputError(f"negative index {int(column.min())} in mode {mode}")
        if not 1 <= length <= MAX_MODE_LENGTH:
            raise InputError(f"length {length} of mode {mode} is outside 1..{MAX_MODE_LENGTH}")
        if high >= length:
            raise InputError(f"index {high} of mode {mode} is outside its length {length}")
    return lengths


def _whole_lengths(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape as Python's integers; a length of 9.9 is an error, not 9."""
    try:
        return tuple(index(length) for length in shape)
    except TypeError:
        raise InputError(f"shape {shape!r}: expected an integer for each mode") from None


def refuse_masked(array: object, name: str) -> None:
    """Refuse an array with masked entries: what is under a mask is not to be used."""
    if np.ma.is_masked(array):
        raise InputError(f"{name} has masked entries: give the others alone, as a plain array")


def check_order(order: int) -> None:
    """Refuse an order that the kernels are not built for."""
    if not MIN_ORDER <= order <= MAX_ORDER:
        raise InputError(f"order {order} tensor: amped decomposes orders {MIN_ORDER} to {MAX_ORDER}")
