"""Non-negative CP-ALS in double precision on one process, with one or another way to solve a mode's rows.

For comparisons alone: MTTKRPs are amped's, and so is HALS; ADMM (Huang, Sidiropoulos and Liavas, IEEE Trans. Signal
Processing 64(19), 2016) is here. One thread solves rows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from amped.backend.cpu.kernels import hals
from amped.operators.sparse.operator import SparseOperator
from partitioner.host.jit import jit

Matrix = NDArray[np.float64]
BLOCK = 1024  # rows that are solved at a time: they stay in a core's cache


class Inner(Protocol):
    """Improves rows that are not negative."""

    name: str

    def solve(self, mode: int, gram: Matrix, right: Matrix, rows: Matrix) -> None:
        """Make ``x @ gram @ x / 2 - x @ right`` of each row x smaller, in place."""


class Hals:
    """Sweeps over the columns, as amped's CPU does them."""

    def __init__(self, sweeps: int) -> None:
        self.name, self._sweeps = f"HALS {sweeps}", sweeps

    def solve(self, mode: int, gram: Matrix, right: Matrix, rows: Matrix) -> None:
        """See `Inner`."""
        ones, stored = np.ones(len(gram)), np.empty_like(rows)
        hals.solve(right, gram, ones, ones, self._sweeps, rows, stored, np.zeros(len(gram)), None)


class Admm:
    """Steps of the alternating direction method of multipliers; duals are kept from one iteration to the next.

    A row that would be worse than before stays as it was: ADMM itself does not descend.
    """

    def __init__(self, steps: int) -> None:
        self.name, self._steps = f"ADMM {steps}", steps
        self._duals: dict[int, Matrix] = {}

    def solve(self, mode: int, gram: Matrix, right: Matrix, rows: Matrix) -> None:
        """See `Inner`."""
        dual = self._duals.setdefault(mode, np.zeros_like(rows))
        rho = np.trace(gram) / len(gram)
        if rho == 0:
            return
        inverse = np.linalg.inv(gram + rho * np.eye(len(gram)))
        for first in range(0, len(rows), BLOCK):
            part = slice(first, first + BLOCK)
            self._block(gram, inverse, rho, right[part], rows[part], dual[part])

    def _block(self, gram: Matrix, inverse: Matrix, rho: float, right: Matrix, rows: Matrix, dual: Matrix) -> None:
        new = rows.copy()
        for _ in range(self._steps):
            step(new, dual, (right + rho * (new + dual)) @ inverse)
        keep_better(rows, new, rows @ gram, new @ gram, right)


@jit
def step(rows, dual, solved):  # type: ignore[no-untyped-def]
    """Update rows and their duals from what the equations without constraints say."""
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            rows[i, j] = max(0.0, solved[i, j] - dual[i, j])
            dual[i, j] += rows[i, j] - solved[i, j]


@jit
def keep_better(rows, new, product, new_product, right):  # type: ignore[no-untyped-def]
    """Take the new rows whose objective is smaller; the products are with the Gram matrix."""
    for i in range(rows.shape[0]):
        change = 0.0
        for j in range(rows.shape[1]):
            change += new[i, j] * (new_product[i, j] / 2 - right[i, j]) - rows[i, j] * (product[i, j] / 2 - right[i, j])
        if change < 0:
            rows[i] = new[i]


class Path(NamedTuple):
    """What came of a run: after each iteration the fit, and seconds since the start."""

    fits: list[float]
    seconds: list[float]
    seconds_of_rows: float  # an iteration, the mean: all but MTTKRPs and norms


def follow(operator: SparseOperator, start: Sequence[Matrix], inner: Inner, iterations: int) -> Path:
    """Decompose from a start; columns of the modes that are not solved have unit 2-norm."""
    lengths = [_lengths(factor) for factor in start]
    factors = [factor / length for factor, length in zip(start, lengths, strict=True)]
    weights, found, solving = np.prod(lengths, axis=0), Path([], [], 0.0), 0.0
    for mode, factor in enumerate(factors):
        operator.set_factor(mode, factor)
    grams = np.array([factor.T @ factor for factor in factors])
    began = time.perf_counter()
    for _ in range(iterations):
        for mode in range(operator.order):
            right, rows = np.ascontiguousarray(operator.mttkrp(mode)), factors[mode] * weights
            before = time.perf_counter()
            inner.solve(mode, np.prod(np.delete(grams, mode, axis=0), axis=0), right, rows)
            solving += time.perf_counter() - before
            weights = _lengths(rows)
            factors[mode] = rows / weights
            grams[mode] = factors[mode].T @ factors[mode]
            operator.set_factor(mode, factors[mode])
        left = operator.norm**2 + weights @ np.prod(grams, axis=0) @ weights - 2 * np.sum(rows * right)
        found.fits.append(float(1 - np.sqrt(max(left, 0.0)) / operator.norm))
        found.seconds.append(time.perf_counter() - began)
    operator.clock.collect()
    return found._replace(seconds_of_rows=solving / iterations)


def _lengths(rows: Matrix) -> Any:
    length = np.linalg.norm(rows, axis=0)
    return np.where(length > 0, length, 1.0)
