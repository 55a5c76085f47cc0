"""Plans: the memory that a rank needs on its device, and which nonzeros stay there or are streamed.

A plan is complete before anything is allocated; the operator then allocates according to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from partitioner.array_types import FloatDType
from partitioner.shards.partition import Cut
from partitioner.tensors.value_range import ValueRange
from partitioner.validate import whole

from ..backend.device import Device
from ..backend.ops.cast16 import CAST16
from ..backend.ops.mttkrp import MTTKRP, Kernel, Share
from ..backend.ops.solve import SolverBytes
from ..backend.rows import block_rows
from ..errors import InputError
from ..options import Options
from .kept_rows import Compaction
from .memory import Fit, Need, Passing, fit, fraction
from .modes import ModePlan, Planned, Product
from .products import Mttkrp

MOST_PARTS = 4  # parts of a mode whose finished rows are exchanged while others are computed
SENT = 25  # receiving a factor row takes as long as multiplying this many rows (H200, NVLink)
PART_BYTES = 3 << 29  # bytes of rows that are multiplied in the time that an additional shard costs
MAX_RANK, MAX_DENSE_RANK = 1024, 4096  # of sparse tensors, whose kernels keep rows on chip, and of dense tensors
INDEX_BYTES = 4

Solving = Callable[[int, int], SolverBytes]
"""Device memory that a method needs in addition to an MTTKRP, for given numbers of owned rows and columns."""


def nothing(rows: int, rank: int) -> SolverBytes:
    """Return 0 bytes, for an MTTKRP without a method; see `Solving`."""
    return SolverBytes()


def constantly(needs: SolverBytes) -> Solving:
    """Return a function that returns the same device memory for any rows and columns."""
    return lambda rows, rank: needs


class Loading(NamedTuple):
    """Host memory, in bytes, that rank 0 needs to load a tensor."""

    reading: int = 0  # while it is read
    tensor: int = 0  # permanently, after reading
    dealing: int = 0  # additionally, while it is distributed to the ranks
    sorting: int = 0  # additionally, while it is sorted for distribution
    shareable: int = 0  # part of `tensor` that a single rank's shard on the host uses in place
    streamed: int = 0  # per streamed nonzero, on every rank
    columns: int = 0  # per nonzero of a mode that stays on the host: read from a store, until a shard is built
    others: Loading | None = None  # needs of every other rank; by default only `streamed`
    device: Passing | None = None  # device memory of every rank, if nonzeros can be sorted there


ALREADY_LOADED = Loading()


class Spectra(NamedTuple):
    """Host memory, in bytes, that computing a tensor's spectra needs."""

    sums: int
    each: int  # per nonzero of a rank
    root: int = 0  # additionally on rank 0, which solves eigenproblems
    library: bool = False  # whether `sums` includes SciPy, which every rank loads


class VectorBytes(NamedTuple):
    """Memory for the vectors of `Setting.vectors`."""

    device: int
    host: int  # in addition; 0 if they are on the device


class GridParts(NamedTuple):
    """The shape of a grid of ranks; see `partitioner.shards.process_grid.ProcessGrid`."""

    layers: tuple[int, ...]  # of each mode
    nodes: tuple[int, ...]


class Setting(NamedTuple):
    """Parameters that the plans of all ranks share."""

    ranks: tuple[int, ...]  # columns of each mode's factor matrix
    options: Options
    device: Device
    values: ValueRange
    memory: int  # usable bytes of device memory
    overlaps: bool = False  # whether rows of factor matrices can be exchanged while others are computed
    solving: Solving = nothing
    pipelined: bool = False  # whether iterations are pipelined if memory permits a second copy of the factor matrices
    product: Product[Any] = Mttkrp()
    extras: tuple[Planned[Any], ...] = ()  # additional computations from the same shards
    spectra: Spectra | None = None  # if the spectra of a sparse tensor are computed first
    # Device memory as a function of (rank, ranks, threads), if the spectra of a dense tensor are computed first:
    unfolding: Callable[[int, int, int], int] | None = None
    root_bytes: int = 0  # host memory that rank 0 needs to compute a start or to solve eigenproblems
    compaction: Compaction | None = None  # of hypersparse modes, if the method permits it
    grid: GridParts | None = None  # None: all ranks have all rows of all factor matrices
    uncompressed: tuple[int, ...] = ()  # modes whose factor matrix is the identity
    vectors: int = 0  # that a method keeps, of all numbers of the factor matrices' owned rows, in double precision
    late: bool = False  # whether the first MTTKRP may compute the norm of elements that are streamed from a file


