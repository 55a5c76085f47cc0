"""Blockwise, multithreaded operations on the columns of factor matrices.

Each thread reuses small buffers: new memory for each block would cost more time than the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats
from partitioner.host.threads import parallel_map, threads_for

T = TypeVar("T")
BLOCK_ROWS = 1 << 16  # block size of the sums; the rounding depends on it
ARRANGED_ROWS = 1 << 12  # block size of in-place operations
SCRATCH = 1 << 17  # numbers of a buffer, which fits a core's caches

Transform = Callable[[Floats, NDArray[np.float64]], object]
"""Stores numbers for a block of rows in an array of its shape."""


def squares(rows: Floats, out: NDArray[np.float64]) -> None:
    """Store the squares of rows."""
    np.square(rows, dtype=np.float64, out=out)


def magnitudes(rows: Floats, out: NDArray[np.float64]) -> None:
    """Store the absolute values of rows."""
    np.abs(rows, dtype=np.float64, out=out)


def signed_squares(rows: Floats, out: NDArray[np.float64]) -> None:
    """Store the squares of rows with the signs of the rows."""
    magnitudes(rows, out)
    np.multiply(out, rows, out=out)


def numbers(rows: Floats, out: NDArray[np.float64]) -> None:
    """Store the rows themselves."""
    out[...] = rows


def column_norms(factor: Floats, norm: int) -> NDArray[np.float64]:
    """Return the 2-norms of the columns (`norm=2`) or their 1-norms (`norm=1`), (R,), in double precision."""
    (total,) = column_sums(factor, squares if norm == 2 else magnitudes)
    return np.sqrt(total) if norm == 2 else total


def column_sums(factor: Floats, *transforms: Transform) -> list[NDArray[np.float64]]:
    """Sum each of the transforms of a matrix over all rows in double precision; return an (R,) array for each."""

    def work(rows: Floats, scratch: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        return [_sum(rows, transform, scratch) for transform in transforms]

    totals = [np.zeros(factor.shape[1]) for _ in transforms]
    for parts in _by_rows(work, factor, BLOCK_ROWS):
        totals = [total + part for total, part in zip(totals, parts, strict=True)]
    return totals


def _sum(rows: Floats, transform: Transform, scratch: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum a transform of rows, piece by piece in the order of the rows."""
    size = len(scratch) - 1
    total: NDArray[np.float64] | None = None
    for begin in range(0, len(rows), size):
        piece = rows[begin : begin + size]
        transform(piece, scratch[1 : 1 + len(piece)])
        if total is not None:
            scratch[0] = total
        total = scratch[total is None : 1 + len(piece)].sum(axis=0)
    return np.zeros(rows.shape[1]) if total is None else total


def arrange_columns(
    factor: Floats,
    order: NDArray[np.intp],
    divisor: Floats | None = None,
    flushed: float | None = None,
) -> None:
    """Permute the columns by `order`, then divide each by its `divisor`, in place; numbers up to `flushed` become 0."""
    identity = bool((order == np.arange(order.size)).all())

    def work(rows: Floats, scratch: NDArray[np.float64]) -> None:
        source = rows if identity else rows[:, order]
        if divisor is not None:
            np.divide(source, divisor, out=rows)
        elif not identity:
            rows[...] = source
        if flushed is not None:
            rows[rows <= flushed] = 0

    _by_rows(work, factor, ARRANGED_ROWS)


def scale_columns(factor: Floats, scales: Floats) -> None:
    """Multiply each column by its scale, in place."""
    _by_rows(lambda rows, scratch: np.multiply(rows, scales, out=rows), factor, ARRANGED_ROWS)


def arrange_components(
    weights: NDArray[np.float64],
    factors: Sequence[Floats],
    scales: NDArray[np.float64] | float,
    norm: int,
    kept: Sequence[int],
    sort: bool = True,
) -> NDArray[np.float64]:
    """Normalise columns and sort the components, in place; return the weights. See `KruskalTensor.arrange`."""
    norms = [np.ones(weights.size) if mode in kept else column_norms(f, norm) for mode, f in enumerate(factors)]
    weights, order, divisors = arrangement(weights, norms, scales, sort)
    for factor, divisor in zip(factors, divisors, strict=True):
        arrange_columns(factor, order, divisor[order].astype(factor.dtype))
    return weights


