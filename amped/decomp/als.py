"""CP-ALS: the canonical polyadic decomposition by alternating least squares, over all ranks.

The algorithm is that of Kolda and Bader (SIAM Review 51(3), 2009, Figure 3.3), as `cp_als` of the Tensor Toolbox
computes it. Each rank solves the rows that it owns; ranks then all-gather the solved rows, once for each mode,
and add up Gram matrices, norms and inner products, which are small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..backend import rows as dense
from ..models.kruskal import KruskalTensor
from ..operators.sparse import Engine

Matrix = NDArray[np.float64]

FAR = 1024.0  # from 1, for the largest number of a stored column


@dataclass
class State:
    """Where a decomposition stands after some iterations.

    Attributes
    ----------
    weights : (R,) float64 array
        Norms taken out of the last factor matrix that was solved.
    fits : list of float
        ``1 - ||X - M|| / ||X||`` after each iteration.
    norms : (N, R) float64 array
        Norms taken out of each factor matrix when it was last solved.
    scales : (N, R) float64 array
        What the columns of the engine's factor matrices are to be multiplied with: rows are stored before the norms of
        their columns are known, divided by what was about the largest number of the column in an iteration before.
    converged : bool
    mode : int
        Modes that are solved already in the iteration after the last fit.
    """

    weights: NDArray[np.float64]
    fits: list[float] = field(default_factory=list)
    norms: NDArray[np.float64] = field(default_factory=lambda: np.ones((0, 0)))
    scales: NDArray[np.float64] = field(default_factory=lambda: np.ones((0, 0)))
    converged: bool = False
    mode: int = 0


class DivergedError(ArithmeticError):
    """The fit is no longer a number."""


def iterate(
    engine: Engine, state: State, max_iters: int, tol: float, stop: Callable[[], bool] = lambda: False
) -> Iterator[State]:
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
    stop : callable
        Asked between modes, on all ranks: whether to end here, within an iteration.
    """
    if not state.norms.size:
        state.norms, state.scales = (np.ones((engine.order, engine.rank)) for _ in range(2))
    grams = [_gram(engine, mode) * np.outer(s, s) for mode, s in enumerate(state.scales)]
    state.converged = _settled(state.fits, tol)
    while len(state.fits) < max_iters and not state.converged:
        for mode in range(state.mode, engine.order):
            if mode > state.mode and stop():
                state.mode = mode
                return
            with _telling(engine, state, mode):
                dots = _update(engine, mode, grams, state)
            state.weights = state.norms[mode].copy()
        state.mode = 0
        # Rank 0's, so that ranks whose arithmetic differs in the last bit stop after the same iteration.
        fit = engine.comm.bcast(_fit(engine, dots, grams, state))
        with _telling(engine, state, engine.order - 1):
            if not np.isfinite(fit):
                raise DivergedError(f"the fit is {fit}")
        state.fits.append(fit)
        state.converged = _settled(state.fits, tol)
        yield state


@contextmanager
def _telling(engine: Engine, state: State, mode: int) -> Iterator[None]:
    """Say of a `DivergedError` where it was, and what is likely to be the cause."""
    try:
        yield
    except DivergedError as error:
        if engine.options.gather == "fp16":
            cause = "numbers above 65504, which --gather fp16 cannot hold: bf16 or full can"
        elif engine.plan.dtype == np.float32:
            cause = "products beyond single precision: --precision fp64, or smaller values, may help"
        else:
            cause = "values, or a start, so large that products are beyond double precision"
        where = f"iteration {len(state.fits) + 1}, mode {mode}"
        raise DivergedError(f"{where}: {error}; the likely cause: {cause}") from None


def _settled(fits: Sequence[float], tol: float) -> bool:
    return tol > 0 and len(fits) > 1 and abs(fits[-1] - fits[-2]) < tol


def model(engine: Engine, state: State) -> KruskalTensor:
    """Return the decomposition in host memory: unit 2-norm columns, weights descending."""
    factors = [engine.factor(mode) for mode in range(engine.order)]
    for factor, scale in zip(factors, state.scales, strict=False):  # there are none before the first iteration
        np.multiply(factor, scale, out=factor, casting="same_kind")
    return KruskalTensor(state.weights, factors, state.fits, state.converged).arranged()


class Totals(NamedTuple):
    """What is to be known of a factor matrix as it is stored.

    Attributes
    ----------
    gram : (R, R) float64 array
    dots : (R,) float64 array
        Inner products of its columns with those of the MTTKRP; of the last mode only.
    largest : (R,) float64 array
        Magnitudes of its columns' largest numbers, before they were rounded.
    """

    gram: Matrix
    dots: NDArray[np.float64]
    largest: NDArray[np.float64]


