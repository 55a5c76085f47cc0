"""CP-ALS: the canonical polyadic decomposition by alternating least squares, over all ranks.

The algorithm is that of Kolda and Bader (SIAM Review 51(3), 2009, Figure 3.3), as `cp_als` of the Tensor Toolbox
computes it. Each rank solves the rows that it owns; ranks then all-gather the solved rows, once for each mode,
and add up Gram matrices, norms and inner products, which are small.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backend import dense
from ..engine import Engine
from ..kruskal import KruskalTensor


@dataclass
class State:
    """Where a decomposition stands after some iterations.

    Attributes
    ----------
    weights : (R,) float64 array
        Norms taken out of the last factor matrix that was solved.
    fits : list of float
        ``1 - ||X - M|| / ||X||`` after each iteration.
    converged : bool
    """

    weights: NDArray[np.float64]
    fits: list[float] = field(default_factory=list)
    converged: bool = False


class DivergedError(ArithmeticError):
    """The fit is no longer a number."""


def iterate(engine: Engine, state: State, max_iters: int, tol: float) -> Iterator[State]:
    """Improve the engine's factor matrices by one iteration at a time; yield the state after each. Collective.

    Parameters
    ----------
    engine : Engine
        Holds the factor matrices to start from.
    state : State
        New, or that of an earlier run whose factor matrices the engine holds.
    max_iters : int
        Iterations in all, those of the earlier run included.
    tol : float
        Stop when the fit changes by less than this; 0 runs all iterations.
    """
    grams = [_gram(engine, mode) for mode in range(engine.order)]
    state.converged = _settled(state.fits, tol)
    while len(state.fits) < max_iters and not state.converged:
        for mode in range(engine.order):
            rows = engine.mttkrp(mode)
            state.weights = _update(engine, mode, rows, grams, first=not state.fits)
        # Rank 0's, so that ranks whose arithmetic differs in the last bit stop after the same iteration.
        fit = engine.comm.bcast(_fit(engine, rows, grams, state.weights))
        if not np.isfinite(fit):
            raise DivergedError(f"the fit is {fit} after iteration {len(state.fits) + 1}")
        state.fits.append(fit)
        state.converged = _settled(state.fits, tol)
        yield state


def _settled(fits: Sequence[float], tol: float) -> bool:
    return tol > 0 and len(fits) > 1 and abs(fits[-1] - fits[-2]) < tol


def model(engine: Engine, state: State) -> KruskalTensor:
    """Return the decomposition in host memory: unit 2-norm columns, weights descending."""
    factors = [engine.factor(mode) for mode in range(engine.order)]
    return KruskalTensor(state.weights, factors, state.fits, state.converged).arranged()


def _update(engine: Engine, mode: int, rows: Any, grams: list[NDArray[np.float64]], first: bool) -> NDArray[np.float64]:
    """Solve the owned rows of one factor matrix, normalise its columns, publish it; return the norms."""
    xp, owned = engine.backend.xp, engine.owned(mode)
    inverse = pseudo_inverse(np.prod([g for m, g in enumerate(grams) if m != mode], axis=0))
    # The norms are taken before the rows are stored: rounded once, to the factors that the Gram matrix is made of,
    # single-precision factors follow the path of double-precision ones; rounded and then scaled they stray from it.
    with engine.span("solve", mode):
        measure = dense.solved_squares if first else dense.solved_max
        measured = measure(xp, rows, engine.backend.to_device(inverse))
    if first:
        norms = np.sqrt(engine.reduce(measured, "sum", mode))
        norms = np.where(norms > 0, norms, 1.0)
    else:
        norms = np.maximum(engine.reduce(measured, "max", mode), 1.0)
    with engine.span("solve", mode):
        dense.solve_rows(xp, rows, engine.backend.to_device(inverse / norms), owned)
        gram = dense.gram(xp, owned)
    grams[mode] = engine.reduce(gram, "sum", mode)
    engine.publish(mode)
    return np.asarray(norms, np.float64)


def pseudo_inverse(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Moore-Penrose inverse of a symmetric positive semidefinite matrix.

    It solves rank-deficient least squares with the smallest norm, so that nothing becomes NaN.
    """
    if not np.all(np.isfinite(gram)):
        raise DivergedError("a factor matrix is no longer finite")
    cutoff = gram.shape[0] * np.finfo(np.float64).eps
    return np.asarray(np.linalg.pinv(gram, rcond=cutoff, hermitian=True), np.float64)


def _gram(engine: Engine, mode: int) -> NDArray[np.float64]:
    local = dense.gram(engine.backend.xp, engine.owned(mode))
    return np.array(engine.reduce(local, "sum", mode))


def _fit(engine: Engine, rows: Any, grams: Sequence[NDArray[np.float64]], weights: NDArray[np.float64]) -> float:
    """Return the fit from the last mode's MTTKRP `rows`, without forming the model (Tensor Toolbox, cp_als)."""
    last = engine.order - 1
    with engine.span("solve", last):
        dots = dense.column_dots(engine.backend.xp, rows, engine.owned(last))
    inner = float(engine.reduce(dots, "sum", last) @ weights)
    squared = float(weights @ np.prod(grams, axis=0) @ weights)
    residual = np.sqrt(max(0.0, engine.norm**2 + squared - 2 * inner))
    return float(1 - residual / engine.norm)
