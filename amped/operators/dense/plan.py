"""Plans for dense tensors: the memory of a rank, before anything is allocated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from partitioner.array_types import DType, FloatDType
from partitioner.shards.partition import Cut
from partitioner.tensors.statistics import looked_at

from ...backend.device import Device
from ...backend.ops.dense import DENSE, BlockForm, DenseKernel, NoSweep, RowLayout
from ...backend.ops.mttkrp import Share
from ...backend.rows import block_rows
from ...errors import InputError
from ...options import Options
from ..memory import SLOT_BYTES, SLOTS
from ..modes import ModePlan
from ..placement import MAX_DENSE_RANK, Plan, Setting, check_rank, nothing, vector_bytes
from ..sources.dense import DenseSource
from ..sources.grid import Grid
from .load import PIECE

SHARDS = 4  # streamed slabs at least: with fewer, copying and computing hardly overlap
WORKSPACE = 350_000_000  # default size of scratch memory in bytes
DOUBLE_BYTES = 1 << 24  # bytes of a slab that is converted to double precision


@dataclass(frozen=True, kw_only=True)
class DensePlan(Plan):
    """The plan of one rank for a dense tensor. Modes in `form` are in memory order."""

    grid: Grid
    form: BlockForm  # of the rank's block
    double: BlockForm | None  # for MTTKRPs in double precision, if elements are in single precision
    kernel: DenseKernel
    streamed: bool
    rows: RowLayout | None  # the padded layout of elements on the device, if any
    sent: DType  # type in which elements are transferred to the device, which converts them to `dtype`
    counted: ClassVar[str] = "elements"

    @property
    def read_bytes(self) -> int:
        """See `Plan`: each mode may read all elements."""
        return len(self.modes) * self.form.elements * self.form.dtype.itemsize


def dense_kernel(options: Options, device: Device) -> DenseKernel:
    """Return the kernel selected by the options; raise `InputError` if the device does not have it."""
    kernels = DENSE.providers(device)
    if options.gather != "full":
        raise InputError(f"gather {options.gather!r} is for sparse tensors")
    names = ", ".join(kernel.name for kernel in kernels)
    if not kernels:
        raise InputError(f"{device.name} has no kernels for dense tensors")
    if options.kernel == "auto":
        return kernels[0]
    result = next((kernel for kernel in kernels if kernel.name == options.kernel), None)
    if result is None:
        raise InputError(f"kernel {options.kernel!r}: for dense tensors, {device.name} has auto, {names}")
    if options.deterministic and not result.repeatable:
        repeatable = ", ".join(kernel.name for kernel in kernels if kernel.repeatable)
        raise InputError(f"kernel {result.name!r} is not deterministic: {repeatable} are")
    return result


def make_dense_plan(source: DenseSource, rank: int, ranks: int, setting: Setting) -> DensePlan:
    """Return the plan of rank number `rank` of `ranks`.

    Raises
    ------
    InputError
        If the device memory is too small, or the device lacks the kernel.
    """
    options, device = setting.options, setting.device
    columns = setting.ranks[0]
    check_rank(columns, MAX_DENSE_RANK)
    kernel, grid = dense_kernel(options, device), Grid.of(source.lengths, ranks)
    if not setting.product.sums:
        kernel = NoSweep()
    shape, item = grid.shape(rank), options.dtype.itemsize
    modes = mode_plans(source, grid, rank, setting)
    resident = BlockForm(
        shape, shape[0], columns, device.stride(columns, item), options.dtype, options.workspace or WORKSPACE,
        whole=grid.ranks == 1, dimension_tree=not options.deterministic,
    )  # fmt: skip
    sent = sent_as(source.value_dtype, options.dtype, device)
    if not kernel.suits(resident):
        raise InputError(f"kernel {kernel.name!r} does not run on this device ({device.description}): auto does")
    parts = _Parts(kernel, modes, _fixed_bytes(modes, resident, setting), setting)
    vectors = vector_bytes(modes, setting)
    elements = 0 if _in_place(source, ranks, setting) else math.prod(shape) * item
    placed = _placed(resident, elements, sent, parts)
    form, streamed = placed.form, placed.streamed
    used = {
        "resident elements": placed.elements,
        "stream slots": placed.slots,
        **parts.fixed,
        "working memory": placed.working,
    }
    copies = parts.fixed["factor matrices"]
    pipelined = setting.pipelined and not streamed and sum(used.values()) + copies <= setting.memory
    if pipelined:
        used["factor matrices before"] = copies
    model = 0 if setting.solving is nothing else sum(source.shape) * columns * item
    host = device.host_bytes + 2 * device.code_bytes + model + given_bytes(source, grid, rank)
    host += reading_bytes(source, math.prod(shape), sent, device, streamed) + (0 if rank else setting.root_bytes)
    host += vectors.host
    if device.on_host:
        host += sum(used.values())
    return DensePlan(
        tuple(modes), options.dtype, form.slab if streamed else 0, form.elements, used, host,
        pipelined=pipelined, sent=sent, grid=grid, form=form, double=_double(form, kernel), kernel=kernel,
        streamed=streamed, rows=placed.rows, vectors_on_device=not vectors.host,
    )  # fmt: skip


def reading_bytes(source: DenseSource, elements: int, sent: DType, device: Device, streamed: bool) -> int:
    """Return the host memory for reading `elements` elements from a file and transferring them as type `sent`."""
    if not source.in_file:
        return 0
    own = source.value_dtype
    if source.plain:
        result = device.reading_bytes(elements * sent.itemsize, int(sent != own) + int(looked_at(own) != own))
    else:  # a library reads a piece, and statistics are computed
        result = min(elements, PIECE) * (own.itemsize + looked_at(own).itemsize * (looked_at(own) != own))
    return result * (SLOTS if streamed and device.on_host else 1)  # threads that fill a slot each


def given_bytes(source: DenseSource, grid: Grid, rank: int) -> int:
    """Return the host memory of the original elements on a rank; a file's pages belong to the system."""
    if source.in_file or source.on_gpu:
        return 0
    every, mine = math.prod(source.shape), math.prod(grid.shape(rank))
    copied = every if rank == 0 and grid.parts[1] > 1 else 0
    original = every if rank == 0 else 0
    return (original + copied + (mine if grid.ranks > 1 else 0)) * source.value_dtype.itemsize


