"""A sparse tensor on all ranks, to be multiplied with matrices in one mode: SpTTM.

Each rank has an equal share of the nonzeros, sorted by fibre. A fibre that goes on over pieces or ranks is added up in
the last one of them, which has its row of the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats
from partitioner.host.stages import STAGES

from ...backend.device import Array, Slot
from ...backend.exchange import Machine
from ...backend.fibres import count_fibres, fibre_starts
from ...backend.ops.sort import SORT, DeviceSorter
from ...backend.rows import block_rows
from ...errors import InputError
from ...options import Options
from ...parallel.mpi import together
from ...parallel.progress import CURRENT
from ..limits import check_range
from ..memory import SLOTS
from ..placement import Loading
from ..sources.protocols import ProductSource
from .plan import TtmPlan, TtmSetting, make_ttm_plan

FETCHED = 1 << 26  # bytes of a result that come to the host together


@dataclass(frozen=True)
class NonzeroRun:
    """A range of a rank's nonzeros, computed as one piece."""

    shard: Any  # see `FibreShard`
    fibres: int  # that it has nonzeros of
    row: int  # of the rank's result that its first fibre has
    continues: bool  # whether the piece before has nonzeros of its first fibre
    leaves: bool  # whether its last fibre goes on, in the next piece or on the next rank

    @property
    def complete(self) -> int:
        """Number of fibres that are complete after this piece."""
        return self.fibres - self.leaves


class ResultRows(NamedTuple):
    """Rows of a result in host memory."""

    indices: NDArray[np.int32]  # (rows, sparse modes)
    values: Floats  # (rows, numbers)


