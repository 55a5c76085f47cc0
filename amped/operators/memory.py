"""What fits into device memory: bytes by what is there, and how many nonzeros stay or pass through slots."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ..backend import Backend, Share
from ..errors import InputError

SLOTS = 2
SLOT_BYTES = 1 << 28  # a shard of this size keeps the link busy for milliseconds, so that queueing it costs nothing
SMALLEST_SLOT = 1024  # nonzeros
PACKING_SHARE = 4  # of device memory, one in so many bytes is for making shards, unless that leaves no room for them
PIECES = 16  # resident shards of a mode, at most, where memory is short: many small ones are slow
SHARDS = 4  # at least, for a mode that is streamed: with fewer, copying and computing hardly overlap


def fraction(nnz: int, part: int, total: int) -> int:
    """Return a mode's share of something, where `part` of all modes' `total` has it."""
    return nnz * part // total if total else 0


class Need:
    """Bytes of device memory, by what is there.

    Parameters
    ----------
    shares : sequence of Share
        What a rank computes, of each mode.
    fixed : dict of str to int
        Bytes that are always there, by use.
    dense : int
        Bytes that solving takes for a while.
    limit : int
        Bytes of device memory.
    backend : Backend

    Attributes
    ----------
    total, largest : int
        Nonzeros of all modes, and of the mode that has most.
    room : int
        Bytes that are left for them.
    """

    def __init__(
        self, shares: Sequence[Share], fixed: dict[str, int], dense: int, limit: int, backend: Backend
    ) -> None:
        self._shares, self._dense, self._limit, self._backend = shares, dense, limit, backend
        self._streamed = [replace(share, streamed=True) for share in shares]
        self.fixed, self.room = fixed, limit - sum(fixed.values())
        self.total, self.largest = sum(s.nnz for s in shares), max(s.nnz for s in shares)

    def resident(self, nonzeros: int) -> int:
        """Of so many resident nonzeros, the same fraction of each mode."""
        return sum(self._backend.shard_bytes(s, fraction(s.nnz, nonzeros, self.total)) for s in self._shares)

    def slot(self, nonzeros: int) -> int:
        """Of a slot for so many."""
        return max(self._backend.shard_bytes(share, nonzeros) for share in self._streamed)

    def slots(self, nonzeros: int) -> int:
        """Of all slots."""
        return SLOTS * self.slot(nonzeros) if nonzeros else 0

    def piece(self, spare: int) -> int:
        """Return the most nonzeros of a resident shard, where so many bytes are left to make it in."""
        largest = max(1, min(self._backend.most_nonzeros, self.largest))
        sizes = range(min(largest, max(SMALLEST_SLOT, largest // PIECES)), largest + 1)
        fair = bisect_right(sizes, self._limit // PACKING_SHARE, key=self._packing)
        fitting = bisect_right(sizes, spare, key=lambda size: self.working(size, 0))
        return sizes[max(0, min(fair, fitting) - 1)]

    def working(self, piece: int, slot: int) -> int:
        """Of everything that is there for a while; shards are made before there are slots."""
        scratch = max(self._backend.scratch_bytes(share, min(share.nnz, piece)) for share in self._shares)
        # Beside a shard that is being made there is the best so far, where there is a choice; if making takes memory.
        beside = (slot > 0) + any(len(share.kernels) > 1 for share in self._shares) * (self._packing(piece) > 0)
        made = max(self._backend.shard_bytes(share, piece) for share in self._shares)
        packing = self._packing(piece) - self.slots(slot) + beside * made
        kept = scratch if self._backend.keeps_scratch else 0
        return int(max(scratch, kept + max(self._dense, packing)))

    def streaming(self, slot: int) -> int:
        """Of slots for so many nonzeros, and what computing them needs."""
        return self.slots(slot) + self.working(slot, slot)

    def _packing(self, nonzeros: int) -> int:
        return max(self._backend.packing_bytes(share, min(share.nnz, nonzeros)) for share in self._shares)

    def check(self, needed: int, what: str) -> None:
        """Raise `InputError` if so many bytes, beside the fixed ones, do not fit."""
        if needed > self.room:
            need, there = sum(self.fixed.values()) + needed, max(0, self._limit)
            raise InputError(
                f"device memory: the factor matrices and {what} need {need:,} bytes, {there:,} are there; "
                "use more ranks or a lower rank"
            )


class Fit(NamedTuple):
    """What stays on a device and what passes through.

    Attributes
    ----------
    resident : int
        Nonzeros that stay, of all modes.
    slot : int
        Nonzeros that a slot for streamed shards holds; 0 if nothing is streamed.
    piece : int
        The most nonzeros of a resident shard.
    spare : int
        Bytes that resident shards may take beyond what is needed.
    """

    resident: int
    slot: int
    piece: int
    spare: int


def fit(need: Need, placement: str) -> Fit:
    """Decide what stays: everything, nothing, or (auto) as much as fits; raise `InputError` if that does not."""
    piece = need.piece(need.room - need.resident(need.total))
    whole = need.resident(need.total) + need.working(piece, 0)
    if placement == "resident":
        need.check(whole, "the resident tensor")
    if whole <= need.room and placement != "stream":
        return Fit(need.total, 0, piece, (need.room - whole) // 2)  # the other half is for what nobody foresaw
    if whole > need.room:
        need.check(need.streaming(min(need.largest, SMALLEST_SLOT)), "two shards")
    slot = _slot(need)
    resident = 0
    if placement == "auto":
        spare = need.room - need.streaming(slot)
        resident = max(0, bisect_right(range(need.total + 1), spare, key=need.resident) - 1)
    everything = resident == need.total  # smaller shards take less to make: so it fits after all
    return Fit(resident, 0 if everything else slot, slot or piece, 0)


def _slot(need: Need) -> int:
    """Return the nonzeros of a slot: as many as fit, but no more than a full-sized shard, or some shards a mode."""
    largest = need.largest
    full = max(1, largest * SLOT_BYTES // max(1, need.slot(largest)))
    wanted = min(largest, full, max(SMALLEST_SLOT, -(-largest // SHARDS)))
    return bisect_right(range(wanted + 1), need.room, key=need.streaming) - 1
