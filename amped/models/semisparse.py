"""The semi-sparse tensor (sCOO), the result of multiplying a sparse tensor by a matrix."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from partitioner.array_types import Floats, HostArray
from partitioner.sorting.sort import stable_argsort, strictly_increasing
from partitioner.tensors.conversion import Unconverted
from partitioner.tensors.ingest import MAX_MODE_LENGTH, refuse_masked
from partitioner.tensors.labels import Labels, find, named
from partitioner.tensors.sparse import SparseTensor
from partitioner.tensors.stored import Stored
from partitioner.validate import whole

from ..errors import InputError
from ..files import faults_of, read_npz, write_npz

BLOCK = 1 << 22  # numbers processed at once


class SemiSparseTensor(Unconverted):
    """A tensor with sparse and dense modes: coordinates of its fibres in the sparse modes, and a dense block for each.

    Fibres are stored in lexicographic order; fibres with equal coordinates are summed. The format is that of Li, Ma,
    Yan and Vuduc, Optimizing Sparse Tensor Times Matrix on Multi-core and Many-core Architectures, IA3 2016, section
    III.

    Parameters
    ----------
    indices : (fibres, sparse modes) array-like of int
        Coordinates in the sparse modes, which are in ascending order; counted from 0.
    values : (fibres, length, ...) array-like of float
        One axis per dense mode. float32 is kept, other types become float64.
    modes : int or sequence of int
        The dense modes, in the order of the axes of `values`.
    shape : sequence of int
        The lengths of all modes.
    labels : sequence of arrays, optional
        Labels of the indices of each mode; for a dense mode of components, the numbers 0, 1, ...

    Attributes
    ----------
    indices : (fibres, sparse modes) int32 array
    values : (fibres, length, ...) float32 or float64 array
        If they are in a file, each access reads all of them.
    in_file : bool
        Whether the values remain in the file that the tensor was loaded from.
    modes, sparse_modes : tuple of int
        The dense modes, in the order of the axes, and the others, ascending.
    shape : tuple of int
    labels : tuple of (I_n,) arrays, or None

    Raises
    ------
    InputError
        If the shapes of the arrays do not match, an index is out of range, or a value is not finite.

    Examples
    --------
    >>> Y = SemiSparseTensor([[0, 2], [3, 1]], [[1.0, 2.0], [3.0, 4.0]], modes=2, shape=(4, 3, 2))
    >>> Y.fibres, Y.sparse_modes, Y.to_dense()[3, 1].tolist()
    (2, (0, 1), [3.0, 4.0])
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
        index_array, numbers = np.asarray(indices), values if isinstance(values, Stored) else np.asarray(values)
        self.dtype = numbers.dtype if numbers.dtype in (np.float32, np.float64) else np.dtype(np.float64)
        self._values: Floats | Stored = numbers
        self._check(index_array, numbers)
        self.indices = np.ascontiguousarray(index_array, np.int32)
        if not isinstance(numbers, Stored):
            self._values = np.ascontiguousarray(numbers, self.dtype)
        self.labels = Labels.of(labels, self.shape)
        if len(self.indices) > 1 and not strictly_increasing(self.indices.T):
            self._sort_and_sum()

    @classmethod
    def of_result(
        cls,
        indices: NDArray[np.int32],
        values: Floats,
        modes: tuple[int, ...],
        shape: tuple[int, ...],
        labels: Labels | None = None,
    ) -> SemiSparseTensor:
        """Wrap arrays that are known to be sorted and finite, without a copy."""
        tensor = cls.__new__(cls)
        tensor.indices, tensor.modes, tensor.shape, tensor.labels = indices, modes, shape, labels
        tensor._values, tensor.dtype = values, values.dtype
        return tensor

    @property
    def in_file(self) -> bool:
        """Whether the values remain in the file that the tensor was loaded from."""
        return isinstance(self._values, Stored)

    @property
    def values(self) -> Floats:
        """The values of all fibres; if they are in a file, each access reads all of them."""
        return self.rows(0, self._values.shape[0]) if isinstance(self._values, Stored) else self._values

    def rows(self, begin: int, end: int) -> Floats:
        """Return the values of a range of fibres.

        Parameters
        ----------
        begin, end : int
            Half-open range.

        Returns
        -------
        (fibres, length, ...) array
            C-contiguous.
        """
        return np.ascontiguousarray(self._values[begin:end], self.dtype)

    def _check(self, indices: HostArray, values: Floats | Stored) -> None:
        sparse, lengths = self.sparse_modes, tuple(self.shape[m] for m in self.modes)
        if indices.ndim != 2 or indices.shape[1] != len(sparse) or (indices.size and indices.dtype.kind not in "iu"):
            raise InputError(f"indices are {indices.dtype} of shape {indices.shape}: expected (fibres, {len(sparse)})")
        if values.dtype.kind not in "iuf" or values.shape != (len(indices), *lengths):
            shape = (len(indices), *lengths)
            raise InputError(f"values are {values.dtype} of shape {values.shape}: expected real numbers of {shape}")
        if not sparse and len(indices) > 1:
            raise InputError(f"{len(indices)} fibres of a tensor without sparse modes: expected one")
        for mode, column in zip(sparse, indices.T, strict=True):
            if column.size and (column.min() < 0 or column.max() >= self.shape[mode]):
                raise InputError(f"an index of mode {mode} is out of range for length {self.shape[mode]}")
        for start in range(0, len(indices), step := max(1, BLOCK // max(1, self.width))):
            if not np.all(np.isfinite(values[start : start + step])):
                raise InputError("a value is not finite")

    def _sort_and_sum(self) -> None:
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
        """The number of fibres (of blocks, if there are several dense modes)."""
        return len(self.indices)

    @property
    def width(self) -> int:
        """Numbers per fibre."""
        return math.prod(self.shape[m] for m in self.modes)

    @property
    def nbytes(self) -> int:
        """Bytes of the indices and values."""
        return int(self.indices.nbytes) + self.fibres * self.width * self.dtype.itemsize

    def blocks(self) -> Iterator[Floats]:
        """Yield all values, a range of fibres at a time.

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
        """Return the tensor in coordinate format (COO), without its zeros."""
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

    def to_dense(self) -> Floats:
        """Return the tensor as a dense array, for small shapes."""
        array, values = np.zeros([self.shape[m] for m in (*self.sparse_modes, *self.modes)], self.dtype), self.values
        array[tuple(self.indices.T)] = values if self.sparse_modes else values[:1].reshape(array.shape)
        return np.moveaxis(array, range(self.order), (*self.sparse_modes, *self.modes))

    @classmethod
    def from_sparse(cls, tensor: SparseTensor, modes: int | Sequence[int]) -> SemiSparseTensor:
        """Convert a sparse tensor: every fibre with a nonzero becomes dense.

        Parameters
        ----------
        tensor : SparseTensor
            Its labels are kept.
        modes : int or sequence of int
            The modes that become dense, counted from 0.
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
        """Convert a dense array: fibres that have only zeros are left out.

        Parameters
        ----------
        array : array-like of float
            With 2 to 8 dimensions.
        modes : int or sequence of int
            The modes that stay dense, counted from 0.
        """
        dense = np.asarray(array)
        chosen = _modes(modes, dense.ndim)
        sparse = [m for m in range(dense.ndim) if m not in chosen]
        ordered = np.transpose(dense, (*sparse, *chosen))
        inner = tuple(range(len(sparse), dense.ndim))
        indices = np.argwhere(np.any(ordered != 0, axis=inner)) if sparse else np.zeros((1, 0), np.int32)
        return cls(indices, ordered[tuple(indices.T)] if sparse else ordered[None], chosen, dense.shape)

    def save(self, path: str | os.PathLike[str], *, replace: bool = True) -> None:
        """Write `indices`, `values`, ``mode`` (a number, or an array of several) and `shape` to an ``.npz`` file.

        Parameters
        ----------
        path : path
            The file to write.
        replace : bool
            Whether an existing file is replaced. If False, an existing file is an error.

        Raises
        ------
        InputError
            If the file cannot be written.
        """
        metadata = metadata_arrays(self.modes, self.shape, self.labels)
        write_npz(path, {"indices": self.indices, "values": self.values, **metadata}, replace)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, mapped: bool = False) -> SemiSparseTensor:
        """Read a tensor that `save`, or the command ``ttm``, wrote.

        Parameters
        ----------
        path : path
            The file to read.
        mapped : bool
            Whether the values remain in the file and are read on use, for tensors larger than memory. A change of the
            file is detected and raises `InputError`.

        Raises
        ------
        InputError
            If the file is not a valid semi-sparse tensor.
        """
        arrays = read_npz(path, ["values"] if mapped else ())
        missing = [name for name in ("indices", "values", "mode", "shape") if name not in arrays]
        if missing:
            raise InputError(f"not a semi-sparse tensor: {', '.join(missing)} missing", path=path)
        mode, shape = arrays["mode"], arrays["shape"]
        if mode.dtype.kind not in "iu" or mode.ndim > 1 or shape.dtype.kind not in "iu" or shape.ndim != 1:
            found = f"mode is {mode.dtype} of shape {mode.shape}, shape is {shape.dtype}"
            raise InputError(f"{found}: expected integers", path=path)
        with faults_of(path):
            labels = find(arrays, shape.size)
            return cls(arrays["indices"], arrays["values"], mode.reshape(-1).tolist(), shape.tolist(), labels)

    def __repr__(self) -> str:
        dense = f"modes={self.modes}" if len(self.modes) != 1 else f"mode={self.modes[0]}"
        return f"SemiSparseTensor(shape={self.shape}, {dense}, fibres={self.fibres}, values={self.dtype})"


def metadata_arrays(modes: Sequence[int], shape: Sequence[int], labels: Labels | None) -> dict[str, HostArray]:
    """Return the arrays of a file other than indices and values, by name."""
    mode = np.array(modes[0] if len(modes) == 1 else modes, np.int64)
    return {"mode": mode, "shape": np.array(shape, np.int64), **named(labels)}


def _modes(given: int | Sequence[int], order: int) -> tuple[int, ...]:
    try:
        modes = tuple(given)  # type: ignore[arg-type]
    except TypeError:
        modes = (given,)  # type: ignore[assignment]
    result = tuple(whole("mode", mode, 0, order - 1) for mode in modes)
    if not result or len(set(result)) < len(result):
        raise InputError(f"modes {list(modes)}: expected at least one, each once")
    return result
