"""Elements of an ``.npy`` file, which are read where they are used: any number of threads may do so at once.

They are read, not mapped: so a file that is cut short meanwhile is an error, and not the end of the process, and what
was read is no memory of this process.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Sequence
from threading import Lock
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError

PART = 8 << 20  # bytes that a thread reads at once: Python's threads wait for each other at each step they make
PIECE = 4 << 20  # bytes, of a longer part, that it reads, looks at and converts together
RUN = 4  # parts, at most, that follow each other and that one thread reads
READERS = 16  # threads that read, at least: a disk wants more requests at a time than there may be cores
HANDLES = 2 * READERS
SHORT = 1 << 14  # bytes that follow each other in the file: fewer are read with what lies between them
BAND = 1 << 22  # bytes that are read so at once


class FileElements:
    """An array in a file, in C order, of which ranges of all modes are read. See `Stored`.

    Parameters
    ----------
    file : binary file
        May be closed afterwards.
    begin : int
        The byte where elements begin.
    shape : tuple of int
    dtype : dtype
    path : path
        The file's name, for errors.
    """

    def __init__(self, file: IO[bytes], begin: int, shape: tuple[int, ...], dtype: np.dtype[Any], path: Any) -> None:
        self.shape, self.dtype, self._begin, self._path = shape, dtype, begin, path
        self._handles, self._lock = [os.dup(file.fileno())], Lock()
        self._free = {self._handles[0]: 0}  # those that nobody reads from: where they stopped, the first one first
        weakref.finalize(self, _close, self._handles)
        self._written = os.fstat(self._handles[0]).st_mtime_ns

    def __getitem__(self, ranges: tuple[slice, ...]) -> NDArray[Any]:
        found = np.empty([each.stop - each.start for each in ranges], self.dtype)
        self.read(ranges, found)
        return found

    def read(self, ranges: tuple[slice, ...], out: NDArray[Any]) -> None:
        """Read ranges of all modes into a C-contiguous array of their lengths; raise `InputError` if they are gone."""
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
        """Return the first mode within which wanted elements follow one another in the file without gaps."""
        whole = [given == own for given, own in zip(lengths, self.shape, strict=True)]
        return next(mode for mode in range(len(whole)) if all(whole[mode + 1 :]))

    def _byte(self, place: Sequence[int]) -> int:
        """Return where in the file the first element is that has these indices of the first modes."""
        steps = (math.prod(self.shape[m + 1 :]) for m in range(len(place)))
        return self._begin + self.dtype.itemsize * sum(at * step for at, step in zip(place, steps, strict=True))

    def _read_bands(self, ranges: tuple[slice, ...], out: NDArray[Any], along: int, step: int) -> None:
        """Read all that lies between the first and the last element, and take what is wanted."""
        last, rows = ranges[along - 1], BAND // step
        for indices in np.ndindex(*out.shape[: along - 1]):
            place = [r.start + at for r, at in zip(ranges, indices, strict=False)]
            for begin in range(last.start, last.stop, rows):
                end = min(begin + rows, last.stop)
                band = np.empty((end - begin, *self.shape[along:]), self.dtype)
                self._fill(band, self._byte([*place, begin]))
                out[indices][begin - last.start : end - last.start] = band[:, ranges[along]]

    def _fill(self, out: NDArray[Any], at: int) -> None:
        """Read elements that follow each other, from a byte on."""
        room = out.reshape(-1).view(np.uint8).data
        end, handle = at + len(room), -1
        try:
            handle = self._taken(at)
            while at < end and (count := os.preadv(handle, [room[at - end :]], at)):
                at += count
            self._check_unchanged(handle, short=at < end)
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", path=self._path) from None
        finally:
            with self._lock:
                if handle >= 0:
                    self._free[handle] = at

    def _check_unchanged(self, handle: int, short: bool) -> None:
        """Raise `InputError` if the file is too short, or was written to: other passes have read other elements."""
        now, whole = os.fstat(handle), self._begin + self.dtype.itemsize * math.prod(self.shape)
        if short or now.st_size < whole:
            cause = f"truncated while it was read: it had at least {whole:,} bytes, and has {now.st_size:,} now"
            raise InputError(cause, path=self._path)
        if now.st_mtime_ns != self._written:
            raise InputError("changed while it was read", path=self._path)

    def _taken(self, at: int) -> int:
        """Return a handle for reading from a byte on: the one that stopped there, else a new one, or one used before.

        What the system reads ahead follows from what was read through a handle. So each thread that reads parts that
        follow each other has one for itself, and the disk is at work while the thread looks at a part.
        """
        with self._lock:
            handle = next((each for each, stopped in self._free.items() if stopped == at), None)
            if handle is None and (len(self._handles) < HANDLES or not self._free):
                try:
                    return self._opened()
                except OSError:  # the process may open no more
                    if not self._free:
                        raise
            handle = next(iter(self._free)) if handle is None else handle
            del self._free[handle]
            return handle

    def _opened(self) -> int:
        try:
            name = f"/proc/self/fd/{self._handles[0]}"  # whatever it is called now
            handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # there is no such folder, or the file may no longer be opened
            handle = os.dup(self._handles[0])
        self._handles.append(handle)
        return handle


def _close(handles: list[int]) -> None:
    for handle in handles:
        os.close(handle)
