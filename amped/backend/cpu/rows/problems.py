"""Solve the rows of a shard, with the threads of a team: each draws the next rows, those of most nonzeros first."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.host.jit import jit

from ..shard import HostShard
from ..simd.doubles import EIGHT
from ..simd.thread_team import WORDS, add, fork, inlined, join
from . import newton, quasi_newton
from .newton import DAMPING
from .steps import solve_row

DRAWN = 512  # nonzeros that a thread draws at once, where rows are short
EACH = 8  # nonzeros that take as long as what a row takes besides


class RowOrder(NamedTuple):
    """The rows of a shard that have nonzeros, and the order in which they are solved: of most nonzeros first.

    `rows` are those of the output, ascending; nonzeros ``offsets[i]`` to ``offsets[i + 1]`` are of row ``rows[i]``. A
    thread draws ``order[draws[k]]`` to ``order[draws[k + 1]]``.
    """

    rows: NDArray[np.int64]
    offsets: NDArray[np.int64]
    order: NDArray[np.int64]
    draws: NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        """The bytes that it takes."""
        return sum(array.nbytes for array in self)

    @property
    def counts(self) -> NDArray[np.int64]:
        """The nonzeros of each row."""
        return np.diff(self.offsets)


def order_bytes(rows: int) -> int:
    """Return the most bytes of a `RowOrder` of so many rows."""
    return 8 * 4 * (rows + 2)


def order_rows(shard: HostShard) -> RowOrder:
    """Return the order in which rows are solved."""
    pieces = shard.pieces.rows.astype(np.int64)
    firsts = np.flatnonzero(np.diff(pieces, prepend=-1))
    offsets = np.append(shard.pieces.starts[firsts], shard.nnz).astype(np.int64)
    counts = np.diff(offsets)
    order = np.argsort(-counts, kind="stable")
    work = np.cumsum(counts[order] + EACH)
    ends = np.searchsorted(work, np.arange(DRAWN, (work[-1] if work.size else 0) + DRAWN, DRAWN))
    draws = np.unique(np.concatenate([[0], np.minimum(ends + 1, counts.size)]))
    return RowOrder(pieces[firsts] - shard.row_begin, offsets, order, draws)


# fmt: off
@inlined
def _solve(  # type: ignore[no-untyped-def]
    number, team, threads, turn, nonzeros, made, own, whole, limits, rooms, kept, seen,
    work_of, memory, start, aim, learn,
):
# fmt: on
    columns, matrices, form = nonzeros
    rows, offsets, order, draws = made
    if number == 0:
        turn[0] = 0
    called = fork(team, number, threads)
    b, work, memory = np.empty(form[3]), work_of(form[3], form[4]), np.empty(memory)
    sums = np.empty(form[4] + EIGHT)
    drawn = add(turn, 0, 1)
    while drawn < draws.size - 1:
        for k in range(draws[drawn], draws[drawn + 1]):
            n = order[k]
            i, count = rows[n], offsets[n + 1] - offsets[n]
            if whole[0] <= i < whole[1] and count <= whole[2]:
                for r in range(b.size):
                    b[r] = own[i, r]
                memory[0] = start
                row = columns, matrices, form, rooms[number], limits[2], offsets[n], count, count <= kept
                solve_row(row, b, limits, work, sums, memory, seen[number], aim, learn)
                for r in range(b.size):
                    own[i, r] = b[r]
        drawn = add(turn, 0, 1)
    return join(team, called)


@jit
def solve_by_newton(  # type: ignore[no-untyped-def]
    number, team, threads, turn, nonzeros, made, own, whole, limits, rooms, kept, seen
):
    """Solve rows by PDNR, with the threads of a team.

    Parameters
    ----------
    number : int
        0, and that of the other threads that run this call; see `team`.
    team : array
    threads : int
    turn : (1,) array
        A word.
    nonzeros : tuple
        Addresses of columns and of matrices, and the form; see `rowmodel`.
    made : tuple
        See `RowOrder`.
    own : (rows, stride) array
    whole : tuple of int
        The first row that is solved, the end, and the most nonzeros of such rows.
    limits : tuple
        The most inner iterations, the tolerance, and the floor.
    rooms : (threads, numbers) float64 array
        See `rowmodel`.
    kept : int
        The most nonzeros of a row whose Pi fits a room.
    seen : (threads, 8) float64 array
        Zeros; see `backend.rowproblems.KKT`.

    Returns
    -------
    int
        How many threads failed.
    """
    return _solve(
        number, team, threads, turn, nonzeros, made, own, whole, limits, rooms, kept, seen,
        newton.work_of, newton.MEMORY, DAMPING, newton.aim, newton.learn,
    )  # fmt: skip


@jit
def solve_by_quasi_newton(  # type: ignore[no-untyped-def]
    number, team, threads, turn, nonzeros, made, own, whole, limits, rooms, kept, seen
):
    """Solve rows by PQNR; see `solve_by_newton`. It is a function of its own as compiling both takes twice as long."""
    memory = 1 + quasi_newton.KEPT * nonzeros[2][3]
    return _solve(
        number, team, threads, turn, nonzeros, made, own, whole, limits, rooms, kept, seen,
        quasi_newton.work_of, memory, 0.0, quasi_newton.aim, quasi_newton.learn,
    )  # fmt: skip


def noted(threads: int) -> NDArray[np.float64]:
    """Return what each thread notes, in a cache line of its own."""
    return np.zeros((threads, WORDS))
