"""Products of a list of elements, such as one slice, in one pass over the list: nothing is sorted, planned or timed.

Each rank has the matrices of all modes, as rows of one matrix, and a part of the elements; sums are those of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from partitioner.array_types import Floats, HostArray

from ...backend.device import Array
from ...backend.exchange import Machine
from ...backend.formulas import Formula
from ...backend.ops.sampled import (
    SAMPLED,
    ListedElements,
    MatrixRows,
    SampledFormulas,
    SampledProvider,
    SampledRows,
    SampleOrigin,
    Stratum,
)
from ...errors import InputError
from ...options import Options
from ..sources.device_tensor import equal_parts

MATRICES = 4  # as large as all factor matrices together: their stored rows, a copy, sums, and rows in double precision


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
        """Set the rows of a mode from host memory."""
        host = np.ascontiguousarray(rows, self.options.dtype)
        self.rows(mode)[...] = self.machine.device.to_device(host)

    def host_rows(self, mode: int) -> Floats:
        """Return a copy of the rows of a mode in host memory."""
        return np.array(self.machine.device.to_host(self.rows(mode)), order="C")

    def load(self, columns: HostArray | None, values: HostArray | None) -> None:
        """Replace the elements: rank 0's indices, (order, n), and values, (n,). Collective."""
        comm, device = self.machine.comm, self.machine.device
        parts = equal_parts(comm.bcast(0 if values is None else len(values)), comm.size)
        own = comm.scatter(values, parts, self.options.dtype)
        if comm.size == 1 and columns is not None:
            index = np.ascontiguousarray(columns, np.int32)
        else:
            each = (None if columns is None else columns[mode] for mode in range(self.order))
            index = np.stack([comm.scatter(column, parts, np.dtype(np.int32)) for column in each])
        self._coordinates = device.xp.ascontiguousarray(device.to_device(index).T)
        self._values = device.to_device(np.ascontiguousarray(own))

    def sums(self, mode: int) -> Array:
        """Return the sums of a mode on all ranks, (I_n, R) float64, in new memory. Collective."""
        return self._summed([mode])[0]

    def all_sums(self) -> list[Array]:
        """Return the sums of all modes at the same factor matrices. Collective."""
        return self._summed(range(self.order))

    def _summed(self, modes: Sequence[int]) -> list[Array]:
        found = self._added(modes).gradient
        result = []
        for mode in modes:
            rows = found[self.offsets[mode] : self.offsets[mode + 1]]
            if self.machine.comm.size > 1:
                self.machine.exchange.reduce(rows, "sum")
            result.append(rows[:, : self.rank].astype(np.float64, copy=False))
        return result

    def _added(self, modes: Sequence[int]) -> SampledRows:
        """Return this rank's sums in the rows of some modes."""
        device, order, count = self.machine.device, self.order, len(self._values)
        lengths = [end - begin for begin, end in zip(self.offsets[:-1], self.offsets[1:], strict=True)]
        elements = ListedElements(self._coordinates, self._values, device.empty((0,), np.int32), [0] * order, lengths)
        solved = [mode in modes for mode in range(order)]
        layout = MatrixRows(list(self.offsets), self.rank, [-np.inf] * order, [0.0] * order, solved)
        listed = self._provider.make(elements, layout, self._formulas, self._stride, self.options.deterministic)
        strata = [Stratum(SampleOrigin.EVERY, count, 1.0)] if count else []
        return listed.gradient(self.matrix, strata, 0)
