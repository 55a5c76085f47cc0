"""MTTKRPs of dense blocks on the CPU: by matrix products or element by element."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...device import Array
from ...ops.dense import DENSE, AnyBlock, BlockForm, DenseKernel, Sweep
from ...ops.dimension_tree import ORDER, PASSES, DimensionTree, DimensionTreeSweep, added, next_of, third, tree_bytes
from ..caches import own_cache
from ..device import CpuDevice
from ..kernels.dimension_tree import CpuProducts, scratch_bytes, tree_on_cpu
from ..kernels.elements import add_boxes, add_elements
from ..kernels.passes import DEPTH, Cutting, GemmSweep, Pool, Sizes, SweepScratch, fits, group_of, rounded, rows_of

FLOP, KHATRI, SUM, CONTRACTION, COPY = 1.0, 40.0, 20.0, 40.0, 20.0
"""Times relative to one multiply-add of a matrix product in double precision: computing a number of a Khatri-Rao
product, adding a number to a partial result, contracting a number, and streaming a number."""


class CpuSplit(AnyBlock):
    """Splits the modes into two groups, each served by one pass over the elements. See `DenseKernel`.

    Order-3 blocks use a dimension tree, with three passes per two sweeps, where this is faster.
    """

    name = "split"
    repeatable = True

    def __init__(self, device: CpuDevice) -> None:
        self._threads = device.threads.count

    def bytes(self, form: BlockForm) -> int:
        if tree := self.tree(form):
            return scratch_bytes(form, tree, self._threads)
        return Sizes.of(form, self.cuttings(form), self._threads).bytes(form, self._threads)

    def make(self, form: BlockForm, scratch: Array) -> Sweep:
        if tree := self.tree(form):
            products = CpuProducts(form, self._threads, scratch[rounded(tree_bytes(form, tree)) :])
            return DimensionTreeSweep(form, tree, scratch, products)
        return GemmSweep(form, self.cuttings(form), self._threads, scratch)

    def passes(self, form: BlockForm) -> float:
        return PASSES if self.tree(form) else _passes(self.cuttings(form))

    def tree(self, form: BlockForm) -> DimensionTree | None:
        """Return the dimension tree if it is faster than a split; else None."""
        tree = tree_on_cpu(form)
        if tree is None:
            return None
        least = min(_cost(form, at, self._threads) for at in range(1, len(form.lengths)))
        return tree if _tree_cost(form) < least else None

    def cuttings(self, form: BlockForm) -> list[Cutting]:
        """Return each mode's cut: the fastest one for all modes."""
        at = min(range(1, len(form.lengths)), key=lambda at: _cost(form, at, self._threads))
        return _cut_at(form, at)


class CpuGemm(CpuSplit):
    """Multiplies mode by mode.

    The cut is before or after the mode, whichever gives the smaller partial result (Phan et al. 2013).
    """

    name = "gemm"

    def tree(self, form: BlockForm) -> None:
        """See `CpuSplit`: no dimension tree."""

    def cuttings(self, form: BlockForm) -> list[Cutting]:
        order = len(form.lengths)
        result = list[Cutting]()
        for mode in range(order):
            cuts = [Cutting(at, False) for at in (mode, mode + 1) if 0 < at < order]
            result.append(min(cuts, key=lambda cut, mode=mode: rows_of(form, cut, mode)))  # type: ignore[misc]
        return result


def _cut_at(form: BlockForm, at: int) -> list[Cutting]:
    result = list[Cutting]()
    for mode in range(len(form.lengths)):
        cutting = Cutting(at, True)
        group = group_of(form, cutting, mode)
        several = group.stop - group.start > 1
        result.append(Cutting(at, several and fits(form, rows_of(form, cutting, mode))))
    return result


def _passes(cuttings: Sequence[Cutting]) -> int:
    """Return the number of passes over the elements."""
    kept = {cutting.at <= mode for mode, cutting in enumerate(cuttings) if cutting.kept}  # one for each group
    return len(kept) + sum(not cutting.kept for cutting in cuttings)


