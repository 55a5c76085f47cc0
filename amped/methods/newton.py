"""Newton steps of the rows of a factor matrix, from the row systems of any loss."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..backend.losses import Loss

CUTOFF = 1e-10
"""Directions whose second derivative is below this fraction of a row's largest are flat: no step is made along them."""


class RowDerivatives(NamedTuple):
    """The objective of each row of a factor matrix, (rows,), its gradient, (rows, R), and curvature, (rows, R, R)."""

    values: NDArray[np.float64]
    gradient: NDArray[np.float64]
    curvature: NDArray[np.float64] | None


def derivatives(
    systems: NDArray[np.float64],
    rank: int,
    everywhere: tuple[Loss, list[NDArray[Any]], int] | None = None,
    rows: slice = slice(None),
) -> RowDerivatives:
    """Return the parts of row systems, (rows, `system_width`).

    Parameters
    ----------
    systems : (rows, `system_width`) array
        In host memory.
    rank : int
    everywhere : (loss, factors, mode), optional
        If absent elements are zeros, what they add to gradient and curvature; objectives are left as they are, as
        `Loss.everywhere` is that of the whole tensor.
    rows : slice
        Those of the mode that `systems` has.
    """
    curved = systems.shape[1] > rank + 1
    gradient = systems[:, :rank].copy()
    curvature = systems[:, rank:-1].reshape(-1, rank, rank).copy() if curved else None
    if everywhere:
        loss, factors, mode = everywhere
        gradient += loss.gradient_everywhere(factors, mode)[rows]
        if curvature is not None:
            curvature += loss.curvature_everywhere(factors, mode)
    return RowDerivatives(systems[:, -1].copy(), gradient, curvature)


def newton_steps(gradient: NDArray[np.float64], curvature: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Newton step of each row, (rows, R).

    Where a row's second derivatives are singular it is the shortest of the possible steps. Along directions of negative
    curvature its size counts, so that each step is one of descent.
    """
    sizes, vectors = np.linalg.eigh(curvature)
    sizes = abs(sizes)
    flat = sizes <= CUTOFF * sizes.max(axis=1, keepdims=True, initial=0)
    along = np.einsum("irs,ir->is", vectors, gradient)
    along = np.divide(along, sizes, out=np.zeros_like(along), where=~flat)
    return np.asarray(-np.einsum("irs,is->ir", vectors, along), np.float64)
