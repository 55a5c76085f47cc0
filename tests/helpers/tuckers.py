"""Oracles of Tucker decompositions: dense ones, by their definitions, in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from oracle import reference, splitmix_factors

import amped

RUNS = (
    ("uber393k_4d", (3, 4, 5, 5)), ("nycflights_5d", (4, 3, 5, 3, 3)), ("nations_3d", (4, 6, 4)),
    ("kinships_3d", (8, 5, 8)), ("sparten_cpapr100_3d", (5, 5, 5)), ("kdd99_6d", (2, 3, 2, 3, 3, 3)),
    ("aminoacid_3d", (3, 3, 3)), ("aminoacid_3d", (5, 4, 4)),
)  # fmt: skip
TOLERANCE = {"fp64": 1e-10, "fp32": 1e-5}


def ttm(dense: np.ndarray, factor: np.ndarray, mode: int) -> np.ndarray:
    """Return a tensor times the transpose of a factor matrix."""
    return np.moveaxis(np.tensordot(dense, factor, (mode, 0)), -1, mode)


def unfolded(dense: np.ndarray, mode: int) -> np.ndarray:
    """Return a tensor as a matrix with a row for each index of a mode, the last mode's columns fastest."""
    return np.moveaxis(dense, mode, 0).reshape(dense.shape[mode], -1)


def dense_ttmc(dense: np.ndarray, factors: Sequence[np.ndarray], mode: int) -> np.ndarray:
    """Return TTMc by its definition."""
    found = dense
    for m, factor in enumerate(factors):
        found = found if m == mode else ttm(found, factor, m)
    return unfolded(found, mode)


def coo_ttmc(columns: Any, values: np.ndarray, factors: Sequence[np.ndarray], mode: int) -> np.ndarray:
    """Return TTMc of nonzeros in any order, a Kronecker product for each, in double precision."""
    products = values[:, None].astype(np.float64)
    for m, factor in enumerate(factors):
        if m != mode:
            products = (products[:, :, None] * factor[columns[m]][:, None, :].astype(np.float64)).reshape(
                len(values), -1
            )
    out = np.zeros((len(factors[mode]), products.shape[1]))
    np.add.at(out, columns[mode], products)
    return out


def dense_hooi(dense: np.ndarray, start: Sequence[np.ndarray], iterations: int) -> tuple[list[np.ndarray], list[float]]:
    """Return HOOI's factor matrices and fits, by singular value decompositions."""
    factors, fits = [np.linalg.qr(f)[0] for f in start], []
    for _ in range(iterations):
        for mode, factor in enumerate(factors):
            found = dense_ttmc(dense, factors, mode)
            factors[mode] = np.linalg.svd(found, full_matrices=False)[0][:, : factor.shape[1]]
        core = dense_ttmc(dense, factors, mode).T @ factors[mode]
        fits.append(1 - np.sqrt(max(0, (dense**2).sum() - (core**2).sum())) / np.linalg.norm(dense))
    return factors, fits


def dense_hosvd(dense: np.ndarray, ranks: Sequence[int], sequential: bool) -> list[np.ndarray]:
    """Return the factor matrices of HOSVD or ST-HOSVD."""
    factors, left = list[np.ndarray](), dense
    for mode, rank in enumerate(ranks):
        factors.append(np.linalg.svd(unfolded(left, mode), full_matrices=False)[0][:, :rank])
        left = ttm(left, factors[-1], mode) if sequential else left
    return factors


def relative_error(dense: np.ndarray, model: amped.TuckerTensor) -> float:
    """Return the distance of a model from a tensor, relative to the tensor's norm."""
    return float(np.linalg.norm(dense - model.full()) / np.linalg.norm(dense))


def assert_same_spaces(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray], tolerance: float) -> None:
    """Check that the columns of matrices span the same spaces."""
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        wide = one.astype(np.float64)
        np.testing.assert_allclose(wide @ wide.T, other @ other.T, atol=tolerance)


def assert_orthonormal(model: amped.TuckerTensor, tolerance: float) -> None:
    """Check that factor matrices have orthonormal columns, each with a positive largest entry."""
    for factor in model.factors:
        wide = factor.astype(np.float64)
        assert np.abs(wide.T @ wide - np.eye(wide.shape[1])).max() <= tolerance
        assert np.all(wide[np.abs(wide).argmax(axis=0), np.arange(wide.shape[1])] > 0)


def assert_the_reference(name: str, ranks: Sequence[int], tensor: Any, shape: Sequence[int], **options: Any) -> None:
    """Compare HOOI's fits with the reference; check that its factor matrices are orthonormal."""
    want = reference("tucker.json", f"{name}|{','.join(map(str, ranks))}")["fits"]
    start = [f[:, :rank] for f, rank in zip(splitmix_factors(shape, max(ranks)), ranks, strict=True)]
    model = amped.tucker(tensor, ranks, init=start, tol=0, max_iters=len(want), **options)
    precision = options["precision"]
    np.testing.assert_allclose(model.fits, want, atol=TOLERANCE[precision], rtol=0)
    assert_orthonormal(model, 1e-12 if precision == "fp64" else 1e-6)
