"""The dense tensor: an array in memory, or one that stays in its file until it is used."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any, ClassVar

import numpy as np
import psutil
from numpy.typing import NDArray

from ..errors import InputError
from ..host.threads import side_by_side, usable_cores
from .cf_attributes import unpacked
from .conversion import AsDense
from .digest import MASK, stir
from .npy_file import PART, PIECE, RUN, FileElements
from .sparse import MAX_MODE_LENGTH, SparseTensor, check_order, refuse_masked
from .statistics import ElementStatistics, facts_of, joined, looked_at

BLOCK = 1 << 18  # elements that are looked at together, by each thread
KINDS = "biuf"
WIDEST = 8  # bytes of an element


Place = tuple[slice, ...]


class Stored:
    """Elements in a file: what is taken of them is an array, in memory.

    Parameters
    ----------
    elements : FileElements, HDF5 or Zarr array
        Has a shape and a type, and gives ranges of all modes as arrays. Its first mode varies slowest.
    modes : tuple of int
        Which of its modes is the first one here, the second one, and so on.
    ranges : tuple of slice
        Of its modes, in its own order.
    """

    def __init__(self, elements: Any, modes: tuple[int, ...] | None = None, ranges: Place | None = None) -> None:
        self._elements = elements
        self._modes = modes or tuple(range(len(elements.shape)))
        self._ranges = ranges or tuple(slice(0, length) for length in elements.shape)
        lengths = [each.stop - each.start for each in self._ranges]
        self.shape, self.dtype = tuple(lengths[m] for m in self._modes), np.dtype(elements.dtype)

    def transpose(self, modes: tuple[int, ...]) -> Stored:
        """Return the same elements with modes in another order."""
        return Stored(self._elements, tuple(self._modes[m] for m in modes), self._ranges)

    @property
    def plain(self) -> bool:
        """Whether they lie in the file as they are: threads read parts side by side, into memory of their own."""
        return isinstance(self._elements, FileElements)

    def slowest_first(self) -> tuple[int, ...]:
        """Return the modes, the one that varies slowest first; those of length 1 come last."""
        return tuple(sorted(range(len(self.shape)), key=lambda m: (self.shape[m] == 1, self._modes[m])))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the elements themselves: where they are wanted, the file may be another one."""
        return np.asarray, (self[:],)

    def into(self, target: NDArray[Any], look: Callable[[NDArray[Any]], object] | None = None) -> None:
        """Copy them to a C-contiguous array, perhaps of another type, and look at them as they are.

        They are `plain`, the array has their shape, and `slowest_first` are the modes as they come.
        """
        flat, done, own = target.reshape(-1), 0, target.dtype == self.dtype
        width = (self.dtype if look is None else looked_at(self.dtype)).itemsize
        count = (PART if target.size * width <= PART else PIECE) // width
        for place in pieces(self._elements.shape, self._ranges, count):
            lengths = [each.stop - each.start for each in place]
            part = flat[done : done + math.prod(lengths)]
            found = part if own else np.empty(part.size, self.dtype)
            self._elements.read(place, found.reshape(lengths))
            if look is not None:
                look(found)
            if not own:
                with np.errstate(over="ignore"):  # whoever wants them knows how large they may be
                    np.copyto(part, found, casting="same_kind")
            done += part.size

    def within(self, place: slice | Place) -> Stored:
        """Return a part of the elements, in the file still."""
        given = place if isinstance(place, tuple) else (place,)
        ranges = list(self._ranges)
        for axis, each in enumerate(given):
            own, (begin, end, _) = self._modes[axis], each.indices(self.shape[axis])
            first = self._ranges[own].start
            ranges[own] = slice(first + begin, first + max(begin, end))
        return Stored(self._elements, self._modes, tuple(ranges))

    def __getitem__(self, place: slice | Place) -> NDArray[Any]:
        part = self.within(place)
        if not math.prod(part.shape):
            return np.empty(part.shape, self.dtype)
        found: NDArray[Any] = np.asarray(part._elements[part._ranges]).transpose(part._modes)
        return found


