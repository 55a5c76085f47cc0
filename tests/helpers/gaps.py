"""Dense tensors with missing elements, decomposed in two formulations."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np

import amped
from amped.operators.dense import gaps


def with_gaps(shape: tuple[int, ...]) -> np.ndarray:
    """Return a tensor of low rank and noise, of which some elements are NaN."""
    rng = np.random.default_rng(len(shape))
    factors = [rng.random((length, 3)) for length in shape]
    X = np.einsum("ir,jr,kr->ijk", *factors) + 0.1 * rng.standard_normal(shape)
    X[rng.random(shape) < 0.15] = np.nan
    return X


def both(X: np.ndarray | None, rank: int, **how: Any) -> list[amped.KruskalTensor]:
    """Return the models of the dense and the sparse formulation, on a CPU."""
    terms = {"max_iters": 4, "tol": 0, "precision": "fp64", "device": "cpu", "mask": "nan", **how}
    dense = amped.cp_als(X, rank, **terms)
    with mock.patch.object(gaps, "MISSING", -1.0):
        sparse = amped.cp_als(X, rank, **terms)
    assert dense.run["kernels"] != sparse.run["kernels"]
    return [dense, sparse]


def assert_equal(one: amped.KruskalTensor, other: amped.KruskalTensor, bound: float) -> None:
    """Assert that two models and their series differ by rounding only."""
    for name, numbers in other.series.items():
        np.testing.assert_allclose(one.series[name], numbers, rtol=bound, atol=0)
    for mine, theirs in zip(one.factors, other.factors, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e3 * bound)
