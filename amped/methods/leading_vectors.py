"""Leading eigenvectors of a dense tensor's ``X_(n) X_(n)^T``, computed block by block in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import DType
from partitioner.host.threads import in_order
from partitioner.tensors.dense import DenseTensor, blocks
from partitioner.tensors.stored import Place, forget

from ..backend.blas import packing_bytes
from .eigenvectors import leading, leading_bytes

DENSE_ROWS = 2048  # up to this length, eigenvectors come from the whole Gram matrix
BLOCK = 1 << 21  # elements per block in double precision
COPIES = 1 << 29  # bytes at most of all threads' blocks and sums
OVERSAMPLED, PASSES = 10, 8  # additional columns of the randomised range finder, and its passes over the tensor

Matrix = NDArray[np.float64]


def leading_vectors(tensor: DenseTensor, mode: int, count: int, seed: int, threads: int = 1) -> Matrix:
    """Return the `count` leading eigenvectors of ``X_(mode) X_(mode)^T``, independent of the number of threads.

    For long modes they are computed by subspace iteration from random vectors (Halko, Martinsson and Tropp 2011).
    """
    length = tensor.shape[mode]
    if length <= DENSE_ROWS or count + OVERSAMPLED >= length:
        (gram,) = _summed(tensor, mode, lambda block: (block @ block.T,), threads, length)
        return leading(gram, count)[1]
    basis = np.random.default_rng(seed).standard_normal((length, count + OVERSAMPLED))
    for number in range(PASSES):
        basis = np.linalg.qr(basis)[0]

        def products(block: Matrix, basis: Matrix = basis) -> tuple[Matrix, ...]:
            across = block.T @ basis
            return block @ across, across.T @ across

        product, small = _summed(tensor, mode, products, threads, basis.shape[1])
        if number == PASSES - 1:  # Rayleigh-Ritz
            ritz: Matrix = basis @ np.linalg.eigh(small)[1][:, ::-1]
            return ritz[:, :count]
        basis = product
    raise AssertionError


def vectors_bytes(shape: Sequence[int], mode: int, count: int, threads: int, dtype: DType, in_file: bool) -> int:
    """Return the memory that `leading_vectors` needs for elements of type `dtype`, in memory or in a file.

    Each thread has its sums and a block: as read, in double precision, and unfolded. There are also the total sums.
    """
    size, length = math.prod(shape), shape[mode]
    whole = length <= DENSE_ROWS or count + OVERSAMPLED >= length
    columns = length if whole else count + OVERSAMPLED
    block = min(size, max(BLOCK, size // max((n for m, n in enumerate(shape) if m != mode), default=1)))
    threads = max(1, min(threads, COPIES // (8 * (2 * block + length * columns)), -(-size // block)))
    copied = (dtype.itemsize if in_file else 0) + (8 if dtype != np.float64 else 0) + 8
    sums = 8 * length * columns
    summing = threads * (copied * block + sums + packing_bytes(block, columns)) + sums
    if threads > 1 or not whole:  # freed memory that other threads and later passes may not reuse
        summing += 8 * block
    return max(summing, 8 * length**2 + leading_bytes(length, count)) if whole else summing + 3 * sums


def _summed(
    tensor: DenseTensor, mode: int, work: Callable[[Matrix], tuple[Matrix, ...]], threads: int, columns: int
) -> tuple[Matrix, ...]:
    """Return the sums of the matrices that `work` returns for blocks of columns of ``X_(mode)``.

    The matrices have at most `columns` columns. Each thread takes a block; sums are added in block order.
    """
    place, length = tensor.modes.index(mode), tensor.shape[mode]
    along = max((m for m in range(tensor.order) if m != place), key=lambda m: (tensor.memory.shape[m] > 1, -m))

    def one(part: Place) -> tuple[Matrix, ...]:
        block = tensor.memory[part]
        result = work(np.moveaxis(np.asarray(block, np.float64), place, 0).reshape(length, -1))
        forget(block)
        return result

    block = max(BLOCK, tensor.size // tensor.memory.shape[along])
    threads = max(1, min(threads, COPIES // (8 * (2 * block + length * columns))))
    coming = in_order(one, blocks(tensor, along, BLOCK), threads)
    sums = next(coming)
    for result in coming:
        for total, more in zip(sums, result, strict=True):
            total += more
    return sums
