"""Elements of an ``.npy`` file, read on demand by any number of threads in parallel.

The file is read, not mapped: truncating it causes an error instead of killing the process, and data that was read does
not count as memory of the process.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Sequence
from threading import Lock
from typing import IO

import numpy as np

from ..array_types import DType, HostArray
from ..errors import InputError

PART = 8 << 20  # bytes per read of a thread; large, as each step needs the GIL
PIECE = 4 << 20  # bytes of a part that are read, scanned and converted at a time
RUN = 4  # maximum number of consecutive parts that one thread reads
READERS = 16  # minimum number of reading threads, as disks need many requests in flight
HANDLES = 2 * READERS
SHORT = 1 << 14  # contiguous bytes; shorter stretches are read together with the gaps between them
BAND = 1 << 22  # bytes per such read


class FileElements:
    """An array in a file, in C order, of which ranges of all modes can be read. See `Stored`.

    Parameters
    ----------
    file : binary file
        Open file; may be closed afterwards.
    begin : int
        Offset of the first element in bytes.
    shape : tuple of int
        Shape of the array.
    dtype : dtype
        Type of the elements.
    path : path
        Name of the file, for error messages.
    """

    def __init__(
        self, file: IO[bytes], begin: int, shape: tuple[int, ...], dtype: DType, path: str | os.PathLike[str]
    ) -> None:
        self.shape, self.dtype, self._begin, self._path = shape, dtype, begin, path
        self._handles, self._lock = [os.dup(file.fileno())], Lock()
        self._free = {self._handles[0]: 0}  # unused handles, and where the last read ended
        weakref.finalize(self, _close, self._handles)
        self._written = os.fstat(self._handles[0]).st_mtime_ns

    def __getitem__(self, ranges: tuple[slice, ...]) -> HostArray:
        elements = np.empty([each.stop - each.start for each in ranges], self.dtype)
        self.read(ranges, elements)
        return elements

    def read(self, ranges: tuple[slice, ...], out: HostArray) -> None:
        """Read ranges of all modes into a C-contiguous array of that shape; raise `InputError` if reading fails."""
        lengths = out.shape
        along = self._along(lengths)
        step = self.dtype.itemsize * math.prod(self.shape[along:])
        if along and 16 * step <= BAND and out.nbytes < SHORT * math.prod(lengths[:along]):
            self._read_bands(ranges, out, along, step)
            return
        for indices in np.ndindex(*lengths[:along]):
            place = [r.start + at for r, at in zip(ranges, indices, strict=False)]
            self._fill(out[indices], self._byte([*place, ranges[along].start]))

    def _along(self, lengths: Sequence[int]) -> int:
        """Return the first mode from which on the requested elements are contiguous in the file."""
        whole = [length == full for length, full in zip(lengths, self.shape, strict=True)]
        return next(mode for mode in range(len(whole)) if all(whole[mode + 1 :]))

    def _byte(self, place: Sequence[int]) -> int:
        """Return the file offset of the first element with these indices of the first modes."""
        steps = (math.prod(self.shape[m + 1 :]) for m in range(len(place)))
        return self._begin + self.dtype.itemsize * sum(at * step for at, step in zip(place, steps, strict=True))

    def _read_bands(self, ranges: tuple[slice, ...], out: HostArray, along: int, step: int) -> None:
        """Read everything between the first and the last element, and copy the requested elements."""
        last, rows = ranges[along - 1], BAND // step
        for indices in np.ndindex(*out.shape[: along - 1]):
            place = [r.start + at for r, at in zip(ranges, indices, strict=False)]
            for begin in range(last.start, last.stop, rows):
                end = min(begin + rows, last.stop)
                band = np.empty((end - begin, *self.shape[along:]), self.dtype)
                self._fill(band, self._byte([*place, begin]))
                out[indices][begin - last.start : end - last.start] = band[:, ranges[along]]

    def _fill(self, out: HostArray, at: int) -> None:
        """Read contiguous elements from a byte offset."""
        buffer = out.reshape(-1).view(np.uint8).data
        end, handle = at + len(buffer), -1
        try:
            handle = self._acquire(at)
            while at < end and (count := os.preadv(handle, [buffer[at - end :]], at)):
                at += count
            self._check_unchanged(handle, short=at < end)
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", path=self._path) from None
        finally:
            with self._lock:
                if handle >= 0:
                    self._free[handle] = at

    def _check_unchanged(self, handle: int, short: bool) -> None:
        """Raise `InputError` if the file is too short or was modified since it was opened."""
        status, expected = os.fstat(handle), self._begin + self.dtype.itemsize * math.prod(self.shape)
        if short or status.st_size < expected:
            cause = f"truncated while it was read: it had at least {expected:,} bytes, and has {status.st_size:,} now"
            raise InputError(cause, path=self._path)
        if status.st_mtime_ns != self._written:
            raise InputError("changed while it was read", path=self._path)

    def _acquire(self, at: int) -> int:
        """Return a handle to read at an offset: one whose last read ended there, or a new one, or any unused one.

        The system's read-ahead depends on the reads through a handle. With one handle per thread that reads consecutive
        parts, the disk reads ahead while the thread scans a part.
        """
        with self._lock:
            handle = next((each for each, end in self._free.items() if end == at), None)
            if handle is None and (len(self._handles) < HANDLES or not self._free):
                try:
                    return self._opened()
                except OSError:  # too many open files
                    if not self._free:
                        raise
            handle = next(iter(self._free)) if handle is None else handle
            del self._free[handle]
            return handle

    def _opened(self) -> int:
        try:
            name = f"/proc/self/fd/{self._handles[0]}"  # even if it was renamed
            handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # no /proc, or no permission
            handle = os.dup(self._handles[0])
        self._handles.append(handle)
        return handle


def _close(handles: list[int]) -> None:
    for handle in handles:
        os.close(handle)
