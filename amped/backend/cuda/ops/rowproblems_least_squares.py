"""Least squares of rows over their nonzeros, on a GPU; see `backend.ops.rowproblems`, method "als".

Rows in single precision with few columns are summed and solved in one pass (``observed.cu``). The sums of other rows
are computed in double precision, batch by batch (``rowproblems.cu``), and solved afterwards (``least_squares.cu``).
With method "gaps" the sums are those of elements that rows lack, and are subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import cupy
import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import FloatDType
from partitioner.cuda.code import allow_shared, load, prepare
from partitioner.cuda.cubins import CudaFunction

from ...device import Array
from ...ops.mttkrp import Kernel, Offers, Share
from ...ops.rowproblems import LEAST_SQUARES, ROWPROBLEMS, RowBytes, RowMethod, RowProblemsProvider, RowTerms
from ...rows import blocks_of
from ..code.least_squares import (
    NOISE,
    SOLVED_BYTES,
    SQUARES,
    THREADS,
    WARP,
    LeastSquaresCode,
    fuses,
    most_parts,
    task_size,
)
from ..code.rows import RowCode, batch_tasks, finding, most_tasks, suits, systems
from ..device import CudaDevice
from ..launches.least_squares import MOST_BLOCKS, NOWHERE, RESULTS, LeastSquaresLaunches
from ..launches.row_passes import nonzeros_of
from ..launches.system_passes import SystemPasses
from ..layout import PackedLayout, make_layout
from ..shard import CudaShard
from ..source import by_value
from .mttkrp import inputs_of
from .rowproblems import CudaRowProblems, CudaRows, batches, most_of_row, split

LEAST_CAPABILITY = 80  # compute capability 8.0
MOST_COMMON = 4096  # rows without gaps that are solved at a time


class FusedTasks(NamedTuple):
    """Tasks of ``observed.cu``, int32 arrays on the device, in descending order of their numbers of nonzeros."""

    row: Array
    start: Array
    stop: Array
    part: Array  # number of its part of a heavy row; -1: the task has the whole row
    heavy: Array  # (H,) rows with several tasks
    first: Array  # (H + 1,) first part of each of them, then the number of parts
    parts: int

    @property
    def packed(self) -> np.void:
        """The tasks as `Tasks` in ``observed.cu``."""
        fields = np.dtype([("arrays", "u8", (4,)), ("count", "i4")], align=True)
        return by_value(np.array([([array.data.ptr for array in self[:4]], self.row.size)], fields))


@dataclass
class SolvedRows:
    """The rows of a shard, and the tasks in which they are solved in one pass, if they are."""

    rows: CudaRows
    fused: FusedTasks | None

    @property
    def nbytes(self) -> int:
        """Size in bytes of device memory."""
        fused: tuple[Array, ...] = self.fused[:6] if self.fused else ()
        return self.rows.nbytes + sum(int(array.nbytes) for array in fused)


def fused_tasks(rows: CudaRows, whole: slice | None, size: int) -> FusedTasks:
    """Return the tasks of rows, of all or only of `whole`, with at most `size` nonzeros each."""
    chosen = slice(None) if whole is None else slice(*np.searchsorted(rows.rows, (whole.start, whole.stop)))
    names, starts, stops = rows.rows[chosen], rows.starts[chosen], rows.stops[chosen]
    counts = -(-(stops - starts) // size)
    row, number = np.repeat(np.arange(names.size), counts), np.arange(counts.sum())
    number -= np.repeat(np.cumsum(counts) - counts, counts)
    start = starts[row] + number * size
    stop = np.minimum(start + size, stops[row])
    heavy = counts > 1
    part = np.full(row.size, -1)
    part[heavy[row]] = np.arange(counts[heavy].sum())
    order = np.argsort(start - stop, kind="stable")
    first = np.concatenate([[0], np.cumsum(counts[heavy])])
    columns = [each[order] for each in (names[row], start, stop, part)]
    on_device = [cupy.asarray(each.astype(np.int32)) for each in (*columns, names[heavy], first)]
    row, start, stop, part, names, first_parts = on_device
    return FusedTasks(row, start, stop, part, names, first_parts, int(first[-1]))


def largest_size(share: Share) -> int:
    """Return the doubles that have room for the largest number of each column of each input."""
    return -(-len(share.lengths) * share.stride // 2)


class CudaLeastSquaresShared:
    """See `Shared`."""

    def __init__(self, code: LeastSquaresCode, count: int) -> None:
        self.code = code
        self.rows, self.sums = cupy.zeros((count, code.rank), np.float64), cupy.zeros((count, code.sums), np.float64)
        self.changes, self.seen = None, cupy.zeros(LEAST_SQUARES, np.float64)
        self.status = cupy.zeros(count, np.int32)  # all are active
        self.solved = cupy.empty((count, RESULTS), np.float64)

    def begin(self) -> None:
        self.seen.fill(0)

    def left(self) -> int:
        return len(self.rows)


class CudaLeastSquares:
    """See `RowProblemsProvider`."""

    method: RowMethod = "als"
    codes = 2

    def __init__(self, device: CudaDevice) -> None:
        self._limits, self._number = device.limits, device.number
        self._recent = device.capability >= LEAST_CAPABILITY
        self._rows = CudaRowProblems(device, "pqnr")

    def suits(self, kernel: Kernel, share: Share) -> bool:
        """See `RowProblemsProvider`: nonzeros must be in packed records."""
        packed = Offers.PACKED in kernel.offers
        return packed and suits(make_layout(kernel.name, share, self._limits), "pdnr", self._limits)

    def _fuses(self, layout: PackedLayout) -> bool:
        """Return whether rows are summed and solved in one pass."""
        return self._recent and fuses(layout)

    def prepare(self, kernel: Kernel, share: Share, rank: int) -> None:
        layout, code = make_layout(kernel.name, share, self._limits), LeastSquaresCode(rank, share.dtype)
        sums = code.fused(layout) if self._fuses(layout) else systems(layout, code.sums_of, SQUARES)
        prepare([finding(layout), sums, code.solving()])

    def bytes(self, kernel: Kernel, share: Share, nnz: int) -> RowBytes:
        if not nnz:
            return RowBytes(0, 0)
        rows = min(share.rows.stop - share.rows.start, nnz)
        kept = self._rows.bytes(kernel, share, nnz).kept
        code = LeastSquaresCode(share.stride, share.dtype)
        if self._fuses(make_layout(kernel.name, share, self._limits)):
            parts = most_parts(nnz, self._limits)
            heavy = min(parts, rows)
            results = SOLVED_BYTES * (rows + parts + heavy + MOST_BLOCKS) + 8 * largest_size(share)
            running = 4 * code.part * parts + 8 * code.sums * heavy + results
            return RowBytes(kept + 16 * (rows + parts) + 8 * (heavy + 1), running)
        tasks = most_tasks(share, nnz, self._limits)
        most = batch_tasks(code.sums_of, code.rank, tasks, most_of_row(nnz, self._limits))
        return RowBytes(kept, most * (code.sums_of.bytes + SOLVED_BYTES))

    def make(self, shard: CudaShard, share: Share, whole: slice | None = None) -> SolvedRows:
        rows, fused = self._rows.make(shard, share, whole), None
        if rows.rows.size and self._fuses(shard.layout):
            fused = fused_tasks(rows, whole, task_size(shard.nnz, self._limits))
        return SolvedRows(rows, fused)

    def run(
        self,
        made: SolvedRows,
        shard: CudaShard,
        factors: Sequence[Array],
        own: Array,
        rank: int,
        limits: RowTerms,
        seen: Array,
        whole: slice | None = None,
        scratch: Array = None,
    ) -> None:
        """See `RowProblemsProvider`; queued on the current stream."""
        code = LeastSquaresCode(rank, own.dtype)
        solver = LeastSquaresLaunches(code, limits, self._number)
        bounds = (0, len(own)) if whole is None else (whole.start, whole.stop)
        if not limits.partial:
            begin, end = np.searchsorted(made.rows.empty, bounds)
            solver.clear(made.rows.empty_names[begin:end], own)
        if made.fused is not None:
            self._run_fused(made.fused, shard, factors, own, solver, seen, scratch)
            return
        self._run_batches(made.rows, shard, factors, own, solver, seen, bounds, scratch)

    def _run_fused(
        self,
        tasks: FusedTasks,
        shard: CudaShard,
        factors: Sequence[Array],
        own: Array,
        solver: LeastSquaresLaunches,
        seen: Array,
        scratch: Array,
    ) -> None:
        code, heavy = solver.code, tasks.heavy.size
        results = tasks.row.size + heavy
        last = RESULTS * (results + MOST_BLOCKS)
        # Vectors are read from the first two, and written.
        largest, parts, sums, solved = split(
            scratch, largest_size(shard.layout.share), tasks.parts * code.part // 2, heavy * code.sums, last
        )[:4]
        kernels = _fused(shard.layout, code, self._number)
        inputs = inputs_of(shard.layout, factors)
        args = inputs, nonzeros_of(shard), tasks.packed, own, solver.terms
        room, warps = code.shared_of_warp(shard.layout, solver.in_double), THREADS // WARP
        kernels.clear_largest((1,), (THREADS,), (largest,))
        slices = min(self._limits.processors, -(-max(shard.layout.share.lengths) // WARP))
        kernels.find_largest((slices, len(factors)), (256,), (inputs, largest))
        kernels.solve_tasks(
            (-(-tasks.row.size // warps),),
            (THREADS,),
            (*args, np.float64(NOISE), solver.common, solved, parts, largest, np.int32(room // 16)),
            shared_mem=warps * room,
        )
        if not solver.in_double:
            blocks = (-(-tasks.row.size // WARP),)
            kernels.solve_doubtful(blocks, (WARP,), (*args, solved), shared_mem=code.shared)
        if heavy:
            blocks = (-(-heavy * code.sums // THREADS),)
            kernels.add_parts(blocks, (THREADS,), (parts, tasks.first, np.int32(heavy), sums))
            solver.solve(sums, tasks.heavy, own, solved[RESULTS * tasks.row.size :], noise=NOISE)
        solver.add_solved(solved, results, seen, solved[RESULTS * results :])

    def _run_batches(
        self,
        made: CudaRows,
        shard: CudaShard,
        factors: Sequence[Array],
        own: Array,
        solver: LeastSquaresLaunches,
        seen: Array,
        bounds: tuple[int, int],
        scratch: Array,
    ) -> None:
        sums_of = solver.code.sums_of
        most = batch_tasks(sums_of, own.shape[1], int(made.first[-1]), most_of_row(shard.nnz, self._limits))
        begin, end = np.searchsorted(made.rows, bounds)
        passes = self._passes(sums_of, shard, factors)
        if scratch is None:
            scratch = cupy.empty(most * (sums_of.bytes + SOLVED_BYTES), np.uint8)
        for rows in batches(made.first, int(begin), int(end), most):
            batch = made.tasks.part(rows, slice(int(made.first[rows.start]), int(made.first[rows.stop])))
            names, count = made.names[rows], rows.stop - rows.start
            parts, matrix, solved, rest = split(
                scratch, batch.row.size * sums_of.sums, count * sums_of.rank, RESULTS * count
            )
            status = rest[: 4 * count].view(np.int32)
            passes.take_rows(names, own, matrix, status)
            passes.add_sums(batch, status, matrix, parts)
            solver.solve(parts, names, own, solved, sums_of.sums, batch)
            solver.add_solved(solved, count, seen)

    def _passes(self, code: RowCode, shard: CudaShard, factors: Sequence[Array]) -> SystemPasses:
        return SystemPasses(code, shard, inputs_of(shard.layout, factors), SQUARES, self._number)

    def shared_bytes(self, rank: int) -> int:
        return 8 * (rank + LeastSquaresCode(rank, np.dtype(np.float64)).sums + 1) + 4 + SOLVED_BYTES

    def share_rows(self, count: int, rank: int) -> CudaLeastSquaresShared:
        return CudaLeastSquaresShared(LeastSquaresCode(rank, np.dtype(np.float64)), count)

    def add_sums(
        self,
        made: SolvedRows,
        shard: CudaShard,
        factors: Sequence[Array],
        places: Sequence[tuple[int, int]],
        shared: CudaLeastSquaresShared,
        limits: RowTerms,
        scratch: Array = None,
    ) -> None:
        tasks, rows = made.rows.tasks_of(places)
        if not tasks.row.size:
            return
        sums_of = shared.code._replace(dtype=shard.layout.share.dtype).sums_of
        parts = split(scratch, tasks.row.size * sums_of.sums)[0]
        passes = self._passes(sums_of, shard, factors)
        passes.add_sums(tasks, shared.status, shared.rows, parts)
        passes.add_systems(tasks, parts, rows, shared.sums)

    def step(self, shared: CudaLeastSquaresShared, limits: RowTerms, number: int) -> None:
        """See `RowProblemsProvider`: solves the rows."""
        solver = LeastSquaresLaunches(shared.code, limits, self._number)
        solver.solve(shared.sums, NOWHERE, shared.rows, shared.solved)
        solver.add_solved(shared.solved, len(shared.rows), shared.seen)

    def add_changes(
        self,
        made: SolvedRows,
        shard: CudaShard,
        factors: Sequence[Array],
        places: Sequence[tuple[int, int]],
        shared: CudaLeastSquaresShared,
        limits: RowTerms,
        scratch: Array = None,
    ) -> None:
        """See `RowProblemsProvider`: the squared residuals are known from the sums."""

    def advance(self, shared: CudaLeastSquaresShared, limits: RowTerms, number: int) -> None:
        """See `RowProblemsProvider`: one step solves a row."""


class CommonRows(NamedTuple):
    """Rows that are solved from common equations, and memory for some of them."""

    names: Array
    sums: Array
    solved: Array


class CudaGaps(CudaLeastSquares):
    """See `GapRowsProvider`."""

    method: RowMethod = "gaps"

    def make_common(self, rows: NDArray[np.intp], rank: int, dtype: FloatDType) -> CommonRows:
        code, count = LeastSquaresCode(rank, dtype), min(rows.size, MOST_COMMON)
        names, sums = cupy.asarray(rows.astype(np.int32)), cupy.empty((count, code.sums), np.float64)
        return CommonRows(names, sums, cupy.empty((count, RESULTS), np.float64))

    def run_common(self, made: CommonRows, own: Array, rank: int, limits: RowTerms, seen: Array) -> None:
        solver = LeastSquaresLaunches(LeastSquaresCode(rank, own.dtype), limits, self._number)
        for block in blocks_of(made.names.size, MOST_COMMON):
            names = made.names[block]
            made.sums.fill(0)  # these rows lack nothing
            solver.solve(made.sums, names, own, made.solved)
            solver.add_solved(made.solved, names.size, seen)

    def common_bytes(self, rows: int, rank: int) -> int:
        code = LeastSquaresCode(rank, np.dtype(np.float64))
        return 4 * rows + min(rows, MOST_COMMON) * (8 * code.sums + SOLVED_BYTES)


class _Fused(NamedTuple):
    """Kernels of ``observed.cu``."""

    clear_largest: CudaFunction
    find_largest: CudaFunction
    solve_tasks: CudaFunction
    solve_doubtful: CudaFunction
    add_parts: CudaFunction


@cache
def _fused(layout: PackedLayout, code: LeastSquaresCode, device: int) -> _Fused:
    module = load(code.fused(layout))
    kernels = _Fused(*(module.get_function(name) for name in _Fused._fields))
    allow_shared(kernels.solve_tasks)
    return kernels


@ROWPROBLEMS.provider("cuda")
def providers(device: CudaDevice) -> Sequence[RowProblemsProvider[RowTerms]]:
    """Return the providers of the operation."""
    return [CudaLeastSquares(device), CudaGaps(device)]
