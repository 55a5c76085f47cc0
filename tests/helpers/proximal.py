"""Textbook AO-ADMM on dense tensors, and proximal operators by brute force."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from oracle import dense_mttkrp

from amped.methods.constraints import ConstraintParams
from amped.methods.proximal.admm import ModeSolver, Storage
from amped.methods.proximal.equations import RowGrams, SharedGram
from amped.methods.proximal.operators import Proximal
from amped.methods.proximal.terms import ModeTerms, by_mode


def smooth_tensor(seed: int, shape: Sequence[int] = (20, 40, 15), noise: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Return a tensor of rank 3 with smooth, unimodal columns in mode 1, and the same with noise."""
    rng, places = np.random.default_rng(seed), np.linspace(0, 1, shape[1])
    peaks = np.stack([np.exp(-((places - centre) ** 2) / 0.02) for centre in (0.25, 0.5, 0.7)], axis=1)
    clean = np.einsum("ir,jr,kr->ijk", rng.random((shape[0], 3)), peaks, rng.random((shape[2], 3)))
    return clean, clean + noise * clean.std() * rng.standard_normal(clean.shape)


def proximal_of(terms: ModeTerms, mode: int, factor: np.ndarray) -> Proximal:
    """Return the constraints of a mode."""
    return Proximal(terms, fixed=None if terms.fixed is None else terms.fixed.of(mode, *factor.shape))


def dense_ao_admm(
    dense: np.ndarray, start: Sequence[np.ndarray], iterations: int, constraints: dict[int, Any], **others: Any
) -> tuple[list[np.ndarray], list[float]]:
    """Return the factor matrices, and the objective after each iteration."""
    found = ConstraintParams(**others, terms=by_mode("constraints", constraints)).of(dense.ndim)
    terms = dict(found.terms)
    proximal = [proximal_of(terms.get(mode, ModeTerms()), mode, factor) for mode, factor in enumerate(start)]
    factors = [each.projected(factor) for each, factor in zip(proximal, start, strict=True)]
    duals = [np.zeros((len(each.blocks), *factor.shape)) for each, factor in zip(proximal, factors, strict=True)]
    objectives = list[float]()
    for _ in range(iterations):
        for mode in found.solved(dense.ndim):
            gram = np.prod([f.T @ f for m, f in enumerate(factors) if m != mode], axis=0)
            solver = ModeSolver(proximal[mode], Storage())
            solution = solver.solve(SharedGram(dense_mttkrp(dense, factors, mode), gram), factors[mode], duals[mode])
            factors[mode], duals[mode] = solution.rows, solution.dual
        letters = "abcdef"[: dense.ndim]
        model = np.einsum(f"{','.join(c + 'z' for c in letters)}->{letters}", *factors)
        penalties = sum(each.penalty(factor) for each, factor in zip(proximal, factors, strict=True))
        objectives.append(float(np.linalg.norm(dense - model) ** 2 / 2 + penalties))
    return factors, objectives


def observed_ao_admm(
    dense: np.ndarray, weights: np.ndarray, start: Sequence[np.ndarray], iterations: int, constraints: dict[int, Any]
) -> tuple[list[np.ndarray], list[float]]:
    """Return the factor matrices, and the objective after each iteration, of a tensor whose elements have weights."""
    terms = dict(ConstraintParams(terms=by_mode("constraints", constraints)).of(dense.ndim).terms)
    proximal = [proximal_of(terms.get(mode, ModeTerms()), mode, factor) for mode, factor in enumerate(start)]
    factors = [each.projected(factor) for each, factor in zip(proximal, start, strict=True)]
    duals = [np.zeros((len(each.blocks), *factor.shape)) for each, factor in zip(proximal, factors, strict=True)]
    objectives, letters = list[float](), "abcdef"[: dense.ndim]
    for _ in range(iterations):
        for mode in range(dense.ndim):
            others = [m for m in range(dense.ndim) if m != mode]
            products = ",".join(letters[m] + "z" for m in others), ",".join(letters[m] + "y" for m in others)
            own, matrices = letters[mode], [factors[m] for m in others]
            source = np.einsum(f"{letters},{products[0]}->{own}z", weights * dense, *matrices)
            grams = np.einsum(f"{letters},{','.join(products)}->{own}zy", weights, *matrices, *matrices, optimize=True)
            solver = ModeSolver(proximal[mode], Storage())
            solution = solver.solve(RowGrams(source, grams), factors[mode], duals[mode])
            factors[mode], duals[mode] = solution.rows, solution.dual
        model = np.einsum(f"{','.join(c + 'z' for c in letters)}->{letters}", *factors)
        penalties = sum(each.penalty(factor) for each, factor in zip(proximal, factors, strict=True))
        objectives.append(float((weights * np.square(dense - model)).sum() / 2 + penalties))
    return factors, objectives


def brute_monotone(y: np.ndarray, low: float = -np.inf, high: float = np.inf) -> np.ndarray:
    """Return the isotonic regression of a vector by the min-max formula."""
    means = [[y[a : b + 1].mean() if b >= a else np.inf for b in range(y.size)] for a in range(y.size)]
    values = [max(min(means[a][b] for b in range(i, y.size)) for a in range(i + 1)) for i in range(y.size)]
    return np.clip(values, low, high)


def brute_unimodal(y: np.ndarray, low: float = -np.inf, high: float = np.inf) -> np.ndarray:
    """Return the best unimodal vector by trying all places of the peak."""
    found = [
        np.concatenate([brute_monotone(y[:peak], low, high), brute_monotone(y[peak:][::-1], low, high)[::-1]])
        for peak in range(y.size + 1)
    ]
    return min(found, key=lambda each: float(np.square(each - y).sum()))


def brute_disjoint(matrix: np.ndarray) -> float:
    """Return the largest inner product with a matrix of non-negative orthonormal columns."""
    rows, columns = matrix.shape
    positive, best = np.maximum(matrix, 0), -np.inf
    for chosen in product(range(columns), repeat=rows):
        if len(set(chosen)) == columns:
            picked = np.where(np.arange(columns) == np.array(chosen)[:, None], positive, 0)
            best = max(best, float(np.linalg.norm(picked, axis=0).sum()))
    return best
