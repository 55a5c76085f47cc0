"""Products of a list of elements, such as one slice, in one pass over the list: nothing is sorted, planned or timed.

Each rank has the matrices of all modes, as rows of one matrix, and a part of the elements; sums are those of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from partitioner.array_types import FloatDType, Floats, HostArray

from ...backend.device import Array
from ...backend.exchange import Machine
from ...backend.formulas import Formula
from ...backend.ops.sampled import (
    SAMPLED,
    ListedElements,
    MatrixRows,
    SampledFormulas,
    SampledLoss,
    SampledProvider,
)
from ...errors import InputError
from ...options import Options
from ..sources.device_tensor import equal_parts

INT32 = 4  # bytes
MATRICES = 4  # of 8 bytes per entry: the rows, a copy, their sums, and parts of these in double precision


class _ElementMemory(NamedTuple):
    """Memory of elements, and their values and indices, (order, n), in it."""

    memory: Array
    values: Array
    index: Array

    @classmethod
    def of(cls, memory: Array, order: int, dtype: FloatDType) -> _ElementMemory:
        """Return the parts of an int32 array."""
        words = dtype.itemsize // INT32
        count = memory.size // (words + order)
        return cls(memory, memory[: words * count].view(dtype), memory[words * count :].reshape(order, count))


class ListedProducts:
    """For each mode, sums over elements x of y(x, m) times the product of the other modes' factor rows.

    Parameters
    ----------
    machine : Machine
    options : Options
    lengths : sequence of int
        The mode lengths.
    lasting : int
        The number of modes, the first ones, that `resize` does not change.
    rank : int
    weight : Formula
        y, a formula in x and the model's value m: "x" for an MTTKRP.
    lower : float
        Lower bound to which m is clamped.

    Attributes
    ----------
    matrix : (rows, columns in memory) device array
        The factor matrices.
    """

    def __init__(
        self,
        machine: Machine,
        options: Options,
        lengths: Sequence[int],
        lasting: int,
        rank: int,
        weight: Formula,
        lower: float = -np.inf,
    ) -> None:
        self.machine, self.options, self.rank, self.lasting = machine, options, rank, lasting
        self._formulas = SampledFormulas(weight, weight, lower)
        self._provider = self._provider_of(machine)
        self._stride = self._provider.stride(rank, options.dtype)
        self.offsets = [0, *accumulate(lengths)]
        self._staging = np.empty(0, np.int32)
        self._lock: object = None
        self._listed: tuple[tuple[int, ...], SampledLoss] | None = None  # the offsets, and the elements
        self._check_memory()
        self.matrix = machine.device.zeros((self.offsets[-1], self._stride), options.dtype)

    def _provider_of(self, machine: Machine) -> SampledProvider:
        provider = SAMPLED.first(machine.device, lambda each: each.suits(self._formulas))
        if provider is None:
            raise InputError(f"{machine.device.name} does not update models: use device 'cpu'")
        return provider

    def _check_memory(self) -> None:
        device, comm = self.machine.device, self.machine.comm
        needed = MATRICES * 8 * self.offsets[-1] * self._stride
        free = self.options.device_memory or device.memory(comm.local_size)
        if needed > free:
            raise InputError(
                f"device memory: the factor matrices of an update need {needed:,} bytes, but {free:,} are available"
            )

    @property
    def order(self) -> int:
        """The number of modes."""
        return len(self.offsets) - 1

    def resize(self, lengths: Sequence[int]) -> None:
        """Change the lengths of the modes after the lasting ones; their rows are undefined afterwards."""
        begin = self.offsets[self.lasting]
        self.offsets[self.lasting :] = accumulate(lengths, initial=begin)
        if self.offsets[-1] > len(self.matrix):
            larger = self.machine.device.zeros((self.offsets[-1], self._stride), self.options.dtype)
            larger[:begin] = self.matrix[:begin]
            self.matrix = larger

    def rows(self, mode: int, matrix: Array | None = None) -> Array:
        """Return the rows of a mode, (I_n, R), as a view of the matrix or of a copy of it."""
        begin, end = self.offsets[mode : mode + 2]
        return (self.matrix if matrix is None else matrix)[begin:end, : self.rank]

    def set_rows(self, mode: int, rows: Floats) -> None:
        """Set the first rows of a mode from host memory, and the others to zero."""
        begin, end = self.offsets[mode : mode + 2]
        if len(rows):
            known = self.matrix[begin : begin + len(rows), : self.rank]
            self.machine.device.set_rows(known, np.ascontiguousarray(rows, self.options.dtype))
        self.matrix[begin + len(rows) : end].fill(0)

    def host_rows(self, mode: int) -> Floats:
        """Return a copy of the rows of a mode in host memory."""
        return np.array(self.machine.device.to_host(self.rows(mode)), order="C")

    def load(self, columns: Sequence[HostArray] | None, values: HostArray | None) -> None:
        """Replace the elements: rank 0's indices in each mode, and values, all (n,). Collective."""
        comm, device = self.machine.comm, self.machine.device
        parts = equal_parts(comm.bcast(0 if values is None else len(values)), comm.size)
        own = comm.scatter(values, parts, self.options.dtype)
        host = self._staged(len(own))
        host.values[...] = own
        for mode, row in enumerate(host.index):
            row[...] = comm.scatter(None if columns is None else columns[mode], parts, np.dtype(np.int32))
        copy = _ElementMemory.of(device.empty(host.memory.shape, np.int32), self.order, self.options.dtype)
        device.fill([copy.memory], [host.memory])
        self._place(device.xp.ascontiguousarray(copy.index.T), copy.values)

    def _staged(self, count: int) -> _ElementMemory:
        """Return page-locked host memory for elements, which is used again."""
        words = count * (self.order + self.options.dtype.itemsize // INT32)
        if words > self._staging.size:
            self._staging = np.empty(words, np.int32)
            self._lock = self.machine.device.lock(self._staging)
        return _ElementMemory.of(self._staging[:words], self.order, self.options.dtype)

    def _place(self, coordinates: Array, values: Array) -> None:
        """Replace the elements in device memory, and that of their sums if modes have other lengths."""
        device, order, offsets = self.machine.device, self.order, tuple(self.offsets)
        lengths = [end - begin for begin, end in pairwise(offsets)]
        elements = ListedElements(coordinates, values, device.empty((0,), np.int32), [0] * order, lengths)
        if self._listed is not None and offsets == self._listed[0]:
            self._listed[1].load(elements)
            return
        layout = MatrixRows(offsets, self.rank, [-np.inf] * order, [0.0] * order, [True] * order)
        exact = self.options.deterministic
        self._listed = offsets, self._provider.make(elements, layout, self._formulas, self._stride, exact)

    def sums(self, mode: int) -> Array:
        """Return the sums of a mode on all ranks, (I_n, R), valid until the next call. Collective.

        They are float64 or, on GPUs, of the matrix's type unless sums are exact.
        """
        return self._summed([mode])[0]

    def all_sums(self) -> list[Array]:
        """Return the sums of all modes at the same factor matrices. Collective."""
        return self._summed(range(self.order))

    def _summed(self, modes: Sequence[int]) -> list[Array]:
        assert self._listed is not None
        found = self._listed[1].listed(self.matrix, modes)
        result = []
        for mode in modes:
            rows = found[self.offsets[mode] : self.offsets[mode + 1]]
            if self.machine.comm.size > 1:
                self.machine.exchange.reduce(rows, "sum")
            result.append(rows[:, : self.rank])
        return result
