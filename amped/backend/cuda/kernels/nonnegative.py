"""How a GPU solves rows without negative numbers."""

from __future__ import annotations

from collections.abc import Sequence

from ...hals import ColumnSolver
from ...nonnegative import NonnegativeSolver
from ..device import CudaDevice


def providers(device: CudaDevice) -> Sequence[NonnegativeSolver]:
    """Return the solvers of the family; the last one suits all."""
    return [ColumnSolver(device)]
