"""What goes where: the bytes that a rank needs on its device, and which nonzeros stay there or are streamed.

The plan is made before anything is allocated; the operator then allocates what the plan says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from partitioner.shards.partition import Cut
from partitioner.tensors.sparse import ValueRange
from partitioner.validate import whole

from ..backend.device import Device
from ..backend.ops.cast16 import CAST16
from ..backend.ops.mttkrp import MTTKRP, Kernel, Share
from ..backend.ops.solve import SolverBytes
from ..backend.rows import block_rows
from ..errors import InputError
from ..options import Options
from .memory import Fit, Need, Passing, fit, fraction
from .modes import ModePlan, Planned, Product
from .products import Mttkrp

MOST_PARTS = 4  # of a mode whose rows are exchanged as they are done
SENT = 25  # a row of a factor matrix takes as long to be received as so many rows take to be multiplied (H200, NVLink)
PART_BYTES = 3 << 29  # of rows that are multiplied in the time that one more shard costs
MAX_RANK, MAX_DENSE_RANK = 1024, 4096  # of sparse tensors, whose kernels hold rows on chip, and of dense ones
INDEX_BYTES = 4

Solving = Callable[[int, int], SolverBytes]
"""Bytes that a method takes on the device beside an MTTKRP, for so many owned rows and columns."""


def nothing(rows: int, rank: int) -> SolverBytes:
    """Return that an MTTKRP is all that is computed; see `Solving`."""
    return SolverBytes()


class Loading(NamedTuple):
    """Bytes of host memory that rank 0 needs to load a tensor."""

    reading: int = 0  # while it is read
    tensor: int = 0  # to hold it, from then on
    dealing: int = 0  # while it is dealt to the ranks, beside what they keep
    sorting: int = 0  # while it is sorted to be dealt, beside that
    shareable: int = 0  # of the tensor, what is also a shard of a rank that is alone and computes on the host
    streamed: int = 0  # for each nonzero that is streamed, on every rank
    columns: int = 0  # for each of a mode's that stay on a host: read from a store, until a shard is made of them
    others: Loading | None = None  # what every other rank needs; by default only what is streamed
    device: Passing | None = None  # of every rank's device, if nonzeros can be sorted there


ALREADY_LOADED = Loading()


class Spectra(NamedTuple):
    """Bytes of a host's memory that finding a tensor's spectra takes."""

    sums: int
    each: int  # for each nonzero of a rank
    root: int = 0  # that rank 0 takes besides, where it solves eigenproblems
    library: bool = False  # whether SciPy, which every rank loads, is in the sums


class Setting(NamedTuple):
    """What the plans of all ranks have in common."""

    ranks: tuple[int, ...]  # columns of each mode's factor matrix
    options: Options
    device: Device
    values: ValueRange
    memory: int  # bytes of device memory to use
    overlaps: bool = False  # whether rows of factor matrices can be exchanged while others are computed
    solving: Solving = nothing
    ahead: bool = False  # whether a second copy of the factor matrices is of use, where there is room
    product: Product[Any] = Mttkrp()
    beside: tuple[Planned[Any], ...] = ()  # what is computed of the same shards in other ways
    spectra: Spectra | None = None  # if those of a sparse tensor are found before
    # Bytes of device memory, by rank, number of ranks and threads, if spectra of a dense tensor are found before:
    unfolding: Callable[[int, int, int], int] | None = None
    root_bytes: int = 0  # of host memory that rank 0 takes to find a start, or to solve eigenproblems
    late: bool = False  # whether the norm of elements that are streamed from a file may be found by the first MTTKRP


@dataclass(frozen=True)
class Plan:
    """What one rank holds."""

    modes: tuple[ModePlan, ...]
    dtype: np.dtype[Any]  # of values and factors
    slot: int  # nonzeros that a slot for streamed shards holds; 0 if nothing is streamed
    piece: int  # the most nonzeros of a resident shard
    device_bytes: dict[str, int]  # by use; their sum is the peak
    # The peak of host memory: while the tensor is loaded, or with what is streamed (and, on a CPU, all of the above).
    host_bytes: int
    on_device: bool = False  # whether nonzeros are sorted on the device: there is room for that beside its shards
    ahead: bool = False  # whether there is room for a second copy of the factor matrices, and nothing is streamed
    counted: ClassVar[str] = "nonzeros"

    @property
    def planned_bytes(self) -> dict[str, int]:
        """Bytes of all memory by use."""
        return self.device_bytes | {"host": self.host_bytes}

    @property
    def read_bytes(self) -> int:
        """Bytes of factor rows and of streamed nonzeros that an iteration reads."""
        rows = sum(m.nnz * len(m.share.lengths) * m.share.row_bytes for m in self.modes)
        return rows + sum(m.shard_bytes(m.streamed, streamed=True) for m in self.modes)

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot."""
        return max(m.shard_bytes(self.slot, streamed=True) for m in self.modes) if self.slot else 0


