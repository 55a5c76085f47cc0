"""What goes where: the bytes that a rank needs on its device, and which nonzeros stay there or are streamed.

The plan is made before anything is allocated; the engine then allocates what the plan says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from partitioner.coo import ValueRange
from partitioner.shards import Cut

from ..backend import PERMUTED, Backend, Share
from ..backend.base import GatherName
from ..backend.rows import block_rows
from ..errors import InputError
from .memory import Need, fit, fraction

PlacementName = Literal["auto", "resident", "stream"]
PLACEMENTS = get_args(PlacementName)

MOST_PARTS = 4  # of a mode whose rows are exchanged as they are done
SENT = 25  # a row of a factor matrix takes as long to be received as so many rows take to be multiplied (H200, NVLink)
PART_BYTES = 3 << 29  # of rows that are multiplied in the time that one more shard costs
MAX_RANK = 1024
INDEX_BYTES = 4


@dataclass(frozen=True)
class ModePlan:
    """One rank's share of one mode.

    Attributes
    ----------
    mode : int
    cut : Cut
        How all ranks share the mode.
    resident : int
        How many of this rank's nonzeros, the first ones, stay on the device.
    owned : slice
        The output rows that this rank owns.
    share : Share
        What it computes.
    parts : tuple of float
        Shares of the nonzeros that are shards of their own, so that rows are exchanged before all are done.
    spare : int
        Bytes of device memory that its shards may take beyond what the plan counts.
    """

    mode: int
    cut: Cut
    resident: int
    owned: slice
    share: Share
    parts: tuple[float, ...] = (1.0,)
    spare: int = 0

    @property
    def nnz(self) -> int:
        """Nonzeros of this rank."""
        return self.share.nnz

    @property
    def rows(self) -> slice:
        """The output rows that it computes: `owned`, and before them the row that it shares with an earlier rank."""
        return self.share.rows

    @property
    def streamed(self) -> int:
        """Nonzeros that are copied in for each MTTKRP."""
        return self.nnz - self.resident

    def room(self, backend: Backend, nnz: int, streamed: bool = False) -> int:
        """Return the most bytes that a shard of so many nonzeros may take."""
        share = replace(self.share, streamed=streamed)
        return backend.shard_bytes(share, nnz) + self.spare * nnz // max(1, self.nnz)

    @property
    def any_row(self) -> bool:
        """Whether its nonzeros are those of mode 0's copy, and may be of any row."""
        return self.share.column > 0


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
    sorting : int
        While it is sorted to be dealt, beside that.
    shareable : int
        How much of the tensor is also a shard of a rank that is alone and computes on the host.
    streamed : int
        For each nonzero that is streamed, on every rank.
    others : Loading, optional
        What every other rank needs; by default only what is streamed.
    """

    reading: int = 0
    tensor: int = 0
    dealing: int = 0
    sorting: int = 0
    shareable: int = 0
    streamed: int = 0
    others: Loading | None = None


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
    piece : int
        The most nonzeros of a resident shard.
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
    piece: int
    device_bytes: dict[str, int]
    host_bytes: int

    @property
    def planned_bytes(self) -> dict[str, int]:
        """Bytes of all memory by use."""
        return self.device_bytes | {"host": self.host_bytes}


def nonzero_bytes(order: int, dtype: np.dtype[Any]) -> int:
    """Return the bytes of a nonzero in coordinate form: a 32-bit index for each mode, and a value."""
    return INDEX_BYTES * order + dtype.itemsize


def make_plan(
    cuts: Sequence[Cut],
    part: int,
    rank: int,
    dtype: np.dtype[Any],
    values: ValueRange,
    backend: Backend,
    loading: Loading = ALREADY_LOADED,
    *,
    kernel: str = "auto",
    deterministic: bool = False,
    gather: GatherName = "full",
    placement: PlacementName = "auto",
    memory: int | None = None,
    local_ranks: int = 1,
    overlaps: bool = False,
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
    values : ValueRange
    backend : Backend
    loading : Loading
        Host memory beside the shards; see `Source.loading`.
    kernel : str
        The one to use; "auto" leaves the choice to timing, unless `deterministic`. `PERMUTED` keeps everything.
    deterministic : bool
    gather : {"full", "fp16", "bf16"}
    placement : {"auto", "resident", "stream"}
        Keep everything, nothing, or (auto) as much as fits.
    memory : int, optional
        Bytes of device memory to use; by default this rank's share of what is free.
    local_ranks : int
        Among how many ranks of the node that is shared.
    overlaps : bool
        Whether rows of factor matrices can be exchanged while others are computed.

    Raises
    ------
    InputError
        If the rank is out of range, there is no such kernel or way to gather, or the device memory cannot hold what
        has to be there.
    """
    check_rank(rank)
    if gather not in ("full", *backend.roundings):
        raise InputError(f"gather {gather!r}: {backend.name} has {', '.join(('full', *backend.roundings))}")
    stride = backend.stride(rank, dtype.itemsize if gather == "full" else 2)
    limit = backend.memory(local_ranks) if memory is None else memory
    modes = [_mode_plan(mode, cuts, part, stride, dtype, values, gather) for mode in range(len(cuts))]
    if kernel == PERMUTED:  # the tensor is in the order of mode 0: nothing is sorted to be dealt
        modes, placement = _one_copy(modes), "resident"
    modes = [replace(m, share=_with_kernels(m.share, backend, kernel, deterministic)) for m in modes]
    need = _need(modes, rank, limit, backend)
    fitting = fit(need, placement)
    # Each mode keeps an equal fraction, so that each has work to do while its streamed shards arrive.
    modes = [
        replace(
            m,
            resident=fraction(m.nnz, fitting.resident, need.total),
            parts=exchanged_parts(m, dtype) if overlaps and not m.any_row else m.parts,
            spare=fraction(m.nnz, fitting.spare, need.total),
        )
        for m in modes
    ]
    bytes_of = {
        "resident nonzeros": need.resident(fitting.resident),
        "stream slots": need.slots(fitting.slot),
        **need.fixed,
        "working memory": need.working(fitting.piece, fitting.slot),
    }
    mine = loading if part == 0 else loading.others or Loading(streamed=loading.streamed)
    if kernel == PERMUTED:
        mine = mine._replace(sorting=0)
    runtime = backend.host_runtime_bytes({name for m in modes for name in m.share.kernels})
    host = _host_bytes(modes, backend, sum(bytes_of.values()), mine) + runtime
    return Plan(tuple(modes), rank, stride, dtype, fitting.slot, fitting.piece, bytes_of, host)


