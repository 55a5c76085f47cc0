"""Row problems of CP-APR on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...device import Array
from ...ops.rowproblems import (
    FAILED,
    ITERATIONS,
    KKT,
    ROWPROBLEMS,
    RowLimits,
    RowMethod,
    RowProblemsProvider,
)
from ...row_constants import CURVED, DAMPING, LENGTHS, SOLVED
from ..caches import aligned
from ..device import CpuDevice
from ..rows import newton, quasi_newton
from ..rows import shared as sharedrows
from ..rows.model import block_of, kept_in, part_of, scratch_size
from ..rows.problems import RowOrder, solve_by_newton, solve_by_quasi_newton, status_of
from ..rows.shared import all_go, parts_of
from ..rows.threaded import ThreadedRows, add_parts, addresses, place_of
from ..shard import HostShard
from ..simd.doubles import FOUR
from ..simd.vectors import LINE

KEPT_BYTES = 4 << 20  # scratch of a thread: reading Pi from a distant cache is faster than recomputing it
WORK = 4  # R x R work matrices of a thread, for PDNR


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


class HostRows(ThreadedRows):
    """See `ThreadedRows`; heavy rows are solved in step."""

    def __init__(self, device: CpuDevice, method: RowMethod) -> None:
        super().__init__(device)
        self.method, self._code = method, CODE[method]

    def shared_bytes(self, rank: int) -> int:
        return 8 * (2 * rank + self._code.sums(rank) + LENGTHS + self._code.memory(rank) + 2)

    def _thread_numbers(self, rank: int) -> int:
        return numbers_of(rank) + (WORK * rank * rank if self._code.curved else 0)

    def _part_numbers(self, rank: int) -> int:
        return max(self._code.sums(rank), LENGTHS)

    def _part_of(self, rank: int) -> int:
        return part_of(padded_rank(rank))

    def _scratch(
        self, memory: NDArray[np.uint8] | None, padded: int, parts: int = 0, width: int = 0
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the scratch of each thread, (threads, numbers), and (parts, width) for the sums of parts."""
        shape = self._threads.count, numbers_of(padded)
        own, others = shape[0] * shape[1], parts * width
        if memory is None:
            numbers = aligned((own + others,), np.dtype(np.float64))
        else:
            begin = -memory.ctypes.data % LINE
            numbers = memory[begin : begin + 8 * (own + others)].view(np.float64)
        return numbers[:own].reshape(shape), numbers[own:].reshape(parts, width)

    def _run_light(  # type: ignore[no-untyped-def]
        self, made, shard, factors, own, rank, limits, seen, bounds, scratch
    ) -> None:
        padded, of_threads = padded_rank(rank), status_of(self._threads.count)
        memory, _ = self._scratch(scratch, padded)
        stops = int(limits.inner), float(limits.tolerance), float(limits.floor)
        args = nonzeros_of(shard, factors, rank), tuple(made), place_of(own, factors[0]), bounds, stops
        self._threads.call(self._code.solve, *args, memory, kept_in(padded, memory.shape[1]), of_threads)
        _add_statistics(seen, of_threads)

    def _run_heavy(  # type: ignore[no-untyped-def]
        self, made, shard, factors, own, rank, limits, seen, heavy, scratch
    ) -> None:
        shared, places = self.share_rows(heavy.size, rank), list(enumerate(heavy.tolist()))
        shared.rows[:] = own[heavy, :rank]
        shared.begin()
        for number in range(1 + limits.inner):
            shared.sums.fill(0)
            self.add_sums(made, shard, factors, places, shared, limits, scratch)
            self.step(shared, limits, number)
            if not shared.left():
                break
            for lengths in (1, LENGTHS):
                shared.changes.fill(0)
                self._add_changes(made, shard, factors, places, shared, limits, scratch, lengths)
                if number == 0 or all_go(shared.changes, shared.steps, shared.downhill, shared.moves):
                    break
            self.advance(shared, limits, number)
        own[heavy, :rank] = shared.rows
        _add_statistics(seen, shared.seen[None])

    def share_rows(self, count: int, rank: int) -> HostShared:
        return HostShared(self._code, count, rank)

    def add_sums(
        self,
        made: RowOrder,
        shard: HostShard,
        factors: Sequence[Array],
        places: Sequence[tuple[int, int]],
        shared: HostShared,
        limits: RowLimits,
        scratch: Array = None,
    ) -> None:
        rank = shared.rows.shape[1]
        width, padded, curved = shared.sums.shape[1], padded_rank(rank), self._code.curved and not shared.begins
        parts = parts_of(made, places, part_of(padded))
        memory, out = self._scratch(scratch, padded, parts.places.size, width if curved else rank + CURVED)
        args = nonzeros_of(shard, factors, rank), tuple(parts), shared.rows, shared.moves, float(limits.floor)
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
        made: RowOrder,
        shard: HostShard,
        factors: Sequence[Array],
        places: Sequence[tuple[int, int]],
        shared: HostShared,
        limits: RowLimits,
        scratch: Array = None,
    ) -> None:
        self._add_changes(made, shard, factors, places, shared, limits, scratch, LENGTHS)

    def _add_changes(  # type: ignore[no-untyped-def]
        self, made, shard, factors, places, shared, limits, scratch, lengths
    ) -> None:
        """Add changes of the objective for the first `lengths` step lengths."""
        padded = padded_rank(shared.rows.shape[1])
        parts, rank = parts_of(made, places, part_of(padded)), shared.rows.shape[1]
        memory, out = self._scratch(scratch, padded, parts.places.size, lengths)
        args = nonzeros_of(shard, factors, rank), tuple(parts), shared.rows, shared.steps, shared.moves
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


def _add_statistics(seen: Array, of_threads: NDArray[np.float64]) -> None:
    """Add the statistics of threads."""
    seen[KKT] = max(seen[KKT], of_threads[:, KKT].max())
    seen[[ITERATIONS, FAILED]] += of_threads[:, [ITERATIONS, FAILED]].sum(axis=0)


def padded_rank(rank: int) -> int:
    """Return the rank rounded up to a multiple of four."""
    return -(-rank // FOUR) * FOUR


def numbers_of(padded: int) -> int:
    """Return the size of a thread's scratch, in numbers."""
    return max(KEPT_BYTES // 8, scratch_size(padded, 1))


def nonzeros_of(shard: HostShard, factors: Sequence[Array], rank: int) -> tuple[Array, Array, tuple[int, ...]]:
    """Return the addresses of columns and matrices, and their form; see `rows.model`."""
    columns, matrices, stored = addresses(shard, factors)
    padded = padded_rank(rank)
    return columns, matrices, (*stored, rank, padded, block_of(padded), part_of(padded))
