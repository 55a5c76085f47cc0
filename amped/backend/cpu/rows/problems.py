"""Solve the rows of a shard with a thread team: threads take the next rows, those with most nonzeros first."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.host.jit import jit

from ...row_constants import DAMPING
from ..shard import HostShard
from ..simd.doubles import EIGHT, put_number
from ..simd.doubles import number as number_at
from ..simd.thread_team import WORDS, add, fork, inlined, join
from . import newton, quasi_newton
from .steps import solve_row

CHUNK = 512  # nonzeros that a thread takes at once if rows are short
ROW_COST = 8  # overhead of a row, in nonzeros of equal cost


class RowOrder(NamedTuple):
    """The rows of a shard that have nonzeros, and the order in which they are solved: most nonzeros first.

    `rows` are row numbers of the output, ascending; nonzeros ``offsets[i]`` to ``offsets[i + 1]`` belong to
    ``rows[i]``. A thread takes ``order[draws[k]]`` to ``order[draws[k + 1]]`` at once.
    """

    rows: NDArray[np.int64]
    offsets: NDArray[np.int64]
    order: NDArray[np.int64]
    draws: NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return sum(array.nbytes for array in self)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of nonzeros of each row."""
        return np.diff(self.offsets)


def order_bytes(rows: int) -> int:
    """Return an upper bound of the size of a `RowOrder` in bytes."""
    return 8 * 4 * (rows + 2)


def order_rows(shard: HostShard) -> RowOrder:
    """Return the order in which the rows of a shard are solved."""
    pieces = shard.pieces.rows.astype(np.int64)
    firsts = np.flatnonzero(np.diff(pieces, prepend=-1))
    offsets = np.append(shard.pieces.starts[firsts], shard.nnz).astype(np.int64)
    counts = np.diff(offsets)
    order = np.argsort(-counts, kind="stable")
    work = np.cumsum(counts[order] + ROW_COST)
    ends = np.searchsorted(work, np.arange(CHUNK, (work[-1] if work.size else 0) + CHUNK, CHUNK))
    draws = np.unique(np.concatenate([[0], np.minimum(ends + 1, counts.size)]))
    return RowOrder(pieces[firsts] - shard.row_begin, offsets, order, draws)


# fmt: off
@inlined
def _solve(  # type: ignore[no-untyped-def]
    number, team, threads, turn, nonzeros, row_order, own, whole, limits, thread_scratch, most_kept, status,
    work_of, memory, start, aim, learn,
):
# fmt: on
    columns, matrices, form = nonzeros
    rows, offsets, order, draws = row_order
    if number == 0:
        turn[0] = 0
    called = fork(team, number, threads)
    b, work, memory = np.empty(form[3]), work_of(form[3], form[4]), np.empty(memory)
    sums = np.empty(form[4] + EIGHT)
    chunk = add(turn, 0, 1)
    while chunk < draws.size - 1:
        for k in range(draws[chunk], draws[chunk + 1]):
            n = order[k]
            i, count = rows[n], offsets[n + 1] - offsets[n]
            if whole[0] <= i < whole[1] and count <= whole[2]:
                for r in range(b.size):
                    b[r] = number_at(own[0], i * own[1] + r, form[1])
                memory[0] = start
                row = columns, matrices, form, thread_scratch[number], limits[2], offsets[n], count, count <= most_kept
                solve_row(row, b, limits, work, sums, memory, status[number], aim, learn)
                for r in range(b.size):
                    put_number(own[0], i * own[1] + r, b[r], form[1])
        chunk = add(turn, 0, 1)
    return join(team, called)


@jit
def solve_by_newton(  # type: ignore[no-untyped-def]
    number, team, threads, turn, nonzeros, row_order, own, whole, limits, thread_scratch, most_kept, status
):
    """Solve rows by PDNR with the threads of a team.

    Parameters
    ----------
    number : int
        Number of the calling thread in the team, 0 for the first; see `thread_team`.
    team : array
    threads : int
    turn : (1,) array
        Counter from which threads take rows.
    nonzeros : tuple
        Addresses of columns and of matrices, and the form; see `model`.
    row_order : tuple
        See `RowOrder`.
    own : tuple of int
        The rows of the output mode's factor matrix, updated in place: address and row length. Its numbers are those of
        the other matrices.
    whole : tuple of int
        The range of rows that are solved here, and the most nonzeros of such a row.
    limits : tuple
        The maximum number of inner iterations, the tolerance, and the floor.
    thread_scratch : (threads, numbers) float64 array
        See `model`.
    most_kept : int
        The most nonzeros of a row whose Pi fits into the scratch.
    status : (threads, 8) float64 array
        Status of each thread, initially zeros; see `ops.rowproblems.KKT`.

    Returns
    -------
    int
        The number of threads that failed.
    """
    return _solve(
        number, team, threads, turn, nonzeros, row_order, own, whole, limits, thread_scratch, most_kept, status,
        newton.work_of, newton.MEMORY, DAMPING, newton.aim, newton.learn,
    )  # fmt: skip


@jit
def solve_by_quasi_newton(  # type: ignore[no-untyped-def]
    number, team, threads, turn, nonzeros, row_order, own, whole, limits, thread_scratch, most_kept, status
):
    """Solve rows by PQNR; see `solve_by_newton`. Separate, because compiling both takes twice as long."""
    memory = 1 + quasi_newton.KEPT * nonzeros[2][3]
    return _solve(
        number, team, threads, turn, nonzeros, row_order, own, whole, limits, thread_scratch, most_kept, status,
        quasi_newton.work_of, memory, 0.0, quasi_newton.aim, quasi_newton.learn,
    )  # fmt: skip


def status_of(threads: int) -> NDArray[np.float64]:
    """Return status arrays of the threads, one cache line each."""
    return np.zeros((threads, WORDS))
