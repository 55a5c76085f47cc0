"""What goes where: the bytes that a rank needs on its device, and which nonzeros stay there or are streamed.

The plan is made before anything is allocated; the engine then allocates what the plan says.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from partitioner.shards import Cut

from .backend import Backend
from .backend.dense import block_rows
from .errors import InputError

PlacementName = Literal["auto", "resident", "stream"]
PLACEMENTS = get_args(PlacementName)

SLOTS = 2
SLOT_BYTES = 1 << 28  # a shard of this size keeps the link busy for milliseconds, so that queueing it costs nothing
SMALLEST_SLOT = 1024  # nonzeros
SHARDS = 4  # at least, for a mode that is streamed: with fewer, copying and computing hardly overlap
MAX_RANK = 1024


@dataclass(frozen=True)
class ModePlan:
    """One rank's share of one mode.

    Attributes
    ----------
    mode : int
    cut : Cut
        How all ranks share the mode.
    nnz : int
        Nonzeros of this rank.
    resident : int
        How many of them, the first ones, stay on the device.
    owned : slice
        The output rows that this rank owns.
    rows : slice
        The output rows that it computes: `owned`, and before them the row that it shares with an earlier rank.
    """

    mode: int
    cut: Cut
    nnz: int
    resident: int
    owned: slice
    rows: slice

    @property
    def streamed(self) -> int:
        """Nonzeros that are copied in for each MTTKRP."""
        return self.nnz - self.resident


class Loading(NamedTuple):
    """Bytes of host memory that rank 0 needs to load a tensor.

    Attributes
    ----------
    reading : int
        While it is read.
    tensor : int
        To hold it, from then on.
    dealing : int
        While it is dealt to the ranks, beside what they keep.
    shareable : int
        How much of the tensor is also a shard of a rank that is alone and computes on the host.
    streamed : int
        For each nonzero that is streamed, on every rank.
    """

    reading: int = 0
    tensor: int = 0
    dealing: int = 0
    shareable: int = 0
    streamed: int = 0


ALREADY_LOADED = Loading()


@dataclass(frozen=True)
class Plan:
    """What one rank holds.

    Attributes
    ----------
    modes : tuple of ModePlan
    rank : int
        Columns of the factor matrices.
    stride : int
        Columns with the padding that the kernels need.
    dtype : numpy.dtype
        Of values and factors.
    slot : int
        Nonzeros that a slot for streamed shards holds; 0 if nothing is streamed.
    device_bytes : dict of str to int
        Bytes of device memory by use; their sum is the peak.
    host_bytes : int
        Peak of host memory: while the tensor is loaded, or with what is streamed (and, on a CPU, all of the above).
    """

    modes: tuple[ModePlan, ...]
    rank: int
    stride: int
    dtype: np.dtype[Any]
    slot: int
    device_bytes: dict[str, int]
    host_bytes: int


def nonzero_bytes(order: int, dtype: np.dtype[Any]) -> int:
    """Return the bytes of one nonzero of a shard: a 32-bit index for each mode, and a value."""
    return 4 * order + dtype.itemsize


def make_plan(
    cuts: Sequence[Cut],
    part: int,
    rank: int,
    dtype: np.dtype[Any],
    backend: Backend,
    loading: Loading = ALREADY_LOADED,
    *,
    placement: PlacementName = "auto",
    memory: int | None = None,
    local_ranks: int = 1,
) -> Plan:
    """Decide what rank number `part` keeps on its device.

    Parameters
    ----------
    cuts : sequence of Cut
        One for each mode.
    part : int
        Which of the cuts' parts.
    rank : int
        Columns of the factor matrices, 1 to 1024.
    dtype : numpy.dtype
        float32 or float64.
    backend : Backend
    loading : Loading
        Host memory beside the shards; see `Source.loading`.
    placement : {"auto", "resident", "stream"}
        Keep everything, nothing, or (auto) as much as fits.
    memory : int, optional
        Bytes of device memory to use; by default this rank's share of what is free.
    local_ranks : int
        Among how many ranks of the node that is shared.

    Raises
    ------
    InputError
        If the rank is out of range, or the device memory cannot hold what has to be there.
    """
    check_rank(rank)
    unit = max(1, backend.vector_bytes // dtype.itemsize)
    stride = -(-rank // unit) * unit
    limit = backend.memory(local_ranks) if memory is None else memory
    shares = [_share(mode, cut, part) for mode, cut in enumerate(cuts)]
    fixed = _fixed_bytes(shares, rank, stride, dtype, backend.dense_blocks)
    each = nonzero_bytes(len(cuts), dtype)
    total, largest = sum(s.nnz for s in shares), max(s.nnz for s in shares)
    room = limit - sum(fixed.values())

    def scratch(nonzeros: int) -> int:
        return backend.scratch_bytes(nonzeros, stride) if nonzeros else 0

    def slots(nonzeros: int) -> int:
        return SLOTS * nonzeros * each + scratch(nonzeros)

    whole, least = total * each + scratch(largest), slots(min(largest, SMALLEST_SLOT))
    if (whole if placement == "resident" else least) > room and whole > room:
        what = "the resident tensor" if placement == "resident" else "two shards"
        need = sum(fixed.values()) + (whole if placement == "resident" else least)
        raise InputError(_does_not_fit(need, limit, f"the factor matrices and {what}"))
    slot, resident = 0, total
    if placement == "stream" or whole > room:
        slot = _slot(largest, each, room, slots)
        spare = room - SLOTS * slot * each - scratch(largest)
        resident = max(0, spare) // each if placement == "auto" else 0
    # Each mode keeps an equal fraction, so that each has work to do while its streamed shards arrive.
    modes = tuple(replace(s, resident=s.nnz * resident // total if total else 0) for s in shares)
    worst = max(max(m.resident, min(m.streamed, slot)) for m in modes)
    bytes_of = {
        "resident nonzeros": sum(m.resident for m in modes) * each,
        "stream slots": SLOTS * slot * each,
        **fixed,
        "scratch": scratch(worst),
    }
    on_host = bytes_of if backend.name == "cpu" else {}
    host = _host_bytes(modes, on_host, loading if part == 0 else Loading(streamed=loading.streamed))
    host += backend.host_runtime_bytes
    return Plan(modes, rank, stride, dtype, slot, bytes_of, host)


def _host_bytes(modes: Sequence[ModePlan], on_host: dict[str, int], loading: Loading) -> int:
    """Return the peak of host memory; `on_host` are the device's bytes if they are in host memory too."""
    shards = sum(m.streamed for m in modes) * loading.streamed + on_host.get("resident nonzeros", 0)
    kept = shards + sum(on_host.values()) - on_host.get("resident nonzeros", 0)
    largest, halved = max(m.nnz for m in modes), any(0 < m.resident < m.nnz for m in modes)
    tensor = loading.tensor - (loading.shareable if on_host and not halved else 0)
    dealing = loading.dealing + (4 * largest if halved else 0)
    return max(loading.reading, tensor + dealing + shards, tensor + kept)


