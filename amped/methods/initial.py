"""The factor matrices that a decomposition starts from: random, read from a file, or leading eigenvectors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import singledispatch
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.host.threads import lone_threads, parallel_map, usable_cores
from partitioner.sorting.sort import stable_argsort
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.sparse import SparseTensor

from ..backend.blas import SCIPY_BYTES, SPARSE_BYTES, scipy_linalg
from ..errors import InputError
from ..files import check_factor
from ..models.loading import matrices_in
from ..operators.limits import check_range, far, largest
from ..operators.placement import nonzero_bytes
from ..operators.sources.protocols import DescribedSource
from ..parallel.mpi import Comm, on_root, share, together
from .eigenvectors import in_part, leading, leading_bytes
from .leading_vectors import DENSE_ROWS, leading_vectors, vectors_bytes

BLOCK_ROWS = 1 << 13

Init = str | os.PathLike[str] | Sequence[NDArray[Any]]


def initial_factors(
    source: DescribedSource,
    rank: int | Sequence[int],
    comm: Comm,
    dtype: np.dtype[Any],
    seed: int = 0,
    init: Init | None = None,
    as_is: bool = False,
) -> list[NDArray[Any]]:
    """Return the starting (I_n, R) factor matrices, or (I_n, R_n), equal on every rank. Collective.

    They are random, uniform in [0, 1), those of both precisions equal up to rounding; or, as `init` says, from a file
    with ``factor_0 ...``, the leading eigenvectors of each ``X_(n) X_(n)^T`` ("nvecs"), or the matrices themselves.
    Rank 0's file and matrices count. Unless they are wanted `as_is`, columns of them that are so large or small that
    products could be no numbers are multiplied by powers of two, which changes no decomposition but for rounding.

    Raises
    ------
    InputError
        If the file is at fault or a matrix has the wrong shape or is not finite.
    """
    how = comm.bcast(init if init is None or isinstance(init, str) else "")
    ranks = [rank] * len(source.shape) if isinstance(rank, int) else rank
    if how is None:
        return [
            random_factor(n, r, seed, mode, dtype) for mode, (n, r) in enumerate(zip(source.shape, ranks, strict=True))
        ]
    if how == "nvecs":
        tensor, values, threads = source.tensor(), source.value_range, lone_threads(comm)
        if values.largest:
            together(comm, lambda: check_range(values, dtype, source.path))
        result = on_root(comm, lambda: _nvecs(tensor, ranks, seed, dtype, threads))
    else:
        result = on_root(comm, lambda: _checked_start(init or (), source.shape, ranks, dtype, as_is))
    return [share(comm, result[mode] if result else None) for mode in range(len(source.shape))]


def initial_factor(
    source: Any, mode: int, rank: int, comm: Comm, dtype: np.dtype[Any], seed: int = 0, init: str | None = None
) -> NDArray[Any]:
    """Return one mode's (I_n, R) matrix of those that `initial_factors` returns, as it is. Collective.

    Others are not made, and need not be in the file. Of `source` the shape counts, and for "nvecs" the nonzeros.
    """
    length = source.shape[mode]
    if init is None:
        return random_factor(length, rank, seed, mode, dtype)
    if init == "nvecs":
        if not hasattr(source, "tensor"):
            raise InputError("init 'nvecs' is for sparse tensors, not for semi-sparse ones")
        return initial_factors(source, rank, comm, dtype, seed, init, as_is=True)[mode]

    def read() -> NDArray[Any]:
        result = matrices_in(init)
        if mode >= len(result):
            raise InputError(f"contains no factor_{mode}", path=init)
        return checked_matrix(result[mode], f"factor_{mode}", (length, rank), dtype, init)

    return share(comm, on_root(comm, read))


def checked_matrix(
    given: NDArray[Any],
    name: str,
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    path: str | os.PathLike[str] | None = None,
) -> NDArray[Any]:
    """Return a matrix as `dtype`; raise `InputError` unless it is a finite one of that shape."""
    check_factor(given, name, path)
    if given.shape != shape:
        raise InputError(f"{name} is {given.shape}, expected {shape}", path=path)
    with np.errstate(over="ignore"):
        result = np.ascontiguousarray(given, dtype)
    check_factor(result, f"{name}, as {dtype},", path)
    return result


def unit_sums(factors: Sequence[NDArray[Any]], how: str | None) -> tuple[list[NDArray[Any]], NDArray[np.float64]]:
    """Return matrices with columns of unit sum, and the products of the sums that were taken out.

    Eigenvectors, which is `how` "nvecs" starts, are replaced by their magnitudes.

    Raises
    ------
    InputError
        If a matrix that was given has negative entries.
    """
    result, weights = list[NDArray[Any]](), np.ones(factors[0].shape[1])
    for mode, args in enumerate(factors):
        factor = np.abs(args) if how == "nvecs" else args
        if (least := float(factor.min(initial=0.0))) < 0:
            raise InputError(f"init: the matrix of mode {mode} has a negative entry, {least:g}: a count has none")
        sums = factor.sum(axis=0, dtype=np.float64)
        result.append((factor / np.where(sums > 0, sums, 1)).astype(factor.dtype))
        weights *= sums
    return result, weights


def random_factor(length: int, rank: int, seed: int, mode: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an (length, rank) matrix uniform in [0, 1), the same for the same seed and mode."""
    if seed < 0:
        raise InputError(f"seed {seed} is negative")
    factor = np.empty((length, rank), dtype)

    def draw(first: int) -> None:
        bits = np.random.PCG64([seed, mode])
        bits.advance(first * rank)  # a block has the numbers that one generator would have drawn for it
        rows = factor[first : first + BLOCK_ROWS]
        rows[:] = np.random.Generator(bits).random(rows.shape)

    blocks = range(0, length, BLOCK_ROWS)
    parallel_map(draw, blocks, min(usable_cores(), max(1, len(blocks))))
    return factor


