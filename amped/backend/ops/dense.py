"""The dense operation: MTTKRPs of a dense block of a tensor, mode by mode.

Modes are numbered in memory order: mode 0 varies slowest, the last mode fastest.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol

from partitioner.array_types import FloatDType

from ..device import Array
from ..registry import Op


class BlockForm(NamedTuple):
    """Properties of a block from which memory is planned and code is compiled.

    `lengths` are the lengths of the block's modes, in memory order. `slab` is the largest number of indices of mode 0
    that are passed at a time: all if the block stays on the device. Factor matrices have `rank` columns, and `stride`
    columns in memory.
    """

    lengths: tuple[int, ...]
    slab: int
    rank: int
    stride: int
    dtype: FloatDType  # of factor matrices, and of elements unless `stored` says otherwise: float32 or float64
    workspace: int  # bytes of scratch memory that a sweep should use at most; more only if unavoidable
    whole: bool = False  # whether its MTTKRP rows are complete: no other block contributes to them
    dimension_tree: bool = False  # whether results at the end of a sweep may serve the next one (a dimension tree)
    gaps: bool = False  # whether rows may be padded, as elements are copied to the device and stay there
    stored: FloatDType | None = None  # of elements: float32 where factor matrices are float64; else None

    @property
    def streamed(self) -> bool:
        """Whether elements are copied to the device for each pass."""
        return self.slab < self.lengths[0]

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.lengths)


class RowLayout(NamedTuple):
    """The padded layout of a block on a device: one row per index tuple of the modes before `split`.

    Rows are `pitch` elements apart, so that they are aligned; the padding is zero.
    """

    split: int
    pitch: int

    def numbers(self, form: BlockForm) -> int:
        """Return the number of elements of a block including padding."""
        return math.prod(form.lengths[: self.split]) * self.pitch


class Sweep(Protocol):
    """The MTTKRPs of one block, mode by mode, in any order. Partial results may be kept for the next modes.

    An MTTKRP is computed as follows; all work is queued, without waiting or allocating memory::

        if sweep.reads(mode):
            sweep.begin(mode, factors, out)
            for start, slab in slabs: sweep.add(mode, slab, start, factors, out)
        sweep.end(mode, factors, out)

    ``factors`` has one (I_m, stride) array per mode: the block's rows of the factor matrices. The array of `mode` is
    not read. ``out`` is an (I_mode, stride) float64 array, whose first `rank` columns are set to the MTTKRP.
    """

    def reads(self, mode: int) -> bool:
        """Return whether elements must be read for this mode: no partial result serves it."""

    def begin(self, mode: int, factors: Sequence[Array], out: Array) -> None:
        """Start a pass over the elements."""

    def add(self, mode: int, slab: Array, start: int, factors: Sequence[Array], out: Array) -> None:
        """Add a slab, (n, I_1, ...), whose first index of mode 0 is `start`. Slabs are passed in order.

        The slab is C-contiguous, or has the layout of `DenseKernel.rows` if the block is padded.
        """

    def end(self, mode: int, factors: Sequence[Array], out: Array) -> None:
        """Complete the MTTKRP in `out`."""

    def changed(self, mode: int) -> None:
        """Invalidate partial results that depend on a factor matrix, which has changed.

        Once all matrices have changed, scratch memory holds no valid data, and another sweep may use it.
        """

    def kept(self) -> Hashable:
        """Return a key of the valid partial results; None if there are none."""

    def resume(self, kept: Hashable) -> None:
        """Restore the partial results with this key; scratch memory and factor matrices are as they were."""


class DenseKernel(Protocol):
    """A method to compute the MTTKRPs of a dense block on a device: a provider of the operation.

    The default, `split`, reads the elements twice for all modes. The others are those of the GenTen paper on dense
    tensors: `elem`, `slice` and `tile` are matrix-free; `gemm` multiplies by Khatri-Rao products, mode by mode.
    """

    name: str
    repeatable: bool  # whether results are bitwise reproducible

    def suits(self, form: BlockForm) -> bool:
        """Return whether it supports such blocks."""

    def prepare(self, form: BlockForm) -> None:
        """Start compiling; return immediately."""

    def bytes(self, form: BlockForm) -> int:
        """Return the bytes of scratch memory that `make` needs."""

    def mixes(self, form: BlockForm) -> bool:
        """Return whether it computes in double precision from elements in single precision."""

    def rows(self, form: BlockForm) -> RowLayout | None:
        """Return the padded layout of a block on the device; None for no padding."""

    def passes(self, form: BlockForm) -> float:
        """Return how often a sweep over all modes, each followed by an update of its matrix, reads the elements."""

    def make(self, form: BlockForm, scratch: Array) -> Sweep | None:
        """Return a sweep over a block; `scratch`, (bytes,) uint8, is for its exclusive use. None: without MTTKRPs."""


class AnyBlock:
    """Default methods of kernels that support all blocks, without padding; see `DenseKernel`."""

    def suits(self, form: BlockForm) -> bool:
        return True

    def mixes(self, form: BlockForm) -> bool:
        return True

    def prepare(self, form: BlockForm) -> None:
        """See `DenseKernel`: code is compiled, if at all, at the first call."""

    def rows(self, form: BlockForm) -> RowLayout | None:
        return None


class NoSweep(AnyBlock):
    """For blocks of which no MTTKRP is computed, but something else. See `DenseKernel`."""

    name, repeatable = "tiles", True

    def bytes(self, form: BlockForm) -> int:
        return 0

    def passes(self, form: BlockForm) -> float:
        return 1

    def make(self, form: BlockForm, scratch: Array) -> None:
        """See `DenseKernel`: there is no sweep."""


DENSE = Op[DenseKernel]("dense")
"""The first provider is the default; a device may have none."""
