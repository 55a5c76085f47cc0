"""Initial factor matrices of a decomposition: random, from a file or the caller, or leading eigenvectors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import singledispatch
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Element, FloatDType, Floats
from partitioner.host.imports import scipy_module
from partitioner.host.threads import lone_threads, parallel_map, threads_for
from partitioner.sorting.sort import stable_argsort
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.sparse import SparseTensor

from ..backend.blas import SCIPY_BYTES, SPARSE_BYTES, scipy_linalg
from ..errors import InputError
from ..files import check_factor
from ..models.columns import column_sums, divide_columns, least_entry, numbers
from ..models.labelled_matrices import LabelledMatrices, aligned_rows, in_order_of, places_in, with_rank
from ..models.loading import matrices_in
from ..operators.limits import check_range, far, largest
from ..operators.placement import nonzero_bytes
from ..operators.sources.protocols import DescribedSource
from ..parallel.mpi import Comm, on_root, share, together
from .eigenvectors import in_part, leading, leading_bytes
from .leading_vectors import DENSE_ROWS, leading_vectors, vectors_bytes

BLOCK_ROWS = 1 << 12

Init = str | os.PathLike[str] | Sequence[Floats]


def initial_factors(
    source: DescribedSource,
    rank: int | Sequence[int],
    comm: Comm,
    dtype: FloatDType,
    seed: int = 0,
    init: Init | None = None,
    as_is: bool = False,
    unread: Sequence[int] = (),
) -> list[Floats]:
    """Return the initial (I_n, R_n) factor matrices, identical on all ranks. Collective.

    By default they are random and uniform in [0, 1), equal in both precisions up to rounding. Otherwise `init` is a
    file with ``factor_0 ...``, "nvecs" for the leading eigenvectors of each ``X_(n) X_(n)^T``, or the matrices. Rank
    0's file and matrices are used. The rows of a model with the labels of the tensor are matched by label.

    Unless `as_is`, a model may have another rank, if `rank` is one number, or only some of the labels, and
    columns so large or small that products could overflow or underflow are multiplied by powers of two, which changes
    decompositions only by rounding. Random matrices of the modes `unread` are not drawn: they are zero.

    Raises
    ------
    InputError
        If the file is invalid, or a matrix has the wrong shape or is not finite.
    """
    how = comm.bcast(init if init is None or isinstance(init, str) else "")
    ranks = [rank] * len(source.shape) if isinstance(rank, int) else rank
    if how is None:
        sizes = enumerate(zip(source.shape, ranks, strict=True))
        zero = np.zeros(1, dtype)
        return [
            np.broadcast_to(zero, size) if mode in unread else random_factor(*size, seed, mode, dtype)
            for mode, size in sizes
        ]
    if how == "nvecs":
        tensor, values, threads = source.tensor(), source.value_range, lone_threads(comm)
        if values.largest:
            together(comm, lambda: check_range(values, dtype, source.path))
        result = on_root(comm, lambda: _nvecs(tensor, ranks, seed, dtype, threads))
    else:
        adapting = None if as_is or not isinstance(rank, int) else seed
        result = on_root(comm, lambda: _checked_start(init or (), source, ranks, dtype, as_is, adapting))
    return [share(comm, result[mode] if result else None) for mode in range(len(source.shape))]


def initial_factor(
    source: Any, mode: int, rank: int, comm: Comm, dtype: FloatDType, seed: int = 0, init: str | None = None
) -> Floats:
    """Return one mode's (I_n, R) matrix of those that `initial_factors` returns `as_is`. Collective.

    Other modes' matrices are not computed and may be missing from the file. Only the shape and the labels of `source`
    are used, and for "nvecs" its nonzeros.
    """
    length = source.shape[mode]
    if init is None:
        return random_factor(length, rank, seed, mode, dtype)
    if init == "nvecs":
        if not hasattr(source, "tensor"):
            raise InputError("init 'nvecs' does not support semi-sparse tensors")
        return initial_factors(source, rank, comm, dtype, seed, init, as_is=True)[mode]

    def read() -> Floats:
        result = in_order_of(matrices_in(init), source.labels)
        if mode >= len(result):
            raise InputError(f"contains no factor_{mode}", path=init)
        return checked_matrix(result[mode], f"factor_{mode}", (length, rank), dtype, init)

    return share(comm, on_root(comm, read))


def checked_matrix(
    matrix: Floats,
    name: str,
    shape: tuple[int, int],
    dtype: FloatDType,
    path: str | os.PathLike[str] | None = None,
) -> Floats:
    """Return a matrix as `dtype`; raise `InputError` unless it is finite and has this shape."""
    check_factor(matrix, name, path)
    if matrix.shape != shape:
        raise InputError(f"{name} is {matrix.shape}, expected {shape}", path=path)
    with np.errstate(over="ignore"):
        result = np.ascontiguousarray(matrix, dtype)
    check_factor(result, f"{name}, as {dtype},", path)
    return result


def unit_sums(factors: Sequence[Floats], how: str | None) -> tuple[list[Floats], NDArray[np.float64]]:
    """Return the matrices scaled to columns of unit sum, and for each component the product of the sums.

    If `how` is "nvecs", eigenvectors are replaced by their magnitudes. If it is None, the matrices are random, and are
    scaled in place.

    Raises
    ------
    InputError
        If another matrix has negative entries.
    """
    result, weights = list[Floats](), np.ones(factors[0].shape[1])
    for mode, matrix in enumerate(factors):
        factor = np.abs(matrix) if how == "nvecs" else matrix
        if how is not None and (least := least_entry(factor)) < 0:
            raise InputError(f"init: the matrix of mode {mode} has a negative entry, {least:g}; CP-APR takes none")
        (sums,) = column_sums(factor, numbers)
        scaled = factor if how is None else factor.copy()
        divide_columns(scaled, np.where(sums > 0, sums, 1))
        result.append(scaled)
        weights *= sums
    return result, weights


def random_factor(length: int, rank: int, seed: int, mode: int, dtype: np.dtype[Element]) -> NDArray[Element]:
    """Return a (length, rank) matrix uniform in [0, 1), determined by seed and mode."""
    if seed < 0:
        raise InputError(f"seed {seed} is negative")
    factor, threads = np.empty((length, rank), dtype), threads_for(-(-length // BLOCK_ROWS))

    def draw(thread: int) -> None:
        begin, end = (length * part // threads for part in (thread, thread + 1))
        bits = np.random.PCG64([seed, mode])
        bits.advance(begin * rank)  # the numbers are those that a single generator would draw
        generator, scratch = np.random.Generator(bits), np.empty((min(BLOCK_ROWS, end - begin), rank))
        for first in range(begin, end, BLOCK_ROWS):
            rows = factor[first : min(first + BLOCK_ROWS, end)]
            rows[...] = generator.random(out=scratch[: len(rows)])

    parallel_map(draw, range(threads), threads)
    return factor


def _checked_start(
    init: Init, source: DescribedSource, ranks: Sequence[int], dtype: FloatDType, as_is: bool, seed: int | None
) -> list[Floats]:
    """Return the matrices of a start; with a `seed` for missing columns, those of models are adapted."""
    path, shape = os.fspath(init) if isinstance(init, (str, os.PathLike)) else None, source.shape
    matrices = init if path is None else matrices_in(path)
    if seed is None or not isinstance(matrices, LabelledMatrices) or any(np.ndim(each) != 2 for each in matrices):
        factors = [np.asarray(f) for f in in_order_of(matrices, source.labels)]
    else:
        factors = _adapted(matrices, source, ranks[0], seed)
    if len(factors) != len(shape):
        raise InputError(f"start of {len(factors)} factor matrices for a tensor of order {len(shape)}", path=path)
    for mode, (factor, length, rank) in enumerate(zip(factors, shape, ranks, strict=True)):
        if factor.shape != (length, rank):
            cause = f"factor_{mode} of the start is {factor.shape}, expected {(length, rank)}"
            if isinstance(matrices, LabelledMatrices) and factor.shape[1:] == (rank,):
                cause += ": a start with other rows needs labels, as the tensor does"
            raise InputError(cause, path=path)
        check_factor(factor, f"factor_{mode} of the start", path)
    if not as_is:
        factors = [in_range(factor, far(len(shape))) for factor in factors]
    with np.errstate(over="ignore"):
        ready = [np.ascontiguousarray(f, dtype) for f in factors]
    for mode, factor in enumerate(ready):
        check_factor(factor, f"factor_{mode} of the start, as {dtype},", path)
        lost = (largest(factors[mode]) > 0) & (largest(factor) < np.finfo(dtype).tiny)
        if np.any(lost):
            cause = f"factor_{mode} of the start has columns too small for {dtype}: scale them"
            raise InputError(cause, path=path)
    return ready


def _adapted(matrices: LabelledMatrices, source: DescribedSource, rank: int, seed: int) -> list[Floats]:
    """Return the matrices of a model with the rows and the number of columns of a start."""
    labels, missing = source.labels, max(0, rank - min(matrix.shape[1] for matrix in matrices))
    found = in_order_of(matrices, labels) if places_in(matrices, labels) else aligned_rows(matrices, labels)
    if len(found) != len(source.shape):
        return list(found)
    more = [random_factor(n, missing, seed, mode, np.dtype(np.float64)) for mode, n in enumerate(source.shape)]
    return with_rank([np.asarray(each) for each in found], rank, more)


def in_range(factor: Floats, most: float) -> Floats:
    """Scale columns whose largest magnitude is above `most` or below ``1 / most`` by powers of two."""
    length = largest(factor)
    far_off = (length > 0) & ((length > most) | (length < 1 / most))
    if not np.any(far_off):
        return factor
    exponents = np.where(far_off, -np.frexp(length)[1], 0)
    return np.ldexp(factor.astype(np.float64), exponents)


def _nvecs(
    tensor: SparseTensor | DenseTensor | None, ranks: Sequence[int], seed: int, dtype: FloatDType, threads: int
) -> list[Floats]:
    """Return the leading eigenvectors of each ``X_(n) X_(n)^T``, filled up with random columns if ``I_n < R``."""
    assert tensor is not None
    result = []
    for mode, (length, rank) in enumerate(zip(tensor.shape, ranks, strict=True)):
        known = min(rank, length)
        vectors = _leading(tensor, mode, known, seed, threads)
        extra = random_factor(length, rank - known, seed, mode, np.dtype(np.float64))
        result.append(np.hstack([vectors, extra]).astype(dtype))
    return result


def start_bytes(source: DescribedSource, rank: int, comm: Comm, init: Init | None) -> int:
    """Return the host memory that rank 0 needs to compute the start `init`. Collective."""
    if comm.bcast(init if isinstance(init, str) else "") != "nvecs":
        return 0
    threads, dense, stored = lone_threads(comm), hasattr(source, "lengths"), getattr(source, "stored", False)
    takes, library, in_file = [0], False, getattr(source, "in_file", False)
    for mode, length in enumerate(source.shape):
        known = min(rank, length)
        library |= length <= DENSE_ROWS and in_part(length, known)
        if dense:
            takes.append(vectors_bytes(source.shape, mode, known, threads, source.value_dtype, in_file))
        else:
            takes.append(_leading_bytes(length, source.nnz, known))
    whole = source.nnz * nonzero_bytes(len(source.shape), np.dtype(np.float64)) if stored and not dense else 0
    libraries = SCIPY_BYTES + SPARSE_BYTES if not dense else SCIPY_BYTES * library
    return max(takes) + whole + libraries + 8 * rank * sum(source.shape)


def _leading_bytes(length: int, nnz: int, known: int) -> int:
    """Return the memory that `_leading` needs, SciPy's libraries excluded: the unfolded tensor and a product."""
    unfolded = 8 * 6 * nnz  # fibres, their order, and the matrix in COO and CSR form
    if length <= DENSE_ROWS or known >= length - 1:
        product = 12 * min(length**2, length * nnz)
        return unfolded + 8 * length**2 + max(product, leading_bytes(length, known))
    return unfolded + 8 * 2 * length * max(2 * known + 1, 20)


