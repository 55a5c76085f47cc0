"""The dense tensor: an array in memory, or in a file until it is used."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..array_types import DType, HostArray
from ..errors import InputError
from ..host.memory import available_memory
from ..host.threads import parallel_map, threads_for
from ..wording import setting
from .cf_attributes import unpacked
from .conversion import AsDense
from .device_arrays import is_exported, is_on_gpu
from .digest import MASK, stir
from .ingest import MAX_MODE_LENGTH, check_order, is_masked
from .npy_file import PART, PIECE, RUN
from .sparse import SparseTensor
from .statistics import ElementStatistics, facts_of, joined, looked_at
from .stored import Place, Stored, forget, pieces

BLOCK = 1 << 18  # elements scanned at a time by each thread
KINDS = "biuf"
WIDEST = 8  # bytes per element


def indices_of(chosen: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return the indices of the chosen elements, (order, n).

    For many of them, this is several times as fast as `numpy.nonzero`.
    """
    result = np.empty((chosen.ndim, np.count_nonzero(chosen)), np.int32)
    for mode, length in enumerate(chosen.shape):
        along = np.arange(length, dtype=np.int32).reshape(length, *(1,) * (chosen.ndim - mode - 1))
        result[mode] = np.broadcast_to(along, chosen.shape)[chosen]
    return result


