"""The rows of one mode of a Tucker model, given its core and the other factor matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats

from ..backend.device import Array, Device
from ..backend.normal_equations.hals import SETTLED, sweep_columns

SWEEPS, MOST = 10, 200  # of HALS between two tests whether rows have settled, and how often that happens

Matrix = NDArray[np.float64]


class CoreEquations(NamedTuple):
    """The normal equations of a mode's rows, given the product of the tensor and the other modes' factor matrices."""

    unfolded: Matrix  # the core, unfolded in the mode
    gram: Matrix  # (R, R)


def core_rows(ttmc: Array, equations: CoreEquations, device: Device, nonnegative: bool) -> Array:
    """Return the least-squares rows for rows of a TTMc."""
    xp, (unfolded, gram) = device.xp, equations
    inverse = np.ascontiguousarray(unfolded.T @ np.linalg.pinv(gram, hermitian=True))
    rows = xp.matmul(ttmc, device.to_device(inverse))
    if not nonnegative:
        return rows
    rows = xp.ascontiguousarray(xp.maximum(rows.T, 0.0))
    right = xp.matmul(device.to_device(unfolded), ttmc.T)
    for _ in range(MOST):
        before = rows.copy()
        sweep_columns(xp, rows, right, gram, SWEEPS)
        if not bool((xp.abs(rows - before) > SETTLED * xp.abs(rows).max(axis=0)).any()):
            break
    return rows.T


def core_equations(core: Matrix, factors: Sequence[Floats], mode: int) -> CoreEquations:
    """Return the equations of a mode's rows."""

    def unfolded(core: Matrix) -> Matrix:
        return np.moveaxis(core, mode, 0).reshape(core.shape[mode], -1)

    squared = core
    for m, factor in enumerate(factors):
        if m != mode:
            wide = factor.astype(np.float64, copy=False)
            squared = np.moveaxis(np.tensordot(squared, wide.T @ wide, (m, 0)), -1, m)
    own = np.ascontiguousarray(unfolded(core))
    return CoreEquations(own, own @ unfolded(squared).T)
