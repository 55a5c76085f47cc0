"""CP-ALS of a small dense core in NumPy, used to initialise the decomposition of a large tensor."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ITERATIONS, SETTLED = 200, 1e-6

Matrix = NDArray[np.float64]


def of_core(core: NDArray[np.float64], rank: int, seed: int) -> list[Matrix]:
    """Return factor matrices of `rank` components; the last one includes the weights."""
    rng, norm = np.random.default_rng(seed), float(np.linalg.norm(core))
    factors = [rng.standard_normal((length, rank)) for length in core.shape]
    last = np.inf
    for _ in range(ITERATIONS):
        for mode in range(core.ndim):
            others = [factor for m, factor in enumerate(factors) if m != mode]
            gram = np.prod([factor.T @ factor for factor in others], axis=0)
            solved = _mttkrp(core, factors, mode) @ np.linalg.pinv(gram)
            lengths = np.linalg.norm(solved, axis=0)
            factors[mode] = solved if mode == core.ndim - 1 else solved / np.where(lengths > 0, lengths, 1)
        grams = np.prod([factor.T @ factor for factor in factors], axis=0)
        left = norm**2 - 2 * float(np.sum(_mttkrp(core, factors, 0) * factors[0])) + float(grams.sum())
        if abs(last - left) <= SETTLED * norm**2:
            break
        last = left
    return factors


def _mttkrp(core: NDArray[np.float64], factors: list[Matrix], mode: int) -> Matrix:
    result = np.moveaxis(core, mode, 0)[..., None]
    for m in range(core.ndim - 1, -1, -1):
        if m != mode:
            result = np.sum(result * factors[m], axis=-2)
    return np.ascontiguousarray(np.broadcast_to(result, (core.shape[mode], factors[0].shape[1])))
