"""What fits into device memory: bytes by what is there, and how many nonzeros stay or pass through slots."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import InputError
from .modes import ModePlan

SLOTS = 2
SLOT_BYTES = 1 << 28  # a shard of this size keeps the link busy for milliseconds, so that queueing it costs nothing
SMALLEST_SLOT = 1024  # nonzeros
PACKING_SHARE = 4  # of device memory, one in so many bytes is for making shards, unless that leaves no room for them
PIECES = 16  # resident shards of a mode, at most, where memory is short: many small ones are slow
SHARDS = 4  # at least, for a mode that is streamed: with fewer, copying and computing hardly overlap


def fraction(nnz: int, part: int, total: int) -> int:
    """Return a mode's share of something, where `part` of all modes' `total` has it."""
    return nnz * part // total if total else 0


class Passing(NamedTuple):
    """Bytes of device memory that loading takes where a tensor is sorted on the device."""

    held: int  # the whole tensor, until all modes are loaded
    each: int  # for each nonzero of a rank's share, a sorted copy, while shards are made of it
    sorting: int  # for each of them, while they are sorted
    picking: int  # while a rank's nonzeros are found among all


class Need:
    """Bytes of device memory, by what is there, for the modes that a rank computes.

    There are `limit`, of which some are `fixed`: always there, by use; the method takes `solving` beside an MTTKRP.
    Until a kernel is chosen, `columns` bytes for each nonzero stay there to make shards of.
    """

    def __init__(
        self, modes: Sequence[ModePlan], fixed: dict[str, int], solving: int, columns: int, limit: int
    ) -> None:
        self._modes, self._solving, self._columns, self._limit = modes, solving, columns, limit
        self.fixed, self.available = fixed, limit - sum(fixed.values())  # bytes that are left for nonzeros
        self.total, self.largest = sum(m.nnz for m in modes), max(m.nnz for m in modes)  # nonzeros: of all, the most

    def resident(self, nonzeros: int) -> int:
        """Of so many resident nonzeros, the same fraction of each mode."""
        return sum(m.shard_bytes(fraction(m.nnz, nonzeros, self.total)) for m in self._modes)

    def slot(self, nonzeros: int) -> int:
        """Of a slot for so many."""
        return max(m.shard_bytes(nonzeros, streamed=True) for m in self._modes)

    def slots(self, nonzeros: int) -> int:
        """Of all slots."""
        return SLOTS * self.slot(nonzeros) if nonzeros else 0

    def piece(self, spare: int) -> int:
        """Return the most nonzeros of a resident shard, where so many bytes are left to make it in."""
        most = min(kernel.most_nonzeros for m in self._modes for kernel in m.kernels)
        largest = max(1, min(most, self.largest))
        if self._making(largest) <= self._limit // PACKING_SHARE and self.working(largest, 0) <= spare:
            return largest  # as mostly: the search below takes milliseconds
        sizes = range(min(largest, max(SMALLEST_SLOT, largest // PIECES)), largest + 1)
        fair = bisect_right(sizes, self._limit // PACKING_SHARE, key=self._making)
        fitting = bisect_right(sizes, spare, key=lambda size: self.working(size, 0))
        return sizes[max(0, min(fair, fitting) - 1)]

    def working(self, piece: int, slot: int) -> int:
        """Of everything that is there for a while: shards are made, and timed, before there are slots."""
        running = max(m.running_bytes(piece) for m in self._modes)
        making = self._making(piece)
        choice = any(len(m.kernels) > 1 for m in self._modes)  # then the best shard so far is beside the next one
        beside = (slot > 0) + choice * (making > 0)
        shard = max(m.shard_bytes(piece) for m in self._modes) if beside else 0
        timed = choice * (shard + self._columns * min(piece, self.largest))
        before = max(running + timed, making + beside * shard) - self.slots(slot)
        return max(running + self._solving, before)

    def loading(self, piece: int, passing: Passing) -> int:
        """Of the same where nonzeros are sorted on the device: their columns stay while shards are made and timed."""
        columns, shard = passing.each * self.largest, max(m.shard_bytes(piece) for m in self._modes)
        choice = any(len(m.kernels) > 1 for m in self._modes)
        packing = self._making(piece) - passing.each * min(piece, self.largest)  # which counts a piece's columns
        running = max(m.running_bytes(piece) for m in self._modes)
        working = max(packing, running) + choice * shard
        # A mode is sorted before its shards, which the resident ones count, are there.
        later = min(m.shard_bytes(min(piece, m.nnz)) for m in self._modes)
        sorting = max(0, passing.sorting * self.largest - later)
        return passing.held + max(passing.picking, columns + working, columns + sorting)

    def streaming(self, slot: int) -> int:
        """Of slots for so many nonzeros, and what computing them needs."""
        return self.slots(slot) + self.working(slot, slot)

    def _making(self, nonzeros: int) -> int:
        return max(m.making_bytes(nonzeros) for m in self._modes)

    def check(self, needed: int, what: str) -> None:
        """Raise `InputError` if so many bytes, beside the fixed ones, do not fit."""
        if needed > self.available:
            need, there = sum(self.fixed.values()) + needed, max(0, self._limit)
            raise InputError(
                f"device memory: the factor matrices and {what} need {need:,} bytes, {there:,} are there; "
                "use more ranks or a lower rank"
            )


class Fit(NamedTuple):
    """What stays on a device and what passes through."""

    resident: int  # nonzeros that stay, of all modes
    slot: int  # nonzeros that a slot for streamed shards holds; 0 if nothing is streamed
    piece: int  # the most nonzeros of a resident shard
    spare: int  # bytes that resident shards may take beyond what is needed


def fit(need: Need, placement: str) -> Fit:
    """Decide what stays: everything, nothing, or (auto) as much as fits; raise `InputError` if that does not."""
    piece = need.piece(need.available - need.resident(need.total))
    whole = need.resident(need.total) + need.working(piece, 0)
    if placement == "resident":
        need.check(whole, "the resident tensor")
    if whole <= need.available and placement != "stream":
        return Fit(need.total, 0, piece, (need.available - whole) // 2)  # the other half is for what nobody foresaw
    if whole > need.available:
        need.check(need.streaming(min(need.largest, SMALLEST_SLOT)), "two shards")
    slot = _slot(need)
    resident = 0
    if placement == "auto":
        spare = need.available - need.streaming(slot)
        resident = max(0, bisect_right(range(need.total + 1), spare, key=need.resident) - 1)
    everything = resident == need.total  # smaller shards take less to make: so it fits after all
    return Fit(resident, 0 if everything else slot, slot or piece, 0)


def _slot(need: Need) -> int:
    """Return the nonzeros of a slot: as many as fit, but no more than a full-sized shard, or some shards a mode."""
    largest = need.largest
    full = max(1, largest * SLOT_BYTES // max(1, need.slot(largest)))
    wanted = min(largest, full, max(SMALLEST_SLOT, -(-largest // SHARDS)))
    return bisect_right(range(wanted + 1), need.available, key=need.streaming) - 1