class TtmOperator:
    """Products of a sparse tensor and matrices in one mode; construction and all methods are collective.

    Attributes
    ----------
    plan : TtmPlan
    fibres : int
        Rows of the result that this rank has.
    rows : (ranks + 1,) int64 array
        Where each rank's rows of the result begin, and the end.
    """

    def __init__(self, source: ProductSource, machine: Machine, setting: TtmSetting) -> None:
        """Load this rank's share of `source`."""
        self.machine, self.options, self.ranks = machine, setting.options, (setting.rank,)
        if source.value_range.largest:  # a chain may have come to nothing
            check_range(source.value_range, self.options.dtype, source.path)
        self.clock, self._mode = machine.device.clock(), setting.mode
        plan, loading = self._planned(source, setting)
        plan.kernel.prepare(plan.form)
        with STAGES.of("sort"):
            columns = source.by_fibre(setting.mode, self.options.dtype)
        source.leave_device()
        *keys, indices, values = columns
        del columns
        self._edges(keys, indices.size)
        fibres = count_fibres(keys, int(indices.size), self._sorter.starts if _on_device(indices) else fibre_starts)
        self.plan = together(machine.comm, lambda: make_ttm_plan(setting, plan.nnz, fibres, loading))
        self.kernels = [self.plan.kernel.name]
        self._indices: list[NDArray[np.int32]] = []
        with STAGES.of("pack"):
            self._pieces = self._make_shards(keys, indices, values)
        del keys, indices, values
        self.fibres = sum(piece.complete for piece in self._pieces)
        self.rows = np.cumsum([0, *machine.comm.allgather(self.fibres)])
        self._place()
        self.clock.collect()

    def _planned(self, source: ProductSource, setting: TtmSetting) -> tuple[TtmPlan, Loading]:
        """Return a plan as if there were one fibre (what is too much then always is), and how nonzeros are loaded.

        Leave the device if it cannot sort nonzeros.
        """
        comm, device = self.machine.comm, self.machine.device
        nnz = source.nnz * (comm.rank + 1) // comm.size - source.nnz * comm.rank // comm.size
        loading = source.loading(comm.size, self.options.dtype, device.on_host)
        plan = together(comm, lambda: make_ttm_plan(setting, nnz, min(1, nnz), loading))
        if loading.device is None or all(comm.allgather(plan.on_device)):
            return plan, loading
        source.leave_device()
        return self._planned(source, setting)

    def _edges(self, keys: Sequence[Array], nnz: int) -> None:
        """Find whether the first fibre begins on an earlier rank, and whether the last one continues on the next."""
        ends = None
        if nnz:
            ends = [tuple(int(key[at]) for key in keys) for at in (0, -1)]
        every, me = self.machine.comm.allgather(ends), self.machine.comm.rank
        before = next((e for e in reversed(every[:me]) if e is not None), None)
        after = next((e for e in every[me + 1 :] if e is not None), None)
        self._from_before = ends is not None and before is not None and before[1] == ends[0]
        self._goes_on = ends is not None and after is not None and after[0] == ends[1]
        nonempty = [e for e in every if e is not None]
        self._split = any(a[1] == b[0] for a, b in pairwise(nonempty))

    def _make_shards(self, keys: Sequence[Array], indices: Array, values: Array) -> list[NonzeroRun]:
        """Build the shards of all pieces; store the coordinates of this rank's fibres."""
        plan, device, nnz, runs, row = self.plan, self.machine.device, int(indices.size), list[NonzeroRun](), 0
        for number, begin in enumerate(range(0, nnz, plan.piece)):
            end = min(begin + plan.piece, nnz)
            some = [self._on_device(array[begin:end]) for array in (*keys, indices, values)]
            starts = (fibre_starts if device.on_host else self._sorter.starts)(some[:-2], end - begin)
            continues = begin > 0 and all(int(key[begin]) == int(key[begin - 1]) for key in keys)
            inner = end < nnz and all(int(key[end]) == int(key[end - 1]) for key in keys)
            leaves = inner or (end == nnz and self._goes_on)
            shard = plan.kernel.make(some[-2], some[-1], starts, plan.form)
            fibres = int(starts.size) - 1
            first = starts[: fibres - leaves]
            coordinates = np.empty((fibres - leaves, len(keys)), np.int32)
            for k, key in enumerate(some[:-2]):
                coordinates[:, k] = key[first] if device.on_host else device.to_host(self._sorter.take(key, first))
            self._indices.append(coordinates)
            if number >= plan.resident:
                shard = shard.unloaded()
            runs.append(NonzeroRun(shard, fibres, row, continues, leaves))
            row += fibres - leaves
            del some, starts, first, shard  # before the next piece's are allocated
        return runs

    @property
    def _sorter(self) -> DeviceSorter:
        return SORT.require(self.machine.device)

    def _on_device(self, array: Array) -> Array:
        """Return a piece of an array in device memory."""
        device = self.machine.device
        if device.on_host or _on_device(array):
            return array
        target = device.empty(array.shape, array.dtype)
        device.fill([target.reshape(-1)], [np.ascontiguousarray(array).reshape(-1)])
        return target

    def _place(self) -> None:
        """Allocate the memory that a product needs."""
        plan, device = self.plan, self.machine.device
        form, row = plan.form, (plan.form.width, plan.form.stride)
        streamed = self._pieces[plan.resident :]
        size = max((piece.shard.nbytes for piece in streamed), default=0)
        self._slots: list[Slot] = [device.slot(size, self.clock) for _ in range(SLOTS if streamed else 0)]
        self._matrix = device.zeros((form.length, form.stride), form.dtype)
        rows = max((piece.row + piece.fibres for piece in self._pieces), default=0)
        if not plan.whole:
            rows = max((piece.fibres for piece in self._pieces), default=0)
        self._out = device.empty((rows, *row), form.dtype)
        self._rows = [
            self._rows_of(piece) for piece in self._pieces
        ]  # computed in advance, so that a GPU does not wait
        self._carry = device.empty(row, form.dtype)
        running = (plan.kernel.bytes(form, p.shard.nnz, p.fibres).running for p in self._pieces)
        self._scratch = device.empty((max(running, default=0),), np.uint8)

    def set_matrix(self, matrix: Floats) -> None:
        """Set the (length, rank) matrix by which to multiply."""
        step = block_rows(self.ranks[0])
        for begin in range(0, len(matrix), step):
            block = np.ascontiguousarray(matrix[begin : begin + step], self.plan.form.dtype)
            self._matrix[begin : begin + step, : self.ranks[0]] = self.machine.device.to_device(block)

    @property
    def result(self) -> Array:
        """This rank's rows on the device, (fibres, width, rank), after `compute`; valid until the next call."""
        assert self.plan.whole
        return self._out[: self.fibres, :, : self.ranks[0]]

    def compute(self) -> None:
        """Compute this rank's rows, for timing only if they do not fit into memory."""
        CURRENT.mode = self._mode
        for _ in self._each():
            pass
        if self._split:
            incoming = self._incoming(self._last_row())
            if self.plan.whole:
                self._add(incoming)

    def _each(self, first: int = 0) -> Iterator[NonzeroRun]:
        """Compute pieces from number `first` on; yield each once its rows, except the last, are complete."""
        pieces, resident = self._pieces, self.plan.resident
        first_streamed = max(first, resident)
        for slot, piece in zip(self._slots, pieces[first_streamed:], strict=False):
            slot.fill(piece.shard, self._mode)
        for number in range(first, len(pieces)):
            piece = pieces[number]
            if number < resident:
                self._run(number, piece.shard, first)
            else:
                slot = self._slots[(number - first_streamed) % SLOTS]
                self._run(number, slot.shard(), first)
                slot.release()
                if number + SLOTS < len(pieces):
                    slot.fill(pieces[number + SLOTS].shard, self._mode)
            yield piece

    def _run(self, number: int, shard: Any, first: int) -> None:
        """Compute a piece, and add the previous piece's contribution to its first row."""
        piece, rows = self._pieces[number], self._rows[number]
        continues = piece.continues and number > first
        with self.clock.span("compute", self._mode):
            if continues:
                before = self._rows[number - 1]
                self._carry[...] = before[len(before) - 1]
            self.plan.kernel.run(shard, self._matrix, rows, self._scratch)
            if continues:
                rows[0] += self._carry

    def _rows_of(self, piece: NonzeroRun) -> Array:
        """Return the output rows of a piece."""
        begin = piece.row if self.plan.whole else 0
        return self._out[begin : begin + piece.fibres]

    def _last_row(self) -> NDArray[np.float64] | None:
        """Return the contribution to the fibre that continues on the next rank, if any."""
        if not self._goes_on:
            return None
        rows = self._rows[-1]
        result: NDArray[np.float64] = self.machine.device.to_host(rows[len(rows) - 1]).astype(np.float64)
        return result

    def _incoming(self, mine: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
        """Return earlier ranks' contribution to this rank's first fibre; `mine` is its contribution to its last one."""
        through = self._from_before and self._goes_on and self.fibres == 0
        every, total = self.machine.comm.allgather((mine, through)), np.zeros(self._carry.shape)
        if not self._from_before:
            return None
        for row, goes_through in reversed(every[: self.machine.comm.rank]):
            if row is not None:  # else it has no nonzeros
                total += row
                if not goes_through:
                    break
        return total

    def _add(self, incoming: NDArray[np.float64] | None, rows: Array = None) -> None:
        """Add earlier ranks' contribution to the row of the first fibre."""
        if incoming is None or not self.fibres:
            return
        device, rows = self.machine.device, self._out if rows is None else rows
        first = device.to_host(rows[0]).astype(np.float64) + incoming
        rows[0] = device.to_device(np.ascontiguousarray(first, rows.dtype))

    def parts(self) -> Iterator[ResultRows]:
        """Compute the product; yield this rank's rows in order and in blocks, each valid until the next.

        What ranks have of common fibres is exchanged before the first one: what follows is not collective.
        """
        CURRENT.mode = self._mode
        if self.plan.whole:
            self.compute()
            return self._stored_parts()
        incoming = self._incoming(self._end_of_share()) if self._split else None
        return self._parts_in_turn(incoming)

    def _end_of_share(self) -> NDArray[np.float64] | None:
        """Compute the contribution to the fibre that continues on the next rank, if any."""
        if self._goes_on:
            begin = len(self._pieces) - 1
            while self._pieces[begin].continues and self._pieces[begin].fibres == 1:
                begin -= 1
            for _ in self._each(begin):
                pass
        return self._last_row()

    def coordinates(self) -> Iterator[NDArray[np.int32]]:
        """Yield the coordinates of this rank's rows in the sparse modes, (rows, sparse modes), in blocks."""
        return iter(self._indices)

    def _stored_parts(self) -> Iterator[ResultRows]:
        step = max(1, FETCHED // max(1, self.plan.form.row_bytes))
        for piece, indices in zip(self._pieces, self._indices, strict=True):
            for begin in range(0, piece.complete, step):
                end = min(begin + step, piece.complete)
                yield self._part(indices[begin:end], self._out[piece.row + begin : piece.row + end])

    def _parts_in_turn(self, incoming: NDArray[np.float64] | None) -> Iterator[ResultRows]:
        for number, piece in enumerate(self._each()):
            rows = self._out[: piece.complete]
            if incoming is not None and piece.row == 0 and piece.complete:
                self._add(incoming, rows)
                incoming = None
            if piece.complete:
                yield self._part(self._indices[number], rows)

    def _part(self, indices: NDArray[np.int32], rows: Array) -> ResultRows:
        values = self.machine.device.to_host(rows)[..., : self.ranks[0]]
        return ResultRows(indices, finite(values, self._mode, self.options).reshape(len(values), -1))

    def synchronize(self) -> None:
        """Wait until all queued work is done."""
        self.machine.device.synchronize()


def finite(values: Floats, mode: int, options: Options) -> Floats:
    """Return values of a product unchanged; raise `InputError` if they overflowed."""
    if not np.all(np.isfinite(values)):
        advice = "use precision fp64, or scale values or the matrix" if options.precision == "fp32" else "scale them"
        raise InputError(f"mode {mode}: the product is not finite: it is beyond {options.precision}; {advice}")
    return values


def _on_device(array: Any) -> bool:
    """Return whether an array is in GPU memory."""
    return not isinstance(array, np.ndarray)
