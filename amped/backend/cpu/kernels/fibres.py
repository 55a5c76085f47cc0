"""Sums over fibres (SpTTM): compiled code over nonzeros sorted by fibre."""

from __future__ import annotations

import numpy as np

from partitioner.host.jit import jit

from ..simd.thread_team import add, fork, inlined, join
from ..simd.vectors import ADD, LANE, add_scaled, fence, prefetch, put, zero

RUN = 256  # nonzeros: longest sum in the matrix's precision; longer sums are accumulated in double precision


@jit
def fibre_sums(  # type: ignore[no-untyped-def]
    number, team, threads, turn, chunks, nonzeros, matrices, out, carries, way, ahead, lanes, tail
):
    """Multiply nonzeros by rows of a matrix and sum over each fibre, with the threads of a team.

    Parameters
    ----------
    number : int
        Number of the calling thread in the team, 0 for the first; see `thread_team`.
    team : array
    threads : int
        Maximum number of threads.
    turn : (1,) int64 array
        Counter, initially 0, from which threads take the next chunk.
    chunks : (chunks, 4) int32 array
        See `amped.backend.fibres.Chunks`.
    nonzeros : tuple
        The starts of the fibres and the end, (fibres + 1,); the indices, (nnz,); the values, (nnz * width,).
    matrices : tuple
        The matrix, (I_n, stride).
    out : (fibres * width, stride) array
    carries : (slots * width + threads, stride) float64 array
        The slots that chunks carry to, then one row per thread.
    way : int
        How a sum is written: STORE or PAST; see `vectors`.
    ahead : int
        Prefetch distance in nonzeros; 0 disables prefetching.
    lanes, tail : tuple, tuple or None
        See `segmented`.

    Returns
    -------
    int
        The number of threads that failed.
    """
    starts, index, values = nonzeros
    matrix = matrices[0]
    step = len(lanes) * (LANE // matrix.itemsize)
    rest = matrix.shape[1] // step * step
    width, own = values.size // max(1, index.size), carries.shape[0] - 1 - number
    called = fork(team, number, threads)
    c = add(turn, 0, 1)
    while c < chunks.shape[0]:
        begin, end = np.int64(chunks[c, 0]), np.int64(chunks[c, 1])
        for w in range(width):
            fibre, start = np.int64(chunks[c, 2]), begin
            while start < end:
                after = np.int64(starts[fibre + 1])
                stop, row = min(after, end), fibre * width + w
                if stop == after and stop - start <= RUN:
                    # Repeated for the tail: in a separate function, the sums would go through memory.
                    for column in range(0, rest, step):
                        total = _sum(nonzeros, matrices, width, w, start, stop, end, ahead, column, lanes)
                        put(out, row, column, total, way)
                    if tail is not None:
                        remainder = _sum(nonzeros, matrices, width, w, start, stop, end, ahead, rest, tail)
                        put(out, row, rest, remainder, way)
                else:
                    for column in range(matrix.shape[1]):
                        carries[own, column] = 0.0
                    for first in range(start, stop, RUN):
                        until = min(first + RUN, stop)
                        for column in range(0, rest, step):
                            total = _sum(nonzeros, matrices, width, w, first, until, end, ahead, column, lanes)
                            put(carries, own, column, total, ADD)
                        if tail is not None:
                            remainder = _sum(nonzeros, matrices, width, w, first, until, end, ahead, rest, tail)
                            put(carries, own, rest, remainder, ADD)
                    for column in range(matrix.shape[1]):
                        if stop == after:
                            out[row, column] = carries[own, column]
                        else:
                            carries[chunks[c, 3] * width + w, column] = carries[own, column]
                start, fibre = stop, fibre + 1
        c = add(turn, 0, 1)
    fence()
    return join(team, called)


@inlined
def _sum(nonzeros, matrices, width, w, start, stop, last, ahead, column, lanes):  # type: ignore[no-untyped-def]
    _, index, values = nonzeros
    total = zero(matrices, lanes)
    for q in range(start, stop):
        if ahead:
            prefetch((index,), matrices, min(q + ahead, last - 1), column, lanes)
        total = add_scaled(matrices[0], np.int64(index[q]), column, values[q * width + w], total)
    return total


@jit
def add_carries(items, carries, out, width):  # type: ignore[no-untyped-def]
    """Add up runs of carries, as one level of `Chunks` describes."""
    for i in range(items.shape[0]):
        for w in range(width):
            for column in range(out.shape[1]):
                total = 0.0
                for slot in range(items[i, 0], items[i, 1]):
                    total += carries[slot * width + w, column]
                if items[i, 2] < 0:
                    carries[items[i, 3] * width + w, column] = total
                else:
                    out[items[i, 2] * width + w, column] += total
