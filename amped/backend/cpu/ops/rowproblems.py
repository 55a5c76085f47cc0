"""Row problems of CP-APR on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...device import Array
from ...ops.mttkrp import Kernel, Offers, Share
from ...ops.rowproblems import (
    FAILED,
    ITERATIONS,
    KKT,
    ROWPROBLEMS,
    RowBytes,
    RowLimits,
    RowMethod,
    RowProblemsProvider,
    clear_empty,
)
from ...row_constants import CURVED, DAMPING, LENGTHS, SOLVED
from ..caches import aligned
from ..device import CpuDevice
from ..layout import NARROW
from ..rows import newton, quasi_newton
from ..rows import shared as sharedrows
from ..rows.model import PART, PART_RANK, block_of, kept_in, part_of, scratch_size
from ..rows.problems import RowOrder, order_bytes, order_rows, solve_by_newton, solve_by_quasi_newton, status_of
from ..rows.shared import SharedParts, all_go, parts_of
from ..shard import HostShard
from ..simd.doubles import FOUR
from ..simd.vectors import LINE
from ..threads import check

KEPT_BYTES = 4 << 20  # scratch of a thread: reading Pi from a distant cache is faster than recomputing it
WORK = 4  # R x R work matrices of a thread, for PDNR
IN_STEP_BYTES = 32 << 20  # state of the rows with many nonzeros that are solved in step at a time
IN_STEP_COST = 4  # thread time of such a row, relative to one thread that keeps its Pi


class RowProblemCode(NamedTuple):
    """A method's compiled functions; see `rows.problems` and `rows.shared`."""

    solve: Callable[..., int]
    step: Callable[..., int]
    advance: Callable[..., None]
    start: float  # initial value of the first number of a row's memory
    curved: bool  # whether it uses second derivatives

    def sums(self, rank: int) -> int:
        """Return the number of sums over a row's nonzeros."""
        return rank + CURVED + (rank * rank if self.curved else 0)

    def memory(self, rank: int) -> int:
        """Return the size of a row's memory between iterations, in numbers."""
        return newton.MEMORY if self.curved else 1 + quasi_newton.KEPT * rank


CODE: dict[RowMethod, RowProblemCode] = {
    "pdnr": RowProblemCode(solve_by_newton, sharedrows.step_by_newton, sharedrows.advance_by_newton, DAMPING, True),
    "pqnr": RowProblemCode(
        solve_by_quasi_newton, sharedrows.step_by_quasi_newton, sharedrows.advance_by_quasi_newton, 0.0, False
    ),
}


class HostShared:
    """See `Shared`; also has the step, memory, slope and state of each row."""

    def __init__(self, code: RowProblemCode, count: int, rank: int) -> None:
        self._start = code.start
        self.rows, self.steps = np.zeros((count, rank)), np.zeros((count, rank))
        self.sums, self.changes = np.zeros((count, code.sums(rank))), np.zeros((count, LENGTHS))
        self.memory, self.downhill = np.zeros((count, code.memory(rank))), np.zeros(count)
        self.moves, self.seen = np.zeros(count, np.int64), np.zeros(3)
        self.begins = False

    def begin(self) -> None:
        self.moves.fill(SOLVED + 1)
        self.memory[:, 0] = self._start
        self.seen.fill(0)
        self.begins = True

    def left(self) -> int:
        return int(np.count_nonzero(self.moves != SOLVED))