def _share(mode: int, cut: Cut, part: int) -> ModePlan:
    nnz = int(cut.nonzeros[part + 1] - cut.nonzeros[part])
    owned = slice(int(cut.rows[part]), int(cut.rows[part + 1]))
    head = int(cut.heads[part])
    # An owned range starts right after the shared row, because rows between them would be empty and owned earlier.
    rows = owned if head < 0 else slice(head, max(owned.stop, head + 1))
    return ModePlan(mode, cut, nnz, 0, owned, rows)


def _fixed_bytes(
    shares: Sequence[ModePlan], rank: int, stride: int, dtype: np.dtype[Any], blocks: int
) -> dict[str, int]:
    row = stride * dtype.itemsize
    owned = max(s.owned.stop - s.owned.start for s in shares)
    return {
        "factor matrices": sum(int(s.cut.rows[-1]) for s in shares) * row,
        "MTTKRP output": max(s.rows.stop - s.rows.start for s in shares) * stride * 8,
        "dense work": blocks * min(owned, block_rows(rank)) * rank * 8 + 4 * rank * rank * 8,
    }


def _slot(largest: int, each: int, room: int, slots: Callable[[int], int]) -> int:
    """Return the nonzeros of a slot: as many as fit, but no more than a full-sized shard, or some shards a mode."""
    wanted = min(largest, SLOT_BYTES // each, max(SMALLEST_SLOT, -(-largest // SHARDS)))
    return bisect_right(range(wanted + 1), room, key=slots) - 1


def check_rank(rank: int) -> None:
    """Raise `InputError` unless the kernels take factor matrices of `rank` columns."""
    if not 1 <= rank <= MAX_RANK:
        raise InputError(f"rank {rank} is outside 1..{MAX_RANK}")


def _does_not_fit(need: int, limit: int, what: str) -> str:
    return f"device memory: {what} need {need:,} bytes, {max(0, limit):,} are there; use more ranks or a lower rank"
