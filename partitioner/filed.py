"""Elements of an ``.npy`` file, which are read where they are used: any number of threads may do so at once.

They are read, not mapped: a file that is cut short meanwhile is an error then, and not the end of the process, and what
was read is no memory of this process.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from .errors import InputError

PART = 4 << 20  # bytes that a thread reads at once
READERS = 16  # threads that read, at least: a disk wants more requests at a time than there may be cores
EXPECTED = 16  # parts that the disk begins with before a thread asks for them: else it rests while these do other work
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
        self._handle = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._handle)
        # The system then asks the disk at once for all that a call wants. Else it guesses from the order of calls, and
        # those of several threads look like none.
        os.posix_fadvise(self._handle, 0, 0, os.POSIX_FADV_RANDOM)

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
            self._fill(out[indices], [r.start + at for r, at in zip(ranges, indices, strict=False)], ranges[along])

    def expect(self, ranges: tuple[slice, ...]) -> None:
        """Let the disk begin to read ranges, where their elements follow each other."""
        lengths = [each.stop - each.start for each in ranges]
        along = self._along(lengths)
        if math.prod(lengths[:along]) == 1:
            first = self._byte([each.start for each in ranges[: along + 1]])
            size = math.prod(lengths) * self.dtype.itemsize
            os.posix_fadvise(self._handle, first, size, os.POSIX_FADV_WILLNEED)

    def _along(self, lengths: Sequence[int]) -> int:
        """Return the mode from which on elements of such ranges follow each other."""
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
                self._fill(band, place, slice(begin, end))
                out[indices][begin - last.start : end - last.start] = band[:, ranges[along]]

    def _fill(self, out: NDArray[Any], place: list[int], along: slice) -> None:
        """Read what follows each other: of the modes before, one index each; of the next a range; of others all."""
        at, done = self._byte([*place, along.start]), 0
        room = out.reshape(-1).view(np.uint8).data
        while done < len(room):
            try:
                count = os.preadv(self._handle, [room[done:]], at + done)
            except OSError as error:
                raise InputError(f"cannot be read: {error.strerror}", path=self._path) from None
            if not count:
                size = os.fstat(self._handle).st_size
                cause = f"truncated while it was read: byte {at + done:,} was there, it has {size:,} now"
                raise InputError(cause, path=self._path)
            done += count
