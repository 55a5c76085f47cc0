"""Leading left singular vectors of a matrix whose rows are distributed over the ranks, orthonormal to rounding error.

All computations are in double precision, on the ranks' devices. Eigenproblems of small matrices are solved by rank 0's
host, so that all ranks use the same result. The algorithm depends on whether the matrix is tall or wide, and small or
large. For a tall matrix of few columns, the device can do all work without waiting for the host until the result is
checked. If the result is not accurate enough, another algorithm replaces it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..backend import rows
from ..backend.device import Array
from ..backend.exchange import Machine
from ..backend.ops.eigh import TURNS, Eigh, EighStatus, eigh_of, status_of, status_size
from ..backend.ops.solve import SolverBytes
from ..operators.base import CoreOperator
from .eigenvectors import eigenvectors
from .initial import random_factor

MOST = 2048  # largest side of a matrix of which a full eigendecomposition is computed
OVERSAMPLED = 10  # additional columns of the subspace
PASSES, SETTLED = 60, 1e-10  # subspace iterations at most; relative growth of the captured energy at which they stop
ROUNDS = 8  # of Cholesky QR at most
DEPENDENT = 1e-12  # relative eigenvalue of a Gram matrix of unit columns below which columns are linearly dependent
ORTHONORMAL = 1e-14  # permitted entry of the Gram matrix minus the identity, times the number of columns
LEFT_OVER = 1e-13  # permitted residual of an eigenvector of the tridiagonal matrix, relative to the matrix
PIVOT = 1e-8  # smallest pivot of Gram matrices: below, eigenvectors are nearly parallel
EPS = np.finfo(np.float64).eps

Matrix = NDArray[np.float64]


class LeadingRows:
    """Computes the rows that a rank owns of leading left singular vectors. Construction is collective."""

    def __init__(self, operator: CoreOperator) -> None:
        self._operator, self._machine = operator, operator.machine
        device, comm = operator.machine.device, operator.machine.comm
        owned = [(m.owned.stop - m.owned.start) * _columns(m.rank) for m in operator.plan.modes]
        self._rows = device.empty((max(owned),), np.float64)
        self._comm, self._device, self._xp = comm, device, device.xp
        self._eighs = [self._eigh_of(length, rank) for length, rank in zip(operator.shape, operator.ranks, strict=True)]

    def _eigh_of(self, length: int, rank: int) -> Eigh | None:
        """Return the device eigensolver for a mode and start compiling it; None if a rank's device has none."""
        width = math.prod(self._operator.ranks) // rank
        eigh = eigh_of(self._device, width, rank) if length > width >= rank else None
        if eigh is not None:
            eigh.prepare(width, rank)
        return eigh if all(self._comm.allgather(eigh is not None)) else None

    def buffer(self, mode: int, columns: int) -> Array:
        """Return memory for the owned rows of `columns` columns, valid until the next call."""
        owned = self._operator.plan.modes[mode].owned
        shape = owned.stop - owned.start, columns
        return self._rows[: shape[0] * shape[1]].reshape(shape)

    def find(self, mode: int, matrix: Array) -> None:
        """Write the leading left singular vectors of a matrix, given by its owned rows, to the factor matrix.

        If the matrix has too small a rank, random vectors fill the remaining columns.
        """
        length, rank, width = self._operator.shape[mode], self._operator.ranks[mode], matrix.shape[1]
        if width <= MOST and self._find_queued(mode, matrix):
            return
        if length <= min(width, MOST):
            result = self._by_row_gram(mode, matrix, rank)
        elif width <= MOST:
            result = self._by_column_gram(mode, matrix, rank)
        else:
            result = self._by_subspace(mode, matrix, rank)
        self.orthonormalise(mode, result)
        self._operator.owned(mode)[...] = result

    def _find_queued(self, mode: int, matrix: Array) -> bool:
        """Do what `find` does on the device; return False on all ranks if it cannot or is not accurate enough."""
        eigh, operator, xp = self._eighs[mode], self._operator, self._xp
        if eigh is None:
            return False
        width, rank = matrix.shape[1], operator.ranks[mode]
        facts = self._device.zeros((status_size(rank),), np.float64)
        vectors = self._device.empty((width, rank), np.float64)
        eigh.eigenvectors(self._gram(mode, matrix, at_once=True), vectors, facts)
        if self._comm.size > 1:  # all ranks use rank 0's
            if self._comm.rank:
                vectors.fill(0)
            operator.reduce(vectors, "sum", mode)
        buffer = self.buffer(mode, rank)
        xp.matmul(matrix, vectors, out=buffer)
        spare, change = self._device.empty(buffer.shape, np.float64), self._device.empty((rank, rank), np.float64)
        for turn in range(TURNS):
            eigh.whiten(self._gram(mode, buffer, at_once=True), change, facts, turn)
            if turn < TURNS - 1:
                xp.matmul(buffer, change, out=spare)
                buffer, spare = spare, buffer
        operator.owned(mode)[...] = buffer
        return bool(self._comm.bcast(_good(status_of(self._device.to_host(facts)), width)))

    def _by_row_gram(self, mode: int, matrix: Array, rank: int) -> Array:
        """Compute the eigenvectors of the Gram matrix of the rows, for few rows."""
        operator, whole = self._operator, matrix
        owned = operator.plan.modes[mode].owned
        if self._comm.size > 1:
            whole = self._device.zeros((operator.shape[mode], matrix.shape[1]), np.float64)
            whole[owned] = matrix
            operator.reduce(whole, "sum", mode)
        values, vectors = self._eigenvectors(self._xp.matmul(whole, whole.T), rank)
        result = self.buffer(mode, rank)
        result[...] = self._device.to_device(np.ascontiguousarray(vectors[owned]))
        return self._filled(mode, result, values)

    def _by_column_gram(self, mode: int, matrix: Array, rank: int) -> Array:
        """Compute the vectors from the eigenvectors of the columns' Gram matrix, for few columns."""
        gram = self._gram(mode, matrix)
        values, vectors = self._eigenvectors(gram, rank)
        return self._times(mode, matrix, values, vectors, rank)

    def _times(self, mode: int, matrix: Array, values: Matrix, vectors: Matrix, rank: int) -> Array:
        """Return the matrix times the eigenvectors of its Gram matrix, divided by the singular values.

        The matrix may have fewer columns than the factor matrix.
        """
        lengths = np.sqrt(np.where(_nonzero(values, matrix.shape[1]), values, np.inf))
        result, more = self.buffer(mode, rank), max(0, rank - values.size)
        change = np.pad(vectors / lengths, ((0, 0), (0, more)))
        self._xp.matmul(matrix, self._device.to_device(np.ascontiguousarray(change)), out=result)
        return self._filled(mode, result, np.pad(values, (0, more)), matrix.shape[1])

    def _by_subspace(self, mode: int, matrix: Array, rank: int) -> Array:
        """Use subspace iteration, starting from the last factor matrix and random vectors."""
        operator, xp = self._operator, self._xp
        columns = min(_columns(rank), operator.shape[mode], max(rank, matrix.shape[1]))
        result, captured = self.buffer(mode, columns), 0.0
        result[:, :rank] = operator.owned(mode)
        result[:, rank:] = self._random(mode, columns)[:, rank:]
        small = self._device.empty((matrix.shape[1], columns), np.float64)
        for turn in range(PASSES):
            self.orthonormalise(mode, result)
            xp.matmul(matrix.T, result, out=small)
            operator.reduce(small, "sum", mode)
            before, captured = captured, float((small * small).sum())
            if captured - before <= SETTLED * captured or turn == PASSES - 1:
                break
            xp.matmul(matrix, small, out=result)
            result /= max(captured, np.finfo(np.float64).tiny)
        _, vectors = self._eigenvectors(xp.matmul(small.T, small), rank)
        whole = xp.matmul(result, self._device.to_device(np.ascontiguousarray(vectors)))
        best = self.buffer(mode, rank)
        best[...] = whole
        return best

    def _gram(self, mode: int, matrix: Array, at_once: bool = False) -> Array:
        """Return the Gram matrix of all ranks' rows; `at_once`: by a single product, which needs fewest launches."""
        gram = self._device.zeros((matrix.shape[1],) * 2, np.float64)
        if at_once:
            self._xp.matmul(matrix.T, matrix, out=gram)
        else:
            rows.add_gram(self._xp, matrix, gram, self._device.cores)
        self._operator.reduce(gram, "sum", mode)
        return gram

    def gram_of_factor(self, mode: int) -> Array:
        """Return the Gram matrix of a factor matrix as stored, on the device."""
        rows = self.buffer(mode, self._operator.ranks[mode])
        rows[...] = self._operator.owned(mode)
        return self._gram(mode, rows)

    def _eigenvectors(self, matrix: Array, count: int) -> tuple[Matrix, Matrix]:
        return eigenvectors(matrix, count, self._device, self._comm)

    def _random(self, mode: int, columns: int) -> Array:
        owned = self._operator.plan.modes[mode].owned
        whole = random_factor(self._operator.shape[mode], columns, 0, mode, np.dtype(np.float64))
        return self._device.to_device(np.ascontiguousarray(whole[owned]) - 0.5)

    def _filled(self, mode: int, vectors: Array, values: Matrix, terms: int = 1) -> Array:
        """Replace columns whose singular value is zero by random ones orthogonal to the others."""
        nonzero = _nonzero(values, terms)
        if np.all(nonzero):
            return vectors
        vectors[:, ~nonzero] = self._random(mode, vectors.shape[1])[:, ~nonzero]
        kept = vectors[:, nonzero]
        for _ in range(2 * bool(nonzero.any())):
            dots = self._xp.ascontiguousarray(self._xp.matmul(kept.T, vectors[:, ~nonzero]))
            self._operator.reduce(dots, "sum", mode)
            vectors[:, ~nonzero] -= self._xp.matmul(kept, dots)
        return vectors

    def orthonormalise(self, mode: int, matrix: Array) -> None:
        """Orthonormalise the columns of a matrix, given by its owned rows, in place, by repeated Cholesky QR.

        Random columns replace linearly dependent ones.
        """
        columns = matrix.shape[1]
        for _ in range(ROUNDS):
            gram = self._device.to_host(self._gram(mode, matrix))
            off = self._comm.bcast(np.abs(gram - np.eye(columns)).max())
            if off <= ORTHONORMAL * columns:
                return
            change = self._comm.bcast(_whitening(gram))
            kept = change.shape[1]
            matrix[:, :kept] = self._xp.matmul(matrix, self._device.to_device(change))
            if kept < columns:
                matrix[:, kept:] = self._random(mode, columns)[:, kept:]