def _cost(form: BlockForm, at: int, threads: int) -> float:
    """Return the estimated time of a sweep over all modes with a cut."""
    cuttings, order = _cut_at(form, at), len(form.lengths)
    rows = math.prod(form.lengths[:at])
    columns, speed = form.elements // rows, form.dtype.itemsize / 8
    cost = 0.0
    for own, others, modes, kept in (
        (rows, columns, at, cuttings[0].kept),
        (columns, rows, order - at, cuttings[-1].kept),
    ):
        passes = 1 if kept else modes
        # A product of few rows or columns runs at a fraction of the speed.
        skinny = 1 + 8 / own + 32 / others
        once = FLOP * speed * form.elements * skinny + KHATRI * others * threads + SUM * own * math.ceil(others / DEPTH)
        cost += passes * once + modes * CONTRACTION * own
    return cost + _passes(cuttings) * _copying(form)


def _tree_cost(form: BlockForm) -> float:
    """Return the estimated time of a sweep over all modes with a dimension tree."""
    speed, cost = form.dtype.itemsize / 8, 0.0
    for mode in range(ORDER):
        depth = form.lengths[third(mode, next_of(mode))]
        rows = form.elements // depth
        sums = SUM * (math.ceil(depth / DEPTH) if form.dtype == np.float32 else 0)
        sums += SUM * added(form, third(mode, next_of(mode)))
        cost += FLOP * speed * form.elements * (1 + 8 / rows + 32 / depth) + (sums + 2 * CONTRACTION) * rows
    return cost / 2 + PASSES * _copying(form)


def _copying(form: BlockForm) -> float:
    """Return the estimated time to stream the elements for one pass."""
    return COPY * form.dtype.itemsize / 8 * form.elements / form.rank if form.streamed else 0.0


class _MatrixFree(ABC):
    """A sweep without partial results: each mode reads the elements. See `Sweep`."""

    def __init__(self, form: BlockForm, threads: int, scratch: Array) -> None:
        self._form, self._pool = form, Pool(threads)
        self._rows = SweepScratch(scratch).take((sum(form.lengths), form.rank), np.float64)
        self._lengths = np.array(form.lengths, np.int64)
        self._begins: NDArray[np.int64] = np.cumsum(form.lengths) - self._lengths
        self._stale = set(range(len(form.lengths)))

    def reads(self, mode: int) -> bool:
        return True

    def begin(self, mode: int, factors: Sequence[Array], out: Array) -> None:
        out[:, : self._form.rank] = 0
        for m in self._stale - {mode}:
            self._rows[self._begins[m] : self._begins[m] + self._lengths[m]] = factors[m][:, : self._form.rank]
        self._stale &= {mode}

    def add(self, mode: int, slab: Array, start: int, factors: Sequence[Array], out: Array) -> None:
        lengths, begins = self._lengths.copy(), self._begins.copy()
        lengths[0], begins[0] = len(slab), begins[0] + start
        self._add(mode, slab.reshape(-1), lengths, begins, 0 if mode else start, out)

    @abstractmethod
    def _add(self, mode: int, elements: Any, lengths: Any, begins: Any, shift: int, out: Array) -> None:
        """Add a block of elements.

        Parameters
        ----------
        mode : int
        elements : (n,) array
        lengths, begins : (N,) int64 arrays
            Length of the block in each mode, and its first row of each factor matrix.
        shift : int
            Row of `out` of the block's first index of `mode`.
        out : (I_mode, stride) float64 array
        """

    def _threads(self, elements: int) -> int:
        return self._pool.worth(elements * self._form.rank)

    def end(self, mode: int, factors: Sequence[Array], out: Array) -> None:  # noqa: B027 - optional
        """See `Sweep`: `out` is complete."""

    def changed(self, mode: int) -> None:
        self._stale.add(mode)

    def kept(self) -> None:  # noqa: B027
        """See `Sweep`: there are no partial results."""

    def resume(self, kept: Hashable) -> None:  # noqa: B027
        """See `Sweep`: there are no partial results."""


