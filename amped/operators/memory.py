"""Planning of device memory: bytes by use, and how many nonzeros stay resident or are streamed through slots."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import InputError
from .modes import ModePlan

SLOTS = 2
SLOT_BYTES = 1 << 28  # copying a shard of this size takes milliseconds, so the cost of queueing it is negligible
SMALLEST_SLOT = 1024  # nonzeros
PACKING_SHARE = 4  # 1 / PACKING_SHARE of device memory is for building shards, unless memory is short
PIECES = 16  # resident shards per mode at most if memory is short: many small shards are slow
SHARDS = 4  # streamed shards per mode at least: with fewer, copying and computing hardly overlap


def fraction(nnz: int, part: int, total: int) -> int:
    """Return ``nnz * part / total``, a mode's share of `part` out of the `total` of all modes."""
    return nnz * part // total if total else 0


class DeviceMemoryError(InputError):
    """A plan needs more device memory than there is."""


class Passing(NamedTuple):
    """Device memory, in bytes, that loading needs if a tensor is sorted on the device."""

    tensor: int  # the whole tensor, until all modes are loaded
    each: int  # per nonzero of a rank's share: a sorted copy, while shards are built from it
    sorting: int  # per nonzero, while they are sorted
    picking: int  # while a rank's nonzeros are selected from all


class Need:
    """Bytes of device memory that the modes of a rank need.

    Parameters
    ----------
    modes : sequence of ModePlan
    fixed : dict
        Bytes that are always allocated, by use.
    solving : int
        Bytes that the method needs in addition to an MTTKRP.
    columns : int
        Bytes per nonzero that stay on the device until a kernel is chosen, to build shards from.
    limit : int
        Bytes of device memory in total.
    """

    def __init__(
        self, modes: Sequence[ModePlan], fixed: dict[str, int], solving: int, columns: int, limit: int
    ) -> None:
        self._modes, self._solving, self._columns, self._limit = modes, solving, columns, limit
        self.fixed, self.available = fixed, limit - sum(fixed.values())  # bytes available for nonzeros
        self.total, self.largest = sum(m.nnz for m in modes), max(m.nnz for m in modes)  # nonzeros

    def resident(self, nonzeros: int) -> int:
        """Bytes of `nonzeros` resident nonzeros, an equal fraction of each mode."""
        return sum(m.shard_bytes(fraction(m.nnz, nonzeros, self.total)) for m in self._modes)

    def slot(self, nonzeros: int) -> int:
        """Bytes of one streaming slot for `nonzeros` nonzeros."""
        return max(m.shard_bytes(nonzeros, streamed=True) for m in self._modes)

    def slots(self, nonzeros: int) -> int:
        """Bytes of all streaming slots."""
        return SLOTS * self.slot(nonzeros) if nonzeros else 0

    def piece(self, spare: int) -> int:
        """Return the largest number of nonzeros of a resident shard that can be built in `spare` bytes."""
        most = min(kernel.most_nonzeros for m in self._modes for kernel in m.kernels)
        largest = max(1, min(most, self.largest))
        if self._making(largest) <= self._limit // PACKING_SHARE and self.working(largest, 0) <= spare:
            return largest  # the usual case: avoid the search below, which takes milliseconds
        sizes = range(min(largest, max(SMALLEST_SLOT, largest // PIECES)), largest + 1)
        fair = bisect_right(sizes, self._limit // PACKING_SHARE, key=self._making)
        fitting = bisect_right(sizes, spare, key=lambda size: self.working(size, 0))
        return sizes[max(0, min(fair, fitting) - 1)]

    def working(self, piece: int, slot: int) -> int:
        """Bytes of temporary memory: shards are built and timed before slots are allocated."""
        running = max(m.running_bytes(piece) for m in self._modes)
        making = self._making(piece)
        choice = any(len(m.kernels) > 1 for m in self._modes)  # the best shard so far is kept while the next is timed
        shards = (slot > 0) + choice * (making > 0)
        shard = max(m.shard_bytes(piece) for m in self._modes) if shards else 0
        timed = choice * (shard + self._columns * min(piece, self.largest))
        before = max(running + timed, making + shards * shard) - self.slots(slot)
        return max(running + self._solving, before)

    def loading(self, piece: int, passing: Passing) -> int:
        """Bytes of temporary memory if nonzeros are sorted on the device: columns stay while shards are built."""
        columns, shard = passing.each * self.largest, max(m.shard_bytes(piece) for m in self._modes)
        choice = any(len(m.kernels) > 1 for m in self._modes)
        packing = self._making(piece) - passing.each * min(piece, self.largest)  # `_making` includes a piece's columns
        running = max(m.running_bytes(piece) for m in self._modes)
        working = max(packing, running) + choice * shard
        # A mode is sorted before its shards, which count as resident, are built.
        later = min(m.shard_bytes(min(piece, m.nnz)) for m in self._modes)
        sorting = max(0, passing.sorting * self.largest - later)
        return passing.tensor + max(passing.picking, columns + working, columns + sorting)

    def streaming(self, slot: int) -> int:
        """Bytes of slots for `slot` nonzeros, and of temporary memory."""
        return self.slots(slot) + self.working(slot, slot)

    def _making(self, nonzeros: int) -> int:
        return max(m.making_bytes(nonzeros) for m in self._modes)

    def check(self, needed: int, what: str) -> None:
        """Raise `DeviceMemoryError` if `needed` bytes do not fit in addition to the fixed ones."""
        if needed > self.available:
            need, limit = sum(self.fixed.values()) + needed, max(0, self._limit)
            raise DeviceMemoryError(
                f"device memory: the factor matrices and {what} need {need:,} bytes, but {limit:,} are available; "
                "use more ranks or a lower rank"
            )


class Fit(NamedTuple):
    """Which nonzeros are resident and which are streamed."""

    resident: int  # resident nonzeros of all modes
    slot: int  # nonzeros per streaming slot; 0 if nothing is streamed
    piece: int  # largest number of nonzeros of a resident shard
    spare: int  # bytes by which resident shards may exceed the planned size


def fit(need: Need, placement: str) -> Fit:
    """Decide what is resident: everything, nothing, or (auto) as much as fits; raise `InputError` if that fails."""
    piece = need.piece(need.available - need.resident(need.total))
    whole = need.resident(need.total) + need.working(piece, 0)
    if placement == "resident":
        need.check(whole, "the resident tensor")
    if whole <= need.available and placement != "stream":
        return Fit(need.total, 0, piece, (need.available - whole) // 2)  # the other half is a reserve
    if whole > need.available:
        need.check(need.streaming(min(need.largest, SMALLEST_SLOT)), "two shards")
    slot = _slot(need)
    resident = 0
    if placement == "auto":
        spare = need.available - need.streaming(slot)
        resident = max(0, bisect_right(range(need.total + 1), spare, key=need.resident) - 1)
    everything = resident == need.total  # building smaller shards needs less memory, so everything fits after all
    return Fit(resident, 0 if everything else slot, slot or piece, 0)


def _slot(need: Need) -> int:
    """Return the nonzeros per slot: as many as fit, at most a full-sized shard, and ``1 / SHARDS`` of a mode."""
    largest = need.largest
    full = max(1, largest * SLOT_BYTES // max(1, need.slot(largest)))
    wanted = min(largest, full, max(SMALLEST_SLOT, -(-largest // SHARDS)))
    return bisect_right(range(wanted + 1), need.available, key=need.streaming) - 1
