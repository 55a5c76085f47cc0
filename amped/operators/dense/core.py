"""TTMc of a dense tensor over all ranks; see `CoreOperator`.

Each rank has a range of indices of the slowest mode. Pieces are contracted mode by mode, beginning with the mode in
which they shrink most. Products are in double precision after the first contraction, or from the start. The ranks'
contributions to the same rows are summed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from partitioner.array_types import FloatDType
from partitioner.host.threads import usable_cores

from ...backend.blas import CODE_BYTES, packing_bytes
from ...backend.contract import contracted
from ...backend.device import Array, Device
from ...backend.exchange import Machine
from ...errors import InputError
from ...parallel.mpi import together
from ...parallel.progress import CURRENT
from ..factors import Factors
from ..limits import check_range
from ..placement import Plan, Setting
from ..products import Ttmc
from ..sources.dense import DenseSource
from ..sources.grid import Grid
from ..workspace import Workspace
from .block import DenseBlock, piece_elements
from .plan import given_bytes, mode_plans, reading_bytes

NAME = "gemm"
PIECES = 4  # pieces in memory at least: a piece, its contraction, and both while they are converted


def slices(source: DenseSource, ranks: int) -> Grid:
    """Return the grid in which ranks share a tensor by ranges of its slowest mode."""
    return Grid(source.lengths, ranks, (min(ranks, source.lengths[0]), 1))


def block_of(
    source: DenseSource, grid: Grid, machine: Machine, dtype: FloatDType, resident: bool, cut: int = 0
) -> DenseBlock:
    """Return this rank's block of a grid that cuts one mode; surplus ranks get no indices of that mode. Collective.

    `resident` may differ between ranks.
    """
    return DenseBlock(_elements_of(source, grid, machine.device.on_host or not resident, cut), machine, dtype, resident)


def _elements_of(source: DenseSource, grid: Grid, on_host: bool, cut: int = 0) -> Any:
    """Return the elements of a rank's block, without copying them to a device. Collective."""
    result = source.block(grid, on_host)
    if math.prod(result.shape):
        return result
    return np.empty([0 if place == cut else n for place, n in enumerate(source.lengths)], source.value_dtype)


class CorePlan(Plan):
    """The plan of one rank for a dense tensor."""

    counted: ClassVar[str] = "elements"

    @property
    def read_bytes(self) -> int:
        """See `Plan`: each mode reads all elements."""
        return len(self.modes) * self.piece * self.dtype.itemsize


class DenseCore(Factors):
    """TTMc of a dense tensor; construction is collective."""

    def __init__(self, source: DenseSource, machine: Machine, setting: Setting, block: DenseBlock) -> None:
        """Use this rank's block of `source` (see `slices`), which leaves the device if the plan requires it."""
        comm, options = machine.comm, setting.options
        self.machine, self.options, self.shape = machine, options, source.shape
        self.ranks, self._modes, self._whole = setting.ranks, source.modes, setting.uncompressed
        check_range(source.value_range, options.dtype, source.path)
        self.norm = source.rounded_norm(options.dtype)
        self.clock = machine.device.clock()
        self.plan = together(comm, lambda: make_core_plan(source, comm.rank, comm.size, setting))
        self.kernels = [NAME] * len(source.shape)
        self._grid, self._block = slices(source, comm.size), block
        self._reserve(source)
        self.work = Workspace(self.plan, machine, options)
        self._own = self._grid.block(comm.rank)[0]  # of the slowest mode
        self.clock.collect()

    def _reserve(self, source: DenseSource) -> None:
        """Move the block to the host if the plan requires it, which may differ between ranks. Collective."""
        leaves = self.plan.slot > 0 and self._block.resident
        if any(self.machine.comm.allgather(leaves)):
            elements = _elements_of(source, self._grid, on_host=True)
            if leaves:
                self._block.hold(elements)
                self.machine.device.trim()

    @property
    def summed(self) -> int:
        return max(self.shape)

    def compute(self, product: Ttmc, mode: int, then: Sequence[int] = ()) -> Array:
        CURRENT.mode = mode
        self.machine.exchange.wait_comm()
        place, out = self._modes.index(mode), self.work.outs[mode]
        factors = self._factors(place, product.double)
        with self.clock.span("compute", mode):
            if place:
                out[...] = self._rows(mode, self._total(place, factors))
            else:
                begin = 0
                for result in self._block.each(lambda part, piece: self._contracted(piece, 0, part, factors)):
                    out[begin : begin + len(result)] = self._rows(mode, result)
                    begin += len(result)
        if place and self.machine.comm.size > 1:
            with self.clock.span("exchange", mode):
                self.machine.exchange.reduce_rows(out, self.plan.modes[mode].cut.rows)
        return self.work.sums[mode]

    def _factors(self, place: int, double: bool) -> list[Array]:
        """Return the factor matrices in memory order; if `double`, all but that of `place` are in double precision."""
        factors = [self.work.factors[m][:, : self.ranks[m]] for m in self._modes]
        return [f.astype(np.float64) if double and p != place else f for p, f in enumerate(factors)]

    def _total(self, place: int, factors: Sequence[Array]) -> Array:
        """Return the block times all factor matrices but one, summed over its pieces, with the slowest mode first."""
        shape = [self.ranks[m] for m in self._modes]
        shape[place] = self.shape[self._modes[place]]
        total = self.machine.device.zeros(tuple(shape), np.float64)
        for result in self._block.each(lambda part, piece: self._contracted(piece, place, part, factors)):
            total += result
        return total

    def _contracted(self, piece: Array, place: int, part: slice, factors: Sequence[Array]) -> Array:
        """Return a piece times all factor matrices but that of the mode at `place` in memory order.

        Products are in double precision after the first matrix, or from the start if `factors` are.
        """
        xp, ends = self.machine.device.xp, [self.ranks[m] for m in self._modes]
        whole = [p for p, mode in enumerate(self._modes) if mode in self._whole]
        others = (p for p in range(len(ends)) if p != place and p not in whole)
        order = sorted(others, key=lambda p: (ends[p] / piece.shape[p], -p))
        result = piece
        for number, p in enumerate(order):
            factor = factors[p]
            if p == 0:
                factor = factor[self._own][part]
            if number or factor.dtype == np.float64:
                result, factor = result.astype(np.float64, copy=False), factor.astype(np.float64, copy=False)
            result = contracted(xp, result, factor, p)
        result = result.astype(np.float64, copy=False)
        if not place or 0 not in whole:
            return result
        every = self.machine.device.zeros((ends[0], *result.shape[1:]), np.float64)
        every[self._own][part] = result
        return every

    def _rows(self, mode: int, tensor: Array) -> Array:
        """Return a tensor, whose modes are in memory order, unfolded in a mode, with the other modes ascending."""
        order = [self._modes.index(m) for m in range(len(self._modes))]
        ascending = [order[mode], *(p for m, p in enumerate(order) if m != mode)]
        return tensor.transpose(ascending).reshape(tensor.shape[order[mode]], -1)