class _Elements(_MatrixFree):
    def _add(self, mode: int, elements: Any, lengths: Any, begins: Any, shift: int, out: Array) -> None:
        count = self._threads(elements.size)

        def part(k: int) -> None:
            low, high = elements.size * k // count, elements.size * (k + 1) // count
            add_elements(elements[low:high], low, lengths, self._rows, begins, mode, out, shift)

        self._pool.run(part, range(count))


class _Boxes(_MatrixFree):
    def __init__(self, form: BlockForm, threads: int, scratch: Array, width: int | None) -> None:
        super().__init__(form, threads, scratch)
        self._width = width
        rest = SweepScratch(scratch[rounded(self._rows.nbytes) :])
        self._sums = rest.take((threads, threads, form.rank), np.float64)

    def _add(self, mode: int, elements: Any, lengths: Any, begins: Any, shift: int, out: Array) -> None:
        widths = lengths if self._width is None else np.full_like(lengths, self._width)
        boxes = math.prod(
            -(-int(n) // int(w)) for m, (n, w) in enumerate(zip(lengths, widths, strict=True)) if m != mode
        )
        length, count = int(lengths[mode]), self._threads(elements.size)
        args = elements, lengths, self._rows, begins, mode, widths
        if length >= count:

            def own_rows(k: int) -> None:
                add_boxes(*args, length * k // count * boxes, length * (k + 1) // count * boxes, out, shift)

            self._pool.run(own_rows, range(count))
            return
        every = length * boxes

        def own_sums(k: int) -> None:
            self._sums[k] = 0
            add_boxes(*args, every * k // count, every * (k + 1) // count, self._sums[k], 0)

        self._pool.run(own_sums, range(count))
        out[shift : shift + length, : self._form.rank] += self._sums[:count, :length].sum(axis=0)


class Elem(AnyBlock):
    """GenTen's MTTKRP-ELEM: each element adds to its row of the output, atomically. See `DenseKernel`."""

    name = "elem"
    repeatable = False

    def passes(self, form: BlockForm) -> int:
        return len(form.lengths)

    def __init__(self, device: CpuDevice) -> None:
        self._threads = device.threads.count

    def bytes(self, form: BlockForm) -> int:
        sums = self._threads * self._threads
        return rounded(sum(form.lengths) * form.rank * 8) + rounded(sums * form.rank * 8)

    def make(self, form: BlockForm, scratch: Array) -> Sweep:
        return _Elements(form, self._threads, scratch)


class CpuSlice(Elem):
    """GenTen's MTTKRP-SLICE: each thread sums the slices of its rows. See `DenseKernel`."""

    name = "slice"
    repeatable = True

    def make(self, form: BlockForm, scratch: Array) -> Sweep:
        return _Boxes(form, self._threads, scratch, None)


class Tile(CpuSlice):
    """GenTen's MTTKRP-TILE: slices in tiles whose factor rows fit into a core's private cache. See `DenseKernel`."""

    name = "tile"

    def make(self, form: BlockForm, scratch: Array) -> Sweep:
        return _Boxes(form, self._threads, scratch, tile_width(form))


def tile_width(form: BlockForm) -> int:
    """Return the tile width of the paper, at most the shortest mode.

    A tile takes a quarter of the private cache, for half a tile per core.
    """
    elements = float(own_cache()) / 4 / ((form.stored or form.dtype).itemsize / 2)
    width = int(elements ** (1 / (len(form.lengths) - 1)) + 1e-9)
    return max(1, min([width, *(length for length in form.lengths if length > 1)]))


@DENSE.provider("cpu")
def providers(device: CpuDevice) -> Sequence[DenseKernel]:
    """Return the kernels of the operation; the first is the default."""
    return [kind(device) for kind in (CpuSplit, CpuGemm, Elem, CpuSlice, Tile)]