class DenseTensor(AsDense):
    """A dense tensor: all elements, zeros among them.

    Parameters
    ----------
    array : array-like
        Of 2 to 8 dimensions; of floating-point numbers, integers or bools, which are kept as they are and converted
        when they are used. It is not copied if its modes lie in memory in any order without gaps (C, Fortran), and must
        not change afterwards. An array on a GPU (CuPy's, PyTorch's) stays there where one process computes on it.
    path : path, optional
        The file that it is in, which errors name.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
        Of the elements as they are kept.
    modes : tuple of int
        The modes in memory order: the one that varies slowest comes first. Modes of length 1 come last.
    memory : array or Stored
        The elements with modes in memory order: C-contiguous; or in a file that another library reads, or on a GPU.
    on_gpu : GpuElements, or None
        The elements that are in the current GPU's memory.
    path : path, or None
        The file that they are in.

    Raises
    ------
    InputError
        If the order is not in 2..8, a mode has length 0, or elements are no real numbers.
    """

    kind: ClassVar[str] = "dense"

    def __init__(self, array: Any, path: str | PathLike[str] | None = None) -> None:
        self.path, self.on_gpu = path, None  # type: tuple[Any, Any]
        with _of(path):
            if isinstance(array, Stored):
                check_elements(array.shape, array.dtype)
                self.shape: tuple[int, ...] = array.shape
                self.dtype: np.dtype[Any] = array.dtype
                self.modes = array.slowest_first()
                self.memory: NDArray[Any] | Stored = array.transpose(self.modes)
                return
            refuse_masked(array, "the array")
            if hasattr(array, "__cuda_array_interface__"):
                from .gpu_elements import GpuElements, on_gpu, without_gaps

                self.on_gpu = GpuElements(self._ordered(on_gpu(array), without_gaps))
                self.memory = Stored(self.on_gpu)
            else:
                self.memory = self._ordered(_on_host(array), np.ascontiguousarray)

    def _ordered(self, array: Any, without_gaps: Callable[[Any], Any]) -> Any:
        """Return an array with its modes in memory order; note what it is."""
        self.shape, self.dtype = tuple(array.shape), np.dtype(array.dtype)
        check_elements(self.shape, self.dtype)
        steps = [(array.shape[m] == 1, -abs(array.strides[m]), m) for m in range(array.ndim)]
        self.modes = tuple(m for _, _, m in sorted(steps))
        memory = array.transpose(self.modes)
        if memory.flags.c_contiguous:
            return memory
        # Steps of zero, backwards, or over others.
        self.modes = tuple(sorted(range(array.ndim), key=lambda m: (array.shape[m] == 1, m)))
        return without_gaps(array.transpose(self.modes))

    @classmethod
    def of_sparse(cls, tensor: SparseTensor, room: int | None = None) -> DenseTensor:
        """Return a sparse tensor with its zeros.

        Parameters
        ----------
        tensor : SparseTensor
            Its labels are kept.
        room : int, optional
            Bytes that it may need; `InputError` says if they are too few.
        """
        need = math.prod(tensor.shape) * tensor.values.dtype.itemsize
        if room is not None and need > room:
            shape = " x ".join(map(str, tensor.shape))
            raise InputError(f"as a dense tensor, {shape} needs {need:,} bytes of host memory, {room:,} are there")
        array = np.zeros(tensor.shape, tensor.values.dtype)
        array[tuple(tensor.columns)] = tensor.values
        found = cls(array)
        found.labels = tensor.labels
        return found

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
        """The bytes of the elements, as they are kept."""
        return self.size * self.dtype.itemsize

    def array(self) -> NDArray[Any]:
        """Return the elements with the modes in their own order."""
        found: NDArray[Any] = np.asarray(self.memory[:]).transpose(np.argsort(self.modes))
        return found

    def norm(self) -> float:
        """Return the Frobenius norm, computed in double precision; raise `InputError` if an element is not finite."""
        facts = self.facts()
        self.check_finite(facts)
        return facts.norm()

    def facts(self, place: Place = (), threads: int | None = None) -> ElementStatistics:
        """Return what is known of the elements in ranges of the first modes in memory order, by default of all."""
        if self.on_gpu is not None and not place:
            found: ElementStatistics = self.on_gpu.facts()
            return found
        count, run = BLOCK, 1
        if isinstance(self.memory, Stored):
            count, run = PIECE // looked_at(self.dtype).itemsize, RUN * PART // PIECE
        parts = list(pieces(self.memory.shape, place, count))
        runs = [parts[at : at + run] for at in range(0, len(parts), run)]
        threads = min(threads or usable_cores(), max(1, len(runs)))
        return joined(side_by_side(self._facts, runs, threads))

    def _facts(self, places: Sequence[Place]) -> ElementStatistics:
        found = []
        for place in places:
            block = self.memory[place]
            found.append(facts_of(block, place, self.memory.shape))
            forget(block)
        return joined(found)

    def check_finite(self, facts: ElementStatistics) -> None:
        """Raise `InputError` if `facts` name an element that is not finite; the message says where it is."""
        if facts.bad < 0:
            return
        place = np.unravel_index(facts.bad, self.memory.shape)
        index = tuple(int(place[self.modes.index(m)]) for m in range(self.order))
        value = self.memory[tuple(slice(int(at), int(at) + 1) for at in place)].item()
        raise InputError(f"element {list(index)} is {value}: every element must be finite", path=self.path)

    def digest(self, place: Place = ()) -> int:
        """Return the sum, modulo 2**64, of a hash of each element; see `facts`.

        The digests of parts add up. Equal tensors have equal ones, in whatever order their modes are in memory.
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
        found: int = total & MASK
        return found

    def __repr__(self) -> str:
        return f"DenseTensor(shape={self.shape}, dtype={self.dtype})"


def sparse_of(tensor: DenseTensor) -> SparseTensor:
    """Return the nonzeros of a dense tensor; raise `InputError` if memory has no room for them."""
    parts = list(pieces(tensor.memory.shape, (), BLOCK))
    count = sum(int(np.count_nonzero(tensor.memory[place])) for place in parts)
    need, room = 2 * count * (4 * tensor.order + 8), psutil.virtual_memory().available
    if need > room:
        cause = f"{count:,} nonzeros of a dense tensor need {need:,} bytes of host memory, {room:,} are there"
        raise InputError(cause, path=tensor.path)
    columns, values, done = np.empty((tensor.order, count), np.int32), np.empty(count, tensor.dtype), 0
    for place in parts:
        block = tensor.memory[place]
        found = np.nonzero(block)
        part = slice(done, done + found[0].size)
        for mode, ranges, indices in zip(tensor.modes, place, found, strict=True):
            columns[mode, part] = indices + ranges.start
        values[part] = block[found]
        forget(block)
        done = part.stop
    sparse = SparseTensor.from_columns(columns, values, tensor.shape, path=tensor.path)
    sparse.labels = tensor.labels
    return sparse


def forget(block: NDArray[Any] | Stored) -> None:
    """Let go of the pages of a block that is mapped from a file: once read, they count as this process's memory.

    The system may keep them as long as it has room, and reads them again if they are used again. Pages that are copied
    when they are written (NumPy's mode "c") stay: what was written would be lost.
    """
    _advise(block, "MADV_DONTNEED")


def expect(block: NDArray[Any] | Stored) -> None:
    """Let the system begin to read a block that is mapped from a file, in large pieces."""
    _advise(block, "MADV_WILLNEED")


def _advise(block: NDArray[Any] | Stored, advice: str) -> None:
    mapped = getattr(block, "_mmap", None)
    if not isinstance(block, np.memmap) or mapped is None or not block.size or not hasattr(mmap, advice):
        return
    if block.mode == "c":
        return
    first = np.frombuffer(mapped, np.uint8).ctypes.data
    low, high = (bound - first for bound in np.lib.array_utils.byte_bounds(block))
    begin = low // mmap.PAGESIZE * mmap.PAGESIZE
    mapped.madvise(getattr(mmap, advice), begin, high - begin)


def pieces(shape: Sequence[int], place: Place, elements: int) -> Iterator[Place]:
    """Yield where pieces of at most so many elements lie, in memory order, within ranges of the first modes."""
    ranges = [*place, *(slice(0, n) for n in shape[len(place) :])]
    lengths = [each.stop - each.start for each in ranges]
    if not math.prod(lengths):
        return
    along = next(m for m in range(len(shape)) if math.prod(lengths[m + 1 :]) <= elements)
    step = max(1, elements // math.prod(lengths[along + 1 :]))
    whole = tuple(ranges[along + 1 :])
    for indices in np.ndindex(*lengths[:along]):
        first = tuple(slice(r.start + at, r.start + at + 1) for r, at in zip(ranges, indices, strict=False))
        for begin in range(ranges[along].start, ranges[along].stop, step):
            yield *first, slice(begin, min(begin + step, ranges[along].stop)), *whole


def blocks(tensor: DenseTensor, mode: int, elements: int) -> Iterator[Place]:
    """Yield where blocks of about so many elements lie in `memory`, cut along the mode of that place alone."""
    length = tensor.memory.shape[mode]
    step = max(1, elements * length // tensor.size)
    for begin in range(0, length, step):
        yield tuple(slice(begin, begin + step) if m == mode else slice(None) for m in range(tensor.order))


def check_elements(shape: Sequence[int], dtype: np.dtype[Any]) -> None:
    """Refuse a shape or a type that no dense tensor has."""
    if dtype.kind not in KINDS or dtype.itemsize > WIDEST:
        raise InputError(f"elements are {dtype}, expected real numbers of at most {8 * WIDEST} bits")
    check_order(len(shape))
    for mode, length in enumerate(shape):
        if not 1 <= length <= MAX_MODE_LENGTH:
            raise InputError(f"length {length} of mode {mode} is outside 1..{MAX_MODE_LENGTH}")


def _on_host(array: Any) -> NDArray[Any]:
    """Return an array of NumPy's."""
    if isinstance(array, np.ndarray):
        return array if isinstance(array, np.memmap) else np.asarray(array)
    if hasattr(array, "detach"):  # torch
        array = array.detach().cpu()
    try:
        found = np.asanyarray(array)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"no array can be made of a {type(array).__name__}: {error}") from None
    refuse_masked(found, "the array")  # as netCDF4's variables are
    return unpacked(array, np.asarray(found))


@contextmanager
def _of(path: str | PathLike[str] | None) -> Iterator[None]:
    """Name the file, if there is one, in errors of what is in it."""
    try:
        yield
    except InputError as error:
        raise InputError(error.cause, path=path) from None
