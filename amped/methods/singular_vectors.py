"""Leading left singular vectors of a matrix whose rows ranks share, orthonormal to the last digits.

All is in double precision, on the ranks' devices but for small matrices, whose eigenproblems rank 0's host solves: so
each rank takes the same. The matrix is tall or wide, and small or large in both; how it is done follows from that. For
a tall matrix of few columns a device may do all of it, and no rank waits for its host until the result is checked. If
it is not good enough, only its time is lost.
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

MOST = 2048  # rows and columns of a matrix whose eigenvectors are computed as a whole
OVERSAMPLED = 10  # columns more than are wanted, of subspace iterations
PASSES, SETTLED = 60, 1e-10  # of them at most; the relative growth of what the subspace captures, in the end
ROUNDS = 8
DEPENDENT = 1e-12  # relative eigenvalue of a Gram matrix of unit columns below which some depend on others
ORTHONORMAL = 1e-14  # the largest entry by which a Gram matrix may differ from the identity, for each column
LEFT_OVER = 1e-13  # of a tridiagonal matrix times an eigenvector, relative to it, at most
PIVOT = 1e-8  # of Gram matrices at least: below, eigenvectors came out alike
EPS = np.finfo(np.float64).eps

Matrix = NDArray[np.float64]


class LeadingRows:
    """Finds the rows that a rank owns of leading left singular vectors. Making one is collective."""

    def __init__(self, operator: CoreOperator) -> None:
        self._operator, self._machine = operator, operator.machine
        device, comm = operator.machine.device, operator.machine.comm
        owned = [(m.owned.stop - m.owned.start) * _columns(m.rank) for m in operator.plan.modes]
        self._rows = device.empty((max(owned),), np.float64)
        self._comm, self._device, self._xp = comm, device, device.xp
        self._ways = [self._way_of(length, rank) for length, rank in zip(operator.shape, operator.ranks, strict=True)]

    def _way_of(self, length: int, rank: int) -> Eigh | None:
        """Return what finds the vectors of a mode on the devices of all ranks, and begin to compile it."""
        width = math.prod(self._operator.ranks) // rank
        way = eigh_of(self._device, width, rank) if length > width >= rank else None
        if way is not None:
            way.prepare(width, rank)
        return way if all(self._comm.allgather(way is not None)) else None

    def buffer(self, mode: int, columns: int) -> Array:
        """Return memory for owned rows of so many columns; valid until the next call."""
        owned = self._operator.plan.modes[mode].owned
        shape = owned.stop - owned.start, columns
        return self._rows[: shape[0] * shape[1]].reshape(shape)

    def find(self, mode: int, matrix: Array) -> None:
        """Put the leading left singular vectors of a matrix, of which these are the owned rows, into a factor matrix.

        What the matrix's rank leaves open is filled up with random vectors.
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
        """Do what `find` does without the host; return False on all ranks if the device cannot, or not well enough."""
        way, operator, xp = self._ways[mode], self._operator, self._xp
        if way is None:
            return False
        width, rank = matrix.shape[1], operator.ranks[mode]
        facts = self._device.zeros((status_size(rank),), np.float64)
        vectors = self._device.empty((width, rank), np.float64)
        way.eigenvectors(self._gram(mode, matrix, at_once=True), vectors, facts)
        if self._comm.size > 1:  # all take rank 0's
            if self._comm.rank:
                vectors.fill(0)
            operator.reduce(vectors, "sum", mode)
        buffer = self.buffer(mode, rank)
        xp.matmul(matrix, vectors, out=buffer)
        spare, change = self._device.empty(buffer.shape, np.float64), self._device.empty((rank, rank), np.float64)
        for turn in range(TURNS):
            way.whiten(self._gram(mode, buffer, at_once=True), change, facts, turn)
            if turn < TURNS - 1:
                xp.matmul(buffer, change, out=spare)
                buffer, spare = spare, buffer
        operator.owned(mode)[...] = buffer
        return bool(self._comm.bcast(_good(status_of(self._device.to_host(facts)), width)))

    def _by_row_gram(self, mode: int, matrix: Array, rank: int) -> Array:
        """Take the eigenvectors of the product of all rows with each other."""
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
        """Take the eigenvectors of the columns' Gram matrix."""
        gram = self._gram(mode, matrix)
        values, vectors = self._eigenvectors(gram, rank)
        return self._times(mode, matrix, values, vectors, rank)

    def _times(self, mode: int, matrix: Array, values: Matrix, vectors: Matrix, rank: int) -> Array:
        """Return a matrix times the eigenvectors of its Gram matrix, divided by the singular values.

        A matrix of fewer columns than the factor matrix has no more of them.
        """
        lengths = np.sqrt(np.where(_counting(values, matrix.shape[1]), values, np.inf))
        result, more = self.buffer(mode, rank), max(0, rank - values.size)
        change = np.pad(vectors / lengths, ((0, 0), (0, more)))
        self._xp.matmul(matrix, self._device.to_device(np.ascontiguousarray(change)), out=result)
        return self._filled(mode, result, np.pad(values, (0, more)), matrix.shape[1])

    def _by_subspace(self, mode: int, matrix: Array, rank: int) -> Array:
        """Iterate a subspace, from the last factor matrix and some random vectors."""
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
        """Return the Gram matrix of all ranks' rows; `at_once`: by one product, which takes the least launches."""
        gram = self._device.zeros((matrix.shape[1],) * 2, np.float64)
        if at_once:
            self._xp.matmul(matrix.T, matrix, out=gram)
        else:
            rows.add_gram(self._xp, matrix, gram)
        self._operator.reduce(gram, "sum", mode)
        return gram

    def gram_of_factor(self, mode: int) -> Array:
        """Return the Gram matrix of a factor matrix as it is stored, on the device."""
        held = self.buffer(mode, self._operator.ranks[mode])
        held[...] = self._operator.owned(mode)
        return self._gram(mode, held)

    def _eigenvectors(self, matrix: Array, count: int) -> tuple[Matrix, Matrix]:
        return eigenvectors(matrix, count, self._device, self._comm)

    def _random(self, mode: int, columns: int) -> Array:
        owned = self._operator.plan.modes[mode].owned
        whole = random_factor(self._operator.shape[mode], columns, 0, mode, np.dtype(np.float64))
        return self._device.to_device(np.ascontiguousarray(whole[owned]) - 0.5)

    def _filled(self, mode: int, found: Array, values: Matrix, terms: int = 1) -> Array:
        """Replace columns whose singular values are none, with random ones orthogonal to the others."""
        there = _counting(values, terms)
        if np.all(there):
            return found
        found[:, ~there] = self._random(mode, found.shape[1])[:, ~there]
        kept = found[:, there]
        for _ in range(2 * bool(there.any())):
            dots = self._xp.ascontiguousarray(self._xp.matmul(kept.T, found[:, ~there]))
            self._operator.reduce(dots, "sum", mode)
            found[:, ~there] -= self._xp.matmul(kept, dots)
        return found

    def orthonormalise(self, mode: int, found: Array) -> None:
        """Make the columns of a matrix of which these are the owned rows orthonormal, in place.

        Its Gram matrix is factorised, as often as it takes (Cholesky QR). Random columns replace those that depend on
        others.
        """
        columns = found.shape[1]
        for _ in range(ROUNDS):
            gram = self._device.to_host(self._gram(mode, found))
            off = self._comm.bcast(np.abs(gram - np.eye(columns)).max())
            if off <= ORTHONORMAL * columns:
                return
            change = self._comm.bcast(_whitening(gram))
            kept = change.shape[1]
            found[:, :kept] = self._xp.matmul(found, self._device.to_device(change))
            if kept < columns:
                found[:, kept:] = self._random(mode, columns)[:, kept:]


