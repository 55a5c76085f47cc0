"""The start of CP-ALS of a small tensor: the best of several short runs on a Tucker core of the tensor.

The core has at most as many rows per mode as there are components, so that an iteration of all runs at once takes a few
dozen NumPy calls. An exact tensor of that rank has the same decompositions as its core (Bro and Andersson, Improving
the speed of multiway algorithms, part II: compression, 1998). If two modes are at least as long as the rank, one of
the runs begins at a solution in closed form, which for exact tensors is the decomposition, however collinear its
components are (Leurgans, Ross and Abel, A decomposition for three-way arrays, 1993).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RUNS, ITERATIONS = 10, 10
RIDGE = 1e-12  # relative to the trace of an equation, which may be singular
ELEMENTS = 1 << 18  # of the tensor as an array, at most
FREE = 8e6  # multiplications that take a few milliseconds
FULL, SHARE = 30, 0.2  # iterations of a usual run, and the part of their time that the start may take

Matrix = NDArray[np.float64]


class Start(NamedTuple):
    """Factor matrices, (I_n, R), the last of which includes the weights, and the fit of their model."""

    factors: list[Matrix]
    fit: float


def suits(shape: Sequence[int], nnz: int, rank: int) -> bool:
    """Return whether the start of a tensor with `nnz` nonzeros takes a small part of the time of the whole run."""
    size = math.prod(shape)
    if not 2 <= len(shape) <= size <= ELEMENTS:
        return False
    core = math.prod(min(length, rank) for length in shape)
    work = size * sum(shape) + RUNS * ITERATIONS * core * rank * len(shape)
    return work <= max(FREE, SHARE * FULL * nnz * rank * len(shape))


def best_start(array: NDArray[np.generic], rank: int, seed: int) -> Start | None:
    """Return the best start for a dense array; None if all elements are zero.

    Parameters
    ----------
    array : (I_0, ..., I_N) array
    rank : int
    seed : int
        Of the random matrices of the short runs.
    """
    scaled = array.astype(np.float64)
    scale = float(np.abs(scaled).max())
    if not scale:
        return None
    scaled /= scale
    bases = [_basis(scaled, mode, rank) for mode in range(scaled.ndim)]
    core = scaled
    for mode, basis in enumerate(bases):
        core = np.moveaxis(np.tensordot(basis, core, (0, mode)), 0, mode)
    rng = np.random.default_rng(seed)
    factors = [rng.standard_normal((RUNS, length, rank)) for length in core.shape]
    for factor, closed in zip(factors, _in_closed_form(core, rank, rng), strict=False):
        factor[0] = closed
    distances = _short_runs(core, factors)
    best, norm = int(np.argmin(distances)), float(np.linalg.norm(scaled))
    found = [basis @ factor[best] for basis, factor in zip(bases, factors, strict=True)]
    found[-1] *= scale
    outside = max(0.0, norm**2 - float(np.linalg.norm(core)) ** 2)
    return Start(found, 1 - math.sqrt(float(distances[best]) + outside) / norm)


def _basis(array: Matrix, mode: int, rank: int) -> Matrix:
    """Return the leading left singular vectors of an unfolded array: `rank` columns, or the identity."""
    length = array.shape[mode]
    if length <= rank:
        return np.eye(length)
    rows = np.moveaxis(array, mode, 0).reshape(length, -1)
    vectors: Matrix = np.linalg.eigh(rows @ rows.T)[1]
    return vectors[:, : -rank - 1 : -1]


def _in_closed_form(core: Matrix, rank: int, rng: np.random.Generator) -> list[Matrix]:
    """Return the factor matrices of an exact tensor; an empty list if there are none in closed form.

    Two random mixtures of a core's slices are ``U D V^T`` and ``U E V^T`` with diagonal D and E, so that U has the
    eigenvectors of the quotient of both. With U known, each component is a tensor of rank 1.
    """
    if core.ndim < 3 or core.shape[:2] != (rank, rank):
        return []
    slices = core.reshape(rank, rank, -1)
    first, second = np.moveaxis(slices @ rng.standard_normal((slices.shape[2], 2)), 2, 0)
    try:
        found = [np.linalg.eig(np.linalg.solve(second.T, first.T).T)[1].real]
        components = np.linalg.solve(found[0], core.reshape(rank, -1)).reshape(core.shape)
        for mode in range(1, core.ndim):
            unfolded = np.moveaxis(components, mode, 1).reshape(rank, core.shape[mode], -1)
            found.append(np.linalg.eigh(unfolded @ unfolded.mT)[1][:, :, -1].T)
    except np.linalg.LinAlgError:
        return []
    return found if all(np.isfinite(each).all() for each in found) else []


def _short_runs(core: Matrix, factors: list[Matrix]) -> Matrix:
    """Iterate all runs from factor matrices, (runs, rows, R), and replace them; return their squared distances."""
    modes, squared_norm = range(core.ndim), float(np.vdot(core, core))
    unfolded = [np.ascontiguousarray(np.moveaxis(core, mode, 0).reshape(core.shape[mode], -1)) for mode in modes]
    grams, diagonal = [factor.mT @ factor for factor in factors], RIDGE * np.eye(factors[0].shape[-1])
    inner = squares = np.zeros(RUNS)
    for _ in range(ITERATIONS):
        for mode in modes:
            others = [m for m in modes if m != mode]
            source = unfolded[mode] @ reduce(_khatri_rao, [factors[m] for m in others])
            product = reduce(np.multiply, [grams[m] for m in others])
            ridge = np.trace(product, axis1=1, axis2=2)[:, None, None] * diagonal
            solved = np.linalg.solve(product + ridge, source.mT).mT
            if mode < core.ndim - 1:
                solved /= np.maximum(np.linalg.norm(solved, axis=1, keepdims=True), np.finfo(np.float64).tiny)
            factors[mode], grams[mode] = solved, solved.mT @ solved
        inner, squares = (source * solved).sum((1, 2)), (product * grams[-1]).sum((1, 2))
    return np.maximum(0.0, squared_norm - 2 * inner + squares)


def _khatri_rao(first: Matrix, second: Matrix) -> Matrix:
    """Return the columnwise Kronecker products, (runs, rows of both, R)."""
    return (first[:, :, None] * second[:, None]).reshape(len(first), -1, first.shape[-1])
