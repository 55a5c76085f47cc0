"""A rank's device memory: factor matrices, output rows, and scratch memory of kernels."""

from __future__ import annotations

import math

import numpy as np

from partitioner.array_types import Floats

from ..backend.device import Array
from ..backend.exchange import Machine
from ..backend.ops.cast16 import CAST16
from ..backend.ops.mttkrp import Operands
from ..backend.rows import block_rows
from ..options import Options
from .placement import Plan

ALIGNED = 256  # bytes


class Workspace:
    """The arrays that kernels read and write, all allocated before the first iteration.

    Attributes
    ----------
    matrices : (bytes,) uint8 device array
        All factor matrices in one array.
    factors : list of (I_n, stride) device arrays
        The factor matrices, identical on all ranks; padding columns are zero.
    outs : list of (rows, columns in memory) float64 device arrays
        The output rows of each mode that this rank computes; the modes share memory.
    owned, sums : list of (owned, columns) views
        The rows of the factor matrix and of the output that this rank owns.
    computed : list of (rows, stride) views
        The rows of the factor matrix that this rank computes.
    versions : list of int
        How often each factor matrix has changed.
    """

    def __init__(self, plan: Plan, machine: Machine, options: Options) -> None:
        self._device, self._exchange = machine.device, machine.exchange
        zeros, modes = self._device.zeros, plan.modes
        self._shapes = [(int(m.cut.rows[-1]), m.share.stride) for m in modes]
        self._ranks, self._dtype = [m.rank for m in modes], plan.dtype
        self.matrices = zeros((sum(map(self._stored_bytes, self._shapes)),), np.uint8)
        self.factors = self._views(self.matrices)
        self._rounding = (
            None
            if options.gather == "full"
            else CAST16.require(self._device, lambda rounding: rounding.name == options.gather)
        )
        self._rounded = [zeros(factor.shape, np.uint16) for factor in self.factors] if self._rounding else []
        self._stale = set(range(len(modes)))  # modes whose 16-bit copies are outdated
        self.versions = [0] * len(modes)
        read = self._rounded or self.factors
        self._inputs = [[factor for n, factor in enumerate(read) if n != m.mode] for m in modes]
        self.scratch: Array = None  # of kernels
        self.allocate(plan)

    def _stored_bytes(self, shape: tuple[int, int]) -> int:
        return -(-math.prod(shape) * self._dtype.itemsize // ALIGNED) * ALIGNED

    def _views(self, memory: Array) -> list[Array]:
        """Return views of the factor matrices in `memory`."""
        bounds, nbytes = [0], self._dtype.itemsize
        for shape in self._shapes:
            bounds.append(bounds[-1] + self._stored_bytes(shape))
        return [
            memory[begin : begin + math.prod(shape) * nbytes].view(self._dtype).reshape(shape)
            for begin, shape in zip(bounds[:-1], self._shapes, strict=True)
        ]

    def allocate(self, plan: Plan) -> None:
        """Allocate the rows that this rank computes according to a new plan."""
        self.outs, self.sums = list[Array](), list[Array]()  # free the old memory first
        shapes = [(m.rows.stop - m.rows.start, m.width) for m in plan.modes]
        memory = self._device.empty((max(map(math.prod, shapes)),), np.float64)
        # Views are created once, as a GPU would wait for the host at the beginning of a small tensor's mode.
        self.outs = [memory[: math.prod(shape)].reshape(shape) for shape in shapes]
        self.owned = [self.factors[m.mode][m.owned, : m.rank] for m in plan.modes]
        self.computed = [self.factors[m.mode][m.rows] for m in plan.modes]
        for m, out in zip(plan.modes, self.outs, strict=True):
            first = m.owned.start - m.rows.start
            self.sums.append(out[first : first + len(self.owned[m.mode]), : m.columns])

    def reserve(self, nbytes: int) -> None:
        """Provide at least `nbytes` bytes of scratch memory to kernels; 0 frees it."""
        if not nbytes or self.scratch is None or self.scratch.size < nbytes:
            self.scratch = None  # free the old memory before allocating
            self.scratch = self._device.empty((nbytes,), np.uint8) if nbytes else None

    def operands(self, mode: int) -> Operands:
        """Return the arrays that a product of one mode reads and writes."""
        return Operands(self.inputs(mode), self.computed[mode], self.outs[mode], self.scratch)

    def inputs(self, mode: int) -> list[Array]:
        """Return the factor matrices of the other modes as kernels read them."""
        if self._rounding:
            for n in self._stale - {mode}:
                self._rounding.run(self.factors[n], self._rounded[n])
            self._stale &= {mode}
        return self._inputs[mode]

    def changed(self, mode: int) -> None:
        """Count a change of a factor matrix, and mark its 16-bit copy as outdated."""
        self.versions[mode] += 1
        self._stale.add(mode)

    def set_factor(self, mode: int, factor: Floats, columns: slice | None = None) -> None:
        """Copy an (I_n, R_n) host matrix to a factor matrix, or to some of its columns."""
        self._exchange.wait_comm()
        rank = factor.shape[1]
        step = block_rows(rank)  # in blocks, as device memory may not hold a second matrix
        for b in range(0, len(factor), step):
            rows, place = np.ascontiguousarray(factor[b : b + step], self._dtype), self.factors[mode][b : b + step]
            if rank == place.shape[1]:
                self._device.fill([place.reshape(-1)], [rows.reshape(-1)])
            else:
                self._device.set_rows(place[:, columns or slice(0, rank)], rows)
        self.changed(mode)

    def stored(self, mode: int, matrices: Array | None = None) -> Array:
        """Return a factor matrix as stored, with padding; that of a copy of `matrices` if given."""
        self._exchange.wait_comm()
        return (self.factors if matrices is None else self._views(matrices))[mode]

    def factor(self, mode: int, matrices: Array | None = None, columns: slice | None = None) -> Floats:
        """Return a host copy of a factor matrix, (I_n, R_n), or of some columns; from a copy of `matrices` if given."""
        stored = self.stored(mode, matrices)
        if columns is not None:
            return np.array(self._device.to_host(stored[:, columns]), order="C")
        whole = self._device.to_host(stored)[:, : self._ranks[mode]]
        # An array from a GPU is already a copy.
        return np.array(whole, order="C") if self._device.on_host else np.ascontiguousarray(whole)
