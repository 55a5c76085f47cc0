"""MTTKRP of a dense tensor over all ranks: each rank has a block; partial rows are summed by their owners."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from partitioner.array_types import DType, Floats, HostArray
from partitioner.host.stages import STAGES
from partitioner.host.threads import fair_threads
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.statistics import ElementStatistics, joined
from partitioner.tensors.stored import Stored, pieces

from ...backend.device import Array, Device, Slot
from ...backend.exchange import Machine
from ...backend.ops.dense import Sweep
from ...backend.ops.dimension_tree import DimensionTreeSweep
from ...errors import InputError
from ...parallel.mpi import together
from ...parallel.progress import CURRENT
from ..base import Solve
from ..factors import Factors
from ..limits import check_range
from ..memory import SLOTS
from ..placement import Setting
from ..sources.dense import DenseSource
from ..workspace import Workspace
from .double import Doubled
from .load import PIECE, Look, begin_copy, known_of, on_device
from .plan import DensePlan, make_dense_plan


class _Coming(NamedTuple):
    """A slab that is being copied to a slot."""

    slab: Array
    wait: Callable[[], None] | None  # until threads have read it; None if they have


class _HostSlab(NamedTuple):
    """Elements in host memory or a file, to be copied to a slot. See `Movable`."""

    elements: Floats | Stored
    dtype: DType  # in the slot
    device: Device
    locked: bool  # whether they are in locked memory, from which the device copies
    whole: int  # bytes of all slabs
    look: Look = None

    @property
    def nbytes(self) -> int:
        """Bytes in a slot."""
        return math.prod(self.elements.shape) * self.dtype.itemsize

    def copied(self, buffer: Array) -> _Coming:
        """See `Movable`."""
        target = buffer[: self.nbytes].view(self.dtype).reshape(self.elements.shape)
        if self.locked:
            target.set(self.elements)
            return _Coming(target, None)
        wait = begin_copy(target, self.elements, self.device, self.look, self.whole)
        return _Coming(target, None if self.device.on_host else wait)


class _Slabs:
    """A rank's block: resident on the device, or streamed slab by slab through slots."""

    def __init__(
        self, block: Any, plan: DensePlan, device: Device, clock: Any, threads: int, looks: bool = False
    ) -> None:
        """`looks`: whether to compute statistics of streamed elements during the first pass."""
        self._form, self._elements, self._device, self._threads = plan.form, block, device, threads
        self._looks = looks
        self._block: Array = None
        self._count = -(-plan.form.lengths[0] // plan.form.slab) if plan.form.elements else 0
        self._slots: list[Slot] = []
        self._filled = self._taken = 0  # slabs put in slots and taken so far
        self._clock = clock
        self._statistics: list[ElementStatistics] = []  # of elements, computed while they were copied
        self.sound = True  # whether all these elements are finite numbers of the device's type
        if self._count and plan.streamed:
            self._make_slots(plan, clock)
        elif self._count:
            # While elements are in a core's caches; a GPU reads its memory fast enough.
            look = self._look if device.on_host and isinstance(block, Stored) and plan.rows is None else None
            self._block = on_device(block, plan.dtype, plan.sent, device, threads, plan.rows, look)
            self._elements = np.empty(0)

    def _make_slots(self, plan: DensePlan, clock: Any) -> None:
        """Allocate slots for elements in the transferred type, and a buffer to convert them."""
        device, elements, index = self._device, self._elements, plan.form.elements // plan.form.lengths[0]
        self._sent = plan.sent
        self._slots = [device.slot(plan.form.slab * index * plan.sent.itemsize, clock) for _ in range(SLOTS)]
        self._converted = None
        if plan.sent != plan.dtype:
            self._converted = device.empty((plan.form.slab, *plan.form.lengths[1:]), plan.dtype)
        plain = isinstance(elements, np.ndarray) and elements.dtype == plan.sent and elements.flags.c_contiguous
        self._lock = device.lock(elements) if plain else None

    def statistics(self) -> ElementStatistics:
        """Return statistics of resident elements, or those computed during the first pass."""
        if self._slots or self._statistics or not self._count:
            return joined(self._statistics)
        block, elements = self._block, self._form.elements
        gaps = not block.flags.c_contiguous
        places = pieces(block.shape, (), PIECE if gaps else elements)  # a block with gaps is copied
        result = joined([DenseTensor(block[place]).facts(threads=self._threads) for place in places])
        if gaps:
            self._device.trim()
        return result

    def _look(self, elements: HostArray) -> None:
        result = known_of(elements, self._form.lengths)
        self._statistics.append(result)
        if result.bad >= 0 or result.largest > float(np.finfo(self._form.dtype).max):
            self.sound = False

    def slabs(self, mode: int) -> Iterator[tuple[int, Array]]:
        """Yield the start of each slab, and the slab, valid for work queued until the next one is requested.

        None follows elements that are not finite, because nothing can be computed from them.
        """
        step = self._form.slab
        if not self._count:
            return
        if not self._slots:
            for start in range(0, self._form.lengths[0], step):
                yield start, self._block[start : start + step]
            return
        self._fill(mode)
        for number in range(self._count):
            slot = self._slots[self._taken % SLOTS]
            slab = self._wait(slot.shard(), mode)
            if not self.sound:
                return
            if self._converted is not None:
                converted = self._converted[: len(slab)]
                converted[...] = slab
                slot.release()
                yield number * step, converted
            else:
                yield number * step, slab
                slot.release()
            self._taken += 1
            self._fill(mode)

    def _wait(self, coming: _Coming, mode: int) -> Array:
        """Wait for a slab; the time counts as copying."""
        if coming.wait is not None:
            with self._clock.span("copy", mode):
                coming.wait()
        return coming.slab

    def _fill(self, mode: int) -> None:
        """Start filling free slots; the first slab follows the last one, as every pass reads all slabs in order."""
        while self._filled < self._taken + SLOTS:
            start = self._filled % self._count * self._form.slab
            place = slice(start, start + self._form.slab)
            slab = self._elements.within(place) if isinstance(self._elements, Stored) else self._elements[place]
            look = self._look if self._looks and self._filled < self._count else None
            whole = self._form.elements * self._sent.itemsize
            moved = _HostSlab(slab, self._sent, self._device, self._lock is not None, whole, look)
            self._slots[self._filled % SLOTS].fill(moved, mode)
            self._filled += 1


class DenseOperator(Factors):
    """MTTKRP of a dense tensor; construction is collective. See `Operator`."""

    plan: DensePlan

    def __init__(self, source: DenseSource, machine: Machine, setting: Setting) -> None:
        """Load this rank's block of `source`."""
        comm, options = machine.comm, setting.options
        self.machine, self.options, self.shape = machine, options, source.shape
        self.ranks, self._modes = setting.ranks, source.modes
        self.clock = machine.device.clock()
        self.plan = plan = together(comm, lambda: make_dense_plan(source, comm.rank, comm.size, setting))
        self.kernels = [plan.kernel.name] * len(source.shape)
        plan.kernel.prepare(plan.form)
        self.work = Workspace(plan, machine, options)
        with STAGES.of("copy"):
            block, threads = source.block(plan.grid, machine.device.on_host or plan.streamed), fair_threads(comm)
            late = setting.late and source.in_file and source.known is None
            self._slabs = together(comm, lambda: _Slabs(block, plan, machine.device, self.clock, threads, late))
        streamed = any(comm.allgather(plan.streamed))
        self._source, self._reads_file, self.norm = source, streamed and source.in_file, math.nan
        if not streamed:
            source.set_statistics(self._slabs.statistics())
        if not (streamed and late):
            self._measure()
        self._sweep: Sweep | None = None
        self._passed_on = -1  # the mode whose new rows were used for the next one already
        self._doubled: Doubled | None = None  # created when needed
        if plan.form.elements:
            forms = [plan.form, *([plan.double] if plan.double else [])]
            self._scratch = machine.device.empty((max(map(plan.kernel.bytes, forms)),), np.uint8)
            self._sweep = plan.kernel.make(plan.form, self._scratch)
        first, second = plan.grid.block(comm.rank)
        ranges = [first, second, *(slice(0, n) for n in plan.grid.lengths[2:])]
        self._ranges = [ranges[self._modes.index(mode)] for mode in range(self.order)]  # of the block, by mode
        # The factor matrices' rows of the block, in memory order.
        self._inputs = [self.work.factors[mode][self._ranges[mode]] for mode in self._modes]
        self.clock.collect()

    def _measure(self) -> None:
        check_range(self._source.value_range, self.options.dtype, self._source.path)
        self.norm = self._source.rounded_norm(self.options.dtype)
        together(self.machine.comm, self._check_sound)

    def _reading(self, compute: Callable[[], None]) -> None:
        """Run work that reads elements; errors of a file are raised on all ranks."""
        if not self._reads_file:
            compute()
            return
        together(self.machine.comm, compute)
        if math.isnan(self.norm):
            self._source.set_statistics(self._slabs.statistics())
            self._measure()

    def _check_sound(self) -> None:
        if not self._slabs.sound:  # reading them again has found no error
            raise InputError("changed while it was read", path=self._source.path)

    @property
    def ranges(self) -> list[slice]:
        """The ranges of this rank's block, in memory order of the modes."""
        return [self._ranges[mode] for mode in self._modes]

    @property
    def modes(self) -> tuple[int, ...]:
        """The modes in memory order."""
        return self._modes

    def slabs(self) -> Iterator[tuple[int, Array]]:
        """Yield the parts of this rank's block; see `_Slabs.slabs`."""
        self.forget()
        yield from self._slabs.slabs(0)

    def reads(self, mode: int) -> bool:
        """Return whether the next MTTKRP of a mode reads this rank's elements."""
        return self._sweep is not None and not self._serves(mode) and self._sweep.reads(self._modes.index(mode))

    def changed(self, mode: int) -> None:
        super().changed(mode)
        place = self._modes.index(mode)
        if self._sweep is not None and mode != self._passed_on:
            self._sweep.changed(place)
        if self._doubled is not None:
            self._doubled.changed(place)

    def forget(self) -> None:
        self._let_go(None)

    def kept(self) -> Hashable:
        plain = self._sweep.kept() if isinstance(self._sweep, DimensionTreeSweep) else None
        double = self._doubled.kept() if self._doubled is not None else None
        return None if plain is None and double is None else (plain, double)

    def resume(self, kept: Hashable) -> None:
        self.forget()
        assert kept is None or isinstance(kept, tuple)
        plain, double = kept or (None, None)
        if isinstance(self._sweep, DimensionTreeSweep):
            self._sweep.resume(plain)
        if self._doubled is not None:
            self._doubled.resume(double)

    def mttkrp(
        self,
        mode: int,
        solve: Solve | None = None,
        then: Sequence[int] = (),
        double: bool = False,
        sums: Array | None = None,
    ) -> Array:
        CURRENT.mode = mode
        self.machine.exchange.wait_comm()
        plan, work = self.plan, self.work
        out, share = work.outs[mode], plan.modes[mode]
        if (double and plan.double is not None) or self._serves(mode):
            self._reading(lambda: self._compute(mode, out, True))
        elif self._computes_in_blocks(mode, then):
            self._compute_in_blocks(mode, out, solve, bool(then))
            if solve:
                self._passed_on = mode
                self.publish(mode, sums)
                self._passed_on = -1
            return work.sums[mode]
        else:
            self._reading(lambda: self._compute(mode, out, False))
        if not plan.grid.one_owner(self._modes.index(mode)):
            with self.clock.span("exchange", mode):
                self.machine.exchange.reduce_rows(out, share.cut.rows)
        if solve:
            solve(work.sums[mode], work.owned[mode])
            self.publish(mode, sums)
        return work.sums[mode]

    def _serves(self, mode: int) -> bool:
        """Return whether a partial result in double precision serves this MTTKRP."""
        return self._doubled is not None and self._doubled.serves(self._modes.index(mode))

    def _computes_in_blocks(self, mode: int, then: Sequence[int]) -> bool:
        """Return whether rows are solved block by block; `then` are the next modes."""
        sweep, place = self._sweep, self._modes.index(mode)
        if not isinstance(sweep, DimensionTreeSweep):
            return False
        sweep.expect(place, self._modes.index(then[0]) if then else (place + 1) % self.order)
        return sweep.in_blocks and sweep.reads(place)

    def _compute_in_blocks(self, mode: int, out: Array, solve: Solve | None, passes_on: bool) -> None:
        """Queue the MTTKRP in blocks of rows, which are solved and used for the next mode."""
        sweep, place, work = self._sweep, self._modes.index(mode), self.work
        assert isinstance(sweep, DimensionTreeSweep)
        self._let_go(sweep)
        for _, block in self._slabs.slabs(mode):  # one, the whole
            for rows in sweep.blocks(place):
                with self.clock.span("compute", mode):
                    sweep.compute(place, rows, block, self._inputs, out)
                if solve:
                    solve(work.sums[mode][rows], work.owned[mode][rows])
                if not passes_on:
                    continue
                with self.clock.span("compute", mode):
                    sweep.pass_on(place, rows, self._inputs, out)

    def _compute(self, mode: int, out: Array, double: bool) -> None:
        """Queue the MTTKRP of this rank's block."""
        rows = self._block_rows(mode, out)
        if self._sweep is None:
            return
        sweep = self._in_double() if double else self._sweep
        place = self._modes.index(mode)
        if sweep.reads(place):
            self._let_go(sweep)
            with self.clock.span("compute", mode):
                sweep.begin(place, self._inputs, rows)
            for start, slab in self._slabs.slabs(mode):
                with self.clock.span("compute", mode):
                    sweep.add(place, slab, start, self._inputs, rows)
        with self.clock.span("compute", mode):
            sweep.end(place, self._inputs, rows)

    def _in_double(self) -> Doubled:
        if self._doubled is None:  # once, because a captured graph must not allocate
            self._doubled = Doubled(self.plan, self._scratch, self._inputs, self.machine.device)
        return self._doubled

    def _let_go(self, taker: Sweep | None) -> None:
        """Reserve scratch memory for a sweep and invalidate the other one; None invalidates both."""
        for sweep in (self._sweep, self._doubled):
            if sweep is not None and sweep is not taker:
                for place in range(self.order):
                    sweep.changed(place)

    def _block_rows(self, mode: int, out: Array) -> Array:
        """Return the output rows of the block, after setting the others to zero."""
        if self.plan.grid.one_owner(self._modes.index(mode)):
            return out
        mine = self._ranges[mode]
        if self._sweep is None:
            out[:] = 0
            return out
        out[: mine.start], out[mine.stop :] = 0, 0
        return out[mine]
