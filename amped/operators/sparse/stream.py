"""The shards of a rank's nonzeros: resident ones, which stay on the device, and streamed ones.

Streamed shards pass through two slots: while one is computed, the next is copied. Copies run ahead of the computation
into the next modes, as far as these are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from partitioner.array_types import FloatDType
from partitioner.host.stages import STAGES
from partitioner.shards.partition import BALANCE, equal_offsets
from partitioner.tensors.columns import StoredColumn
from partitioner.tensors.value_range import BLOCK, squares

from ...backend.device import NOTHING, Clock, Device, Slot
from ...backend.ops.mttkrp import Kernel, Shard, Share
from ..memory import SLOTS
from ..modes import ModePlan
from ..placement import Plan
from ..sources.protocols import ModeCopies
from .tuning import Make

Choose = Callable[[ModePlan, Make], tuple[Kernel, Shard | None]]
"""Returns the kernel to use for a mode, and the complete first shard if it was built; see `Tuner.choose`."""


class Step(NamedTuple):
    """The effect of one shard on the output of its mode."""

    new: slice  # the rank's output rows that this shard writes first
    done: int  # all rows of the mode before this one are complete after this shard


@dataclass(frozen=True)
class ModeShards:
    """One rank's shards of one mode: resident ones, then streamed ones, and one step per shard."""

    kernel: Kernel | None = None
    resident: Sequence[Shard] = ()
    streamed: Sequence[Shard] = ()
    steps: Sequence[Step] = ()
    squares: Sequence[
        float
    ] = ()  # for mode 0 with rounded values: sums of squares; see `partitioner.tensors.value_range.squares`

    @property
    def shards(self) -> tuple[Shard, ...]:
        """All shards, in the order of computation."""
        return *self.resident, *self.streamed


class Stream:
    """Holds and streams the shards of all modes of a rank."""

    def __init__(self, device: Device, clock: Clock, choose: Choose) -> None:
        self._device, self._clock, self._choose = device, clock, choose
        self.modes: list[ModeShards] = []
        self.slots: list[Slot] = []
        self._filled: list[tuple[int, int]] = []  # (mode, shard) in slots, in the order in which they were filled
        self._next_slot = 0

    def load(self, plan: Plan, source: ModeCopies, modes: Iterable[int]) -> None:
        """Load modes according to a plan, the first time all of them, before streaming begins. Collective."""
        modes = list(modes)
        self.modes = self.modes or [ModeShards()] * len(plan.modes)
        for m in modes:  # free their memory first
            self.modes[m] = ModeShards()
        for m in modes:
            if plan.modes[m].any_row:
                self.modes[m] = _derived(self.modes[0], plan.modes[m], self._choose)
            else:
                keep = plan.modes[m].resident if self._device.on_host else None
                with STAGES.of("sort"):
                    columns = list(source.load(m, plan.modes[m].cut, plan.dtype, keep))
                rounded = m == 0 and source.value_dtype != plan.dtype
                self.modes[m] = _load(plan, plan.modes[m], _Columns(columns, self._device), self._choose, rounded)
                del columns
        # By mode: the name of the kernel of its shards, and their steps.
        self.kernels = [shards.kernel.name if shards.kernel else "" for shards in self.modes]
        self.steps = [shards.steps for shards in self.modes]
        slots = SLOTS if any(shards.streamed for shards in self.modes) else 0
        self.slots = [self._device.slot(plan.slot_bytes, self._clock) for _ in range(slots)]

    def scratch_bytes(self, plan: Plan) -> int:
        """Return the scratch memory that the shards need: the maximum over all."""
        every = ((m, s) for m, of in zip(plan.modes, self.modes, strict=True) for s in of.shards)
        return max((m.running(shard.kernel, shard.nnz) for m, shard in every), default=0)

    def shards(self, mode: int, then: Sequence[int] = ()) -> Iterator[Shard]:
        """Yield the shards of `mode`, each valid for the work queued until the next one is requested.

        `then` are the next modes, whose streamed shards are copied in advance.
        """
        data, coming = self.modes[mode], self._streamed([mode, *then])
        if self.slots:
            known = min(len(self._filled), len(coming))
            if self._filled[:known] != coming[:known]:  # other modes were expected
                self._filled.clear()
                for slot in self.slots:
                    slot.release()
            self._fill(coming)
        yield from data.resident
        for _ in data.streamed:
            slot = self.slots[(self._next_slot - len(self._filled)) % SLOTS]
            yield slot.shard()
            slot.release()
            self._filled.pop(0)
            coming.pop(0)
            self._fill(coming)

    def _fill(self, coming: Sequence[tuple[int, int]]) -> None:
        """Start copying the next shards to the free slots."""
        for mode, k in coming[len(self._filled) : len(self.slots)]:
            self.slots[self._next_slot].fill(self.modes[mode].streamed[k], mode)
            self._filled.append((mode, k))
            self._next_slot = (self._next_slot + 1) % SLOTS

    def _streamed(self, modes: Sequence[int]) -> list[tuple[int, int]]:
        """Return the streamed shards of the first mode, and the next ones for as many slots as there are."""
        first, *others = ([(m, k) for k in range(len(self.modes[m].streamed))] for m in modes)
        return first + [shard for shards in others for shard in shards][:SLOTS]