@singledispatch
def _leading(tensor: object, mode: int, known: int, seed: int, threads: int) -> NDArray[np.float64]:
    """Return the `known` leading eigenvectors of ``X_(n) X_(n)^T``."""
    raise InputError(f"init 'nvecs' does not support a {type(tensor).__name__}")


_leading.register(DenseTensor, leading_vectors)


@_leading.register
def _(tensor: SparseTensor, mode: int, known: int, seed: int, threads: int) -> NDArray[np.float64]:
    scipy_linalg()  # limits SciPy's BLAS threads before the next import loads it
    sparse, linalg = scipy_module("sparse"), scipy_module("sparse.linalg")
    fibres, length = _fibres(tensor, mode), tensor.shape[mode]
    unfolded = sparse.csr_array((tensor.values.astype(np.float64), (tensor.columns[mode], fibres)))
    unfolded.resize(length, unfolded.shape[1])
    if length <= DENSE_ROWS or known >= length - 1:
        return leading((unfolded @ unfolded.T).toarray(), known)[1]
    shape, start = (length, length), np.random.default_rng(seed).random(length)
    operator = linalg.LinearOperator(shape, matvec=lambda v: unfolded @ (unfolded.T @ v), dtype=np.float64)
    values, vectors = linalg.eigsh(operator, known, v0=start)
    result: NDArray[np.float64] = vectors[:, np.argsort(-values)]
    return result


def _fibres(tensor: SparseTensor, mode: int) -> NDArray[np.int64]:
    """Number the nonempty mode-`mode` fibres; return the fibre number of each nonzero."""
    others = [m for m in range(tensor.order) if m != mode]
    perm = stable_argsort([tensor.columns[m] for m in others], [tensor.shape[m] for m in others])
    first = np.zeros(tensor.nnz, bool)
    for m in others:
        column = tensor.columns[m][perm]
        first[1:] |= column[1:] != column[:-1]
    fibres = np.empty(tensor.nnz, np.int64)
    fibres[perm] = np.cumsum(first)
    return fibres