def _columns(rank: int) -> int:
    return rank + OVERSAMPLED


def _nonzero(values: Matrix, terms: int) -> NDArray[np.bool_]:
    """Return which eigenvalues of a Gram matrix of sums of `terms` products exceed rounding errors."""
    noise = EPS * max(8, terms) * max(values.max(), np.finfo(np.float64).tiny)
    return np.asarray(values > noise)


def _good(status: EighStatus, width: int) -> bool:
    """Return whether eigenvectors are accurate and the final columns orthonormal; False for NaN."""
    nonzero = status.values > EPS * max(8, width) * status.values.max()
    accurate = bool(np.all(nonzero) and np.all(status.left_over <= LEFT_OVER) and np.all(status.pivots >= PIVOT))
    return accurate and bool(status.off[-1] <= ORTHONORMAL * len(status.values))


def _whitening(gram: Matrix) -> Matrix:
    """Return the matrix that makes columns with this Gram matrix (nearly) orthonormal; fewer columns if dependent."""
    lengths = np.sqrt(np.maximum(np.diagonal(gram), np.finfo(np.float64).tiny))
    scaled = gram / np.outer(lengths, lengths)
    values, vectors = np.linalg.eigh(scaled)
    if values[0] > DEPENDENT * values[-1]:
        change = np.linalg.inv(np.linalg.cholesky(scaled)).T
    else:
        independent = values > DEPENDENT * values[-1]
        change = vectors[:, independent] / np.sqrt(values[independent])
    return np.ascontiguousarray(change / lengths[:, None])


def finding_bytes(machine: Machine, owned: int, rank: int, width: int, shape: Sequence[int]) -> SolverBytes:
    """Return the device memory that `LeadingRows` needs for a mode: `owned` rows, `rank` columns, TTMc of `width`."""
    wide = min(width, MOST)  # longer modes use the columns' Gram matrix
    columns, short = _columns(rank), max((length for length in shape if length <= wide), default=0)
    together = short * width if machine.comm.size > 1 else 0  # all ranks' rows of a short mode
    eigh = eigh_of(machine.device, width, rank)
    queued = 8 * owned * rank + eigh.bytes(width, rank) if eigh else 0
    if not queued and all(length <= wide for length in shape):
        small = 0
    else:
        small = 3 * width**2 if width <= MOST else together + 3 * short**2 + 4 * width * columns
    block = min(8 * owned * width, rows.GRAM_BYTES)
    return SolverBytes(
        8 * owned * columns, 8 * max(small, together + 3 * short**2) + block + 8 * owned * columns + queued
    )
