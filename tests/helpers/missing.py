"""An oracle of CP-ALS over observed elements: NumPy, in double precision, one row after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

import amped


class ObservedFit(NamedTuple):
    """Objective and (weighted) RMSE after each iteration, and the factor matrices."""

    objective: list[float]
    rmse: list[float]
    factors: list[np.ndarray]


def observed_als(
    columns: np.ndarray,
    values: np.ndarray,
    start: Sequence[np.ndarray],
    iterations: int,
    ridge: Sequence[float] | float = 0.0,
    weights: np.ndarray | None = None,
) -> ObservedFit:
    """Return the path from a start; `columns` are (order, n) and `values` (n,)."""
    factors = [np.array(f, np.float64) for f in start]
    order, rank = len(factors), factors[0].shape[1]
    w = np.ones(values.size) if weights is None else weights
    ridges = [float(r) for r in np.broadcast_to(ridge, order)]
    result = ObservedFit([], [], factors)
    for _ in range(iterations):
        for mode in range(order):
            v = np.prod([factors[m][columns[m]] for m in range(order) if m != mode], axis=0)
            for i in range(len(factors[mode])):
                here = columns[mode] == i
                if not here.any():
                    factors[mode][i] = 0
                    continue
                a = np.concatenate([v[here] * np.sqrt(w[here])[:, None], np.sqrt(ridges[mode]) * np.eye(rank)])
                b = np.concatenate([values[here] * np.sqrt(w[here]), np.zeros(rank)])
                factors[mode][i] = np.linalg.lstsq(a, b, rcond=1e-10)[0]
        model = np.prod([factors[m][columns[m]] for m in range(order)], axis=0).sum(axis=1)
        squares = float((w * (values - model) ** 2).sum())
        penalty = sum(r * (f**2).sum() for r, f in zip(ridges, factors, strict=True))
        result.objective.append(squares + penalty)
        result.rmse.append(np.sqrt(squares / w.sum()))
    return result


def stored(array: np.ndarray, seen: np.ndarray) -> amped.SparseTensor:
    """Return the observed elements of an array as a sparse tensor, with explicit zeros."""
    return amped.SparseTensor(np.argwhere(seen), array[seen], array.shape, keep_zeros=True)


def planted(shape: Sequence[int], rank: int, share: float, noise: float = 0.1, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Return a tensor of low rank with noise, the same without noise, and which elements are observed."""
    rng = np.random.default_rng(seed)
    exact = np.ones((1, rank))
    for n in shape:
        exact = (exact[:, None] * (0.2 + rng.random((n, rank)))[None]).reshape(-1, rank)
    exact = exact.sum(axis=1).reshape(shape)
    return exact + noise * rng.standard_normal(shape), exact, rng.random(shape) < share
