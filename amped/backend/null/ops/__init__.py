"""What the null device computes, a module for each operation; in others it does as a CPU."""

from __future__ import annotations

from typing import Any

from ...ops.mu_update import MU_UPDATE
from ...ops.nonnegative import NONNEGATIVE
from ...ops.row_systems import ROW_SYSTEMS
from ...ops.rowproblems import ROWPROBLEMS
from ...ops.solve import SOLVE
from ...ops.ttmc import TTMC
from ...registry import Op

AS_ON_A_CPU: tuple[Op[Any], ...] = MU_UPDATE, NONNEGATIVE, ROW_SYSTEMS, ROWPROBLEMS, SOLVE, TTMC

for op in AS_ON_A_CPU:
    op.reuse("null", of="cpu")