class DenseTensor(AsDense):
    """A dense tensor, with all elements including zeros.

    Parameters
    ----------
    array : array-like
        2 to 8 dimensions; floating-point numbers, integers or bools, which keep their type and are converted when they
        are used. The array is not copied if its modes lie in memory without gaps, in any order (C, Fortran), and must
        not change afterwards. An array on a GPU (CuPy, PyTorch, JAX, or any that exports DLPack) stays there if one
        process computes on that GPU.
    path : path, optional
        The file that contains the array, for error messages.

    Attributes
    ----------
    shape : tuple of int
        Mode lengths.
    dtype : numpy.dtype
        Type of the stored elements.
    modes : tuple of int
        The modes in memory order: the slowest-varying first, modes of length 1 last.
    memory : array or Stored
        The elements with modes in memory order: a C-contiguous array, or elements in a file or on a GPU.
    on_gpu : GpuElements or None
        The elements, if they are in the current GPU's memory.
    path : path or None
        The file that contains the elements.

    Raises
    ------
    InputError
        If the order is not in 2..8, a mode has length 0, or elements are not real numbers.

    Examples
    --------
    >>> X = DenseTensor(np.ones((2, 3))).labelled({"sample": ["a", "b"], "emission": [350.0, 360.0, 370.0]})
    >>> X.shape, round(X.norm() ** 2), X.labels.names
    ((2, 3), 6, ('sample', 'emission'))
    """

    kind: ClassVar[str] = "dense"
    noun: ClassVar[str] = "elements"
    own_mask: ClassVar[str] = "nan"  # selects the elements that it has
    zeros: ClassVar[int] = 0  # none is dropped

    def __init__(self, array: object, path: str | PathLike[str] | None = None) -> None:
        self.path, self.on_gpu = path, None  # type: tuple[Any, Any]
        self.gaps = False  # whether NaN marks missing elements
        with _of(path):
            if isinstance(array, Stored):
                check_elements(array.shape, array.dtype)
                self.shape: tuple[int, ...] = array.shape
                self.dtype: DType = array.dtype
                self.modes = array.slowest_first()
                self.memory: HostArray | Stored = array.transpose(self.modes)
                return
            if is_on_gpu(array):
                from .gpu_elements import GpuElements, on_gpu, without_gaps

                self.on_gpu = GpuElements(self._ordered(on_gpu(array), without_gaps))
                self.memory = Stored(self.on_gpu)
            else:
                self.memory = self._ordered(self._with_gaps(_on_host(array)), np.ascontiguousarray)

    def _with_gaps(self, array: Any) -> Any:
        """Return an array with NaN in place of masked entries, which are missing."""
        if not is_masked(array):
            return array
        check_elements(array.shape, array.dtype)
        self.gaps = True
        return array.astype(array.dtype if array.dtype.kind == "f" else np.float64, copy=False).filled(np.nan)

    def replaced(self, array: object) -> DenseTensor:
        """Return a tensor of other elements, among which NaN has the same meaning as in this tensor.

        Parameters
        ----------
        array : array
            See `DenseTensor`.

        Returns
        -------
        DenseTensor
            Without labels.
        """
        tensor = DenseTensor(array, self.path)
        tensor.gaps |= self.gaps
        return tensor

    def with_gaps(self) -> DenseTensor:
        """Return the tensor with NaN in place of elements that its file declares missing, such as fill values."""
        if not isinstance(self.memory, Stored):
            return self
        order = np.argsort(self.modes)
        tensor = self.replaced(self.memory.with_gaps().transpose(tuple(map(int, order))))
        tensor.labels = self.labels
        return tensor

    def in_memory(self) -> DenseTensor:
        """Return the tensor with its elements in host memory, so that a file is read once."""
        if not isinstance(self.memory, Stored):
            return self
        loaded = self.replaced(self.array())
        loaded.labels = self.labels
        return loaded

    @property
    def elements(self) -> NDArray[Any]:
        """The elements, flat."""
        return self.array().reshape(-1)

    def places(self) -> NDArray[np.int32]:
        """Return the indices of the elements that are not NaN, (order, n)."""
        return indices_of(~np.isnan(self.array()))

    def present(self) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Return the indices, (order, n), and the values of the elements that are not NaN."""
        array = self.array()
        chosen = ~np.isnan(array)
        return indices_of(chosen), array[chosen].astype(np.float64, copy=False)

    def nonzero_places(self) -> NDArray[np.int32]:
        """Return the indices of the elements that are not zero, (order, n)."""
        return indices_of(self.array() != 0)

    def at(self, columns: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return the elements at some places.

        Parameters
        ----------
        columns : array
            Indices, (order, n).

        Returns
        -------
        (n,) float64 array
            The elements.
        """
        return np.asarray(self.array()[tuple(columns)], np.float64)

    @property
    def has_gaps(self) -> bool:
        """Whether elements are missing: masked entries of an array, or NaN in an xarray object."""
        return self.gaps and self.has_nan

    @property
    def has_nan(self) -> bool:
        """Whether an element is NaN."""
        return self.dtype.kind == "f" and bool(np.isnan(self.array()).any())

    def _ordered(self, array: Any, without_gaps: Callable[[Any], Any]) -> Any:
        """Return an array with its modes in memory order; set `shape`, `dtype` and `modes`."""
        self.shape, self.dtype = tuple(array.shape), np.dtype(array.dtype)
        check_elements(self.shape, self.dtype)
        steps = [(array.shape[m] == 1, -abs(array.strides[m]), m) for m in range(array.ndim)]
        self.modes = tuple(m for _, _, m in sorted(steps))
        memory = array.transpose(self.modes)
        if memory.flags.c_contiguous:
            return memory
        # Strides of zero, negative, or overlapping.
        self.modes = tuple(sorted(range(array.ndim), key=lambda m: (array.shape[m] == 1, m)))
        return without_gaps(array.transpose(self.modes))

    @classmethod
    def of_sparse(cls, tensor: SparseTensor, available: int | None = None) -> DenseTensor:
        """Return a sparse tensor with its zeros and labels.

        Parameters
        ----------
        tensor : SparseTensor
            The sparse tensor.
        available : int, optional
            Available bytes. Raises `InputError` if they are too few.
        """
        needed = math.prod(tensor.shape) * tensor.values.dtype.itemsize
        if available is not None and needed > available:
            shape = " x ".join(map(str, tensor.shape))
            raise InputError(
                f"as a dense tensor, {shape} needs {needed:,} bytes of host memory, {available:,} are available"
            )
        array = np.zeros(tensor.shape, tensor.values.dtype)
        array[tuple(tensor.columns)] = tensor.values
        dense = cls(array)
        dense.labels = tensor.labels
        return dense

    @property
    def order(self) -> int:
        """The number of modes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size of the stored elements in bytes."""
        return self.size * self.dtype.itemsize

    def array(self) -> HostArray:
        """Return the elements with modes in their original order."""
        elements: HostArray = np.asarray(self.memory[:]).transpose(np.argsort(self.modes))
        return elements

    def norm(self) -> float:
        """Return the Frobenius norm, computed in double precision; raise `InputError` if an element is not finite."""
        facts = self.facts()
        self.check_finite(facts)
        return facts.norm()

    def facts(self, place: Place = (), threads: int | None = None) -> ElementStatistics:
        """Return statistics of the elements in ranges of the first modes in memory order, by default of all."""
        if self.on_gpu is not None and not place:
            statistics: ElementStatistics = self.on_gpu.facts()
            return statistics
        count, run = BLOCK, 1
        if isinstance(self.memory, Stored):
            count, run = PIECE // looked_at(self.dtype).itemsize, RUN * PART // PIECE
        parts = list(pieces(self.memory.shape, place, count))
        runs = [parts[at : at + run] for at in range(0, len(parts), run)]
        threads = min(threads, max(1, len(runs))) if threads else threads_for(len(runs))
        return joined(parallel_map(self._facts, runs, threads))

    def _facts(self, places: Sequence[Place]) -> ElementStatistics:
        statistics = []
        for place in places:
            block = self.memory[place]
            statistics.append(facts_of(block, place, self.memory.shape))
            forget(block)
        return joined(statistics)

    def check_finite(self, facts: ElementStatistics) -> None:
        """Raise `InputError` if `facts` report an element that is not finite; the message contains its position."""
        if facts.bad < 0:
            return
        place = np.unravel_index(facts.bad, self.memory.shape)
        index = tuple(int(place[self.modes.index(m)]) for m in range(self.order))
        value = self.memory[tuple(slice(int(at), int(at) + 1) for at in place)].item()
        if self.gaps and math.isnan(value):
            cause = f"element {list(index)} is missing: only CP decompositions, scan and core_consistency accept gaps"
            raise InputError(f"{cause}; fill them first", path=self.path)
        use = f"; if NaN means missing, use {setting('mask', 'nan')} in a CP decomposition"
        missing = use if math.isnan(value) else ""
        raise InputError(f"element {list(index)} is {value}: every element must be finite{missing}", path=self.path)

    def digest(self, place: Place = ()) -> int:
        """Return the sum of a hash of each element, modulo 2**64; for `place` see `facts`.

        The digests of parts add up. Equal tensors have equal digests, whatever the order of their modes in memory.
        """
        total: int = 0
        steps = [math.prod(self.shape[m + 1 :]) for m in self.modes]
        for part in pieces(self.memory.shape, place, BLOCK):
            numbers = np.zeros((1,) * self.order, np.int64)
            for axis, (indices, step) in enumerate(zip(part, steps, strict=True)):
                column = np.arange(indices.start, indices.stop, dtype=np.int64) * step
                numbers = numbers + column.reshape([-1 if m == axis else 1 for m in range(self.order)])
            block = self.memory[part]
            hashes = np.array(block, np.float64, order="C").reshape(-1).view(np.uint64)
            forget(block)
            stir(hashes, numbers.reshape(-1))
            total += int(hashes.sum(dtype=np.uint64))
        result: int = total & MASK
        return result

    def __repr__(self) -> str:
        return f"DenseTensor(shape={self.shape}, dtype={self.dtype})"


