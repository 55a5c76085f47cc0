"""Counts of the bytes that collectives send and receive, as if all were rings.

In an all-gather a rank receives the parts of all others, and sends all but that of the next rank. A reduce-scatter is
the reverse. An all-reduce is a reduce-scatter and an all-gather of equal parts.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray

from ..parallel.mpi import Comm, Reduction
from .device import Array, Collectives


class ByteCount:
    """Bytes that a rank has sent and received.

    Attributes
    ----------
    nbytes : int
        Since the last `take`.
    """

    def __init__(self) -> None:
        self.nbytes = 0

    def gather(self, parts: NDArray[np.int64], rank: int) -> None:
        """Count an all-gather of `parts`, bytes by rank."""
        self.nbytes += int(2 * parts.sum() - parts[rank] - parts[(rank + 1) % parts.size])

    def scatter(self, parts: NDArray[np.int64], rank: int) -> None:
        """Count a reduce-scatter after which ranks have `parts`."""
        self.nbytes += int(2 * parts.sum() - parts[rank] - parts[rank - 1])

    def take(self) -> int:
        """Return the number of bytes, and begin at 0 again."""
        taken, self.nbytes = self.nbytes, 0
        return taken

    def reduce(self, array: Array, comm: Comm) -> None:
        """Count an all-reduce of an array."""
        parts = np.diff(array.size * np.arange(comm.size + 1) // comm.size) * array.itemsize
        self.scatter(parts, comm.rank)
        self.gather(parts, comm.rank)


class Counted:
    """Collectives whose bytes are counted; see `Collectives`."""

    def __init__(self, exchange: Collectives, comm: Comm, traffic: ByteCount | None = None) -> None:
        self._exchange, self._comm, self.traffic = exchange, comm, traffic or ByteCount()
        self.name, self.overlaps = exchange.name, exchange.overlaps

    def comm_stream(self) -> AbstractContextManager[None]:
        return self._exchange.comm_stream()

    def wait_comm(self, forget: bool = True) -> None:
        self._exchange.wait_comm(forget)

    def gather_rows(
        self, matrix: Array, begin: NDArray[np.int64], end: NDArray[np.int64], sums: Array | None = None
    ) -> None:
        if self._comm.size > 1:
            self.traffic.gather((end - begin) * _row_bytes(matrix), self._comm.rank)
            if sums is not None:
                self.traffic.reduce(sums, self._comm)
        self._exchange.gather_rows(matrix, begin, end, sums)

    def reduce_rows(self, matrix: Array, offsets: NDArray[np.int64]) -> None:
        if self._comm.size > 1:
            self.traffic.scatter(np.diff(offsets) * _row_bytes(matrix), self._comm.rank)
        self._exchange.reduce_rows(matrix, offsets)

    def reduce(self, array: Array, reduction: Reduction) -> None:
        if self._comm.size > 1:
            self.traffic.reduce(array, self._comm)
        self._exchange.reduce(array, reduction)

    def part(self, comm: Comm) -> Counted:
        return Counted(self._exchange.part(comm), comm, self.traffic)

    def abort(self) -> None:
        self._exchange.abort()


def _row_bytes(matrix: Array) -> int:
    return int(matrix.shape[1]) * int(matrix.itemsize)
