"""A rank's nonzeros in place: the shards that stay on the device, and those that pass through it.

Streamed shards go through two slots, so that one is copied in while the other is computed on. Copies run ahead from
mode to mode: the modes are expected to come in turn, as they do in a decomposition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.shards import BALANCE, equal_offsets

from ..backend import Backend, Clock, Shard, Slot
from ..backend.base import NOTHING
from .memory import SLOTS
from .placement import ModePlan, Plan
from .source import Source

Make = Callable[[str, int], Shard]
"""Make a shard for a kernel from the first nonzeros of a mode, at most so many."""

Choose = Callable[[ModePlan, Make], tuple[str, Shard | None]]
"""Return the kernel to use for a mode, and the whole first shard if it was made."""


class Step(NamedTuple):
    """What one shard adds to its mode.

    Attributes
    ----------
    new : slice
        The rank's output rows that it is the first to write.
    done : int
        Rows before this one, of the mode, are complete after it.
    """

    new: slice
    done: int


@dataclass(frozen=True)
class ModeShards:
    """One rank's nonzeros of one mode: the first ones on the device, the others on the host; a step for each shard."""

    kernel: str
    resident: Sequence[Any]
    streamed: Sequence[Any]
    steps: Sequence[Step]


NO_SHARDS = ModeShards("", [], [], [])


class Stream:
    """The shards of all modes, in the order in which a rank computes them.

    Attributes
    ----------
    kernels : list of str
        The kernel that each mode's shards are made for.
    steps : list of sequence of Step
        Of each mode's shards.
    """

    def __init__(self, plan: Plan, source: Source, backend: Backend, clock: Clock, choose: Choose) -> None:
        """Load this rank's share of `source` as `plan` says. Collective."""
        self._backend, self._clock, self._choose = backend, clock, choose
        self._modes = [NO_SHARDS] * len(plan.modes)
        self._slots: list[Slot] = []
        self._filled: list[tuple[int, int]] = []  # (mode, shard) in slots, in the order in which they were filled
        self._next_slot = 0
        self.load(plan, source, range(len(plan.modes)))

    def load(self, plan: Plan, source: Source, modes: Iterable[int]) -> None:
        """Load some modes anew, as a new plan says; nothing was streamed so far. Collective."""
        modes = list(modes)
        for m in modes:  # their memory is needed
            self._modes[m] = NO_SHARDS
        for m in modes:
            if plan.modes[m].any_row:
                self._modes[m] = _permuted(self._modes[0], plan.modes[m], self._backend, self._choose)
            else:
                self._modes[m] = _load(plan, plan.modes[m], source, self._backend, self._choose)
        self.kernels = [shards.kernel for shards in self._modes]
        self.steps = [shards.steps for shards in self._modes]
        shares = [mode.share for mode in plan.modes]
        count = SLOTS if any(mode.streamed for mode in self._modes) else 0
        self._slots = [self._backend.slot(shares, plan.slot, self._clock) for _ in range(count)]

    def shards(self, mode: int) -> Iterator[Any]:
        """Yield the shards of `mode`, each usable by the work queued until the next is asked for."""
        data = self._modes[mode]
        if self._slots:
            if self._filled and self._filled[0] != self._at_or_after(mode, 0):
                self._filled.clear()  # not the mode that was expected
            self._fill(mode, 0)
        yield from data.resident
        for k in range(len(data.streamed)):
            slot = self._slots[(self._next_slot - len(self._filled)) % SLOTS]
            yield slot.shard()
            slot.release()
            self._filled.pop(0)
            self._fill(mode, k + 1)

    def _fill(self, mode: int, k: int) -> None:
        """Fill free slots with the streamed shards that come after those that are there, or from `k` of `mode` on."""
        while len(self._filled) < len(self._slots):
            wanted = self._at_or_after(mode, k)
            if self._filled:
                last_mode, last = self._filled[-1]
                wanted = self._at_or_after(last_mode, last + 1)
            self._slots[self._next_slot].fill(self._modes[wanted[0]].streamed[wanted[1]], wanted[0])
            self._filled.append(wanted)
            self._next_slot = (self._next_slot + 1) % SLOTS

    def _at_or_after(self, mode: int, k: int) -> tuple[int, int]:
        """Return the streamed shard number `k` of `mode`, or the next one there is; some mode has one."""
        while k >= len(self._modes[mode].streamed):
            mode, k = (mode + 1) % len(self._modes), 0
        return mode, k