def nonzero_bytes(order: int, dtype: np.dtype[Any]) -> int:
    """Return the bytes of a nonzero in coordinate form: a 32-bit index for each mode, and a value."""
    return INDEX_BYTES * order + dtype.itemsize


def make_plan(cuts: Sequence[Cut], part: int, setting: Setting, loading: Loading = ALREADY_LOADED) -> Plan:
    """Decide what rank number `part` of the `cuts`, one for each mode, keeps on its device; see `SparseSource.loading`.

    Raises
    ------
    InputError
        If a rank is out of range, the device has no such kernel or format, or its memory cannot hold what has to be
        there.
    """
    options, device = setting.options, setting.device
    check_options(options, device)
    kernels = MTTKRP.providers(device)
    modes = [_mode_plan(mode, cuts, part, setting) for mode in range(len(cuts))]
    placement, one_copy = options.placement, any(k.name == options.kernel and k.derive for k in kernels)
    one_copy |= all(k.derive for k in kernels)
    if one_copy:  # the tensor is in the order of mode 0: nothing is sorted to be dealt
        modes, placement = _one_copy(modes), "resident"
    modes = [_with_kernels(m, kernels, setting) for m in modes]
    need = _need(modes, setting)
    fitting = fit(need, placement)
    # Each mode keeps an equal fraction, so that each has work to do while its streamed shards arrive.
    modes = [
        replace(
            m,
            resident=fraction(m.nnz, fitting.resident, need.total),
            parts=m.parts if m.any_row or not setting.overlaps else exchanged_parts(m, options.dtype),
            spare=fraction(m.nnz, fitting.spare, need.total),
        )
        for m in modes
    ]
    bytes_of, on_device, ahead = _device_bytes(need, fitting, setting, loading.device)
    mine = loading if part == 0 else loading.others or Loading(streamed=loading.streamed)
    if one_copy:
        mine = mine._replace(sorting=0)
    compiled = len({kernel.code for m in modes for kernel in m.kernels})
    compiled += max(sum(each.codes(m) for each in m.computed) for m in modes)
    runtime = device.host_bytes + device.code_bytes * compiled
    host = _host_bytes(modes, setting, sum(bytes_of.values()), mine) + runtime
    host += 0 if part else setting.root_bytes
    if setting.spectra is not None:  # a process seldom gives back what it has freed
        host += setting.spectra.sums + setting.spectra.each * max(m.nnz for m in modes)
    facts = fitting.slot, fitting.piece, bytes_of, host
    return Plan(tuple(modes), options.dtype, *facts, on_device=on_device, ahead=ahead)


def _device_bytes(
    need: Need, fitting: Fit, setting: Setting, passing: Passing | None
) -> tuple[dict[str, int], bool, bool]:
    """Return bytes by use, whether nonzeros can be sorted on the device, and if factor matrices can be held twice."""
    placed, copies = need.resident(fitting.resident) + need.slots(fitting.slot), need.fixed["factor matrices"]
    working = need.working(fitting.piece, fitting.slot)
    always = placed + sum(need.fixed.values())
    ahead = setting.ahead and not fitting.slot and always + working + fitting.spare + copies <= setting.memory
    loading = need.loading(fitting.piece, passing) if passing and not fitting.slot else None
    on_device = loading is not None and always + loading <= setting.memory
    if on_device and loading is not None:  # it is over when factor matrices are copied
        working = max(working, loading - (copies if ahead else 0))
    bytes_of = {
        "resident nonzeros": need.resident(fitting.resident),
        "stream slots": need.slots(fitting.slot),
        **need.fixed,
        "working memory": working,
    }
    return bytes_of | ({"factor matrices before": copies} if ahead else {}), on_device, ahead


