"""Independent NumPy implementations of updates, on dense arrays in double precision."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import amped

Factors = list[np.ndarray]


def full(factors: Sequence[np.ndarray]) -> np.ndarray:
    """Return the dense tensor of matrices without weights."""
    letters = "abcdefg"[: len(factors)]
    return np.einsum(",".join(f"{each}r" for each in letters) + f"->{letters}", *factors)


def columns_of(factors: Sequence[np.ndarray], mode: int) -> np.ndarray:
    """Return the vectors that rows of a mode multiply, (elements of a slice, R)."""
    others = [factor for m, factor in enumerate(factors) if m != mode]
    rank = others[0].shape[1]
    return np.stack([full([each[:, [r]] for each in others]).ravel() for r in range(rank)], axis=1)


def solved(array: np.ndarray, factors: Sequence[np.ndarray], mode: int, weights: np.ndarray | None) -> np.ndarray:
    """Return the least-squares rows of a mode; `weights` are those of the slices of the last mode."""
    design, data = columns_of(factors, mode), np.moveaxis(array, mode, 0).reshape(array.shape[mode], -1)
    if weights is not None and mode != array.ndim - 1:
        shape = [length for m, length in enumerate(array.shape) if m != mode]
        roots = np.broadcast_to(np.sqrt(weights), shape).ravel()
        design, data = design * roots[:, None], data * roots
    return np.linalg.lstsq(design, data.T, rcond=None)[0].T


def cp_stream(factors: Factors, array: np.ndarray, current: Sequence[int], sweeps: int, weights: np.ndarray) -> Factors:
    """Update a model, whose slices grow in the last mode, so that it approximates `array`.

    `array` is the earlier model plus the new elements, which are in the slices `current`.
    """
    factors, last = list(factors), len(factors) - 1
    rows = factors[last].copy()
    rows[list(current)] = solved(array, factors, last, None)[list(current)]
    factors[last] = rows
    for _ in range(sweeps):
        for mode in [*range(last), last]:
            factors[mode] = solved(array, factors, mode, weights)
    return factors


def online_em(factors: Factors, counts: np.ndarray, known: np.ndarray, steps: int) -> Factors:
    """Update a model of counts with new slices of the last mode, whose rows include the weights.

    `known` are the weights of the components in the earlier slices, after forgetting.
    """
    others, last = list(factors[:-1]), len(factors) - 1
    before = [each * known for each in others]
    rows = np.tile(known / len(counts.T), (counts.shape[-1], 1))
    for step in range(2 * steps):
        ratio, now = counts / np.maximum(full([*others, rows]), 1e-10), [*others, rows]
        for mode in range(last + 1) if step >= steps else [last]:
            slices = np.moveaxis(ratio, mode, 0).reshape(ratio.shape[mode], -1)
            expected = now[mode] * (slices @ columns_of(now, mode))
            if mode == last:
                rows = expected
            else:
                expected += before[mode]
                others[mode] = expected / expected.sum(axis=0)
    return [*others, rows]


def with_weights(model: amped.KruskalTensor) -> Factors:
    """Return the factor matrices of a model, the last of which includes the weights."""
    wide = [factor.astype(np.float64) for factor in model.factors]
    return [*wide[:-1], wide[-1] * model.weights]
