"""Compile-time parameters of `observed.cu` and `least_squares.cu`, and the memory of rows; needs no GPU or CuPy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from partitioner.array_types import FloatDType
from partitioner.cuda.cubins import CudaSource

from ...formulas import formula_of
from ...losses import Maps
from ..layout import Limits, PackedLayout
from ..source import REALS, unit
from .rows import RowCode

MOST_FUSED = 32  # columns of ``observed.cu``
WARP, THREADS, TURN = 32, 128, 32  # of ``observed.cu``: threads, of a block; nonzeros that a warp decodes together
LEAST_TASK = 128  # nonzeros of a task, at least
TASKS = 32  # per multiprocessor, if one row had all nonzeros
CACHED, MOST_FAR = 1 << 26, 3  # bytes of factor matrices, and their number, for which rows are copied to shared memory
NOISE = 5e-7  # relative rounding error of sums by ``observed.cu``
VECTORS = 8  # of a row that is solved
SOLVED_BYTES = 24  # results of a row

SQUARES = Maps(formula_of("x - m"), formula_of("1"), formula_of("(x - m) * (x - m)"))
"""Formulas of the sums from which rows are solved: slope, matrix, and squared residuals."""


class LeastSquaresCode(NamedTuple):
    """The compile-time parameters: number of columns, and type of the rows."""

    rank: int
    dtype: FloatDType

    @property
    def sums(self) -> int:
        """The number of sums of a row; see ``least_squares.cu``."""
        return self.rank + self.rank**2 + 1

    @property
    def part(self) -> int:
        """The numbers of a part of a row; see ``observed.cu``."""
        return self.span * (self.span + 1) + 4

    @property
    def span(self) -> int:
        """The columns of all lanes of a warp in ``observed.cu``."""
        return 16 if self.rank <= 16 else 32

    @property
    def team(self) -> int:
        """Threads that solve a row."""
        return WARP if self.rank <= 64 else 128

    @property
    def shared(self) -> int:
        """Bytes of shared memory in which a team solves a row in double precision; a warp has the matrix there, too."""
        triangle, length = self.rank * (self.rank + 1) // 2, self.rank + self.rank % 2
        matrices = 2 * triangle if self.team == WARP else triangle + triangle % 2
        return 8 * (matrices + VECTORS * length) + 4 * length

    def shared_of_warp(self, layout: PackedLayout, in_double: bool) -> int:
        """Return the bytes of shared memory of a warp of ``observed.cu``, which solves in double precision or not."""
        slot, sums = (len(layout.blocks) + 4) // 4 * 4, 4 * self.span * (self.span + 6)
        slots = 2 * TURN * slot * 4 + (TURN * len(layout.blocks) * 4 * self.span if self._far(layout) else 0)
        return -(-max(slots, sums, self.shared if in_double else 0) // 16) * 16

    def _far(self, layout: PackedLayout) -> bool:
        """Return whether ``observed.cu`` reads factor rows from the device's memory more often than from its caches."""
        inputs = len(layout.share.lengths)
        return self.rank > 16 and inputs <= MOST_FAR and 4 * sum(layout.share.lengths) * layout.share.stride > CACHED

    @property
    def sums_of(self) -> RowCode:
        """The parameters of ``rowproblems.cu``, which computes the sums in double precision."""
        return RowCode(self.rank, self.dtype, newton=True)

    def solving(self) -> CudaSource:
        """Return ``least_squares.cu``."""
        return unit("least_squares", {"RANK": self.rank, "REAL": REALS[self.dtype], "TEAM": self.team})

    def fused(self, layout: PackedLayout) -> CudaSource:
        """Return ``observed.cu`` for a layout."""
        far = self._far(layout)
        blocks = 5 if self.rank <= 16 else 4 if far else 3  # of a multiprocessor: the fastest number, on an H200
        macros = dict(layout.macros) | {"RANK": self.rank, "THREAD_COUNT": THREADS, "BLOCKS": blocks, "FAR": int(far)}
        return unit("observed", macros)


def fuses(layout: PackedLayout) -> bool:
    """Return whether ``observed.cu`` supports such nonzeros."""
    return bool(layout.share.dtype == np.float32) and layout.share.stride <= MOST_FUSED


def task_size(nnz: int, limits: Limits) -> int:
    """Return the maximum number of nonzeros of a task of ``observed.cu``."""
    return max(LEAST_TASK, -(-nnz // (limits.processors * TASKS)))


def most_parts(nnz: int, limits: Limits) -> int:
    """Return an upper bound of the tasks of rows with more nonzeros than a task."""
    return 2 * nnz // task_size(nnz, limits)