def _load(plan: Plan, mode: ModePlan, columns: _Columns, choose: Choose, rounded: bool) -> ModeShards:
    """Build the shards of one mode; also compute the sums of squares of its values if they are `rounded`."""
    keep, nnz = mode.resident, mode.nnz
    parts = [*(int(keep * share) for share in accumulate(mode.parts[:-1], initial=0.0)), keep]
    bounds = [x for a, b in pairwise(parts) for x in range(a, b, plan.piece)]
    bounds = [*bounds, *(keep + columns.cuts(keep, plan.slot)), nnz]
    pieces = [(a, b) for a, b in pairwise(bounds) if b > a]
    plain = mode.kernels[0]
    chosen, first = plain, None
    if pieces:
        end = pieces[0][1]
        chosen, first = choose(mode, lambda kernel, most: columns.shard(mode, kernel, 0, min(most, end)))
    resident, streamed = [], []
    for start, stop in pieces:
        passes = start >= keep
        if first:
            shard, first = first.unloaded() if passes else first, None
        else:
            shard = columns.shard(mode, chosen, start, stop, streamed=passes)
        if chosen is not plain and shard.nbytes > mode.shard_limit(shard.nnz, passes):  # larger than the first one
            shard = columns.shard(mode, plain, start, stop, streamed=passes)
        if stop <= keep:
            resident.append(shard)
        else:
            streamed.append(shard)
    squares = columns.squares(mode.share) if rounded and not mode.share.values.exact_in(plan.dtype) else ()
    return ModeShards(chosen, resident, streamed, columns.steps(mode.rows, [stop for _, stop in pieces]), squares)


def _derived(first: ModeShards, mode: ModePlan, choose: Choose) -> ModeShards:
    """Build the shards of a mode from those of mode 0."""
    derive = mode.kernels[0].derive
    assert derive is not None
    shards = [derive(shard, mode.share) for shard in first.resident]
    if shards:
        choose(mode, lambda kernel, most: shards[0])
    rows = mode.rows
    last = len(shards) - 1
    steps = [Step(NOTHING if k else rows, 0 if k < last else rows.stop) for k in range(len(shards))]
    return ModeShards(mode.kernels[0], shards, [], steps)


class _Columns:
    """A rank's share of a mode copy, from which shards are built."""

    def __init__(self, columns: Sequence[Any], device: Device) -> None:
        self._indices, self._values, self._device = columns[:-1], columns[-1], device
        self._to_copy = not device.on_host and isinstance(self._values, np.ndarray)
        # The range of nonzeros that was copied last, and their columns on the device.
        self._copied: tuple[tuple[int, int], list[Any]] | None = None

    def squares(self, share: Share) -> list[float]:
        """Return the sums of squares of blocks of values, rounded to the type that kernels read."""
        result = list[float]()
        for begin in range(0, self._values.size, BLOCK):
            block = self._values[begin : begin + BLOCK].astype(share.dtype, copy=False)
            result += squares(block, share.values[:2])
        return result

    def cuts(self, begin: int, slot: int) -> NDArray[np.int64]:
        """Return the offsets at which the nonzeros from `begin` on are cut into streamed shards."""
        rows = _part(self._indices[0], begin, self._indices[0].size)
        # Shards may grow a little on both sides, so that they end at the end of a row.
        shards = -(-rows.size // max(1, int(slot * (1 - 2 * BALANCE)))) if rows.size else 0
        return equal_offsets(rows, shards)[:-1] if shards else np.zeros(0, np.int64)

    def steps(self, rows: slice, stops: Sequence[int]) -> list[Step]:
        """Return the steps of the shards that end at the nonzeros `stops`, for the rank's rows."""
        result, begin, of_nonzero = [], 0, self._indices[0]
        for stop in stops:
            done = int(of_nonzero[stop]) if stop < of_nonzero.size else rows.stop
            end = max(done, int(of_nonzero[stop - 1]) + 1) - rows.start
            result.append(Step(slice(begin, end), done))
            begin = end
        return result

    def shard(self, mode: ModePlan, kernel: Kernel, start: int, stop: int, streamed: bool = False) -> Shard:
        """Build the shard of the nonzeros `start` to `stop`, in host memory if `streamed`."""
        rows = self._indices[0]
        continues = bool(start and rows[start] == rows[start - 1])
        *columns, values = self._on_device(start, stop, mode.share.dtype) if self._to_copy else self._part(start, stop)
        if not streamed:  # streamed values are converted whenever they are copied
            values = values.astype(mode.share.dtype, copy=False)
        with STAGES.of("pack"):
            shard = kernel.make(columns, values, replace(mode.share, streamed=streamed), continues)
        if not streamed:
            return shard
        stored = [_part(column, start, stop) for column in (*self._indices, self._values)]
        return shard.unloaded({id(a): part for a, part in zip((*columns, values), stored, strict=True)})

    def _part(self, start: int, stop: int) -> list[Any]:
        return [column[start:stop] for column in (*self._indices, self._values)]

    def _on_device(self, start: int, stop: int, dtype: FloatDType) -> list[Any]:
        """Return device copies of nonzeros; the last ones are cached, as several kernels' shards need the same."""
        if self._copied is None or self._copied[0] != (start, stop):
            self._copied = None  # free its memory first
            kinds: list[DTypeLike] = [*[np.int32] * len(self._indices), dtype]
            copies = [self._device.empty((stop - start,), kind) for kind in kinds]
            with STAGES.of("copy"):
                self._device.fill(copies, self._part(start, stop))
            self._copied = (start, stop), copies
        return self._copied[1]


def _part(column: Any, begin: int, end: int) -> Any:
    """Return a range of a column, without copying it from its file or device."""
    return column.part(begin, end) if isinstance(column, StoredColumn) else column[begin:end]
