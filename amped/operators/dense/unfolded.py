"""A dense tensor unfolded in one mode, over all ranks: what spectra are found from. See `decomp.hosvd.Spectrum`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...backend.contract import add_gram, add_products
from ...backend.device import Array
from ...backend.exchange import Machine
from .block import DenseBlock

Matrix = NDArray[np.float64]


class DenseUnfolded:
    """A block in double precision, unfolded by one of its modes. Its methods are collective.

    Parameters
    ----------
    block : DenseBlock
    axis : int
        Which of its modes.
    machine : Machine
    offsets : (ranks + 1,) array, optional
        Where each rank's indices of that mode begin, if ranks have not all of them.
    """

    def __init__(
        self, block: DenseBlock, axis: int, machine: Machine, offsets: NDArray[np.int64] | None = None
    ) -> None:
        self._block, self._axis, self._machine, self._offsets = block, axis, machine, offsets
        self.length = int(offsets[-1]) if offsets is not None else block.shape[axis]
        self.width = int(np.prod([float(n) for m, n in enumerate(block.shape) if m != axis]))

    @property
    def last(self) -> bool:
        """Whether ranks have rows of the matrix."""
        return self._offsets is not None

    def gram(self) -> Matrix:
        if self.last:
            whole = self.gathered(self.rows())
            result: Matrix = whole @ whole.T
            return result
        xp, axis = self._machine.device.xp, self._axis
        return self._summed(lambda piece, total: add_gram(xp, piece, axis, total), (self.length, self.length))

    def products(self, basis: Matrix) -> Matrix:
        device, axis = self._machine.device, self._axis
        if self.last:
            assert self._offsets is not None
            rank, rows = self._machine.comm.rank, self.rows()
            across = rows.T @ basis[self._offsets[rank] : self._offsets[rank + 1]]
            self._machine.comm.all_reduce(across, "sum")
            return self.gathered(rows @ across)
        args = device.to_device(np.ascontiguousarray(basis))
        return self._summed(lambda piece, total: add_products(device.xp, piece, axis, args, total), basis.shape)

    def rows(self) -> Matrix:
        whole = self._machine.device.to_host(self._block.whole)
        return np.ascontiguousarray(whole.reshape(self._block.shape[0], self.width), np.float64)

    def gathered(self, rows: Matrix) -> Matrix:
        assert self._offsets is not None
        comm = self._machine.comm
        whole = np.empty((self.length, rows.shape[1]))
        whole[self._offsets[comm.rank] : self._offsets[comm.rank + 1]] = rows
        comm.all_gather_rows(whole, self._offsets[:-1], self._offsets[1:])
        return whole

    def _summed(self, work: Callable[[Any, Array], object], shape: tuple[int, ...]) -> Matrix:
        # Pieces are ranges of another mode than the one that is unfolded.
        total = self._block.summed(work, shape, axis=int(self._axis == 0))
        result = np.asarray(self._machine.device.to_host(total), np.float64)
        self._machine.comm.all_reduce(result, "sum")
        return result
