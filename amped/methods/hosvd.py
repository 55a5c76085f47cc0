"""HOSVD and ST-HOSVD: factor matrices from the spectra of a tensor's unfoldings, for given ranks or a given error.

HOSVD (De Lathauwer, De Moor and Vandewalle, SIMAX 21(4), 2000) uses the leading left singular vectors of each
unfolding. ST-HOSVD (Vannieuwenhoven, Vandebril and Meerbergen, SISC 34(2), 2012) uses those of the tensor already
compressed in the preceding modes. The squared error is at most the sum of the discarded squared singular values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import FloatDType

from ..backend.blas import CODE_BYTES, SCIPY_BYTES
from ..backend.device import Device
from ..backend.exchange import Machine
from ..errors import InputError
from ..operators.dense.block import DOUBLE, DenseBlock, contracted_bytes, summed_bytes
from ..operators.dense.core import block_of, slices
from ..operators.dense.unfolded import DenseUnfolded
from ..operators.placement import INDEX_BYTES, Spectra
from ..operators.sources.dense import DenseSource
from ..operators.sources.grid import Grid
from ..operators.sources.protocols import SparseSource
from ..operators.sparse.grouped import LARGE
from ..operators.sparse.unfolded import COPIES, Unfolded
from .eigenvectors import LEAST_ON_DEVICE, eigenvectors, in_part, leading_bytes
from .initial import random_factor
from .singular_vectors import MOST
from .tucker_params import Compression

OVERSAMPLED = 10  # additional columns of the subspace
FIRST = 16  # initial number of columns if an error is given
PASSES, SETTLED = 20, 1e-9  # subspace iterations at most; relative growth of the captured energy at which they stop
ROUNDING = 8 * np.finfo(np.float64).eps  # of the sum of all squared singular values

Matrix = NDArray[np.float64]


class Spectrum(Protocol):
    """An unfolded tensor; all methods are collective. See `Unfolded`."""

    length: int
    width: int

    @property
    def last(self) -> bool: ...

    def gram(self) -> Matrix: ...

    def products(self, basis: Matrix) -> Matrix: ...

    def rows(self) -> Matrix: ...

    def gathered(self, rows: Matrix) -> Matrix: ...


def spectra_bytes(
    shape: Sequence[int], ranks: Sequence[int], nnz: int, wanted: Compression, ranks_of_job: int, threads: int
) -> Spectra:
    """Return the host memory needed for the spectra of a sparse tensor: two copies of the nonzeros, sums and bases."""
    most, most_of_root, done, library = 0, 0, 1, False
    for mode, (length, rank) in enumerate(zip(shape, ranks, strict=True)):
        width = done if wanted.sequential else 1
        last = wanted.sequential and mode == len(shape) - 1
        columns = length if length <= MOST else min(rank + OVERSAMPLED, length)
        sums = 8 * length * columns
        if last:  # the rows of all ranks and their product
            adding = sums + (1 + (ranks_of_job > 1)) * 8 * length * min(width, MOST)
        else:
            adding = min(threads * sums, max(sums, COPIES))
            library |= length <= MOST and min(length, nnz) * width > LARGE
        if length <= MOST:
            solving = leading_bytes(length, _solved(length, rank, wanted))
            most, most_of_root = max(most, adding), max(most_of_root, sums + solving)
        else:
            most = max(most, adding + 2 * sums, 4 * sums)
        done *= rank
    result = 8 * sum(length * rank for length, rank in zip(shape, ranks, strict=True))
    nonzero = INDEX_BYTES * len(shape) + 8
    return Spectra(
        most + result + CODE_BYTES + library * SCIPY_BYTES, 2 * nonzero + 8, max(0, most_of_root - most), library
    )


def _solved(length: int, rank: int, wanted: Compression) -> int:
    """Return how many eigenvectors of a Gram matrix are computed."""
    return length if wanted.ranks is None else rank


def loads_scipy(shape: Sequence[int], ranks: Sequence[int], wanted: Compression, device: Device) -> bool:
    """Return whether rank 0 uses SciPy to solve an eigenproblem, for a spectrum or in an iteration."""
    every, largest = math.prod(ranks), MOST if device.on_host else LEAST_ON_DEVICE - 1
    for length, rank in zip(shape, ranks, strict=True):
        width = every // rank
        sizes = [length if length <= MOST else width] if wanted.from_spectra else []
        if wanted.method == "hooi":
            sizes.append(length if length <= min(width, MOST) else width if width <= MOST else rank + OVERSAMPLED)
        if any(size <= largest and in_part(size, _solved(size, rank, wanted)) for size in sizes):
            return True
    return False


def dense_spectra_bytes(
    source: DenseSource, ranks: Sequence[int], wanted: Compression, device: Device, dtype: FloatDType
) -> Callable[[int, int, int], int]:
    """Return a function of (rank number, number of ranks, threads per rank) that returns bytes of device memory.

    These are the bytes that the spectra of a dense tensor need in addition to its elements of type `dtype`.
    """

    def takes(part: int, count: int, threads: int) -> int:
        shape, each, held, most = slices(source, count).shape(part), dtype, 0, 0
        for place in [*range(len(shape) - 1, 0, -1), 0]:
            length, rank = source.lengths[place], ranks[source.modes[place]]
            columns = length if length <= MOST else min(rank + OVERSAMPLED, length)
            sums, extra, read = 8 * length * columns, 0, None
            if not place and wanted.sequential:  # the rows of all ranks
                extra, adding = 8 * length * min(math.prod(shape[1:]), MOST), sums
            else:
                if not place and count > 1:
                    shape = Grid(source.lengths, count, (1, min(count, source.lengths[1]))).shape(part)
                    read = source.value_dtype if source.in_file else None
                    extra = 0 if source.in_file else math.prod(shape) * source.value_dtype.itemsize
                adding = summed_bytes(shape, int(not place), each, device, threads, (length, columns), read)
            if length <= MOST and part:
                solving = 0  # only rank 0 solves
            elif length <= MOST:
                solving = leading_bytes(length, _solved(length, rank, wanted)) if device.on_host else 3 * sums
            else:
                adding, solving = adding + 2 * sums, 3 * sums
            most = max(most, held + extra + max(adding, sums + solving))
            if wanted.sequential and place:
                pieces = contracted_bytes(shape, place, rank, each, device, threads)
                shape, each = (*shape[:place], rank, *shape[place + 1 :]), DOUBLE
                result = 8 * math.prod(shape)
                most, held = (
                    max(most, held + result + pieces),
                    max(held, result),
                )  # freed memory may stay allocated
        return most + 8 * sum(n * r for n, r in zip(source.shape, ranks, strict=True))

    return takes


def sparse_factors(source: SparseSource, machine: Machine, wanted: Compression, seed: int = 0) -> list[Matrix]:
    """Return factor matrices with orthonormal columns, identical on all ranks. Collective.

    Each mode may discard an equal share of the remaining squared error.
    """
    order, done, sequential = len(source.shape), dict[int, Matrix](), wanted.sequential
    left = allowed(source.norm, wanted)
    squares = source.norm**2
    for mode in range(order):
        if mode in wanted.uncompressed:
            done[mode] = np.eye(source.shape[mode])
            continue
        unfolded = Unfolded(source, machine.comm, mode, done if sequential else {})
        cut = Truncation(wanted.ranks[mode] if wanted.ranks else None, squares, left / (order - mode))
        result, kept = truncated(unfolded, machine, cut, seed + mode)
        left -= max(0.0, squares - kept)
        squares = kept if sequential else squares
        done[mode] = result
    return [done[mode] for mode in range(order)]


def dense_factors(source: DenseSource, machine: Machine, whole: DenseBlock, wanted: Compression) -> list[Matrix]:
    """Return the same as `sparse_factors` for a dense tensor, of which `whole` is this rank's block. Collective.

    Modes are compressed in reverse memory order: the slowest mode, which is distributed over the ranks, comes last.
    """
    comm, grid = machine.comm, slices(source, machine.comm.size)
    sequential, order = wanted.sequential, len(source.modes)
    left, squares = allowed(source.norm, wanted), source.norm**2
    block = whole
    result: dict[int, Matrix] = {}
    for count, place in enumerate([*range(order - 1, 0, -1), 0]):
        mode = source.modes[place]
        if mode in wanted.uncompressed:
            result[mode] = np.eye(source.shape[mode])
            continue
        unfolded = DenseUnfolded(block, place, machine, grid.rows(0) if not place and sequential else None)
        if not place and not sequential and comm.size > 1:
            columns = Grid(source.lengths, comm.size, (1, min(comm.size, source.lengths[1])))
            unfolded = DenseUnfolded(block_of(source, columns, machine, whole.dtype, False, 1), 0, machine)
        cut = Truncation(wanted.ranks[mode] if wanted.ranks else None, squares, left / (order - count))
        result[mode], kept = truncated(unfolded, machine, cut, mode)
        left -= max(0.0, squares - kept)
        squares = kept if sequential else squares
        if sequential and place:
            block = block.contracted(machine.device.to_device(result[mode]), place)
    return [result[mode] for mode in range(order)]


def allowed(norm: float, wanted: Compression) -> float:
    """Return the permitted squared error for a tensor of this norm; raise `InputError` if the norm is 0."""
    if norm == 0:
        raise InputError("the tensor is zero: nothing to compress")
    return 0.0 if wanted.error is None else (wanted.error * norm) ** 2


class Truncation(NamedTuple):
    """The number of singular vectors to keep: `rank`, or as few as discard at most `budget` of `squares`."""

    rank: int | None
    squares: float
    budget: float

    def count(self, values: Matrix) -> int:
        """Return how many of these squared singular values to keep; ``len(values) + 1`` if they do not suffice."""
        if self.rank is not None:
            return self.rank
        captured = np.cumsum(np.maximum(values, 0))
        enough = self.squares - captured <= max(self.budget, ROUNDING * self.squares)
        return max(1, int(np.argmax(enough)) + 1) if enough.any() else len(values) + 1


def truncated(unfolded: Spectrum, machine: Machine, cut: Truncation, seed: int) -> tuple[Matrix, float]:
    """Return the leading left singular vectors and the sum of their squared singular values. Collective."""
    if unfolded.length <= MOST:
        values, vectors = _leading_eigenvectors(unfolded.gram(), machine, cut)
        return vectors, float(values[: vectors.shape[1]].sum())
    if unfolded.last and unfolded.width <= MOST:
        return _of_rows(unfolded, machine, cut, seed)
    columns = FIRST if cut.rank is None else cut.rank
    while True:
        basis, values = _iterated(unfolded, machine, min(columns + OVERSAMPLED, unfolded.length), seed)
        count = cut.count(values)
        if count <= columns or len(values) == unfolded.length:
            return orthonormal(basis[:, :count], values, seed), float(values[:count].sum())
        columns *= 2


def _leading_eigenvectors(gram: Matrix, machine: Machine, cut: Truncation) -> tuple[Matrix, Matrix]:
    """Return the leading eigenvalues of a Gram matrix, and the eigenvectors to keep."""
    values, vectors = eigenvectors(gram, len(gram) if cut.rank is None else cut.rank, machine.device, machine.comm)
    count = min(cut.count(values), len(values))
    return values, np.ascontiguousarray(vectors[:, :count])


def _of_rows(unfolded: Spectrum, machine: Machine, cut: Truncation, seed: int) -> tuple[Matrix, float]:
    """Return the same as `truncated` for a matrix of few columns, from the columns' Gram matrix."""
    rows = unfolded.rows()
    gram = rows.T @ rows
    machine.comm.all_reduce(gram, "sum")
    values, vectors = _leading_eigenvectors(gram, machine, cut)
    largest = values[: vectors.shape[1]]
    whole = unfolded.gathered(rows @ (vectors / np.sqrt(np.maximum(largest, np.finfo(np.float64).tiny))))
    return orthonormal(whole, values, seed), float(largest.sum())