def _in_place(source: DenseSource, ranks: int, setting: Setting) -> bool:
    """Return whether the device uses the elements in place."""
    on_same_device = source.on_gpu != setting.device.on_host and not source.in_file
    lends = source.lends and not source.mapped and source.value_dtype == setting.options.dtype
    return on_same_device and lends and ranks == 1


def mode_plans(source: DenseSource, grid: Grid, rank: int, setting: Setting) -> list[ModePlan]:
    """Return the plan of each mode for a rank; TTMc uses the other modes' columns as `inputs`."""
    result, options = [], setting.options
    elements = np.cumsum([0, *(math.prod(grid.shape(r)) for r in range(grid.ranks))]).astype(np.int64)
    for mode, length in enumerate(source.shape):
        place, columns = source.modes.index(mode), setting.ranks[mode]
        rows = grid.rows(place)
        owned = slice(int(rows[rank]), int(rows[rank + 1]))
        computed = owned if grid.one_owner(place) else slice(0, length)
        lengths = tuple(n for m, n in enumerate(source.shape) if m != mode)
        nnz, stride = int(elements[rank + 1] - elements[rank]), setting.device.stride(columns, options.dtype.itemsize)
        share = Share(lengths, computed, nnz, stride, options.dtype, setting.values)
        cut = Cut(elements, rows, np.full(grid.ranks, -1, np.int64))
        others = tuple(r for m, r in enumerate(setting.ranks) if m != mode)
        result.append(ModePlan(mode, columns, cut, owned, share, setting.product, inputs=others, resident=nnz))
    return result


def _fixed_bytes(modes: Sequence[ModePlan], form: BlockForm, setting: Setting) -> dict[str, int]:
    item = form.dtype.itemsize
    takes = [setting.solving(m.owned.stop - m.owned.start, m.rank) for m in modes]
    return {
        "factor matrices": sum(int(m.cut.rows[-1]) for m in modes) * form.stride * item,
        "MTTKRP output": max((m.rows.stop - m.rows.start) * m.width for m in modes) * 8,
        "method": max(t.kept for t in takes),
        **({"vectors": vector_bytes(modes, setting).device} if setting.vectors else {}),
    }


class _Parts(NamedTuple):
    """The parameters from which a plan is computed."""

    kernel: DenseKernel
    modes: Sequence[ModePlan]
    fixed: dict[str, int]  # bytes that are always allocated, by use
    setting: Setting

    @property
    def available(self) -> int:
        """Device memory for elements and working memory."""
        return self.setting.memory - sum(self.fixed.values())

    def working(self, form: BlockForm) -> int:
        """Return the bytes of temporary and scratch memory."""
        kernel, modes = self.kernel, self.modes
        scratch, double = kernel.bytes(form) if form.elements else 0, _double(form, kernel)
        if double is not None and form.elements:
            cast = 0 if double.stored else double.slab * math.prod(form.lengths[1:])
            scratch = max(scratch, kernel.bytes(double)) + (cast + sum(form.lengths) * form.stride) * 8
        moving = max(min(int(m.cut.rows[-1]), block_rows(m.rank)) * m.rank for m in modes) * form.dtype.itemsize
        passing = [self.setting.solving(m.owned.stop - m.owned.start, m.rank).passing for m in modes]
        return scratch + max(moving, *passing)


class _Placed(NamedTuple):
    """The placement of a block: bytes of its elements on the device, of slots, and of working memory."""

    form: BlockForm
    streamed: bool
    elements: int
    slots: int
    working: int
    rows: RowLayout | None = None


