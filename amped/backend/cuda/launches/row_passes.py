"""Rows solved together on a GPU: their state, tasks, and launches of ``rowproblems.cu`` and ``rowsteps.cu``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import cupy
import numpy as np
from numpy.typing import NDArray

from partitioner.cuda.code import allow_shared, load
from partitioner.cuda.cubins import CudaFunction

from ...device import Array
from ...ops.rowproblems import RowLimits
from ..code.rows import FACTS, LENGTHS, TEAM, VECTORS, RowCode, finding
from ..layout import MemoryPart, PackedLayout
from ..shard import CudaShard
from ..source import by_value

WARP = 32
DONE = 2  # status of a row, as in rowsteps.cu
NOWHERE = np.uint64(0)
Ints = NDArray[np.int32]


@dataclass(frozen=True)
class RowTasks:
    """Parts of rows' nonzeros, int32 arrays on the device.

    The tasks of row k are ``first[k]`` to ``first[k + 1]``. In a batch of the rows, numbers still count all tasks: its
    first task is number `begin`, its first row number `begin_row`.
    """

    row: Array  # (tasks,) position of the task's row
    start: Array  # (tasks,) first nonzero
    stop: Array  # (tasks,) end of the nonzeros
    first: Array  # (rows + 1,)
    begin: int = 0
    begin_row: int = 0

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(self.row.nbytes + self.start.nbytes + self.stop.nbytes + self.first.nbytes)

    @cached_property
    def packed(self) -> np.void:
        """The tasks as `Tasks` in ``rowproblems.cu``."""
        fields = np.dtype([("arrays", "u8", (3,)), ("first", "i4")], align=True)
        places = [array.data.ptr for array in (self.row, self.start, self.stop)]
        return by_value(np.array([(places, self.begin_row)], fields))

    def part(self, rows: slice, tasks: slice) -> RowTasks:
        """Return the tasks of a batch of rows."""
        first = self.first[rows.start : rows.stop + 1]
        return RowTasks(self.row[tasks], self.start[tasks], self.stop[tasks], first, tasks.start, rows.start)


def cut_tasks(starts: Ints, stops: Ints, places: Ints, size: int) -> tuple[RowTasks, Ints]:
    """Cut the nonzeros of rows into tasks of at most `size`; return them, and `RowTasks.first` on the host."""
    counts = -(-(stops - starts) // size)
    first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    number = np.arange(first[-1]) - np.repeat(first[:-1], counts)
    start = np.repeat(starts, counts) + number * size
    columns = np.repeat(places, counts), start, np.minimum(start + size, np.repeat(stops, counts)), first
    return RowTasks(*(cupy.asarray(column.astype(np.int32)) for column in columns)), first


class RowState:
    """The state of rows being solved; see `State` in ``rowsteps.cu``.

    Attributes
    ----------
    rows : (count, R) float64 device array
    """

    def __init__(self, code: RowCode, count: int, memory: Array) -> None:
        """Use ``count * code.row_bytes`` bytes of `memory`, uint8."""
        self.code, self.count = code, count
        widths = code.rank, code.rank, FACTS, 0 if code.newton else VECTORS * code.rank
        ends = np.cumsum([0, *widths]) * count
        numbers = memory[: 8 * int(ends[-1])].view(np.float64)
        parts = [numbers[a:b].reshape(count, w) for a, b, w in zip(ends[:-1], ends[1:], widths, strict=True)]
        self.status = memory[numbers.nbytes : numbers.nbytes + 4 * count].view(np.int32)
        self.rows, self.direction = parts[0], parts[1]
        self.pointers = by_value(np.array([self.status.data.ptr, *(part.data.ptr for part in parts)], np.uint64))


class RowPasses:
    """Launches of passes over the nonzeros of a shard."""

    def __init__(self, code: RowCode, shard: CudaShard, inputs: np.void, floor: float, device: int) -> None:
        self._code, self._shard, self._inputs, self._floor = code, shard, inputs, np.float64(floor)
        self._functions = _passes(shard.layout, code, device)
        self._nonzeros = nonzeros_of(shard)

    def add_sums(
        self, tasks: RowTasks, state: RowState, parts: Array, places: Array = None, sums: Array = None
    ) -> None:
        """Compute the sums of the tasks, and add up the parts of each row; see `_gather`."""
        if not tasks.row.size:
            return
        pointers = state.status, state.rows, parts, self._floor
        grid = tasks.row.size, self._code.squares
        self._pass(self._functions["add_sums"], grid, tasks, pointers)
        self._gather(tasks, state, parts, self._code.sums, places, sums)

    def add_changes(
        self, tasks: RowTasks, state: RowState, parts: Array, places: Array = None, sums: Array = None
    ) -> None:
        """Compute the tasks' changes of the objective, and add up the parts of each row."""
        if not tasks.row.size:
            return
        pointers = state.status, state.rows, state.direction, parts, self._floor
        self._pass(self._functions["add_changes"], (tasks.row.size,), tasks, pointers)
        self._gather(tasks, state, parts, LENGTHS, places, sums)

    def _pass(
        self, function: CudaFunction, grid: tuple[int, ...], tasks: RowTasks, pointers: tuple[object, ...]
    ) -> None:
        arguments = self._inputs, self._nonzeros, tasks.packed, *pointers
        function(grid, (TEAM,), arguments, shared_mem=self._code.shared_for_passes)

    def _gather(self, tasks: RowTasks, state: RowState, parts: Array, width: int, places: Array, sums: Array) -> None:
        """Add up the parts of rows: into the first part of each row, or into `sums` at the rows' `places`."""
        count = tasks.first.size - 1
        numbers = np.int32(tasks.begin), np.int32(count), np.int32(width)
        to = (NOWHERE, state.status, parts) if places is None else (places, state.status, sums)
        blocks = -(-count * width // TEAM)
        self._functions["gather"]((blocks,), (TEAM,), (parts, tasks.first, *numbers, *to))


class RowSteps:
    """Launches that compute the steps of the rows of a state from their sums and changes.

    Sums are (..., S) float64: those of row k are at k, or, if there are `tasks`, at the row's first task.
    """

    def __init__(
        self, state: RowState, sums: Array, changes: Array, seen: Array, tasks: RowTasks | None = None
    ) -> None:
        self._functions = _steps(state.code, cupy.cuda.runtime.getDevice())
        self.state, self.sums, self.changes, self._seen = state, sums, changes, seen
        self._slots = (NOWHERE, np.int32(0)) if tasks is None else (tasks.first, np.int32(tasks.begin))
        self._reuses = np.int32(tasks is not None)

    def begin(self, names: Array = None, own: Array = None) -> None:
        """Start with the rows of `own` called `names`, or with the rows in the state."""
        matrix = (NOWHERE, NOWHERE, np.int64(0)) if own is None else (names, own, np.int64(own.shape[1]))
        self._functions["begin_rows"]((self.state.count,), (self.state.code.team,), (self.state.pointers, *matrix))

    def end(self, names: Array, own: Array) -> None:
        """Write the rows to `own` at `names`."""
        matrix = names, own, np.int64(own.shape[1])
        self._functions["end_rows"]((self.state.count,), (self.state.code.team,), (self.state.pointers, *matrix))

    def step(self, number: int, limits: RowLimits) -> None:
        """Compute the step of each row in pass `number`."""
        numbers = *self._slots, np.int32(number), self._reuses, np.float64(limits.tolerance)
        arguments = self.state.pointers, self.sums, *numbers, self._seen
        shared = self.state.code.shared_for_steps
        self._functions["step"]((self.state.count,), (self.state.code.team,), arguments, shared_mem=shared)

    def advance(self, number: int) -> None:
        """Take the steps of pass `number`."""
        numbers = *self._slots, np.int32(self.state.count), np.int32(number), self._reuses
        arguments = self.state.pointers, self.sums, self.changes, *numbers, self._seen
        self._functions["advance"](
            (-(-self.state.count * WARP // self.state.code.team),), (self.state.code.team,), arguments
        )


def clear_rows(code: RowCode, names: Array, own: Array, seen: Array) -> None:
    """Set rows of `own` without nonzeros to zero."""
    if names.size:
        function = _steps(code, cupy.cuda.runtime.getDevice())["clear_rows"]
        function((names.size,), (code.team,), (names, own, np.int64(own.shape[1]), seen))


def find_rows(shard: CudaShard, rows: int) -> Ints:
    """Return the first nonzero of each of the share's rows, (rows,), or -1; the shard may be on the host."""
    begins = cupy.empty(rows, np.int32)
    begins.data.memset_async(255, begins.nbytes)  # all bits set: -1
    if shard.nnz:
        function = _finding(shard.layout, cupy.cuda.runtime.getDevice())
        chunks = shard.jobs * shard.layout.groups
        counts = np.int32(chunks), np.int32(shard.nnz)
        arguments = nonzeros_of(shard), shard.at(MemoryPart.STARTS), shard.at(MemoryPart.RUNS), *counts
        function((-(-chunks // TEAM),), (TEAM,), (*arguments, begins[shard.first_row :]))
    return begins.get()  # type: ignore[no-any-return]


def nonzeros_of(shard: CudaShard) -> np.void:
    """Return a shard's nonzeros as `Nonzeros` in ``rowproblems.cu``."""
    return by_value(np.array([shard.at(MemoryPart.JOBS), shard.at(MemoryPart.RECORDS)], np.uint64))


@cache
def _finding(layout: PackedLayout, device: int) -> CudaFunction:
    return load(finding(layout)).get_function("find_rows")


@cache
def _passes(layout: PackedLayout, code: RowCode, device: int) -> dict[str, CudaFunction]:
    module = load(code.passing(layout))
    functions = {name: module.get_function(name) for name in ("add_sums", "add_changes", "gather")}
    for name in ("add_sums", "add_changes"):
        allow_shared(functions[name])
    return functions


@cache
def _steps(code: RowCode, device: int) -> dict[str, CudaFunction]:
    module = load(code.stepping())
    names = "begin_rows", "end_rows", "clear_rows", "step", "advance"
    functions = {name: module.get_function(name) for name in names}
    allow_shared(functions["step"])
    return functions