def _checked_start(
    init: Init, shape: Sequence[int], ranks: Sequence[int], dtype: np.dtype[Any], as_is: bool
) -> list[NDArray[Any]]:
    path = os.fspath(init) if isinstance(init, (str, os.PathLike)) else None
    factors = [np.asarray(f) for f in init] if path is None else matrices_in(path)  # type: ignore[union-attr]
    if len(factors) != len(shape):
        raise InputError(f"start of {len(factors)} factor matrices for a tensor of order {len(shape)}", path=path)
    for mode, (factor, length, rank) in enumerate(zip(factors, shape, ranks, strict=True)):
        if factor.shape != (length, rank):
            raise InputError(f"factor_{mode} of the start is {factor.shape}, expected {(length, rank)}", path=path)
        check_factor(factor, f"factor_{mode} of the start", path)
    if not as_is:
        factors = [in_range(factor, far(len(shape))) for factor in factors]
    with np.errstate(over="ignore"):
        ready = [np.ascontiguousarray(f, dtype) for f in factors]
    for mode, factor in enumerate(ready):
        check_factor(factor, f"factor_{mode} of the start, as {dtype},", path)
        lost = (largest(factors[mode]) > 0) & (largest(factor) < np.finfo(dtype).tiny)
        if np.any(lost):
            cause = f"factor_{mode} of the start, as {dtype}, has columns that are too small: scale them"
            raise InputError(cause, path=path)
    return ready


def in_range(factor: NDArray[Any], most: float) -> NDArray[Any]:
    """Multiply columns whose largest number is further from 1 than `most` by powers of two; leave the others."""
    length = largest(factor)
    far_off = (length > 0) & ((length > most) | (length < 1 / most))
    if not np.any(far_off):
        return factor
    exponents = np.where(far_off, -np.frexp(length)[1], 0)
    return np.ldexp(factor.astype(np.float64), exponents)


def _nvecs(
    tensor: SparseTensor | DenseTensor | None, ranks: Sequence[int], seed: int, dtype: np.dtype[Any], threads: int
) -> list[NDArray[Any]]:
    """Return the leading eigenvectors of each ``X_(n) X_(n)^T``; random columns where the mode is shorter."""
    assert tensor is not None
    result = []
    for mode, (length, rank) in enumerate(zip(tensor.shape, ranks, strict=True)):
        known = min(rank, length)
        vectors = _leading(tensor, mode, known, seed, threads)
        extra = random_factor(length, rank - known, seed, mode, np.dtype(np.float64))
        result.append(np.hstack([vectors, extra]).astype(dtype))
    return result


def start_bytes(source: DescribedSource, rank: int, comm: Comm, init: Init | None) -> int:
    """Return the bytes of host memory that rank 0 takes to find the start `init`, if it has to. Collective."""
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
    """Return the bytes that `_leading` takes, beside SciPy's own: the unfolded tensor, and a product or vectors."""
    unfolded = 8 * 6 * nnz  # fibres, their order, and a matrix in coordinates, then in rows
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
    scipy_linalg()  # before others load it: it is limited
    from scipy import sparse
    from scipy.sparse import linalg

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
    """Number the mode-`mode` fibres that hold nonzeros; return the number of each nonzero's."""
    others = [m for m in range(tensor.order) if m != mode]
    perm = stable_argsort([tensor.columns[m] for m in others], [tensor.shape[m] for m in others])
    first = np.zeros(tensor.nnz, bool)
    for m in others:
        column = tensor.columns[m][perm]
        first[1:] |= column[1:] != column[:-1]
    fibres = np.empty(tensor.nnz, np.int64)
    fibres[perm] = np.cumsum(first)
    return fibres
