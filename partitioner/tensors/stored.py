"""Elements of dense tensors in a file, or mapped from one, and how they are read piece by piece."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..array_types import HostArray
from .npy_file import PART, PIECE, FileElements
from .statistics import looked_at

Place = tuple[slice, ...]


class Stored:
    """Elements in a file. Indexing returns arrays in memory.

    Parameters
    ----------
    elements : FileElements, HDF5 or Zarr array
        Has a shape and a dtype, and returns ranges of all modes as arrays. Its first mode varies slowest.
    modes : tuple of int, optional
        The file's mode for each mode of this object; by default the same order.
    ranges : tuple of slice, optional
        Ranges of the file's modes; by default complete.
    """

    def __init__(self, elements: Any, modes: tuple[int, ...] | None = None, ranges: Place | None = None) -> None:
        self._elements = elements
        self._modes = modes or tuple(range(len(elements.shape)))
        self._ranges = ranges or tuple(slice(0, length) for length in elements.shape)
        lengths = [each.stop - each.start for each in self._ranges]
        self.shape, self.dtype = tuple(lengths[m] for m in self._modes), np.dtype(elements.dtype)

    def with_gaps(self) -> Stored:
        """Return the elements with NaN in place of those that the file declares missing."""
        if not hasattr(self._elements, "with_gaps"):
            return self
        return Stored(self._elements.with_gaps(), self._modes, self._ranges)

    def transpose(self, modes: tuple[int, ...]) -> Stored:
        """Return the same elements with the modes in another order."""
        return Stored(self._elements, tuple(self._modes[m] for m in modes), self._ranges)

    @property
    def plain(self) -> bool:
        """Whether the file stores the elements contiguously, so that threads can read parts in parallel."""
        return isinstance(self._elements, FileElements)

    def slowest_first(self) -> tuple[int, ...]:
        """Return the modes, the slowest-varying first; modes of length 1 come last."""
        return tuple(sorted(range(len(self.shape)), key=lambda m: (self.shape[m] == 1, self._modes[m])))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the elements, as the file may be another one where they are unpickled."""
        return np.asarray, (self[:],)

    def into(self, target: HostArray, look: Callable[[HostArray], object] | None = None) -> None:
        """Copy the elements to a C-contiguous array, converting their type, and pass pieces of the originals to `look`.

        The elements must be `plain`, the array must have their shape, and their modes must be in the order
        `slowest_first`.
        """
        flat, done, same_type = target.reshape(-1), 0, target.dtype == self.dtype
        width = (self.dtype if look is None else looked_at(self.dtype)).itemsize
        count = (PART if target.size * width <= PART else PIECE) // width
        for place in pieces(self._elements.shape, self._ranges, count):
            lengths = [each.stop - each.start for each in place]
            part = flat[done : done + math.prod(lengths)]
            piece = part if same_type else np.empty(part.size, self.dtype)
            self._elements.read(place, piece.reshape(lengths))
            if look is not None:
                look(piece)
            if not same_type:
                with np.errstate(over="ignore"):  # the caller checks the range
                    np.copyto(part, piece, casting="same_kind")
            done += part.size

    def within(self, place: slice | Place) -> Stored:
        """Return a part of the elements without reading it."""
        slices = place if isinstance(place, tuple) else (place,)
        ranges = list(self._ranges)
        for axis, each in enumerate(slices):
            stored_mode, (begin, end, _) = self._modes[axis], each.indices(self.shape[axis])
            first = self._ranges[stored_mode].start
            ranges[stored_mode] = slice(first + begin, first + max(begin, end))
        return Stored(self._elements, self._modes, tuple(ranges))

    def __getitem__(self, place: slice | Place) -> HostArray:
        part = self.within(place)
        if not math.prod(part.shape):
            return np.empty(part.shape, self.dtype)
        elements: HostArray = np.asarray(part._elements[part._ranges]).transpose(part._modes)
        return elements


def forget(block: HostArray | Stored) -> None:
    """Release the pages of a block that is mapped from a file, which count as this process's memory once read.

    The system may keep them in its cache, and otherwise reads them again. Copy-on-write pages (NumPy's mode "c") are
    not released, since their changes would be lost.
    """
    _advise(block, "MADV_DONTNEED")


def expect(block: HostArray | Stored) -> None:
    """Let the system start to read a block that is mapped from a file, in large pieces."""
    _advise(block, "MADV_WILLNEED")


def _advise(block: HostArray | Stored, advice: str) -> None:
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
    """Yield positions of pieces of at most `elements` elements, in memory order, within ranges of the first modes."""
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