def check_options(options: Options, device: Device, others: str = "") -> None:
    """Raise `InputError` if a device does not have what the options ask for; nothing of a tensor need be known.

    `others` tells of the kernels that tensors of other kinds have.
    """
    formats = "full", *(each.name for each in CAST16.providers(device))
    if options.gather not in formats:
        raise InputError(f"gather {options.gather!r}: {device.name} has {', '.join(formats)}")
    if options.kernel == "auto":
        return
    kernels = MTTKRP.providers(device)
    asked = next((k for k in kernels if k.name == options.kernel), None)
    if asked is None:
        names = ", ".join(k.name for k in kernels)
        raise InputError(f"kernel {options.kernel!r}: {device.name} has auto, {names}{others}")
    if asked.derive and options.placement == "stream":
        raise InputError(f"kernel {asked.name!r} keeps its nonzeros on the device: not with placement 'stream'")
    if options.gather != "full" and not asked.reads_narrow:
        raise InputError(f"kernel {asked.name!r} reads factor matrices as they are: not with gather {options.gather!r}")
    if options.deterministic and not asked.repeatable:
        repeatable = ", ".join(k.name for k in kernels if k.repeatable)
        raise InputError(f"kernel {asked.name!r} is not deterministic: {repeatable} are")


def _with_kernels(mode: ModePlan, kernels: Sequence[Kernel], setting: Setting) -> ModePlan:
    """Return a mode's plan with the kernels that may compute it, and what computes each product from their shards."""
    gather, wanted, providers = setting.options.gather, setting.options.kernel, dict(mode.providers)
    for each in mode.computed:
        if gather != "full" and each.reading:
            raise InputError(f"gather {gather!r}: {each.reading}")
        known = {k.name: how for k in kernels if (how := each.provider(setting.device, k, mode)) is not None}
        if not known:
            cause = f"{setting.device.name} computes no {each.label} of {mode.rank} columns"
            raise InputError(f"{cause}; use fewer{each.instead}")
        if wanted not in ("auto", *known):
            raise InputError(f"kernel {wanted!r} {each.refusal(', '.join(known))}")
        kernels = [k for k in kernels if k.name in known]
        providers |= {(each.op, name): how for name, how in known.items()}
    result = _candidates(mode.share, kernels, setting)
    timed = mode.product.timed and not mode.beside  # row problems take longer than what would be timed
    return replace(mode, kernels=result if timed else result[:1], providers=providers)


def _candidates(share: Share, kernels: Sequence[Kernel], setting: Setting) -> tuple[Kernel, ...]:
    """Return the kernels that may compute a share: the one asked for, or those worth timing."""
    wanted, suiting = setting.options.kernel, [k for k in kernels if k.suits(share)]
    if wanted == "auto":
        plain, *others = suiting
        return (plain,) if setting.options.deterministic else (plain, *(k for k in others if k.gains(share)))
    chosen = tuple(k for k in suiting if k.name == wanted)
    if not chosen:
        known = ", ".join(k.name for k in suiting)
        raise InputError(f"kernel {wanted!r}: {setting.device.name} has auto, {known} for this tensor")
    return chosen


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


def _need(modes: Sequence[ModePlan], setting: Setting) -> Need:
    first = modes[0]
    fixed = {
        "factor matrices": sum(int(m.cut.rows[-1]) * _row_bytes(m.share) for m in modes),
        first.product.output: max((m.rows.stop - m.rows.start) * m.width for m in modes) * 8,
    }
    fixed |= {each.keeps: sum(each.kept(m) for m in modes) for each in first.computed if each.keeps}
    takes = [setting.solving(m.owned.stop - m.owned.start, m.rank) for m in modes]
    # Factor matrices come to a device in blocks of rows.
    moving = max(min(int(m.cut.rows[-1]), block_rows(m.rank)) * m.rank for m in modes) * first.share.dtype.itemsize
    solving = max(t.kept for t in takes) + max(moving, *(t.passing for t in takes))
    columns = 0 if setting.device.on_host else nonzero_bytes(len(modes), first.share.dtype)
    return Need(modes, fixed, solving, columns, setting.memory)


