"""MTTKRPs of dense blocks by NumPy's matrix products, with complete Khatri-Rao products."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np

from ...device import Array
from ...ops.dense import DENSE, AnyBlock, BlockForm, DenseKernel, Sweep
from ..device import PlainDevice
from ..split import Matrix, contract, khatri_rao, partial_rows, split_of


class PlainSplit(AnyBlock):
    """Splits the modes into two groups: a product with each serves all modes of the other. See `DenseKernel`."""

    name = "split"
    repeatable = True

    def bytes(self, form: BlockForm) -> int:
        """See `DenseKernel`: Khatri-Rao products, partial results, and elements in double precision."""
        return 8 * (2 * form.rank * partial_rows(form.lengths) + math.prod((form.slab, *form.lengths[1:])))

    def passes(self, form: BlockForm) -> float:
        return 2

    def make(self, form: BlockForm, scratch: Array) -> Sweep:
        """See `DenseKernel`: NumPy allocates its own memory, as much as `scratch`, which stays unused."""
        return PlainSweep(form)


class PlainSweep:
    """See `Sweep`. Partial results and factor matrices are transposed; see `backend.plain.split`."""

    def __init__(self, form: BlockForm) -> None:
        self._lengths, self._split, self._rank = form.lengths, split_of(form.lengths), form.rank
        self._partial: Matrix = np.empty((form.rank, 0))
        self._group_served = -1  # the group of modes that the partial result serves
        self._slab: Array = None
        self._matrix: Matrix = np.empty((0, 0))  # the slab, in double precision

    def _group(self, mode: int) -> int:
        return int(mode >= self._split)

    def _modes(self, group: int) -> range:
        return range(self._split, len(self._lengths)) if group else range(self._split)

    def reads(self, mode: int) -> bool:
        return self._group_served != self._group(mode)

    def begin(self, mode: int, factors: Sequence[Array], out: Array) -> None:
        self._group_served = -1
        self._partial = np.zeros((self._rank, math.prod(self._lengths[m] for m in self._modes(self._group(mode)))))

    def add(self, mode: int, slab: Array, start: int, factors: Sequence[Array], out: Array) -> None:
        if slab is not self._slab:
            self._slab, self._matrix = slab, slab.reshape(-1, math.prod(self._lengths[self._split :]))
            self._matrix = self._matrix.astype(np.float64, copy=False)
        others = self._khatri_rao(self._modes(1 - self._group(mode)), factors)
        first = start * math.prod(self._lengths[1 : self._split])
        rows = slice(first, first + len(self._matrix))
        if self._group(mode):
            self._partial += others[:, rows] @ self._matrix
        else:
            np.matmul(others, self._matrix.T, out=self._partial[:, rows])

    def _khatri_rao(self, modes: Sequence[int], factors: Sequence[Array]) -> Matrix:
        return khatri_rao([np.ascontiguousarray(factors[m].T, np.float64) for m in modes])

    def end(self, mode: int, factors: Sequence[Array], out: Array) -> None:
        self._group_served = self._group(mode)
        modes = self._modes(self._group_served)
        before, after = range(modes.start, mode), range(mode + 1, modes.stop)
        matrices = (self._khatri_rao(others, factors) if others else None for others in (before, after))
        out[:, : self._rank] = contract(self._partial, *matrices).T

    def changed(self, mode: int) -> None:
        if self._group_served == 1 - self._group(mode):
            self._group_served = -1

    def kept(self) -> Hashable:
        return None if self._group_served < 0 else self._group_served

    def resume(self, kept: Hashable) -> None:
        assert kept is None or isinstance(kept, int)
        self._group_served = -1 if kept is None else kept


@DENSE.provider("plain")
def providers(device: PlainDevice) -> Sequence[DenseKernel]:
    """Return the kernels of the operation."""
    return [PlainSplit()]