class RowThreads:
    """The threads that solve rows, and their scratch memory."""

    def __init__(self, device: CpuDevice) -> None:
        self._threads = device.threads

    @property
    def count(self) -> int:
        """The number of threads."""
        return self._threads.count

    def call(self, function: Callable[..., int], *arguments: object) -> None:
        """Call a compiled function with all threads."""
        check(function(0, self._threads.team, self._threads.count, np.zeros(1, np.int64), *arguments))

    def scratch(
        self, memory: NDArray[np.uint8] | None, padded: int, parts: int = 0, width: int = 0
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the scratch of each thread, (threads, numbers), and (parts, width) for the sums of parts."""
        shape = self.count, numbers_of(padded)
        own, others = shape[0] * shape[1], parts * width
        if memory is None:
            numbers = aligned((own + others,), np.dtype(np.float64))
        else:
            begin = -memory.ctypes.data % LINE
            numbers = memory[begin : begin + 8 * (own + others)].view(np.float64)
        return numbers[:own].reshape(shape), numbers[own:].reshape(parts, width)


class HostRows:
    """Solve each row on one thread, and rows of many nonzeros in step. See `RowProblemsProvider`."""

    codes = 3  # solving rows in step counts as two kernels

    def __init__(self, device: CpuDevice, method: RowMethod) -> None:
        self.method, self._threads, self._code = method, RowThreads(device), CODE[method]

    def suits(self, kernel: Kernel, share: Share) -> bool:
        """See `RowProblemsProvider`: the nonzeros of a row must be contiguous."""
        return Offers.ROWS in kernel.offers

    def bytes(self, kernel: Kernel, share: Share, nnz: int) -> RowBytes:
        rows = min(nnz, share.rows.stop - share.rows.start)
        rank, most = share.stride, max(PART, PART_RANK * (share.stride - LINE // 4))
        parts = 2 * (nnz // most) + 2  # a row has at least half the nonzeros that its parts can have
        own = self._threads.count * (numbers_of(rank) + (WORK * rank * rank if self._code.curved else 0))
        running = 8 * (own + parts * max(self._code.sums(rank), LENGTHS)) + LINE
        # Allocated in addition to scratch memory: the state of rows that all threads solve together.
        running += min(nnz // most, self._batch(rank)) * self.shared_bytes(rank)
        return RowBytes(order_bytes(rows), running) if nnz else RowBytes(0, 0)

    def shared_bytes(self, rank: int) -> int:
        return 8 * (2 * rank + self._code.sums(rank) + LENGTHS + self._code.memory(rank) + 2)

    def make(self, shard: HostShard, share: Share, whole: slice | None = None) -> RowOrder:
        return order_rows(shard)

    def run(
        self,
        row_order: RowOrder,
        shard: HostShard,
        factors: Sequence[Array],
        own: Array,
        rank: int,
        limits: RowLimits,
        seen: Array,
        whole: slice | None = None,
        scratch: Array = None,
    ) -> None:
        rows = slice(0, len(own)) if whole is None else whole
        clear(row_order, own[rows, :rank], rows, seen)
        most = heaviest(row_order, self._threads.count, part_of(padded_rank(rank)))
        self._run_light(row_order, shard, factors, own, rank, limits, seen, (rows.start, rows.stop, most), scratch)
        heavy = row_order.rows[
            (row_order.counts > most) & (row_order.rows >= rows.start) & (row_order.rows < rows.stop)
        ]
        batch = self._batch(rank)
        for first in range(0, heavy.size, batch):
            self._run_heavy(row_order, shard, factors, own, rank, limits, seen, heavy[first : first + batch], scratch)

    def _batch(self, rank: int) -> int:
        """Return the number of rows with many nonzeros that are solved at a time."""
        return max(1, IN_STEP_BYTES // self.shared_bytes(rank))

    def _run_light(  # type: ignore[no-untyped-def]
        self, row_order, shard, factors, own, rank, limits, seen, which, scratch
    ) -> None:
        """Solve rows with one thread each; see `rows.problems.solve_by_newton`."""
        padded, of_threads = padded_rank(rank), status_of(self._threads.count)
        memory, _ = self._threads.scratch(scratch, padded)
        bounds = int(limits.inner), float(limits.tolerance), float(limits.floor)
        args = addresses(shard, factors, rank, padded), tuple(row_order), place_of(own, factors[0]), which, bounds
        self._threads.call(self._code.solve, *args, memory, kept_in(padded, memory.shape[1]), of_threads)
        _add_statistics(seen, of_threads)

    def _run_heavy(  # type: ignore[no-untyped-def]
        self, row_order, shard, factors, own, rank, limits, seen, heavy, scratch
    ) -> None:
        """Solve rows in step; all threads share their nonzeros."""
        shared, places = self.share_rows(heavy.size, rank), list(enumerate(heavy.tolist()))
        shared.rows[:] = own[heavy, :rank]
        shared.begin()
        for number in range(1 + limits.inner):
            shared.sums.fill(0)
            self.add_sums(row_order, shard, factors, places, shared, limits, scratch)
            self.step(shared, limits, number)
            if not shared.left():
                break
            for lengths in (1, LENGTHS):
                shared.changes.fill(0)
                self._add_changes(row_order, shard, factors, places, shared, limits, scratch, lengths)
                if number == 0 or all_go(shared.changes, shared.steps, shared.downhill, shared.moves):
                    break
            self.advance(shared, limits, number)
        own[heavy, :rank] = shared.rows
        _add_statistics(seen, shared.seen[None])

    def share_rows(self, count: int, rank: int) -> HostShared:
        return HostShared(self._code, count, rank)

    def add_sums(
        self,
        row_order: RowOrder,
        shard: HostShard,
        factors: Sequence[Array],
        places: Sequence[tuple[int, int]],
        shared: HostShared,
        limits: RowLimits,
        scratch: Array = None,
    ) -> None:
        rank = shared.rows.shape[1]
        width, padded, curved = shared.sums.shape[1], padded_rank(rank), self._code.curved and not shared.begins
        parts = parts_of(row_order, places, part_of(padded))
        memory, out = self._threads.scratch(scratch, padded, parts.places.size, width if curved else rank + CURVED)
        args = addresses(shard, factors, rank, padded), tuple(parts), shared.rows, shared.moves, float(limits.floor)
        self._threads.call(sharedrows.sums_of_parts, *args, memory, kept_in(padded, memory.shape[1]), curved, out)
        add_parts(shared.sums[:, : out.shape[1]], parts, out)

    def step(self, shared: HostShared, limits: RowLimits, number: int) -> None:
        tolerance = float(limits.tolerance)
        if number == 0:
            shared.begins = False
            sharedrows.begin(shared.sums, shared.rows, shared.steps, shared.moves, tolerance, shared.seen)
            return
        of_threads = status_of(self._threads.count)
        state = shared.rows, shared.steps, shared.memory, shared.downhill, shared.moves
        self._threads.call(self._code.step, shared.sums, *state, tolerance, of_threads)
        _add_statistics(shared.seen, of_threads)

    def add_changes(
        self,
        row_order: RowOrder,
        shard: HostShard,
        factors: Sequence[Array],
        places: Sequence[tuple[int, int]],
        shared: HostShared,
        limits: RowLimits,
        scratch: Array = None,
    ) -> None:
        self._add_changes(row_order, shard, factors, places, shared, limits, scratch, LENGTHS)

    def _add_changes(  # type: ignore[no-untyped-def]
        self, row_order, shard, factors, places, shared, limits, scratch, lengths
    ) -> None:
        """Add changes of the objective for the first `lengths` step lengths."""
        padded = padded_rank(shared.rows.shape[1])
        parts, rank = parts_of(row_order, places, part_of(padded)), shared.rows.shape[1]
        memory, out = self._threads.scratch(scratch, padded, parts.places.size, lengths)
        args = addresses(shard, factors, rank, padded), tuple(parts), shared.rows, shared.steps, shared.moves
        self._threads.call(sharedrows.changes_of_parts, *args, float(limits.floor), memory, out)
        add_parts(shared.changes[:, :lengths], parts, out)

    def advance(self, shared: HostShared, limits: RowLimits, number: int) -> None:
        if number == 0:
            sharedrows.end_begin(shared.changes, shared.rows, shared.steps, shared.moves)
        else:
            state = shared.rows, shared.steps, shared.memory, shared.downhill, shared.moves, shared.seen
            self._code.advance(shared.changes, shared.sums, *state)


@ROWPROBLEMS.provider("cpu")
def providers(device: CpuDevice) -> Sequence[RowProblemsProvider[RowLimits]]:
    """Return the providers of the operation, one for each method."""
    return [HostRows(device, method) for method in CODE]


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


def clear(row_order: RowOrder, own: Array, rows: slice, seen: Array) -> None:
    """Set rows without nonzeros to zero; see `clear_empty`."""
    nonempty = row_order.rows[(row_order.rows >= rows.start) & (row_order.rows < rows.stop)]
    clear_empty(nonempty - rows.start, own, seen)


def _add_statistics(seen: Array, of_threads: NDArray[np.float64]) -> None:
    """Add the statistics of threads."""
    seen[KKT] = max(seen[KKT], of_threads[:, KKT].max())
    seen[[ITERATIONS, FAILED]] += of_threads[:, [ITERATIONS, FAILED]].sum(axis=0)


def add_parts(sums: NDArray[np.float64], parts: SharedParts, out: NDArray[np.float64]) -> None:
    """Add the sums of parts, in order."""
    for place, of_part in zip(parts.places, out, strict=True):
        sums[place] += of_part


def padded_rank(rank: int) -> int:
    """Return the rank rounded up to a multiple of four."""
    return -(-rank // FOUR) * FOUR


def numbers_of(padded: int) -> int:
    """Return the size of a thread's scratch, in numbers."""
    return max(KEPT_BYTES // 8, scratch_size(padded, 1))


def place_of(own: Array, factor: Array) -> tuple[int, int]:
    """Return the address and the row length of an output matrix, whose type must be that of the input matrices."""
    assert own.dtype == factor.dtype
    assert own.strides[1] == own.itemsize
    return own.ctypes.data, own.strides[0] // own.itemsize


def addresses(
    shard: HostShard, factors: Sequence[Array], rank: int, padded: int
) -> tuple[Array, Array, tuple[int, ...]]:
    """Return the addresses of columns and matrices, and their form; see `rows.model`."""
    stride, kind = factors[0].shape[1], factors[0].dtype
    columns = [shard.values, *shard.indices]
    assert all(array.flags.c_contiguous for array in (*columns, *factors))
    assert shard.values.dtype == kind
    assert stride % FOUR == 0
    blocks = block_of(padded), part_of(padded)
    form = shard.indices[0].itemsize == NARROW.itemsize, kind.itemsize == 8, stride, rank, padded, *blocks
    matrices = np.array([factor.ctypes.data for factor in factors], np.int64)
    return np.array([column.ctypes.data for column in columns], np.int64), matrices, form