def _row_bytes(share: Share) -> int:
    """Return the bytes of a row of a factor matrix, its copy in 16 bits included if there is one."""
    return share.stride * share.dtype.itemsize + (0 if share.gather == "full" else share.row_bytes)


def _host_bytes(modes: Sequence[ModePlan], setting: Setting, on_device: int, loading: Loading) -> int:
    """Return the peak of host memory. Where that is the device's, all bytes of the plan, `on_device`, are in it."""
    streamed = sum(m.streamed for m in modes)
    rows = 0 if setting.solving is nothing else sum(int(m.cut.rows[-1]) * m.rank for m in modes)
    model = rows * setting.options.dtype.itemsize
    if not setting.device.on_host:  # shards are packed on the device, from columns that are all there at once
        shards = sum(m.shard_bytes(m.streamed) for m in modes)
        columns = max(m.nnz for m in modes) * loading.streamed
        dealing = loading.dealing + loading.sorting + columns
        return max(loading.reading, loading.tensor + shards + max(dealing, model))
    resident = sum(m.shard_bytes(m.resident) for m in modes)
    shards = streamed * loading.streamed + resident
    dealing, first = loading.dealing, modes[0]
    if loading.columns:
        dealing = max(0 if m.kernels[0].keeps_columns(m.share) else loading.columns * m.resident for m in modes)
        each = nonzero_bytes(len(modes), first.share.dtype)  # of what is streamed, all but output rows stays in files
        shards += sum(m.shard_bytes(m.streamed, streamed=True) - m.streamed * each for m in modes)
    copied = 0 if first.kernels[0].keeps_columns(first.share) else INDEX_BYTES * len(modes) * first.resident
    tensor = loading.tensor - max(0, loading.shareable - copied)
    shards += tensor
    return max(loading.reading, shards + dealing + loading.sorting, shards + on_device - resident + model)


def _mode_plan(mode: int, cuts: Sequence[Cut], part: int, setting: Setting) -> ModePlan:
    rank, cut, options = setting.ranks[mode], cuts[mode], setting.options
    check_rank(rank)
    nnz = int(cut.nonzeros[part + 1] - cut.nonzeros[part])
    owned = slice(int(cut.rows[part]), int(cut.rows[part + 1]))
    head = int(cut.heads[part])
    # An owned range starts right after the shared row, because rows between them would be empty and owned earlier.
    rows = owned if head < 0 else slice(head, max(owned.stop, head + 1))
    lengths = tuple(int(other.rows[-1]) for m, other in enumerate(cuts) if m != mode)
    stride = setting.device.stride(rank, options.dtype.itemsize if options.gather == "full" else 2)
    share = Share(lengths, rows, nnz, stride, options.dtype, setting.values, gather=options.gather)
    inputs = tuple(columns for m, columns in enumerate(setting.ranks) if m != mode)
    return ModePlan(mode, rank, cut, owned, share, setting.product, setting.beside, inputs=inputs)


def _one_copy(modes: Sequence[ModePlan]) -> list[ModePlan]:
    """Return the plans of modes that are all computed from mode 0's nonzeros; the owners of rows stay."""
    first, rest = modes[0], []
    for m in modes[1:]:
        cut = replace(m.cut, nonzeros=first.cut.nonzeros, heads=np.full_like(m.cut.heads, -1))
        share = replace(m.share, rows=slice(0, int(m.cut.rows[-1])), nnz=first.nnz, column=m.mode)
        rest.append(replace(m, cut=cut, share=share))
    return [first, *rest]


def check_rank(rank: int, most: int = MAX_RANK) -> None:
    """Raise `InputError` unless the kernels take factor matrices of `rank` columns."""
    whole("rank", rank, 1, most)
