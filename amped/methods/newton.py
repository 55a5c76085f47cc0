"""Newton steps for the rows of a factor matrix, from the row systems of any loss."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CUTOFF = 1e-10
"""Directions whose second derivative is below this fraction of the row's largest are flat; steps omit them."""

LINEAR = 1e-3  # part of the gradient in flat directions from which steps follow it there


class RowDerivatives(NamedTuple):
    """Objective (rows,), gradient (rows, R) and curvature (rows, R, R) of each row of a factor matrix."""

    values: NDArray[np.float64]
    gradient: NDArray[np.float64]
    curvature: NDArray[np.float64] | None


def derivatives(systems: NDArray[np.float64], rank: int) -> RowDerivatives:
    """Split row systems into objective, gradient and curvature, which are views of them.

    Parameters
    ----------
    systems : (rows, `system_width`) array
        In host memory.
    rank : int
    """
    curved = systems.shape[1] > rank + 1
    curvature = systems[:, rank:-1].reshape(-1, rank, rank) if curved else None
    return RowDerivatives(systems[:, -1], systems[:, :rank], curvature)


def newton_steps(
    gradient: NDArray[np.float64], curvature: NDArray[np.float64], lengths: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Return the Newton step of each row, (rows, R).

    For singular curvature it is the shortest solution. Along directions of negative curvature the absolute value is
    used, so that each step is a descent direction. If much of the gradient is in flat directions, as of a loss that is
    linear in the model, the step there has the opposite direction, and its length is that of `lengths`, (rows,).
    """
    sizes, vectors = np.linalg.eigh(curvature)
    sizes = abs(sizes)
    flat = sizes <= CUTOFF * sizes.max(axis=1, keepdims=True, initial=0)
    along = np.einsum("irs,ir->is", vectors, gradient)
    linear, whole = np.where(flat, along, 0.0), np.linalg.norm(along, axis=1, keepdims=True)
    along = np.divide(along, sizes, out=np.zeros_like(along), where=~flat)
    if lengths is not None:
        size = np.linalg.norm(linear, axis=1, keepdims=True)
        along += np.divide(linear * lengths[:, None], size, out=np.zeros_like(along), where=size > LINEAR * whole)
    return np.asarray(-np.einsum("irs,is->ir", vectors, along), np.float64)