def _columns(rank: int) -> int:
    return rank + OVERSAMPLED


def _counting(values: Matrix, terms: int) -> NDArray[np.bool_]:
    """Return which eigenvalues of a Gram matrix are more than rounding."""
    noise = EPS * max(8, terms) * max(values.max(), np.finfo(np.float64).tiny)
    return np.asarray(values > noise)


def _good(status: EighStatus, width: int) -> bool:
    """Return whether eigenvectors are right, and the last columns orthonormal; NaN is neither."""
    counting = status.values > EPS * max(8, width) * status.values.max()
    there = bool(np.all(counting) and np.all(status.left_over <= LEFT_OVER) and np.all(status.pivots >= PIVOT))
    return there and bool(status.off[-1] <= ORTHONORMAL * len(status.values))


def _whitening(gram: Matrix) -> Matrix:
    """Return what makes columns with this Gram matrix orthonormal, or nearly so: fewer, if some depend on others."""
    lengths = np.sqrt(np.maximum(np.diagonal(gram), np.finfo(np.float64).tiny))
    scaled = gram / np.outer(lengths, lengths)
    values, vectors = np.linalg.eigh(scaled)
    if values[0] > DEPENDENT * values[-1]:
        change = np.linalg.inv(np.linalg.cholesky(scaled)).T
    else:
        there = values > DEPENDENT * values[-1]
        change = vectors[:, there] / np.sqrt(values[there])
    return np.ascontiguousarray(change / lengths[:, None])


def finding_bytes(machine: Machine, owned: int, rank: int, width: int, shape: Sequence[int]) -> SolverBytes:
    """Return the bytes that this takes on a device for a mode with so many owned rows and columns, and TTMc so wide."""
    wide = min(width, MOST)  # longer modes are solved by the columns' Gram matrix
    columns, short = _columns(rank), max((length for length in shape if length <= wide), default=0)
    together = short * width if machine.comm.size > 1 else 0  # rows of a short mode, on all ranks
    way = eigh_of(machine.device, width, rank)
    queued = 8 * owned * rank + way.bytes(width, rank) if way else 0
    if not queued and all(length <= wide for length in shape):
        small = 0
    else:
        small = 3 * width**2 if width <= MOST else together + 3 * short**2 + 4 * width * columns
    block = min(8 * owned * width, rows.GRAM_BYTES)
    return SolverBytes(
        8 * owned * columns, 8 * max(small, together + 3 * short**2) + block + 8 * owned * columns + queued
    )