def arrangement(
    weights: NDArray[np.float64],
    norms: Sequence[NDArray[np.float64]],
    scales: NDArray[np.float64] | float,
    sort: bool = True,
) -> tuple[NDArray[np.float64], NDArray[np.intp], NDArray[np.float64]]:
    """Return the weights of normalised components, sorted if `sort`; their order; and divisors, (order, R).

    `norms`, (order, R), are those of columns before they are multiplied by `scales`. Zero columns stay zero.
    """
    weights = weights * np.prod(np.multiply(norms, scales), axis=0)
    order = np.argsort(-weights, kind="stable") if sort else np.arange(weights.size)
    return weights[order], order, np.where(np.greater(norms, 0), norms, 1.0)


def flip_columns(factors: Sequence[Floats]) -> None:
    """Flip the signs of columns, in place, so that they are mostly positive; the components do not change."""
    signed, sizes = zip(*(column_sums(f, signed_squares, squares) for f in factors), strict=True)
    for factor, signs in zip(factors, readable_signs(signed, sizes), strict=True):
        if (signs < 0).any():
            scale_columns(factor, signs.astype(factor.dtype))


def readable_signs(signed: Sequence[NDArray[np.float64]], sizes: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return signs, (order, R), that make the columns mostly positive and leave every component unchanged.

    The bulk of a column is its sum of `signed` squares divided by its sum of squares, its size; both are (order, R).
    A component's signs must multiply to 1; if one sign is left over, the column whose bulk is closest to 0 takes it.
    """
    bulk = np.divide(signed, np.where(np.greater(sizes, 0), sizes, 1))
    signs = np.where(bulk < 0, -1.0, 1.0)
    odd = np.flatnonzero(np.prod(signs, axis=0) < 0)
    signs[np.argmin(np.abs(bulk[:, odd]), axis=0), odd] *= -1
    return signs


def largest_entries(factor: Floats) -> Floats:
    """Return the entry of largest magnitude of each column, the first one of several, (R,)."""

    def work(rows: Floats, scratch: NDArray[np.float64]) -> Floats:
        low, high = rows.min(axis=0), rows.max(axis=0)
        ties = high == -low
        result: Floats = np.where(high >= -low, high, low)
        if ties.any():
            first = np.abs(rows[:, ties]).argmax(axis=0)
            result[ties] = rows[first, np.flatnonzero(ties)]
        return result

    largest, *others = _by_rows(work, factor, ARRANGED_ROWS)
    for each in others:
        largest = np.where(np.abs(each) > np.abs(largest), each, largest)
    return largest


def divide_columns(factor: Floats, divisor: NDArray[np.float64]) -> None:
    """Divide each column by a number, in place and in double precision."""

    def work(rows: Floats, scratch: NDArray[np.float64]) -> None:
        for begin in range(0, len(rows), len(scratch)):
            piece = rows[begin : begin + len(scratch)]
            piece[...] = np.divide(piece, divisor, out=scratch[: len(piece)])

    _by_rows(work, factor, ARRANGED_ROWS)


def least_entry(factor: Floats) -> float:
    """Return the least entry of a matrix, infinity if it has none."""
    return min(_by_rows(lambda rows, scratch: float(rows.min(initial=np.inf)), factor, BLOCK_ROWS), default=np.inf)


def _by_rows(work: Callable[[Floats, NDArray[np.float64]], T], factor: Floats, size: int) -> list[T]:
    """Apply `work` to each block of `size` rows and a buffer, in threads; return the results in order."""
    blocks, columns = -(-len(factor) // size), factor.shape[1]
    threads = threads_for(blocks)
    # NumPy adds up a single column pairwise, so its blocks must not be cut.
    pieces = min(size, len(factor)) if columns == 1 else min(size, len(factor), max(1, SCRATCH // max(1, columns)))

    def several(thread: int) -> list[T]:
        scratch = np.empty((1 + pieces, columns))
        begins = range(blocks * thread // threads * size, blocks * (thread + 1) // threads * size, size)
        return [work(factor[begin : begin + size], scratch) for begin in begins]

    return [result for results in parallel_map(several, range(threads), threads) for result in results]
