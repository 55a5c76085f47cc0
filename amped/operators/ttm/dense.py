"""A semi-sparse tensor times a matrix in one of its dense modes: fibres stay where they are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats
from partitioner.host.stages import STAGES

from ...backend.exchange import Machine
from ...errors import InputError
from ..limits import check_range
from ..placement import INDEX_BYTES
from ..sources.semisparse import SemiSparseProduct
from .operator import ResultRows, finite
from .plan import TtmSetting

BLOCK_BYTES = 1 << 28  # of values that are multiplied together


@dataclass(frozen=True)
class BlockPlan:
    """What one rank holds; see `TtmPlan`."""

    rows: int  # fibres that are multiplied together
    device_bytes: dict[str, int]
    host_bytes: int
    whole: bool = False
    counted: ClassVar[str] = "fibres"

    @property
    def planned_bytes(self) -> dict[str, int]:
        """Bytes of all memory by use."""
        return self.device_bytes | {"host": self.host_bytes}


class DenseModeOperator:
    """Products in a dense mode, block by block, by the device's own matrix products. As `TtmOperator`; collective."""

    def __init__(self, source: SemiSparseProduct, machine: Machine, setting: TtmSetting) -> None:
        """Load this rank's share of `source`."""
        self.machine, self.options, self.ranks = machine, setting.options, (setting.rank,)
        if source.value_range.largest:
            check_range(source.value_range, self.options.dtype, source.path)
        at = source.dense.index(setting.mode)
        lengths = [source.shape[m] for m in source.dense]
        self._lengths = math.prod(lengths[:at]), lengths[at], math.prod(lengths[at + 1 :])
        self.clock, self._mode, self.kernels = machine.device.clock(), setting.mode, ["matrix product"]
        with STAGES.of("read"):
            self._indices, self._values = source.rows(self.options.dtype)
        self.fibres = len(self._indices)
        self.rows = np.cumsum([0, *machine.comm.allgather(self.fibres)])
        self.plan = self._planned(setting)
        self._matrix = machine.device.zeros((setting.length, setting.rank), self.options.dtype)

    def _planned(self, setting: TtmSetting) -> BlockPlan:
        """Return the plan; raise `InputError` if a row does not fit."""
        before, length, after = self._lengths
        item, device = self.options.dtype.itemsize, setting.device
        matrix, args = length * setting.rank * item, before * length * after * item
        row = 2 * args + 2 * before * after * setting.rank * item  # a copy of each with its axes in another order
        rows = min(max(1, self.fibres), BLOCK_BYTES // row + 1, (setting.memory - matrix) // row)
        if rows < 1:
            raise InputError(
                f"device memory: the matrix and one block of {before} x {length} x {after} numbers need "
                f"{matrix + row:,} bytes, but {max(0, setting.memory):,} are available; use a lower rank"
            )
        used = {"matrix": matrix, "working memory": rows * row}
        values = self.fibres * (args + INDEX_BYTES * setting.sparse)
        return BlockPlan(rows, used, values + device.host_bytes + (sum(used.values()) if device.on_host else 0))

    def set_matrix(self, matrix: Floats) -> None:
        """Set the (length, rank) matrix to multiply with."""
        self._matrix[...] = self.machine.device.to_device(np.ascontiguousarray(matrix, self.options.dtype))

    def compute(self) -> None:
        """Compute this rank's rows, which are not kept."""
        for _ in self._blocks():
            pass

    def _blocks(self) -> Iterator[tuple[int, Any]]:
        device, shape = self.machine.device, self._lengths
        for begin in range(0, self.fibres, self.plan.rows):
            block = self._values[begin : begin + self.plan.rows]
            with self.clock.span("compute", self._mode):
                part = device.to_device(np.ascontiguousarray(block)).reshape(len(block), *shape)
                product = device.xp.moveaxis(device.xp.tensordot(part, self._matrix, axes=(2, 0)), -1, 2)
                result = device.xp.ascontiguousarray(product)
            yield begin, result.reshape(len(block), -1)

    def coordinates(self) -> Iterator[NDArray[np.int32]]:
        """See `TtmOperator`."""
        return iter([self._indices])

    def parts(self) -> Iterator[ResultRows]:
        """Compute the product, and yield this rank's rows in order, some at a time."""
        for begin, rows in self._blocks():
            values = finite(self.machine.device.to_host(rows), self._mode, self.options)
            yield ResultRows(self._indices[begin : begin + len(values)], values)

    def synchronize(self) -> None:
        """Wait until all queued work is done."""
        self.machine.device.synchronize()
