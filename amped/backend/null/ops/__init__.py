"""Kernels of the null device, a module per operation; the other operations use the CPU's."""

from __future__ import annotations

from typing import Any

from ...ops.mu_update import MU_UPDATE
from ...ops.nonnegative import NONNEGATIVE
from ...ops.row_systems import ROW_SYSTEMS
from ...ops.rowproblems import ROWPROBLEMS
from ...ops.sampled import SAMPLED
from ...ops.solve import SOLVE
from ...ops.ttmc import TTMC
from ...registry import Op

CPU_OPS: tuple[Op[Any], ...] = MU_UPDATE, NONNEGATIVE, ROW_SYSTEMS, ROWPROBLEMS, SAMPLED, SOLVE, TTMC

for op in CPU_OPS:
    op.reuse("null", of="cpu")