def sparse_of(tensor: DenseTensor) -> SparseTensor:
    """Return the nonzeros of a dense tensor; raise `InputError` if memory is insufficient."""
    parts = list(pieces(tensor.memory.shape, (), BLOCK))
    count = sum(int(np.count_nonzero(tensor.memory[place])) for place in parts)
    needed, available = 2 * count * (4 * tensor.order + 8), available_memory()
    if needed > available:
        cause = (
            f"{count:,} nonzeros of a dense tensor need {needed:,} bytes of host memory, {available:,} are available"
        )
        raise InputError(cause, path=tensor.path)
    columns, values, done = np.empty((tensor.order, count), np.int32), np.empty(count, tensor.dtype), 0
    for place in parts:
        block = tensor.memory[place]
        chosen = block != 0
        indices = indices_of(chosen)
        part = slice(done, done + indices.shape[1])
        for mode, ranges, each in zip(tensor.modes, place, indices, strict=True):
            columns[mode, part] = each + ranges.start
        values[part] = block[chosen]
        forget(block)
        done = part.stop
    sparse = SparseTensor.from_columns(columns, values, tensor.shape, path=tensor.path)
    sparse.labels = tensor.labels
    return sparse


def one_zero(tensor: DenseTensor) -> SparseTensor:
    """Return a tensor of zeros as a sparse one, which stores at least one element."""
    columns, values = np.zeros((tensor.order, 1), np.int32), np.zeros(1, tensor.dtype)
    sparse = SparseTensor.from_columns(columns, values, tensor.shape, path=tensor.path, keep_zeros=True)
    sparse.labels = tensor.labels
    return sparse


def blocks(tensor: DenseTensor, mode: int, elements: int) -> Iterator[Place]:
    """Yield the positions of blocks of about `elements` elements of `memory`, cut only along its mode `mode`."""
    length = tensor.memory.shape[mode]
    step = max(1, elements * length // tensor.size)
    for begin in range(0, length, step):
        yield tuple(slice(begin, begin + step) if m == mode else slice(None) for m in range(tensor.order))


def check_elements(shape: Sequence[int], dtype: DType) -> None:
    """Raise `InputError` for a shape or element type that dense tensors do not support."""
    if dtype.kind not in KINDS or dtype.itemsize > WIDEST:
        raise InputError(f"elements are {dtype}, expected real numbers of at most {8 * WIDEST} bits")
    check_order(len(shape))
    for mode, length in enumerate(shape):
        if not 1 <= length <= MAX_MODE_LENGTH:
            raise InputError(f"length {length} of mode {mode} is outside 1..{MAX_MODE_LENGTH}")


def _on_host(array: Any) -> HostArray:
    """Return an array in host memory as a NumPy array."""
    if isinstance(array, np.ndarray):
        return array if isinstance(array, np.memmap) or is_masked(array) else np.asarray(array)
    if hasattr(array, "detach"):  # PyTorch
        array = array.detach().cpu()
    try:
        host_array = np.from_dlpack(array) if is_exported(array) else np.asanyarray(array)
    except (BufferError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot convert a {type(array).__name__} to an array: {error}") from None
    return host_array if is_masked(host_array) else unpacked(array, np.asarray(host_array))  # netCDF4's variables are


@contextmanager
def _of(path: str | PathLike[str] | None) -> Iterator[None]:
    """Add the file name, if there is one, to errors."""
    try:
        yield
    except InputError as error:
        raise InputError(error.cause, path=path) from None
