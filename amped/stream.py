"""A rank's nonzeros in place: the shard that stays on the device, and the shards that pass through it.

Streamed shards go through two slots, so that one is copied in while the other is computed on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.shards import BALANCE, equal_offsets

from .backend import Backend, Clock, Shard, Slot
from .placement import SLOTS, Plan
from .source import Source


@dataclass(frozen=True)
class ModeShards:
    """One rank's nonzeros of one mode.

    Attributes
    ----------
    resident : Shard
        The first of them, on the device.
    indices, values
        The rest of them, on the host.
    offsets : (shards + 1,) int64 array
        Where the rest is cut into shards.
    continues : bool
        Whether the rest begins in the middle of the resident shard's last row.
    """

    resident: Shard
    indices: Sequence[NDArray[np.int32]]
    values: NDArray[Any]
    offsets: NDArray[np.int64]
    continues: bool

    def starts_inside_row(self, at: int) -> bool:
        """Tell whether the streamed nonzero `at` has the output row of the one before it."""
        rows = self.indices[0]
        return bool(rows[at] == rows[at - 1]) if at else self.continues


class Stream:
    """The shards of all modes, in the order in which a rank computes them."""

    def __init__(self, plan: Plan, source: Source, backend: Backend, clock: Clock) -> None:
        """Load this rank's share of `source` as `plan` says. Collective."""
        order = len(plan.modes)
        self._modes = [_load(plan, mode, source, backend) for mode in range(order)]
        self._slots: list[Slot] = [
            backend.slot(order, plan.slot, plan.dtype, clock) for _ in range(SLOTS if plan.slot else 0)
        ]

    def resident(self, mode: int) -> Shard:
        """Return the shard of `mode` that stays on the device; it may be empty."""
        return self._modes[mode].resident

    def shards(self, mode: int) -> Iterator[Shard]:
        """Yield the shards of `mode`, each usable by the work queued until the next is asked for."""
        data = self._modes[mode]
        count = data.offsets.size - 1
        for k in range(min(SLOTS, count)):
            self._fill(data, mode, k)
        if data.resident.nnz:
            yield data.resident
        for k in range(count):
            with self._turn(k) as shard:
                yield shard
            if k + SLOTS < count:
                self._fill(data, mode, k + SLOTS)

    def _fill(self, data: ModeShards, mode: int, k: int) -> None:
        start, stop = int(data.offsets[k]), int(data.offsets[k + 1])
        indices = [column[start:stop] for column in data.indices]
        self._slots[k % SLOTS].fill(indices, data.values[start:stop], data.starts_inside_row(start), mode)

    @contextmanager
    def _turn(self, k: int) -> Iterator[Shard]:
        slot = self._slots[k % SLOTS]
        yield slot.shard()
        slot.release()


def _load(plan: Plan, mode: int, source: Source, backend: Backend) -> ModeShards:
    share = plan.modes[mode]
    keep, last_row = share.resident, -1
    resident, streamed = [], []
    for k, column in enumerate(source.load(mode, share.cut, plan.dtype)):
        dtype = plan.dtype if k == len(plan.modes) else np.dtype(np.int32)
        if k == 0 and keep:
            last_row = int(column[keep - 1])
        first, rest = _split(column, keep)
        resident.append(backend.column(first, dtype))
        # What is mapped from a file stays there.
        streamed.append(rest if isinstance(rest, np.memmap) else backend.source(rest, dtype))
        del column, first, rest  # before the next column is gathered
    rows = streamed[0]
    continues = bool(rows.size and rows[0] == last_row)
    # Shards may grow by a little on both sides, to end where a row ends.
    shards = -(-rows.size // max(1, int(plan.slot * (1 - 2 * BALANCE)))) if rows.size else 0
    offsets = equal_offsets(rows, shards) if shards else np.zeros(1, np.int64)
    return ModeShards(Shard(resident[:-1], resident[-1], keep, False), streamed[:-1], streamed[-1], offsets, continues)


def _split(column: NDArray[Any], at: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Split an array in two, neither of which keeps the memory of the other alive."""
    first, rest = column[:at], column[at:]
    if isinstance(column, np.memmap) or not (first.size and rest.size):
        return first, rest
    return first.copy(), rest.copy()
