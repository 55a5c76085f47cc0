"""Solve the rows of a shard, with the threads of a team: each draws the next rows, those of most nonzeros first."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.jit import jit

from .newton import KKT, newton, work_of
from .quasi_newton import pairs_of, quasi_newton
from .shard import HostShard
from .team import WORDS, add, fork, inlined, join

DRAWN = 512  # nonzeros that a thread draws at once, where rows are short
EACH = 8  # nonzeros that take as long as what a row takes besides


class RowOrder(NamedTuple):
    """Rows in the order in which they are solved: of most nonzeros first, rows without any last.

    `rows` are those of the output; `starts` and `counts`, the first nonzero of each, and how many. A thread draws rows
    ``draws[k]`` to ``draws[k + 1]`` of that order.
    """

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    draws: NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        """The bytes that it takes."""
        return sum(array.nbytes for array in self)


def order_rows(shard: HostShard, rows: int) -> RowOrder:
    """Return the order in which so many rows are solved."""
    counts = np.zeros(rows, np.int64)
    np.add.at(counts, shard.pieces.rows - shard.row_begin, np.diff(shard.pieces.starts.astype(np.int64)))
    starts = np.cumsum(counts) - counts
    order = np.argsort(-counts, kind="stable")
    work = np.cumsum(counts[order] + EACH)
    ends = np.searchsorted(work, np.arange(DRAWN, (work[-1] if rows else 0) + DRAWN, DRAWN))
    draws = np.unique(np.concatenate([[0], np.minimum(ends + 1, rows)]))
    return RowOrder(order, starts[order], counts[order], draws)


@inlined
def _solve(  # type: ignore[no-untyped-def]
    number, team, threads, turn, nonzeros, order, own, whole, limits, rooms, kept, seen, solve, work_of
):
    columns, matrices, form = nonzeros
    rows, starts, counts, draws = order
    if number == 0:
        turn[0] = 0
    called = fork(team, number, threads)
    b, work = np.empty(form[3]), work_of(form[3], form[4])
    drawn = add(turn, 0, 1)
    while drawn < draws.size - 1:
        for k in range(draws[drawn], draws[drawn + 1]):
            i = rows[k]
            if whole[0] <= i < whole[1]:
                for r in range(b.size):
                    b[r] = own[i, r]
                if counts[k] > 0:
                    fits = counts[k] <= kept
                    row = columns, matrices, form, rooms[number], limits[2], starts[k], counts[k], fits
                    solve(row, b, limits, work, seen[number])
                else:
                    for r in range(b.size):
                        seen[number, KKT] = max(seen[number, KKT], min(b[r], 1.0))
                        b[r] = 0.0
                for r in range(b.size):
                    own[i, r] = b[r]
        drawn = add(turn, 0, 1)
    return join(team, called)


@jit
def solve_by_newton(  # type: ignore[no-untyped-def]
    number, team, threads, turn, nonzeros, order, own, whole, limits, rooms, kept, seen
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
    order : tuple
        See `RowOrder`.
    own : (rows, stride) array
    whole : tuple of int
        The first row that is solved, and the end.
    limits : tuple
        The most inner iterations, the tolerance, and the floor.
    rooms : (threads, numbers) float64 array
        See `rowmodel`.
    kept : int
        The most nonzeros of a row whose Pi fits a room.
    seen : (threads, 8) float64 array
        Zeros; see `newton.KKT`.

    Returns
    -------
    int
        How many threads failed.
    """
    return _solve(number, team, threads, turn, nonzeros, order, own, whole, limits, rooms, kept, seen, newton, work_of)


@jit
def solve_by_quasi_newton(  # type: ignore[no-untyped-def]
    number, team, threads, turn, nonzeros, order, own, whole, limits, rooms, kept, seen
):
    """Solve rows by PQNR; see `solve_by_newton`. It is a function of its own as compiling both takes twice as long."""
    return _solve(
        number, team, threads, turn, nonzeros, order, own, whole, limits, rooms, kept, seen, quasi_newton, pairs_of
    )


def noted(threads: int) -> NDArray[np.float64]:
    """Return what each thread notes, in a cache line of its own."""
    return np.zeros((threads, WORDS))
