"""MTTKRPs of dense blocks on the GPU: by matrix products or element by element."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partitioner.cuda.code import prepare

from ...device import Array
from ...ops.dense import DENSE, AnyBlock, BlockForm, DenseKernel, RowLayout, Sweep
from ...ops.dimension_tree import ORDER, PASSES, DimensionTree, DimensionTreeSweep, tree_bytes
from ..code import dimension_tree
from ..code.dense import (
    LEAST_CAPABILITY,
    Division,
    divide,
    divide_for,
    division_at,
    macros,
    scratch_bytes,
    seconds,
    spaced,
)
from ..device import CudaDevice
from ..launches.dense_sweeps import MatrixFreeSweep, ModeByMode, SplitSweep
from ..launches.dimension_tree import PairProducts
from ..source import unit

TILE = 256  # elements of a tile of ``tile``


class CudaSplit:
    """Two passes over the elements; see `DenseKernel`.

    By default, Khatri-Rao products in double precision are stored, piece by piece, for cuBLAS. In single precision they
    are computed on the fly, because tensor cores are then faster than cuBLAS, which does not use them. Order-3 blocks
    use a dimension tree, with three passes per two sweeps, where this is faster.
    """

    repeatable = True

    def __init__(self, name: str, device: CudaDevice, fused: bool | None) -> None:
        self.name, self._device, self._fused = name, device, fused

    def suits(self, form: BlockForm) -> bool:
        return not self._fused or self._device.capability >= LEAST_CAPABILITY

    def mixes(self, form: BlockForm) -> bool:
        return self._fuses(form)

    def _fuses(self, form: BlockForm) -> bool:
        single = (form.stored or form.dtype) == np.float32 and self._device.capability >= LEAST_CAPABILITY
        return single if self._fused is None else self._fused

    def prepare(self, form: BlockForm) -> None:
        units = [unit("dense", macros(form))]
        if self.tree(form):
            units.append(unit("dimension_tree", dimension_tree.pair_macros(form)))
        prepare(units)

    def bytes(self, form: BlockForm) -> int:
        tree = self.tree(form)
        return dimension_tree.scratch_bytes(form, tree) if tree else scratch_bytes(form, self.divided(form))

    def rows(self, form: BlockForm) -> RowLayout | None:
        if not self.tree(form):
            return spaced(form, self.divided(form).split)
        wide = dimension_tree.widened(form).lengths[-1]
        return RowLayout(ORDER - 1, wide) if wide > form.lengths[-1] else None

    def passes(self, form: BlockForm) -> float:
        return PASSES if self.tree(form) else self._divided_passes(form)

    def _divided_passes(self, form: BlockForm) -> int:
        divided = self.divided(form)
        groups = ((0, divided.split), (1, len(form.lengths) - divided.split))
        return sum(1 if divided.whole(group, form) else modes for group, modes in groups)

    def divided(self, form: BlockForm) -> Division:
        """Return the two groups of modes; elements are stored in rows by the first group."""
        processors = self._device.limits.processors if self._fuses(form) else 0
        if form.stored is None:
            return divide(form, processors)
        return division_at(form, self.divided(form._replace(dtype=form.stored, stored=None)).split, processors)

    def tree(self, form: BlockForm) -> DimensionTree | None:
        """Return the dimension tree if it is faster than a split; else None."""
        tree = dimension_tree.tree_on_gpu(form) if self._fused is None else None
        if tree is None:
            return None
        link = dimension_tree.link_seconds(form)
        others = seconds(form, self.divided(form)) + self._divided_passes(form) * link
        return tree if dimension_tree.seconds(form, tree) + PASSES * link < others else None

    def make(self, form: BlockForm, scratch: Array) -> Sweep:
        if tree := self.tree(form):
            wide = dimension_tree.widened(form)
            rest = scratch[tree_bytes(wide, tree) :].view(np.float64)
            return DimensionTreeSweep(wide, tree, scratch, PairProducts(wide, rest, self._device.number), form.lengths)
        return SplitSweep(form, self.divided(form), scratch, self._device, self._fuses(form))


class CudaGemm(AnyBlock):
    """Matrix products mode by mode; see `DenseKernel`."""

    name, repeatable = "gemm", True

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def mixes(self, form: BlockForm) -> bool:
        return False

    def prepare(self, form: BlockForm) -> None:
        prepare([unit("dense", macros(form))])

    def bytes(self, form: BlockForm) -> int:
        return max(scratch_bytes(form, division) for division in self._divisions(form))

    def passes(self, form: BlockForm) -> int:
        return len(form.lengths)

    def _divisions(self, form: BlockForm) -> list[Division]:
        return [divide_for(form, mode) for mode in range(len(form.lengths))]

    def make(self, form: BlockForm, scratch: Array) -> Sweep:
        return ModeByMode(form, self._divisions(form), scratch, self._device)


class MatrixFree(AnyBlock):
    """The matrix-free kernels of the GenTen paper, element by element; see `DenseKernel`."""

    def __init__(self, name: str, tile: int, device: CudaDevice) -> None:
        self.name, self._tile, self._device = name, tile, device
        self.repeatable = name == "slice"

    def mixes(self, form: BlockForm) -> bool:
        return False

    def prepare(self, form: BlockForm) -> None:
        prepare([unit("dense", macros(form))])

    def bytes(self, form: BlockForm) -> int:
        return 0

    def passes(self, form: BlockForm) -> int:
        return len(form.lengths)

    def make(self, form: BlockForm, scratch: Array) -> Sweep:
        return MatrixFreeSweep(form, self._tile, self._device)


@DENSE.provider("cuda")
def providers(device: CudaDevice) -> Sequence[DenseKernel]:
    """Return the kernels of the operation."""
    free = {"elem": 1, "slice": 1 << 62, "tile": TILE}
    return [
        CudaSplit("split", device, None),
        CudaSplit("split-stored", device, False),
        CudaSplit("split-fused", device, True),
        CudaGemm(device),
        *(MatrixFree(name, tile, device) for name, tile in free.items()),
    ]