@dataclass(frozen=True)
class Plan:
    """The plan of one rank."""

    modes: tuple[ModePlan, ...]
    dtype: FloatDType  # of values and factors
    slot: int  # nonzeros per streaming slot; 0 if nothing is streamed
    piece: int  # largest number of nonzeros of a resident shard
    device_bytes: dict[str, int]  # by use; their sum is the peak
    # Peak of host memory: while the tensor is loaded, or with streamed nonzeros (on a CPU, including device memory).
    host_bytes: int
    on_device: bool = False  # whether nonzeros are sorted on the device, which has memory for that
    pipelined: bool = False  # whether memory permits a second copy of the factor matrices, and nothing is streamed
    vectors_on_device: bool = True  # whether the vectors of `Setting.vectors` are in device memory
    counted: ClassVar[str] = "nonzeros"

    @property
    def planned_bytes(self) -> dict[str, int]:
        """Bytes of device and host memory by use."""
        return self.device_bytes | {"host": self.host_bytes}

    @property
    def read_bytes(self) -> int:
        """Bytes of factor rows and streamed nonzeros that an iteration reads."""
        rows = sum(m.nnz * len(m.share.lengths) * m.share.row_bytes for m in self.modes)
        return rows + sum(m.shard_bytes(m.streamed, streamed=True) for m in self.modes)

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot."""
        return max(m.shard_bytes(self.slot, streamed=True) for m in self.modes) if self.slot else 0


def nonzero_bytes(order: int, dtype: FloatDType) -> int:
    """Return the bytes of a nonzero in coordinate form: a 32-bit index for each mode, and a value."""
    return INDEX_BYTES * order + dtype.itemsize


def make_plan(cuts: Sequence[Cut], part: int, setting: Setting, loading: Loading = ALREADY_LOADED) -> Plan:
    """Return the plan of rank number `part`; `cuts` has one element per mode. For `loading` see `SparseSource.loading`.

    Raises
    ------
    InputError
        If a rank is out of range, the device lacks the requested kernel or format, or its memory is too small.
    """
    options, device = setting.options, setting.device
    check_options(options, device)
    kernels = MTTKRP.providers(device)
    modes = [_mode_plan(mode, cuts, part, setting) for mode in range(len(cuts))]
    placement, one_copy = options.placement, any(k.name == options.kernel and k.derive for k in kernels)
    one_copy |= all(k.derive for k in kernels)
    if one_copy:  # only mode 0's order is used, so nothing is sorted for distribution
        modes, placement = _one_copy(modes), "resident"
    modes = [_with_kernels(m, kernels, setting) for m in modes]
    need = _need(modes, setting)
    fitting = fit(need, placement)
    # An equal fraction of each mode is resident, so that each has work while its streamed shards arrive.
    modes = [
        replace(
            m,
            resident=fraction(m.nnz, fitting.resident, need.total),
            parts=m.parts if m.any_row or not setting.overlaps else exchanged_parts(m, options.dtype),
            spare=fraction(m.nnz, fitting.spare, need.total),
        )
        for m in modes
    ]
    bytes_of, on_device, pipelined = _device_bytes(need, fitting, setting, loading.device)
    mine = loading if part == 0 else loading.others or Loading(streamed=loading.streamed)
    if one_copy:
        mine = mine._replace(sorting=0)
    compiled = len({kernel.code for m in modes for kernel in m.kernels})
    compiled += max(sum(each.codes(m) for each in m.computed) for m in modes)
    runtime = device.host_bytes + device.code_bytes * compiled
    host = _host_bytes(modes, setting, sum(bytes_of.values()), mine) + runtime
    host += 0 if part else setting.root_bytes
    if setting.spectra is not None:  # freed memory usually stays with the process
        host += setting.spectra.sums + setting.spectra.each * max(m.nnz for m in modes)
    vectors = vector_bytes(modes, setting)
    return Plan(
        tuple(modes), options.dtype, fitting.slot, fitting.piece, bytes_of, host + vectors.host, on_device=on_device,
        pipelined=pipelined, vectors_on_device=not vectors.host,
    )  # fmt: skip


def _device_bytes(
    need: Need, fitting: Fit, setting: Setting, passing: Passing | None
) -> tuple[dict[str, int], bool, bool]:
    """Return bytes by use, whether nonzeros can be sorted on the device, and whether factor matrices fit twice."""
    placed, copies = need.resident(fitting.resident) + need.slots(fitting.slot), need.fixed["factor matrices"]
    working = need.working(fitting.piece, fitting.slot)
    always = placed + sum(need.fixed.values())
    pipelined = setting.pipelined and not fitting.slot and always + working + fitting.spare + copies <= setting.memory
    loading = need.loading(fitting.piece, passing) if passing and not fitting.slot else None
    on_device = loading is not None and always + loading <= setting.memory
    if on_device and loading is not None:  # loading ends before factor matrices are copied
        working = max(working, loading - (copies if pipelined else 0))
    bytes_of = {
        "resident nonzeros": need.resident(fitting.resident),
        "stream slots": need.slots(fitting.slot),
        **need.fixed,
        "working memory": working,
    }
    return bytes_of | ({"factor matrices before": copies} if pipelined else {}), on_device, pipelined


def check_options(options: Options, device: Device, others: str = "") -> None:
    """Raise `InputError` if a device does not support the options, independent of a tensor.

    `others` is appended to the list of kernels: the kernels of other kinds of tensors.
    """
    formats = "full", *(each.name for each in CAST16.providers(device))
    if options.gather not in formats:
        raise InputError(f"gather {options.gather!r}: {device.name} has {', '.join(formats)}")
    if options.kernel == "auto":
        return
    kernels = MTTKRP.providers(device)
    kernel = next((k for k in kernels if k.name == options.kernel), None)
    if kernel is None:
        names = ", ".join(k.name for k in kernels)
        raise InputError(f"kernel {options.kernel!r}: {device.name} has auto, {names}{others}")
    if kernel.derive and options.placement == "stream":
        raise InputError(f"kernel {kernel.name!r} does not support placement 'stream'")
    if options.gather != "full" and not kernel.reads_narrow:
        raise InputError(f"kernel {kernel.name!r} requires gather 'full', not {options.gather!r}")
    if options.deterministic and not kernel.repeatable:
        repeatable = ", ".join(k.name for k in kernels if k.repeatable)
        raise InputError(f"kernel {kernel.name!r} is not deterministic: {repeatable} are")


def _with_kernels(mode: ModePlan, kernels: Sequence[Kernel], setting: Setting) -> ModePlan:
    """Return the plan of a mode with its candidate kernels, and the providers of each product for their shards."""
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
    timed = mode.product.timed and not mode.extras  # row problems take longer than what would be timed
    return replace(mode, kernels=result if timed else result[:1], providers=providers)


def _candidates(share: Share, kernels: Sequence[Kernel], setting: Setting) -> tuple[Kernel, ...]:
    """Return the candidate kernels of a share: the requested one, or those worth timing."""
    wanted, suiting = setting.options.kernel, [k for k in kernels if k.suits(share)]
    if wanted == "auto":
        plain, *others = suiting
        return (plain,) if setting.options.deterministic else (plain, *(k for k in others if k.gains(share)))
    chosen = tuple(k for k in suiting if k.name == wanted)
    if not chosen:
        known = ", ".join(k.name for k in suiting)
        raise InputError(f"kernel {wanted!r}: {setting.device.name} has auto, {known} for this tensor")
    return chosen


def exchanged_parts(mode: ModePlan, dtype: FloatDType) -> tuple[float, ...]:
    """Return the fractions of a mode's nonzeros after which finished rows are sent, identical on all ranks.

    Each part is computed while the rows of the previous part are sent; only the last rows are waited for. More parts
    shorten that wait, but each part has a cost.
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
    fixed |= {"vectors": vector_bytes(modes, setting).device} if setting.vectors else {}
    takes = [setting.solving(m.owned.stop - m.owned.start, m.rank) for m in modes]
    # Factor matrices are copied to a device in blocks of rows.
    moving = max(min(int(m.cut.rows[-1]), block_rows(m.rank)) * m.rank for m in modes) * first.share.dtype.itemsize
    solving = max(t.kept for t in takes) + max(moving, *(t.passing for t in takes))
    columns = 0 if setting.device.on_host else nonzero_bytes(len(modes), first.share.dtype)
    return Need(modes, fixed, solving, columns, setting.memory)


def vector_bytes(modes: Sequence[ModePlan], setting: Setting) -> VectorBytes:
    """Return the memory for vectors: on the device if they take at most half of its memory, else on the host.

    The gradient is always on the device.
    """
    one = 8 * sum((m.owned.stop - m.owned.start) * m.rank for m in modes)
    every = one * setting.vectors
    if setting.device.on_host or 2 * every <= setting.memory:
        return VectorBytes(every, 0)
    return VectorBytes(one, every)


def _row_bytes(share: Share) -> int:
    """Return the bytes of a row of a factor matrix, including its 16-bit copy if there is one."""
    return share.stride * share.dtype.itemsize + (0 if share.gather == "full" else share.row_bytes)


def _host_bytes(modes: Sequence[ModePlan], setting: Setting, on_device: int, loading: Loading) -> int:
    """Return the peak of host memory. On a CPU it includes all bytes of the plan, `on_device`."""
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
    return ModePlan(mode, rank, cut, owned, share, setting.product, setting.extras, inputs=inputs)


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
