"""The dense operation: MTTKRPs of a dense block of a tensor, mode by mode.

Modes are numbered in memory order here: mode 0 varies slowest, the last one fastest.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..device import Array
from ..registry import Op


class BlockForm(NamedTuple):
    """What is known of a block before it is there.

    `lengths` are those of the block, in memory order; `slab`, how many indices of mode 0 are given at a time, at most:
    all, where the block stays on the device. Factor matrices have `rank` columns, and `stride` in memory.
    """

    lengths: tuple[int, ...]
    slab: int
    rank: int
    stride: int
    dtype: np.dtype[Any]  # of factor matrices, and of elements unless `stored` says otherwise: float32 or float64
    workspace: int  # bytes of scratch memory that a sweep may take; one that needs more takes what it needs least
    whole: bool = False  # whether its rows of an MTTKRP are complete: no other block has a part of them
    dimension_tree: bool = False  # whether results at the end of a sweep may serve the next one (a dimension tree)
    gaps: bool = False  # whether rows may have gaps if that helps: elements are copied to the device, and stay there
    stored: np.dtype[Any] | None = None  # of elements: float32 where factor matrices are float64; else None

    @property
    def streamed(self) -> bool:
        """Whether elements come to the device anew for each pass."""
        return self.slab < self.lengths[0]

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.lengths)


class RowLayout(NamedTuple):
    """How a block that is copied to a device lies there: a row for each index of the modes before `split`.

    Rows begin `pitch` numbers apart, so that they are aligned; what is between them is zero.
    """

    split: int
    pitch: int

    def numbers(self, form: BlockForm) -> int:
        """Return how many numbers a block takes, with the gaps."""
        return math.prod(form.lengths[: self.split]) * self.pitch


class Sweep(Protocol):
    """The MTTKRPs of one block, mode by mode, in any order. It may keep what the next mode can use.

    An MTTKRP goes like this; all of it is queued, nothing waits, nothing is allocated::

        if sweep.reads(mode):
            sweep.begin(mode, factors, out)
            for start, slab in slabs: sweep.add(mode, slab, start, factors, out)
        sweep.end(mode, factors, out)

    ``factors`` are (I_m, stride) arrays, one for each mode, the block's rows of the factor matrices, that of `mode`
    itself among them (it is not read); ``out`` is an (I_mode, stride) float64 array, which gets the MTTKRP in its first
    `rank` columns, whatever was there.
    """

    def reads(self, mode: int) -> bool:
        """Return whether elements are read for this mode, as nothing is kept that it can be made of."""

    def begin(self, mode: int, factors: Sequence[Array], out: Array) -> None:
        """Begin to read."""

    def add(self, mode: int, slab: Array, start: int, factors: Sequence[Array], out: Array) -> None:
        """Add a slab: (n, I_1, ...), its first index of mode 0 being `start`. Slabs come in order.

        It is C-contiguous; of a block with gaps it lies as `DenseKernel.rows` says.
        """

    def end(self, mode: int, factors: Sequence[Array], out: Array) -> None:
        """Finish: `out` has the MTTKRP."""

    def changed(self, mode: int) -> None:
        """Note that a factor matrix is new: what was made of it is kept no longer.

        Once all are, nothing in scratch memory counts: another sweep may use it before this one is used again.
        """

    def kept(self) -> Hashable:
        """Return what is kept that a later sweep may use; None if that is nothing."""

    def resume(self, kept: Hashable) -> None:
        """Keep what was kept then: scratch memory and factor matrices are as they were."""


class DenseKernel(Protocol):
    """One way to compute the MTTKRPs of a dense block on a device: a provider of the operation.

    `split` is the default: two passes over the elements serve all modes. The others are those of the GenTen paper on
    dense tensors: `elem`, `slice` and `tile` are matrix-free, `gemm` multiplies with Khatri-Rao products mode by mode.
    """

    name: str
    repeatable: bool  # whether its results are bitwise equal every time

    def suits(self, form: BlockForm) -> bool:
        """Tell whether it computes such blocks."""

    def prepare(self, form: BlockForm) -> None:
        """Begin to compile, and return at once."""

    def bytes(self, form: BlockForm) -> int:
        """Return the bytes of scratch memory that `make` is given."""

    def mixes(self, form: BlockForm) -> bool:
        """Tell whether it computes in double precision from elements that are held in single precision."""

    def rows(self, form: BlockForm) -> RowLayout | None:
        """Return how a block with gaps is to lie on the device; None if it is to have none."""

    def passes(self, form: BlockForm) -> float:
        """Return how often a sweep over all modes reads the elements, where each mode's factor matrix is then new."""

    def make(self, form: BlockForm, scratch: Array) -> Sweep:
        """Return the sweep over a block, with (bytes,) uint8 scratch memory of its own."""


DENSE = Op[DenseKernel]("dense")
"""The first provider is the default; a device may have none."""
