"""Newton steps for the rows of a factor matrix, from the row systems of any loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..backend.losses import Loss, Moments

CUTOFF = 1e-10
"""Directions whose second derivative is below this fraction of the row's largest are flat; steps omit them."""


class RowDerivatives(NamedTuple):
    """Objective (rows,), gradient (rows, R) and curvature (rows, R, R) of each row of a factor matrix."""

    values: NDArray[np.float64]
    gradient: NDArray[np.float64]
    curvature: NDArray[np.float64] | None


def derivatives(
    systems: NDArray[np.float64],
    rank: int,
    everywhere: tuple[Loss, Sequence[NDArray[Any]], int] | None = None,
    rows: slice = slice(None),
) -> RowDerivatives:
    """Split row systems into objective, gradient and curvature, which are views of them unless `everywhere` is given.

    Parameters
    ----------
    systems : (rows, `system_width`) array
        In host memory.
    rank : int
    everywhere : (loss, factors, mode), optional
        If absent elements are zeros: arguments for their contribution to gradient and curvature. Objectives do not
        include it; `Loss.everywhere` returns it for the whole tensor.
    rows : slice
        The rows of the mode that `systems` holds.
    """
    curved = systems.shape[1] > rank + 1
    gradient = systems[:, :rank]
    curvature = systems[:, rank:-1].reshape(-1, rank, rank) if curved else None
    if everywhere:
        loss, factors, mode = everywhere
        moments = Moments.of(factors)
        gradient = gradient + loss.gradient_everywhere(moments, mode, factors[mode][rows])
        if curvature is not None:
            curvature = curvature + loss.curvature_everywhere(moments, mode)
    return RowDerivatives(systems[:, -1], gradient, curvature)


def newton_steps(gradient: NDArray[np.float64], curvature: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Newton step of each row, (rows, R).

    For singular curvature it is the shortest solution. Along directions of negative curvature the absolute value is
    used, so that each step is a descent direction.
    """
    sizes, vectors = np.linalg.eigh(curvature)
    sizes = abs(sizes)
    flat = sizes <= CUTOFF * sizes.max(axis=1, keepdims=True, initial=0)
    along = np.einsum("irs,ir->is", vectors, gradient)
    along = np.divide(along, sizes, out=np.zeros_like(along), where=~flat)
    return np.asarray(-np.einsum("irs,is->ir", vectors, along), np.float64)
