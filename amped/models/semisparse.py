"""The semi-sparse tensor (sCOO): what a sparse tensor times a matrix is."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from partitioner.sorting.sort import stable_argsort, strictly_increasing
from partitioner.tensors.conversion import Unconverted
from partitioner.tensors.dense import Stored
from partitioner.tensors.labels import Labels, find, named
from partitioner.tensors.sparse import MAX_MODE_LENGTH, SparseTensor, refuse_masked
from partitioner.validate import whole

from ..errors import InputError
from ..files import faults_of, read_npz, write_npz

BLOCK = 1 << 22  # numbers worked on together


class SemiSparseTensor(Unconverted):
    """A tensor with sparse and dense modes: the coordinates of its fibres in the sparse modes, and all numbers of each.

    Li, Ma, Yan and Vuduc, Optimizing Sparse Tensor Times Matrix on Multi-core and Many-core Architectures, IA3 2016,
    section III. Fibres are kept in lexicographic order; those of equal coordinates are summed.

    Parameters
    ----------
    indices : (fibres, sparse modes) array-like of int
        Coordinates in the sparse modes, ascending, counted from 0.
    values : (fibres, length, ...) array-like of float
        An axis for each dense mode. Kept in float32 when given so, otherwise float64.
    modes : int or sequence of int
        The dense modes, in the order of the axes of `values`.
    shape : sequence of int
        All mode lengths.
    labels : sequence of arrays, optional
        What the indices of each mode stand for; of a dense mode, its numbers 0, 1, ...

    Attributes
    ----------
    indices : (fibres, sparse modes) int32 array
    values : (fibres, length, ...) float32 or float64 array
        Read as a whole, if they are in a file.
    in_file : bool
        Whether values are in the file that the tensor was loaded from.
    modes, sparse_modes : tuple of int
        The dense modes, as given, and the others, ascending.
    shape : tuple of int
    labels : tuple of (I_n,) arrays, or None

    Raises
    ------
    InputError
        If the arrays do not go together, an index lies outside `shape`, or a value is not finite.

    Examples
    --------
    >>> y = ttm(X, U, 2)  # doctest: +SKIP
    >>> y.indices.shape, y.values.shape, y.modes  # doctest: +SKIP
    ((5120, 2), (5120, 16), (2,))
    """

    DENSE = "to_dense"
    kind: ClassVar[str] = "semi-sparse"

    def __init__(
        self,
        indices: ArrayLike,
        values: ArrayLike | Stored,
        modes: int | Sequence[int],
        shape: Sequence[int],
        labels: Iterable[ArrayLike] | None = None,
    ) -> None:
        for name, array in (("indices", indices), ("values", values)):
            refuse_masked(array, name)
        self.shape = tuple(whole("length of a mode", n, 1, MAX_MODE_LENGTH) for n in shape)
        self.modes = _modes(modes, len(self.shape))
        given, numbers = np.asarray(indices), values if isinstance(values, Stored) else np.asarray(values)
        self.dtype = numbers.dtype if numbers.dtype in (np.float32, np.float64) else np.dtype(np.float64)
        self._values: NDArray[Any] | Stored = numbers
        self._check(given, numbers)
        self.indices = np.ascontiguousarray(given, np.int32)
        if not isinstance(numbers, Stored):
            self._values = np.ascontiguousarray(numbers, self.dtype)
        self.labels = Labels.of(labels, self.shape)
        if len(self.indices) > 1 and not strictly_increasing(self.indices.T):
            self._settle()

    @classmethod
    def of_result(
        cls,
        indices: NDArray[np.int32],
        values: NDArray[Any],
        modes: tuple[int, ...],
        shape: tuple[int, ...],
        labels: Labels | None = None,
    ) -> SemiSparseTensor:
        """Return the tensor of arrays that are known to be in order and finite, without a copy."""
        tensor = cls.__new__(cls)
        tensor.indices, tensor.modes, tensor.shape, tensor.labels = indices, modes, shape, labels
        tensor._values, tensor.dtype = values, values.dtype
        return tensor

    @property
    def in_file(self) -> bool:
        """Whether values are in the file that the tensor was loaded from."""
        return isinstance(self._values, Stored)

    @property
    def values(self) -> NDArray[Any]:
        """The numbers of all fibres; read as a whole, if they are in a file."""
        return self.rows(0, self._values.shape[0]) if isinstance(self._values, Stored) else self._values

    def rows(self, begin: int, end: int) -> NDArray[Any]:
        """Return the values of some fibres.

        Parameters
        ----------
        begin, end : int
            The first fibre, and the one after the last.

        Returns
        -------
        (fibres, length, ...) array
            Contiguous.
        """
        return np.ascontiguousarray(self._values[begin:end], self.dtype)

    def _check(self, indices: NDArray[Any], values: NDArray[Any] | Stored) -> None:
        sparse, lengths = self.sparse_modes, tuple(self.shape[m] for m in self.modes)
        if indices.ndim != 2 or indices.shape[1] != len(sparse) or (indices.size and indices.dtype.kind not in "iu"):
            raise InputError(f"indices are {indices.dtype} of shape {indices.shape}: expected (fibres, {len(sparse)})")
        if values.dtype.kind not in "iuf" or values.shape != (len(indices), *lengths):
            expected = (len(indices), *lengths)
            raise InputError(f"values are {values.dtype} of shape {values.shape}: expected real ones of {expected}")
        if not sparse and len(indices) > 1:
            raise InputError(f"{len(indices)} fibres of a tensor without sparse modes: expected one")
        for mode, column in zip(sparse, indices.T, strict=True):
            if column.size and (column.min() < 0 or column.max() >= self.shape[mode]):
                raise InputError(f"an index of mode {mode} is outside its length {self.shape[mode]}")
        for start in range(0, len(indices), step := max(1, BLOCK // max(1, self.width))):
            if not np.all(np.isfinite(values[start : start + step])):
                raise InputError("a value is not finite")

    def _settle(self) -> None:
        """Sort the fibres, and sum those of equal coordinates in double precision."""
        columns = [np.ascontiguousarray(column) for column in self.indices.T]
        order = stable_argsort(columns, [self.shape[m] for m in self.sparse_modes])
        indices, values = self.indices[order], self.values[order]
        differs = np.any(indices[1:] != indices[:-1], axis=1)
        starts = np.concatenate([[0], np.flatnonzero(differs) + 1])
        self.indices = indices[starts]
        self._values = np.add.reduceat(values, starts, axis=0, dtype=np.float64).astype(values.dtype)

    @property
    def sparse_modes(self) -> tuple[int, ...]:
        """The modes that have coordinates, ascending."""
        return tuple(m for m in range(len(self.shape)) if m not in self.modes)

    @property
    def order(self) -> int:
        """The number of modes."""
        return len(self.shape)

    @property
    def fibres(self) -> int:
        """How many fibres there are; with several dense modes, how many blocks of numbers."""
        return len(self.indices)

    @property
    def width(self) -> int:
        """Numbers of each fibre."""
        return math.prod(self.shape[m] for m in self.modes)

    @property
    def nbytes(self) -> int:
        """The bytes of indices and values."""
        return int(self.indices.nbytes) + self.fibres * self.width * self.dtype.itemsize

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Yield all values, those of some fibres at a time.

        Yields
        ------
        (fibres, length, ...) array
            See `rows`.
        """
        step = max(1, BLOCK // max(1, self.width))
        for begin in range(0, self.fibres, step):
            yield self.rows(begin, min(begin + step, self.fibres))

    def norm(self) -> float:
        """Return the Frobenius norm, computed in double precision."""
        largest = max((float(np.abs(block).max(initial=0)) for block in self.blocks()), default=0.0) or 1.0
        scaled = (block.astype(np.float64) / largest for block in self.blocks())
        return largest * math.sqrt(sum(float(np.square(block).sum()) for block in scaled))

    def to_sparse(self) -> SparseTensor:
        """Return the same tensor with every nonzero's coordinates (COO); zeros are left out."""
        values = self.values
        fibre, *inner = np.nonzero(values)
        columns = np.empty((self.order, fibre.size), np.int32)
        for mode, column in zip(self.sparse_modes, self.indices.T, strict=True):
            columns[mode] = column[fibre]
        for mode, index in zip(self.modes, inner, strict=True):
            columns[mode] = index
        tensor = SparseTensor.from_columns(columns, values[(fibre, *inner)], self.shape)
        tensor.labels = self.labels
        return tensor

    def to_dense(self) -> NDArray[Any]:
        """Return the same tensor as an array of its shape: for small ones."""
        found, values = np.zeros([self.shape[m] for m in (*self.sparse_modes, *self.modes)], self.dtype), self.values
        found[tuple(self.indices.T)] = values if self.sparse_modes else values[:1].reshape(found.shape)
        return np.moveaxis(found, range(self.order), (*self.sparse_modes, *self.modes))

    @classmethod
    def from_sparse(cls, tensor: SparseTensor, modes: int | Sequence[int]) -> SemiSparseTensor:
        """Return a sparse tensor with some modes dense: wherever a fibre has a nonzero, it has all numbers.

        Parameters
        ----------
        tensor : SparseTensor
            Its labels are kept.
        modes : int or sequence of int
            Those that become dense, counted from 0.
        """
        chosen = _modes(modes, tensor.order)
        sparse = [m for m in range(tensor.order) if m not in chosen]
        columns = [tensor.columns[m] for m in sparse]
        order = stable_argsort(columns, [tensor.shape[m] for m in sparse]) if sparse else np.arange(tensor.nnz)
        differs = np.zeros(tensor.nnz, bool)
        differs[:1] = True
        for column in columns:
            differs[1:] |= column[order][1:] != column[order][:-1]
        starts, place = np.flatnonzero(differs), np.cumsum(differs) - 1
        values = np.zeros((starts.size, *(tensor.shape[m] for m in chosen)), tensor.values.dtype)
        values[(place, *(tensor.columns[m][order] for m in chosen))] = tensor.values[order]
        indices = np.empty((starts.size, len(sparse)), np.int32)
        for k, column in enumerate(columns):
            indices[:, k] = column[order[starts]]
        return cls(indices, values, chosen, tensor.shape, tensor.labels)

    @classmethod
    def from_dense(cls, array: ArrayLike, modes: int | Sequence[int]) -> SemiSparseTensor:
        """Return an array with some modes dense, and only those fibres that have a number other than 0.

        Parameters
        ----------
        array : array-like of float
            Of 2 to 8 dimensions.
        modes : int or sequence of int
            Those that stay dense, counted from 0.
        """
        given = np.asarray(array)
        chosen = _modes(modes, given.ndim)
        sparse = [m for m in range(given.ndim) if m not in chosen]
        ordered = np.transpose(given, (*sparse, *chosen))
        inner = tuple(range(len(sparse), given.ndim))
        indices = np.argwhere(np.any(ordered != 0, axis=inner)) if sparse else np.zeros((1, 0), np.int32)
        return cls(indices, ordered[tuple(indices.T)] if sparse else ordered[None], chosen, given.shape)

    def save(self, path: str | os.PathLike[str], *, replace: bool = True) -> None:
        """Write `indices`, `values`, ``mode`` (the dense one, or an array of several) and `shape` to an ``.npz`` file.

        Parameters
        ----------
        path : path
            `InputError` says why it cannot be written.
        replace : bool
            Whether a file that is there is replaced, or refused.
        """
        facts = facts_of(self.modes, self.shape, self.labels)
        write_npz(path, {"indices": self.indices, "values": self.values, **facts}, replace)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, mapped: bool = False) -> SemiSparseTensor:
        """Read what `save`, or the verb ``ttm``, wrote.

        Parameters
        ----------
        path : path
            `InputError` says what is wrong with it.
        mapped : bool
            Whether values stay in the file, to be read where they are used: where memory has no room for all. A file
            that changes meanwhile is an `InputError` then.
        """
        arrays = read_npz(path, ["values"] if mapped else ())
        missing = [name for name in ("indices", "values", "mode", "shape") if name not in arrays]
        if missing:
            raise InputError(f"holds no {', '.join(missing)}: no semi-sparse tensor", path=path)
        mode, shape = arrays["mode"], arrays["shape"]
        if mode.dtype.kind not in "iu" or mode.ndim > 1 or shape.dtype.kind not in "iu" or shape.ndim != 1:
            raise InputError(f"mode is {mode.dtype} of shape {mode.shape}, shape {shape.dtype}: integers", path=path)
        with faults_of(path):
            labels = find(arrays, shape.size)
            return cls(arrays["indices"], arrays["values"], mode.reshape(-1).tolist(), shape.tolist(), labels)

    def __repr__(self) -> str:
        dense = f"modes={self.modes}" if len(self.modes) != 1 else f"mode={self.modes[0]}"
        return f"SemiSparseTensor(shape={self.shape}, {dense}, fibres={self.fibres}, values={self.dtype})"


def facts_of(modes: Sequence[int], shape: Sequence[int], labels: Labels | None) -> dict[str, NDArray[Any]]:
    """Return what a file has of a semi-sparse tensor beside its fibres, by name."""
    mode = np.array(modes[0] if len(modes) == 1 else modes, np.int64)
    return {"mode": mode, "shape": np.array(shape, np.int64), **named(labels)}


def _modes(given: int | Sequence[int], order: int) -> tuple[int, ...]:
    try:
        modes = tuple(given)  # type: ignore[arg-type]
    except TypeError:
        modes = (given,)  # type: ignore[assignment]
    found = tuple(whole("mode", mode, 0, order - 1) for mode in modes)
    if not found or len(set(found)) < len(found):
        raise InputError(f"modes {list(modes)}: expected at least one, each once")
    return found
