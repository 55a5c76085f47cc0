"""Non-negative rows without compiled code."""

from __future__ import annotations

from collections.abc import Sequence

from ...normal_equations.hals import ColumnSolver
from ...ops.nonnegative import NONNEGATIVE, NonnegativeSolver
from ..device import PlainDevice


@NONNEGATIVE.provider("plain")
def providers(device: PlainDevice) -> Sequence[NonnegativeSolver]:
    """Return the solvers of the operation."""
    return [ColumnSolver(device)]
