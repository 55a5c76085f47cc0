"""Common part of the providers of row problems on a CPU: how threads share rows, and the nonzeros of heavy rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...device import Array
from ...ops.mttkrp import Kernel, Offers, Share
from ...ops.rowproblems import RowBytes, RowMethod, clear_empty
from ..device import CpuDevice
from ..layout import NARROW
from ..shard import HostShard
from ..simd.doubles import FOUR
from ..simd.vectors import LINE
from ..threads import check
from .model import PART, PART_RANK
from .problems import RowOrder, order_bytes, order_rows
from .shared import SharedParts

IN_STEP_BYTES = 32 << 20  # state of the heavy rows that all threads solve at a time
IN_STEP_COST = 4  # thread time of such a row, relative to one thread that keeps its Pi


class RowThreads:
    """The threads that solve rows."""

    def __init__(self, device: CpuDevice) -> None:
        self._threads = device.threads

    @property
    def count(self) -> int:
        """The number of threads."""
        return self._threads.count

    def call(self, function: Callable[..., int], *arguments: object) -> None:
        """Call a compiled function with all threads."""
        check(function(0, self._threads.team, self._threads.count, np.zeros(1, np.int64), *arguments))


class ThreadedRows(ABC):
    """Solves each row on one thread; all threads share the nonzeros of heavy rows. See `RowProblemsProvider`."""

    codes = 3  # heavy rows count as two kernels
    method: RowMethod

    def __init__(self, device: CpuDevice) -> None:
        self._threads = RowThreads(device)

    def suits(self, kernel: Kernel, share: Share) -> bool:
        """See `RowProblemsProvider`: the nonzeros of a row must be contiguous."""
        return Offers.ROWS in kernel.offers

    def prepare(self, kernel: Kernel, share: Share, rank: int) -> None:  # noqa: B027
        """See `RowProblemsProvider`: Numba compiles at the first call."""

    def bytes(self, kernel: Kernel, share: Share, nnz: int) -> RowBytes:
        if not nnz:
            return RowBytes(0, 0)
        rank, most = share.stride, max(PART, PART_RANK * (share.stride - LINE // 4))
        parts = 2 * (nnz // most) + 2  # a row has at least half the nonzeros that its parts can have
        running = 8 * (self._threads.count * self._thread_numbers(rank) + parts * self._part_numbers(rank)) + LINE
        # Allocated in addition to scratch memory: the state of rows that all threads solve together.
        running += min(nnz // most, self._batch(rank)) * self.shared_bytes(rank)
        return RowBytes(order_bytes(min(nnz, share.rows.stop - share.rows.start)), running)

    def make(self, shard: HostShard, share: Share, whole: slice | None = None) -> RowOrder:
        return order_rows(shard)

    def run(
        self,
        made: RowOrder,
        shard: HostShard,
        factors: Sequence[Array],
        own: Array,
        rank: int,
        limits: Any,
        seen: Array,
        whole: slice | None = None,
        scratch: Array = None,
    ) -> None:
        rows = slice(0, len(own)) if whole is None else whole
        inside = (made.rows >= rows.start) & (made.rows < rows.stop)
        if not limits.partial:
            clear_empty(made.rows[inside] - rows.start, own[rows, :rank], seen)
        most = heaviest(made, self._threads.count, self._part_of(rank))
        bounds = int(rows.start), int(rows.stop), most
        self._run_light(made, shard, factors, own, rank, limits, seen, bounds, scratch)
        heavy, batch = made.rows[inside & (made.counts > most)], self._batch(rank)
        for first in range(0, heavy.size, batch):
            self._run_heavy(made, shard, factors, own, rank, limits, seen, heavy[first : first + batch], scratch)

    def _batch(self, rank: int) -> int:
        """Return the number of heavy rows that are solved at a time."""
        return max(1, IN_STEP_BYTES // self.shared_bytes(rank))

    @abstractmethod
    def shared_bytes(self, rank: int) -> int:
        """See `RowProblemsProvider`."""

    @abstractmethod
    def _thread_numbers(self, rank: int) -> int:
        """Return the size of a thread's work arrays and scratch, in numbers."""

    @abstractmethod
    def _part_numbers(self, rank: int) -> int:
        """Return the number of sums of a part."""

    @abstractmethod
    def _part_of(self, rank: int) -> int:
        """Return the number of nonzeros of a part."""

    @abstractmethod
    def _run_light(  # type: ignore[no-untyped-def]
        self, made, shard, factors, own, rank, limits, seen, bounds, scratch
    ) -> None:
        """Solve rows with one thread each; `bounds`: see `whole` of `rows.problems.solve_by_newton`."""

    @abstractmethod
    def _run_heavy(  # type: ignore[no-untyped-def]
        self, made, shard, factors, own, rank, limits, seen, heavy, scratch
    ) -> None:
        """Solve rows whose nonzeros all threads share."""


def heaviest(row_order: RowOrder, threads: int, part: int) -> int:
    """Return the most nonzeros of a row that one thread solves; all threads solve longer rows together.

    Results are bitwise the same.
    """
    counts = row_order.counts[row_order.order]
    most = int(np.count_nonzero(counts > part))
    shared = np.append(0, np.cumsum(counts[:most]))  # nonzeros of the k heaviest rows, which all threads solve together
    longest = np.append(counts, 0)[: most + 1]
    work = IN_STEP_COST * shared / threads + np.maximum(longest, (counts.sum() - shared) / threads)
    return int(longest[np.argmin(work)])


def add_parts(sums: NDArray[np.float64], parts: SharedParts, out: NDArray[np.float64]) -> None:
    """Add the sums of parts, in order."""
    for place, of_part in zip(parts.places, out, strict=True):
        sums[place] += of_part


def place_of(own: Array, factor: Array) -> tuple[int, int]:
    """Return the address and the row length of an output matrix, whose type must be that of the input matrices."""
    assert own.dtype == factor.dtype
    assert own.strides[1] == own.itemsize
    return own.ctypes.data, own.strides[0] // own.itemsize


def addresses(shard: HostShard, factors: Sequence[Array]) -> tuple[Array, Array, tuple[bool, bool, int]]:
    """Return the addresses of columns and of matrices, and how the data are stored.

    These are the first three numbers of the form: whether indices have 16 bits, whether numbers are in double
    precision, and the row stride of factor matrices.
    """
    stride, kind = factors[0].shape[1], factors[0].dtype
    columns = [shard.values, *shard.indices]
    assert all(array.flags.c_contiguous for array in (*columns, *factors))
    assert shard.values.dtype == kind
    assert stride % FOUR == 0
    matrices = np.array([factor.ctypes.data for factor in factors], np.int64)
    stored = shard.indices[0].itemsize == NARROW.itemsize, kind.itemsize == 8, stride
    return np.array([column.ctypes.data for column in columns], np.int64), matrices, stored