def _placed(resident: BlockForm, elements: int, sent: DType, parts: _Parts) -> _Placed:
    """Return the placement of a block, which needs `elements` bytes if it is resident."""
    placement = parts.setting.options.placement
    working = parts.working(resident)
    streamed = placement == "stream" or elements + working > parts.available
    if streamed and placement == "resident":
        _refuse(sum(parts.fixed.values()) + working + elements, parts.setting, "the resident tensor")
    if streamed and resident.elements:
        resident = resident._replace(slab=-(-resident.lengths[0] // SHARDS), whole=False)
    if not streamed:
        spaced = _with_gaps(resident, elements, sent, parts) if elements else None
        return spaced or _without_gaps(resident, elements, sent, parts)
    form = _with_workspace(resident, parts, parts.available)
    if not form.elements:
        return _Placed(form, True, 0, 0, parts.working(form))
    index = _index_bytes(form, sent)
    form, working = _streamed_form(form, parts, index)
    return _Placed(form, True, 0, form.slab * index, working)


def _without_gaps(resident: BlockForm, elements: int, sent: DType, parts: _Parts) -> _Placed:
    form = _with_workspace(resident, parts, parts.available - elements)
    working = parts.working(form)
    if sent != form.dtype:  # elements are converted before kernels need scratch memory
        working = max(working, _piece_bytes(form, sent))
    return _Placed(form, False, elements, 0, working)


def _with_gaps(resident: BlockForm, elements: int, sent: DType, parts: _Parts) -> _Placed | None:
    """Return the placement of a block in padded rows, if that is faster and fits; else None."""
    form = _with_workspace(resident._replace(gaps=True), parts, parts.available - elements)
    rows = parts.kernel.rows(form)
    if rows is None:
        return None
    elements = rows.numbers(form) * form.dtype.itemsize
    working = max(parts.working(form), sum(_piece_bytes(form, each) for each in {sent, form.dtype}))
    return _Placed(form, False, elements, 0, working, rows) if elements + working <= parts.available else None


def _piece_bytes(form: BlockForm, dtype: DType) -> int:
    """Return the bytes of the elements that are converted or examined at a time."""
    return min(PIECE, form.elements) * dtype.itemsize


def _with_workspace(form: BlockForm, parts: _Parts, available: int) -> BlockForm:
    """Return the form with a larger workspace if elements are then read less often, unless the user set its size.

    With unlimited memory CP-ALS reads elements twice. An order-3 cube of side 800 has a partial result of 2.6 GB at
    rank 500: with less memory it is computed twice, which takes 1.5 times as long.
    """
    if parts.setting.options.workspace is not None or not form.elements:
        return form
    least, result = parts.kernel.passes(form._replace(workspace=available)), form
    while parts.kernel.passes(result) > least and result.workspace <= available // 4:
        result = result._replace(workspace=2 * result.workspace)
    return result if parts.kernel.passes(result) <= least else form


def _streamed_form(form: BlockForm, parts: _Parts, index: int) -> tuple[BlockForm, int]:
    """Return the form with the largest useful slabs that fit, and its working memory.

    An index of mode 0 takes `index` bytes in all slots together.
    """
    slab = max(1, min(-(-form.lengths[0] // SHARDS), SLOTS * SLOT_BYTES // index))
    while True:
        result = form._replace(slab=slab)
        working = parts.working(result)
        need = slab * index + working
        if need <= parts.available:
            return result, working
        if slab == 1:
            _refuse(sum(parts.fixed.values()) + need, parts.setting, "two slabs of one index")
        slab = max(1, slab // 2)


def sent_as(dtype: DType, wanted: FloatDType, device: Device) -> DType:
    """Return the type in which elements are transferred: their own, unless it is larger than the wanted type."""
    own = not device.on_host and dtype.itemsize <= wanted.itemsize and dtype.isnative
    return dtype if own else wanted


def _index_bytes(form: BlockForm, sent: DType) -> int:
    """Return the bytes of an index of mode 0 in all slots and in the buffer for conversion."""
    converted = form.dtype.itemsize if sent != form.dtype else 0
    return max(1, math.prod(form.lengths[1:])) * (SLOTS * sent.itemsize + converted)


def _double(form: BlockForm, kernel: DenseKernel) -> BlockForm | None:
    """Return the form of the same block in double precision; its slabs are small if elements must be converted."""
    if form.dtype == np.float64:
        return None
    mixed = form._replace(dtype=np.dtype(np.float64), dimension_tree=False, stored=form.dtype)
    if kernel.mixes(mixed):
        return mixed
    index = max(1, math.prod(form.lengths[1:])) * 8
    slab = max(1, min(form.slab, DOUBLE_BYTES // index))
    return mixed._replace(slab=slab, gaps=False, stored=None)


def _refuse(need: int, setting: Setting, what: str) -> Any:
    ways = "use more ranks, a lower rank, or a smaller workspace"
    if setting.options.placement == "resident":
        ways += "; placement 'stream' takes slabs in turn"
    raise InputError(
        f"device memory: the factor matrices, scratch memory and {what} need {need:,} bytes, "
        f"but {setting.memory:,} are available; {ways}"
    )
