"""Leading eigenvectors of a dense tensor's ``X_(n) X_(n)^T``, from blocks of it in double precision."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from partitioner.dense import DenseTensor, blocks, forget

DENSE_ROWS = 2048  # up to this length they are found from the whole Gram matrix
FEW_ROWS = 500  # up to this length all are found before SciPy is loaded, which finds a few of them sooner
BLOCK = 1 << 22  # elements in double precision at a time
OVERSAMPLED, PASSES = 10, 8  # of the randomised range finder: more columns, and passes over the tensor

Matrix = NDArray[np.float64]


def leading_vectors(tensor: DenseTensor, mode: int, count: int, seed: int) -> Matrix:
    """Return the `count` leading eigenvectors of ``X_(mode) X_(mode)^T``.

    Of a long mode they are found by subspace iteration from random vectors (Halko, Martinsson and Tropp 2011).
    """
    length = tensor.shape[mode]
    if length <= DENSE_ROWS or count + OVERSAMPLED >= length:
        gram = np.zeros((length, length))
        for block in _unfolded(tensor, mode):
            gram += block @ block.T
        return leading_of(gram, count)
    basis = np.random.default_rng(seed).standard_normal((length, count + OVERSAMPLED))
    for number in range(PASSES):
        basis = np.linalg.qr(basis)[0]
        product, small = np.zeros_like(basis), np.zeros((basis.shape[1],) * 2)
        for block in _unfolded(tensor, mode):
            across = block.T @ basis
            product += block @ across
            small += across.T @ across
        if number == PASSES - 1:  # Rayleigh and Ritz
            ritz: Matrix = basis @ np.linalg.eigh(small)[1][:, ::-1]
            return ritz[:, :count]
        basis = product
    raise AssertionError


def leading_of(gram: Matrix, count: int) -> Matrix:
    """Return the `count` leading eigenvectors of a symmetric matrix, which is overwritten."""
    size = len(gram)
    if size <= FEW_ROWS:
        vectors: Matrix = np.linalg.eigh(gram)[1][:, ::-1]
        return vectors[:, :count]
    from scipy.linalg import eigh

    found: Matrix = eigh(gram, subset_by_index=(size - count, size - 1), overwrite_a=True)[1][:, ::-1]
    return found


def _unfolded(tensor: DenseTensor, mode: int) -> Iterator[Matrix]:
    """Yield blocks of columns of ``X_(mode)``."""
    place = tensor.modes.index(mode)
    along = max((m for m in range(tensor.order) if m != place), key=lambda m: (tensor.memory.shape[m] > 1, -m))
    for part in blocks(tensor, along, BLOCK):
        block = tensor.memory[part]
        yield np.moveaxis(np.asarray(block, np.float64), place, 0).reshape(tensor.shape[mode], -1)
        forget(block)
