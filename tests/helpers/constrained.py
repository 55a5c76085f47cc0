"""Textbook constrained CP-ALS on dense tensors in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from oracle import dense_mttkrp

import amped


class OracleResult(NamedTuple):
    """The result of the oracle."""

    full: np.ndarray
    fits: list[float]
    objectives: list[
        float
    ]  # after each solve: relative squared distance plus `ridge` times the squared lengths of components


def signed_tensor(seed: int, shape: Sequence[int], density: float = 0.5) -> tuple[np.ndarray, amped.SparseTensor]:
    """Return a dense and a sparse tensor with values of both signs, mostly positive ones."""
    rng = np.random.default_rng(seed)
    dense = np.where(rng.random(shape) < density, rng.standard_normal(shape) + 0.5, 0)
    return dense, amped.SparseTensor(np.argwhere(dense), dense[dense != 0], dense.shape)


def dense_constrained_als(
    dense: np.ndarray,
    factors: Sequence[np.ndarray],
    iterations: int,
    nonnegative: Sequence[int] = (),
    ridge: Sequence[float] | None = None,
    fixed: Sequence[int] = (),
    sweeps: int = 5,
) -> OracleResult:
    """Run constrained CP-ALS; while a mode is updated, the other modes' columns have unit 2-norm."""
    ridge, modes = ridge or [0.0] * dense.ndim, range(dense.ndim)
    lengths = [_lengths(factor) for factor in factors]
    factors, weights = [f / length for f, length in zip(factors, lengths, strict=True)], np.prod(lengths, axis=0)
    size, result = np.linalg.norm(dense), OracleResult(np.empty(0), [], [])
    for _ in range(iterations):
        for mode in [m for m in modes if m not in fixed]:
            gram = np.prod([factors[m].T @ factors[m] for m in modes if m != mode], axis=0)
            right, rows = dense_mttkrp(dense, factors, mode), factors[mode] * weights
            system = gram + ridge[mode] * np.eye(len(gram))
            if mode in nonnegative:
                _sweep(rows, right, system, np.flatnonzero(np.diag(gram) > 0), sweeps)
            else:
                rows = right @ np.linalg.pinv(system)
            weights = _lengths(rows)
            factors[mode] = rows / weights
            model = _full(weights, factors)
            lengths = np.prod([np.linalg.norm(f, axis=0) for f in factors], axis=0)
            penalty = ridge[mode] * np.sum((weights * lengths) ** 2)
            result.objectives.append(float((np.linalg.norm(dense - model) ** 2 + penalty) / size**2))
        result.fits.append(float(1 - np.linalg.norm(dense - model) / size))
    return result._replace(full=model)


def _sweep(rows: np.ndarray, right: np.ndarray, system: np.ndarray, columns: np.ndarray, sweeps: int) -> None:
    rows[np.ix_(~right.any(axis=1), columns)] = 0
    for _ in range(sweeps):
        for r in columns:
            others = rows @ system[r] - rows[:, r] * system[r, r]
            rows[:, r] = np.maximum(0, (right[:, r] - others) / system[r, r])


def _lengths(factor: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(factor, axis=0)
    return np.where(lengths > 0, lengths, 1.0)


def _full(weights: np.ndarray, factors: Sequence[np.ndarray]) -> np.ndarray:
    letters = "abcdefgh"[: len(factors)]
    return np.einsum(f"z,{','.join(c + 'z' for c in letters)}->{letters}", weights, *factors, optimize=True)