def exchanged_parts(mode: ModePlan, dtype: np.dtype[Any]) -> tuple[float, ...]:
    """Return the shares of a mode's nonzeros after which rows are to be sent, the same for all ranks.

    Each is computed while the rows of the one before are sent; only those of the last are waited for. More parts leave
    less to wait for, and each costs some time.
    """
    ranks, rows = mode.cut.heads.size, int(mode.cut.rows[-1])
    send = SENT * rows * (ranks - 1) / ranks * mode.share.stride * dtype.itemsize
    multiply = int(mode.cut.nonzeros[-1]) / ranks * len(mode.share.lengths) * mode.share.row_bytes
    ratio = min(1.0, send / max(1.0, multiply))
    sizes = [np.cumprod([1.0, *[ratio] * k]) for k in range(MOST_PARTS)]
    shares = min((size / size.sum() for size in sizes), key=lambda s: s[-1] * send + s.size * PART_BYTES)
    return tuple(shares.tolist())


def _need(modes: Sequence[ModePlan], rank: int, limit: int, backend: Backend) -> Need:
    shares = [m.share for m in modes]
    first = shares[0]
    row = first.stride * first.dtype.itemsize + (0 if first.gather == "full" else first.row_bytes)
    fixed = {
        "factor matrices": sum(int(m.cut.rows[-1]) for m in modes) * row,
        "MTTKRP output": max(s.rows.stop - s.rows.start for s in shares) * first.stride * 8,
    }
    owned = max(m.owned.stop - m.owned.start for m in modes)
    dense = backend.dense_blocks(rank) * min(owned, block_rows(rank)) * rank * 8 + 4 * rank * rank * 8
    return Need(shares, fixed, dense, limit, backend)


