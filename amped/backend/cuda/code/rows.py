"""Compile-time parameters of `rowproblems.cu` and `rowsteps.cu`, for CP-APR and any loss, and memory of rows.

Needs no GPU or CuPy.
"""

from __future__ import annotations

from typing import NamedTuple

from partitioner.array_types import FloatDType
from partitioner.cuda.cubins import CudaSource

from ...losses import Maps
from ...ops.mttkrp import Share
from ...ops.rowproblems import RowMethod
from ..layout import Limits, PackedLayout
from ..source import REALS, Macros, compile_options, unit, with_formulas

TEAM = 128  # threads of a block, as in rowproblems.cu
MOST_RANK = 224  # of PDNR, whose Cholesky factor is in shared memory
LEAST_TASK = 128  # least nonzeros of a task, unless the row has fewer
TASKS = 8  # tasks per multiprocessor if one row had all nonzeros
BATCH_BYTES = 64 << 20  # state of the rows that are solved together
LENGTHS = 11
FACTS, VECTORS = 4, 8  # numbers, and vectors of PQNR, in a row's state


class RowCode(NamedTuple):
    """The compile-time parameters: number of columns, type of factor matrices, and method."""

    rank: int
    dtype: FloatDType
    newton: bool

    @property
    def sums(self) -> int:
        """The number of sums over a row's nonzeros."""
        return self.rank + self.newton * self.rank**2 + 2

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's state."""
        return 8 * (2 * self.rank + FACTS + (0 if self.newton else VECTORS * self.rank)) + 4

    @property
    def bytes(self) -> int:
        """Bytes of scratch memory of a task, and of the row of a single-task row."""
        return 8 * (self.sums + LENGTHS) + self.row_bytes

    @property
    def shared_for_passes(self) -> int:
        """Bytes of shared memory of a thread block of a pass over nonzeros; see `Room` in ``rowproblems.cu``."""
        tile, edge = (32 if self.rank <= 256 else 16), (2 if self.rank <= 24 else 4)
        pitch = -(-self.rank // edge) * edge | 1
        inputs = 8
        return 8 * (tile * pitch + 2 * self.rank + 3 * tile) + 4 * inputs * tile

    @property
    def shared_for_steps(self) -> int:
        """Bytes of shared memory of a thread block that computes a step; see `Row` in ``rowsteps.cu``."""
        return 8 * (4 * self.rank + self.newton * self.rank * (self.rank + 1) // 2) + 4 * 2 * self.rank

    @property
    def team(self) -> int:
        """Threads of a block that computes a step."""
        return 32 if self.rank <= 64 else TEAM

    @property
    def squares(self) -> int:
        """Thread blocks that sum the second derivatives of a task."""
        side = -(-self.rank // (2 if self.rank <= 24 else 4))
        return -(-side * (side + 1) // 2 // TEAM) if self.newton else 1

    def passes(self, layout: PackedLayout) -> Macros:
        """Return the macros of ``rowproblems.cu`` for a layout."""
        return dict(layout.macros) | {"RANK": self.rank, "NEWTON": int(self.newton)}

    def passing(self, layout: PackedLayout) -> CudaSource:
        """Return ``rowproblems.cu`` for a layout."""
        return unit("rowproblems", self.passes(layout))

    def stepping(self) -> CudaSource:
        """Return ``rowsteps.cu``."""
        return unit("rowsteps", self.steps())

    def steps(self) -> Macros:
        """Return the macros of ``rowsteps.cu``."""
        return {"RANK": self.rank, "REAL": REALS[self.dtype], "NEWTON": int(self.newton), "TEAM": self.team}


def finding(layout: PackedLayout) -> CudaSource:
    """Return ``find_rows.cu`` for a layout."""
    return unit("find_rows", dict(layout.macros))


def systems(layout: PackedLayout, code: RowCode, maps: Maps) -> CudaSource:
    """Return ``rowproblems.cu`` with the formulas of a loss inserted."""
    options = compile_options(code.passes(layout) | {"MAPS": 1})
    return CudaSource("row_systems", with_formulas("rowproblems", maps.formulas), options)


def suits(layout: PackedLayout, method: RowMethod, limits: Limits) -> bool:
    """Return whether rows can be solved from such nonzeros: sorted by row, and not too many columns."""
    share, plain = layout.share, not (layout.tiled or layout.fibre) and layout.share.gather == "full"
    code = RowCode(share.stride, share.dtype, method == "pdnr")
    fits = max(code.shared_for_passes, code.shared_for_steps) <= limits.shared
    return plain and fits and (method != "pdnr" or share.stride <= MOST_RANK)


def task_size(nnz: int, limits: Limits) -> int:
    """Return the maximum number of nonzeros of a task of a shard."""
    return max(LEAST_TASK, -(-nnz // (limits.processors * TASKS)))


def most_tasks(share: Share, nnz: int, limits: Limits) -> int:
    """Return an upper bound of the tasks of `nnz` nonzeros."""
    rows: int = min(share.rows.stop - share.rows.start, nnz)
    return rows + min(nnz, limits.processors * TASKS)


def batch_tasks(code: RowCode, stride: int, tasks: int, most_of_row: int) -> int:
    """Return the maximum number of tasks in a batch; all tasks of a row are in one batch.

    It does not exceed the number for the padded columns, on which plans are based.
    """
    return min(tasks, max(most_of_row, BATCH_BYTES // code._replace(rank=stride).bytes))