class _Solver:
    """Solves rows of a factor matrix as their MTTKRP comes, and adds up what is to be known of all of them.

    Rows are rounded once, when they are stored, and the Gram matrix is made of what is stored: so factors in single
    precision follow the path of those in double precision. Norms come after, and are kept beside the matrix.
    """

    def __init__(
        self, engine: Engine, mode: int, grams: Sequence[Matrix], scales: Matrix, divisor: NDArray[np.float64]
    ) -> None:
        """Rows are to be stored divided by `divisor`, (R,)."""
        self._engine, self._mode, self._divisor = engine, mode, divisor
        self._others = [m for m in range(engine.order) if m != mode]
        self._grams, self._scales = grams, scales
        # The Gram matrix, dots, and a row for each rank's largest numbers: one sum over the ranks combines them all.
        self._totals = engine.backend.zeros((engine.rank + 1 + engine.comm.size, engine.rank), np.float64)

    @cached_property
    def _inverse(self) -> Any:
        """Made when rows are there to be solved: a device computes meanwhile."""
        inverse = pseudo_inverse(np.prod([self._grams[m] for m in self._others], axis=0))
        inverse *= np.prod(self._scales[self._others], axis=0)[:, None]
        return self._engine.backend.to_device(inverse / self._divisor)

    def __call__(self, rows: Any, target: Any) -> None:
        """Solve rows of the MTTKRP, (rows, R), into rows of the factor matrix."""
        engine, rank, totals = self._engine, self._engine.rank, self._totals
        dots = totals[rank] if self._mode == engine.order - 1 else None
        with engine.span("solve", self._mode):
            engine.backend.solve(rows, self._inverse, target, totals[:rank], totals[rank + 1 + engine.comm.rank], dots)

    def totals(self) -> Totals:
        """Return what was added up, of all ranks. Collective."""
        totals, rank = self._engine.reduce(self._totals, "sum", self._mode), self._engine.rank
        return Totals(totals[:rank], totals[rank], totals[rank + 1 :].max(axis=0))


def _update(engine: Engine, mode: int, grams: list[Matrix], state: State) -> NDArray[np.float64]:
    """Compute, solve and publish the owned rows of a factor matrix, and normalise its columns; return `Totals.dots`."""
    divisor = state.norms[mode] * state.scales[mode]  # as they were stored last
    solver = _Solver(engine, mode, grams, state.scales, divisor)
    rows = engine.mttkrp(mode, solver)
    gram, dots, largest = solver.totals()
    if not np.all((largest == 0) | ((largest > 1 / FAR) & (largest < FAR))):  # products of such columns could overflow
        # By powers of two: so rows are rounded as if they were not divided.
        divisor = divisor * np.exp2(np.round(np.log2(np.where(largest > 0, largest, 1.0))))
        solver = _Solver(engine, mode, grams, state.scales, divisor)
        solver(rows, engine.owned(mode))
        engine.publish(mode)
        gram, dots, largest = solver.totals()
    if not np.all(np.isfinite(gram)):  # on every rank, as in a sum a NaN stays one
        raise DivergedError("the factor matrix is not finite")
    norms = np.maximum(largest * divisor, 1.0) if state.fits else np.sqrt(np.diag(gram)) * divisor
    state.norms[mode] = np.where(norms > 0, norms, 1.0)
    state.scales[mode] = scale = divisor / state.norms[mode]
    grams[mode] = gram * np.outer(scale, scale)
    return dots


def pseudo_inverse(gram: Matrix) -> Matrix:
    """Return the Moore-Penrose inverse of a symmetric positive semidefinite matrix.

    It solves rank-deficient least squares with the smallest norm, so that nothing becomes NaN.
    """
    if not np.all(np.isfinite(gram)):
        raise DivergedError("the Gram matrices of the other modes are not finite")
    cutoff = gram.shape[0] * np.finfo(np.float64).eps
    return np.asarray(np.linalg.pinv(gram, rcond=cutoff, hermitian=True), np.float64)


def _gram(engine: Engine, mode: int) -> Matrix:
    total = engine.backend.zeros((engine.rank, engine.rank), np.float64)
    dense.add_gram(engine.backend.xp, engine.owned(mode), total)
    return np.array(engine.reduce(total, "sum", mode))


def _fit(engine: Engine, dots: NDArray[np.float64], grams: Sequence[Matrix], state: State) -> float:
    """Return the fit from the last mode's `Totals.dots`, without forming the model (Tensor Toolbox, cp_als)."""
    weights = state.weights
    inner = float(dots @ (weights * np.prod(state.scales, axis=0)))
    squared = float(weights @ np.prod(grams, axis=0) @ weights)
    residual = np.sqrt(np.maximum(0.0, engine.norm**2 + squared - 2 * inner))
    return float(1 - residual / engine.norm)