def _load(plan: Plan, mode: ModePlan, source: Source, backend: Backend, choose: Choose) -> ModeShards:
    """Make the shards of one mode."""
    columns = _Columns(list(source.load(mode.mode, mode.cut, plan.dtype)))
    keep, nnz = mode.resident, mode.nnz
    parts = [*(int(keep * share) for share in accumulate(mode.parts[:-1], initial=0.0)), keep]
    bounds = [x for a, b in pairwise(parts) for x in range(a, b, plan.piece)]
    bounds = [*bounds, *(keep + columns.cuts(keep, plan.slot)), nnz]
    pieces = [(a, b) for a, b in pairwise(bounds) if b > a]
    kernel, first = mode.share.kernels[0], None
    if pieces:
        end = pieces[0][1]
        kernel, first = choose(mode, lambda name, most: columns.shard(backend, mode, name, 0, min(most, end)))
    resident, streamed = [], []
    for start, stop in pieces:
        passes = start >= keep
        shard = first or columns.shard(backend, mode, kernel, start, stop, streamed=passes)
        first = None
        plain = mode.share.kernels[0]
        if kernel != plain and shard.nbytes > mode.room(backend, shard.nnz, passes):  # as the first one was not
            shard = columns.shard(backend, mode, plain, start, stop, streamed=passes)
        if stop <= keep:
            resident.append(shard)
        else:
            streamed.append(backend.unload(shard))
    return ModeShards(kernel, resident, streamed, columns.steps(mode.rows, [stop for _, stop in pieces]))


def _permuted(first: ModeShards, mode: ModePlan, backend: Backend, choose: Choose) -> ModeShards:
    """Make the shards of a mode from those of mode 0."""
    shards = [backend.permuted(shard, mode.share) for shard in first.resident]
    if shards:
        choose(mode, lambda name, most: shards[0])
    rows = mode.rows
    last = len(shards) - 1
    steps = [Step(NOTHING if k else rows, 0 if k < last else rows.stop) for k in range(len(shards))]
    return ModeShards(first.kernel, shards, [], steps)


class _Columns:
    """A rank's share of a mode copy, on its way to the device."""

    def __init__(self, columns: Sequence[Any]) -> None:
        self._indices, self._values = columns[:-1], columns[-1]

    def cuts(self, begin: int, slot: int) -> NDArray[np.int64]:
        """Return where the nonzeros from `begin` on are cut into streamed shards."""
        rows = self._indices[0][begin:]
        # Shards may grow by a little on both sides, to end where a row ends.
        shards = -(-rows.size // max(1, int(slot * (1 - 2 * BALANCE)))) if rows.size else 0
        return equal_offsets(rows, shards)[:-1] if shards else np.zeros(0, np.int64)

    def steps(self, rows: slice, stops: Sequence[int]) -> list[Step]:
        """Return the steps of shards that end at these nonzeros, for the rank's rows."""
        result, begin, of_nonzero = [], 0, self._indices[0]
        for stop in stops:
            done = int(of_nonzero[stop]) if stop < of_nonzero.size else rows.stop
            end = max(done, int(of_nonzero[stop - 1]) + 1) - rows.start
            result.append(Step(slice(begin, end), done))
            begin = end
        return result

    def shard(
        self, backend: Backend, mode: ModePlan, kernel: str, start: int, stop: int, streamed: bool = False
    ) -> Shard:
        """Make the shard of the nonzeros `start` to `stop`."""
        rows = self._indices[0]
        continues = bool(start and rows[start] == rows[start - 1])
        columns, values = [column[start:stop] for column in self._indices], self._values[start:stop]
        if not streamed:  # what is may stay mapped from a file, as it is there
            values = values.astype(mode.share.dtype, copy=False)
        share = replace(mode.share, streamed=streamed)
        shard: Shard = backend.shard(columns, values, share, kernel, continues)
        return shard
