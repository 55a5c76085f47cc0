"""How a CPU solves rows of factor matrices: by NumPy's matrix products."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...rows import RowSolver
from ...solve import Solver
from ..device import CpuDevice


def providers(device: CpuDevice) -> Sequence[Solver]:
    """Return the solvers of the family."""
    return [RowSolver(np, blocks=2)]