def _host_bytes(modes: Sequence[ModePlan], backend: Backend, on_device: int, loading: Loading) -> int:
    """Return the peak of host memory. Where that is the device's, all bytes of the plan, `on_device`, are in it."""
    streamed = sum(m.streamed for m in modes)
    if backend.name == "cuda":  # shards are packed on the device, from columns that are all there at once
        shards = sum(backend.shard_bytes(m.share, m.streamed) for m in modes)
        columns = max(m.nnz for m in modes) * loading.streamed
        return max(loading.reading, loading.tensor + loading.dealing + loading.sorting + columns + shards)
    resident = sum(backend.shard_bytes(m.share, m.resident) for m in modes)
    shards = streamed * loading.streamed + resident
    first = modes[0]
    copied = 0 if backend.keeps_columns(first.share) else INDEX_BYTES * len(modes) * first.resident
    tensor = loading.tensor - max(0, loading.shareable - copied)
    return max(
        loading.reading, tensor + loading.dealing + loading.sorting + shards, tensor + shards + on_device - resident
    )


def _mode_plan(
    mode: int,
    cuts: Sequence[Cut],
    part: int,
    stride: int,
    dtype: np.dtype[Any],
    values: ValueRange,
    gather: GatherName,
) -> ModePlan:
    cut = cuts[mode]
    nnz = int(cut.nonzeros[part + 1] - cut.nonzeros[part])
    owned = slice(int(cut.rows[part]), int(cut.rows[part + 1]))
    head = int(cut.heads[part])
    # An owned range starts right after the shared row, because rows between them would be empty and owned earlier.
    rows = owned if head < 0 else slice(head, max(owned.stop, head + 1))
    lengths = tuple(int(other.rows[-1]) for m, other in enumerate(cuts) if m != mode)
    return ModePlan(mode, cut, 0, owned, Share(lengths, rows, nnz, stride, dtype, values, gather=gather))


def _one_copy(modes: Sequence[ModePlan]) -> list[ModePlan]:
    """Return the plans of modes that are all computed from mode 0's nonzeros; the owners of rows stay."""
    first, rest = modes[0], []
    for m in modes[1:]:
        cut = replace(m.cut, nonzeros=first.cut.nonzeros, heads=np.full_like(m.cut.heads, -1))
        share = replace(m.share, rows=slice(0, int(m.cut.rows[-1])), nnz=first.nnz, column=m.mode)
        rest.append(replace(m, cut=cut, share=share))
    return [first, *rest]


def _with_kernels(share: Share, backend: Backend, kernel: str, deterministic: bool) -> Share:
    known = backend.kernels(len(share.lengths) + 1)
    if kernel != "auto" and kernel not in known:
        raise InputError(f"kernel {kernel!r}: {backend.name} has auto, {', '.join(known)} for this tensor")
    if deterministic and kernel not in ("auto", *backend.repeatable):
        raise InputError(f"kernel {kernel!r} is not deterministic: {', '.join(backend.repeatable)} are")
    candidates = backend.candidates(share)
    chosen = candidates[:1] if deterministic else candidates
    return replace(share, kernels=chosen if kernel == "auto" else (kernel,))


def check_rank(rank: int) -> None:
    """Raise `InputError` unless the kernels take factor matrices of `rank` columns."""
    if not 1 <= rank <= MAX_RANK:
        raise InputError(f"rank {rank} is outside 1..{MAX_RANK}")
