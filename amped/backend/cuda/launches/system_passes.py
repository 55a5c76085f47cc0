"""Launches of ``rowproblems.cu`` with the formulas of a loss."""

from __future__ import annotations

from functools import cache

import numpy as np

from partitioner.cuda.code import allow_shared, load
from partitioner.cuda.cubins import CudaFunction

from ...device import Array
from ...losses import Maps
from ..code.rows import TEAM, RowCode, systems
from ..layout import PackedLayout
from ..shard import CudaShard
from .row_passes import RowTasks, nonzeros_of


class SystemPasses:
    """Passes over the nonzeros of a shard that sum row systems; see `RowPasses` for those of PDNR and PQNR."""

    def __init__(self, code: RowCode, shard: CudaShard, inputs: np.void, maps: Maps, device: int) -> None:
        self._code, self._inputs, self._lower = code, inputs, np.float64(maps.lower)
        self._nonzeros = nonzeros_of(shard)
        self._functions = _compiled(shard.layout, code, maps, device)

    def take_rows(self, names: Array, own: Array, matrix: Array, status: Array) -> None:
        """Set `matrix` to the rows `names` of `own`, and their status to active."""
        arguments = names, own, np.int32(names.size), matrix, status
        self._functions["take_rows"](_blocks(names.size * self._code.rank), (TEAM,), arguments)

    def add_sums(self, tasks: RowTasks, status: Array, matrix: Array, parts: Array) -> None:
        """Compute the sums of each task, at the rows of `matrix`."""
        grid = tasks.row.size, self._code.squares
        arguments = self._inputs, self._nonzeros, tasks.packed, status, matrix, parts, self._lower
        self._functions["add_sums"](grid, (TEAM,), arguments, shared_mem=self._code.shared_for_passes)

    def add_systems(self, tasks: RowTasks, parts: Array, names: Array, out: Array) -> None:
        """Add the sums of each row's tasks to the rows `names` of `out`."""
        arguments = parts, tasks.first, np.int32(tasks.begin), np.int32(names.size), names, out
        self._functions["add_systems"](_blocks(names.size * out.shape[1]), (TEAM,), arguments)


def _blocks(threads: int) -> tuple[int]:
    return (-(-threads // TEAM),)


@cache
def _compiled(layout: PackedLayout, code: RowCode, maps: Maps, device: int) -> dict[str, CudaFunction]:
    module = load(systems(layout, code, maps))
    functions = {name: module.get_function(name) for name in ("take_rows", "add_sums", "add_systems")}
    allow_shared(functions["add_sums"])
    return functions