def make_core_plan(source: DenseSource, rank: int, ranks: int, setting: Setting) -> CorePlan:
    """Return the plan of rank number `rank` of `ranks`; raise `InputError` if its memory is too small."""
    options, device, grid = setting.options, setting.device, slices(source, ranks)
    if options.gather != "full" or options.kernel not in ("auto", NAME):
        raise InputError(
            f"kernel {options.kernel!r}, gather {options.gather!r}: dense tensors support only auto and full"
        )
    modes, shape, item = mode_plans(source, grid, rank, setting), grid.shape(rank), options.dtype.itemsize
    takes = [setting.solving(m.owned.stop - m.owned.start, m.rank) for m in modes]
    fixed = {
        "factor matrices": sum(int(m.cut.rows[-1]) * m.share.stride for m in modes) * item,
        "TTMc output": max((m.rows.stop - m.rows.start) * m.width for m in modes) * 8,
        "method": max(t.kept for t in takes),
    }
    piece = min(math.prod(shape), max(piece_elements(device), math.prod(shape[1:])))
    threads = _threads(device, ranks)
    working = _pieces_bytes(shape, piece, setting, source, threads) + (threads + 1) * fixed["TTMc output"]
    working += max(t.passing for t in takes) + (8 * sum(int(m.cut.rows[-1]) * m.rank for m in modes) if item < 8 else 0)
    if setting.unfolding is not None:  # spectra come before factor matrices, which the host puts into other memory
        later = 0 if device.on_host else sum(fixed.values())
        working = max(working, setting.unfolding(rank, ranks, threads) - later)
    elements, need = math.prod(shape) * item, sum(fixed.values()) + working
    streamed = options.placement == "stream" or need + elements > setting.memory
    if need + (0 if streamed else elements) > setting.memory or (streamed and options.placement == "resident"):
        whole = need + (elements if options.placement == "resident" else 0)
        cause = f"device memory: the decomposition needs {whole:,} bytes, but {setting.memory:,} are available"
        raise InputError(f"{cause}; use more ranks or lower ranks of modes")
    used = {"resident elements": 0 if streamed else elements, **fixed, "working memory": working}
    host = device.host_bytes + CODE_BYTES + (sum(used.values()) if device.on_host else 0)
    host += sum(m.rank * int(m.cut.rows[-1]) for m in modes) * item + given_bytes(source, grid, rank)
    host += 0 if rank else setting.root_bytes
    if streamed and source.in_file:  # pieces as they are read, and as they are sent
        host += threads * piece * (source.value_dtype.itemsize + item)
    elif streamed:
        host += threads * piece * (item if source.value_dtype != options.dtype else 0)
    else:
        host += reading_bytes(source, math.prod(shape), options.dtype, device, False)
    return CorePlan(tuple(modes), options.dtype, int(streamed) * shape[0], math.prod(shape), used, host)


def _pieces_bytes(shape: tuple[int, ...], piece: int, setting: Setting, source: DenseSource, threads: int) -> int:
    """Return the bytes of converted pieces and their contractions."""
    if not setting.device.on_host:
        return max(PIECES, 2 * threads) * piece * 8
    together = min(threads, -(-math.prod(shape) // max(1, piece)))
    # The mode that shrinks a piece most comes first, unless that is the one that stays.
    shrinking = sorted(min(1.0, setting.ranks[m] / max(1, shape[p])) for p, m in enumerate(source.modes))
    converted = 8 * piece if setting.options.dtype.itemsize < 8 else 0
    products = 2 * 8 * int(piece * shrinking[min(1, len(shrinking) - 1)])
    return together * (converted + products + packing_bytes(piece, max(setting.ranks)))


def _threads(device: Device, ranks: int) -> int:
    """Return how many pieces each of `ranks` ranks contracts at the same time."""
    return max(1, usable_cores() // ranks) if device.on_host else 1
