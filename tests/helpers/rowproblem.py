"""An oracle of CP-APR's row problems: PDNR and PQNR for one row in NumPy, in double precision, clear and slow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Vector = np.ndarray


@dataclass(frozen=True)
class RowProblem:
    """Minimise ``sum b - sum x log <b, pi>`` over ``b >= 0``; the logarithm is continued linearly below the floor.

    `pi` is (nnz, R).
    """

    values: Vector
    pi: np.ndarray
    floor: float = 1e-10

    def model(self, b: Vector) -> Vector:
        return np.maximum(self.pi @ b, self.floor)

    def objective(self, b: Vector) -> float:
        below = np.minimum(self.pi @ b / self.floor - 1, 0)
        return float(b.sum() - self.values @ (np.log(self.model(b)) + below))

    def phi(self, b: Vector) -> Vector:
        return self.pi.T @ (self.values / self.model(b))

    def hessian(self, b: Vector) -> np.ndarray:
        return (self.pi * (self.values / self.model(b) ** 2)[:, None]).T @ self.pi

    def violation(self, b: Vector) -> float:
        return float(np.abs(np.minimum(b, 1 - self.phi(b))).max())

    def falls_to_floor(self, b: Vector, new: Vector) -> bool:
        """Return whether the model of a nonzero drops from above the floor to below it."""
        return bool(np.any((self.pi @ b >= self.floor) & (self.pi @ new < self.floor)))


def raised(row: RowProblem, b: Vector) -> Vector:
    """Return the starting point: raised if a nonzero's model is below the floor and this helps."""
    higher = b + 0.01 * row.values.sum() / b.size
    below = np.any(row.pi @ b < row.floor)
    return higher if below and row.objective(higher) < row.objective(b) else b


def at_bound(b: Vector, phi: Vector) -> Vector:
    """Return the mask of active components: at their bound, with a gradient that keeps them there."""
    near = min(1e-3, float(np.linalg.norm(np.minimum(b, 1 - phi))))
    active: Vector = (b <= near) & (phi <= 1)
    return active


def within_bounds(b: Vector, free: Vector, solve: Callable[[Vector, Vector], Vector]) -> Vector:
    """Return the step of the free components within the bounds.

    Components that would become negative go to zero, and the others are solved again.

    `solve` returns the steps of free components, given their mask and the other components' steps.
    """
    free, step = free.copy(), np.where(free, 0.0, -b)
    while free.any():
        step[free] = solve(free, np.where(free, 0.0, step))
        out = free & (b + step < 0)
        if not out.any():
            break
        free &= ~out
        step[out] = -b[out]
    return step


def searched(row: RowProblem, b: Vector, step: Vector, phi: Vector) -> tuple[Vector, float]:
    """Return the next point, by Armijo's rule or a multiplicative step, and the change by the whole step."""
    downhill, whole = float((1 - phi) @ step), np.inf
    for halving in range(11 if downhill < 0 else 0):
        new = np.maximum(b + 0.5**halving * step, 0)
        change = np.inf if row.falls_to_floor(b, new) else row.objective(new) - row.objective(b)
        whole = change if halving == 0 else whole
        if change <= 1e-4 * 0.5**halving * downhill:
            return new, whole
    return b * phi, whole


def pdnr(row: RowProblem, b: Vector, inner: int, tolerance: float) -> tuple[Vector, int]:
    """Return the solution and the number of iterations."""
    b, damping = raised(row, b.astype(np.float64)), 1e-5
    for iteration in range(inner):
        phi, hessian = row.phi(b), row.hessian(b)
        if row.violation(b) < tolerance:
            return b, iteration
        damped = hessian + damping * np.diag(np.diag(hessian))
        unused = np.flatnonzero(np.diag(hessian) == 0)  # their Pi is zero, so they go to their bound
        damped[unused, unused] = 1e-300

        def newton(free: Vector, others: Vector, damped: np.ndarray = damped, phi: Vector = phi) -> Vector:
            slope = 1 - phi + (damped - np.diag(np.diag(damped))) @ others
            step: Vector = -np.linalg.solve(damped[np.ix_(free, free)], slope[free])
            return step

        step = within_bounds(b, ~at_bound(b, phi), newton)
        predicted = (1 - phi) @ step + step @ hessian @ step / 2
        b, whole = searched(row, b, step, phi)
        ratio = whole / predicted if predicted < 0 else 0.0
        damping *= 3.5 if ratio < 0.25 else 2 / 7 if ratio > 0.75 else 1
    return b, inner


def pqnr(row: RowProblem, b: Vector, inner: int, tolerance: float) -> tuple[Vector, int]:
    """Return the solution and the number of iterations."""
    b, pairs = raised(row, b.astype(np.float64)), list[tuple[Vector, Vector]]()
    old = last = b
    for iteration in range(inner):
        phi = row.phi(b)
        if row.violation(b) < tolerance:
            return b, iteration
        if iteration == 0:
            step = b * (phi - 1)
        else:
            pairs = [(b - old, last - phi), *pairs[:2]]

            def product(free: Vector, others: Vector, pairs: list = pairs, phi: Vector = phi) -> Vector:
                return inverse_hessian(pairs, free) @ (phi - 1)[free]

            step = within_bounds(b, ~at_bound(b, phi), product)
        old, last = b, phi
        b, _ = searched(row, b, step, phi)
    return b, inner


def inverse_hessian(pairs: list[tuple[Vector, Vector]], free: Vector) -> np.ndarray:
    """Return the BFGS matrix of pairs of free components, newest first, by its definition."""
    kept = [(s[free], y[free]) for s, y in pairs]
    kept = [(s, y) for s, y in kept if s @ y > 1e-12 * np.linalg.norm(s) * np.linalg.norm(y)]
    eye = np.eye(int(free.sum()))
    inverse = eye * (kept[0][0] @ kept[0][1] / (kept[0][1] @ kept[0][1]) if kept else 1.0)
    for s, y in reversed(kept):
        turn = eye - np.outer(s, y) / (s @ y)
        inverse = turn @ inverse @ turn.T + np.outer(s, s) / (s @ y)
    return inverse