def _iterated(unfolded: Spectrum, machine: Machine, columns: int, seed: int) -> tuple[Matrix, Matrix]:
    """Return approximate leading eigenvectors of the Gram matrix, and eigenvalues from below (Halko et al. 2011)."""
    basis = random_factor(unfolded.length, columns, seed, 0, np.dtype(np.float64)) - 0.5
    captured = 0.0
    for turn in range(PASSES):
        basis = np.linalg.qr(basis)[0]
        product = unfolded.products(basis)
        small = machine.comm.bcast(basis.T @ product)
        before, captured = captured, float(np.trace(small))
        if captured - before <= SETTLED * captured or turn == PASSES - 1:
            break
        basis = product
    values, vectors = eigenvectors((small + small.T) / 2, columns, machine.device, machine.comm)
    return basis @ vectors, values


def orthonormal(matrix: Matrix, values: Matrix, seed: int) -> Matrix:
    """Return the matrix with orthonormal columns; columns whose singular value is 0 are replaced by random ones."""
    count = matrix.shape[1]
    none = values[:count] <= np.finfo(np.float64).eps * max(8, len(values)) * max(float(values[0]), 0.0)
    if none.any():
        matrix = matrix.copy()
        drawn = np.random.default_rng(seed).standard_normal((len(matrix), int(none.sum())))
        matrix[:, none] = drawn / np.sqrt(len(matrix))
        matrix = np.hstack([matrix[:, ~none], matrix[:, none]])
    result: Matrix = np.linalg.qr(matrix)[0]
    return result
