"""MTTKRPs of dense blocks by NumPy's matrix products, with Khatri-Rao products as a whole."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from ...device import Array
from ...ops.dense import DENSE, BlockForm, DenseKernel, Sweep
from ..device import PlainDevice

Matrix = NDArray[np.float64]


class PlainSplit:
    """Cuts the modes in two groups: a product with each serves all modes of the other. See `DenseKernel`."""

    name = "split"
    repeatable = True

    def suits(self, form: BlockForm) -> bool:
        return True

    def mixes(self, form: BlockForm) -> bool:
        return True

    def prepare(self, form: BlockForm) -> None:
        """See `DenseKernel`: nothing is compiled."""

    def bytes(self, form: BlockForm) -> int:
        """See `DenseKernel`: Khatri-Rao products, partial results, and elements in double precision."""
        cut = cut_of(form.lengths)
        groups = math.prod(form.lengths[:cut]) + math.prod(form.lengths[cut:])
        return 8 * (2 * form.rank * groups + math.prod((form.slab, *form.lengths[1:])))

    def rows(self, form: BlockForm) -> None:
        """See `DenseKernel`: without gaps."""

    def passes(self, form: BlockForm) -> float:
        return 2

    def make(self, form: BlockForm, scratch: Array) -> Sweep:
        """See `DenseKernel`: NumPy takes memory of its own, as much as scratch memory has, which nobody touches."""
        return PlainSweep(form)


class PlainSweep:
    """See `Sweep`."""

    def __init__(self, form: BlockForm) -> None:
        self._lengths, self._cut, self._rank = form.lengths, cut_of(form.lengths), form.rank
        self._partial: Matrix = np.empty((0, form.rank))
        self._held = -1  # the group that the partial result serves
        self._slab: Array = None
        self._matrix: Matrix = np.empty((0, 0))  # the slab, in double precision

    def _group(self, mode: int) -> int:
        return int(mode >= self._cut)

    def _modes(self, group: int) -> range:
        return range(self._cut, len(self._lengths)) if group else range(self._cut)

    def reads(self, mode: int) -> bool:
        return self._held != self._group(mode)

    def begin(self, mode: int, factors: Sequence[Array], out: Array) -> None:
        self._held = -1
        if self._group(mode):
            self._partial = np.zeros((math.prod(self._lengths[self._cut :]), self._rank))
        else:
            self._partial = np.empty((math.prod(self._lengths[: self._cut]), self._rank))

    def add(self, mode: int, slab: Array, start: int, factors: Sequence[Array], out: Array) -> None:
        if slab is not self._slab:
            self._slab, self._matrix = slab, slab.reshape(-1, math.prod(self._lengths[self._cut :]))
            self._matrix = self._matrix.astype(np.float64, copy=False)
        others = self._khatri_rao(self._modes(1 - self._group(mode)), factors)
        first = start * math.prod(self._lengths[1 : self._cut])
        rows = slice(first, first + len(self._matrix))
        if self._group(mode):
            self._partial += self._matrix.T @ others[rows]
        else:
            np.matmul(self._matrix, others, out=self._partial[rows])

    def _khatri_rao(self, modes: Sequence[int], factors: Sequence[Array]) -> Matrix:
        """Return the Khatri-Rao product of some modes' factor matrices, the last one varying fastest."""
        matrices = [factors[m].astype(np.float64, copy=False) for m in modes]
        return reduce(lambda a, b: (a[:, None] * b).reshape(-1, self._rank), matrices)

    def end(self, mode: int, factors: Sequence[Array], out: Array) -> None:
        self._held = self._group(mode)
        modes, found = self._modes(self._held), self._partial
        before, after = range(modes.start, mode), range(mode + 1, modes.stop)
        if after:
            found = found.reshape(-1, math.prod(self._lengths[m] for m in after), self._rank)
            found = np.einsum("iar,ar->ir", found, self._khatri_rao(after, factors))
        if before:
            found = found.reshape(-1, self._lengths[mode], self._rank)
            found = np.einsum("bir,br->ir", found, self._khatri_rao(before, factors))
        out[:, : self._rank] = found

    def changed(self, mode: int) -> None:
        if self._held == 1 - self._group(mode):
            self._held = -1

    def kept(self) -> Hashable:
        return None if self._held < 0 else self._held

    def resume(self, kept: Hashable) -> None:
        assert kept is None or isinstance(kept, int)
        self._held = -1 if kept is None else kept


def cut_of(lengths: Sequence[int]) -> int:
    """Return after how many modes to cut, so that partial results are small."""
    return min(range(1, len(lengths)), key=lambda at: math.prod(lengths[:at]) + math.prod(lengths[at:]))


@DENSE.provider("plain")
def providers(device: PlainDevice) -> Sequence[DenseKernel]:
    """Return the kernels of the operation."""
    return [PlainSplit()]
