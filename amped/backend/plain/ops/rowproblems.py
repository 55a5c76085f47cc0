"""PDNR and PQNR of CP-APR without compiled code: all rows of a batch in step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...device import Array
from ...ops.mttkrp import Kernel, Offers, Share
from ...ops.rowproblems import KKT, ROWPROBLEMS, RowBytes, RowLimits, RowMethod, RowProblemsProvider, clear_empty
from ...row_constants import LENGTHS, MOVING, SOLVED
from ..device import PlainDevice
from ..row_batch import RowBatch, RowNonzeros, sums_width
from ..tree import OtherRows
from .mttkrp import PlainShard

NUMBERS = 1 << 20  # products of factor rows of a batch; a row with more is a separate batch


class RowStarts(NamedTuple):
    """The rows that have nonzeros, ascending, and where their nonzeros begin, and the end."""

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]


class PlainRows:
    """See `RowProblemsProvider`."""

    codes = 0

    def __init__(self, method: RowMethod) -> None:
        self.method: RowMethod = method

    def suits(self, kernel: Kernel, share: Share) -> bool:
        """See `RowProblemsProvider`: the nonzeros of a row must be contiguous."""
        return Offers.ROWS in kernel.offers

    def prepare(self, kernel: Kernel, share: Share, rank: int) -> None:
        """See `RowProblemsProvider`: nothing is compiled."""

    def bytes(self, kernel: Kernel, share: Share, nnz: int) -> RowBytes:
        rows = min(nnz, share.rows.stop - share.rows.start)
        products = 8 * 4 * share.stride * nnz
        return RowBytes(16 * (rows + 1), products + rows * self.shared_bytes(share.stride)) if nnz else RowBytes(0, 0)

    def shared_bytes(self, rank: int) -> int:
        return 8 * (2 * sums_width(self.method, rank) + 16 * rank + LENGTHS + 4)

    def make(self, shard: PlainShard, share: Share, whole: slice | None = None) -> RowStarts:
        rows = shard.tree.rows
        starts = np.flatnonzero(np.append(True, rows[1:] != rows[:-1]))
        return RowStarts(rows[starts].astype(np.int64), np.append(starts, rows.size))

    def run(
        self,
        made: RowStarts,
        shard: PlainShard,
        factors: Sequence[Array],
        own: Array,
        rank: int,
        limits: RowLimits,
        seen: Array,
        whole: slice | None = None,
        scratch: Array = None,
    ) -> None:
        """See `RowProblemsProvider`."""
        rows = whole or slice(0, len(own))
        first, last = np.searchsorted(made.rows, (rows.start, rows.stop))
        clear_empty(made.rows[first:last] - rows.start, own[rows, :rank], seen)
        pi = _pi(shard, factors, rank)
        for begin, end in _batches(made.starts[first : last + 1], rank):
            batch, which = RowBatch(self.method, end - begin, rank), made.rows[first + begin : first + end]
            batch.rows[:] = own[which, :rank]
            starts = made.starts[first + begin : first + end + 1]
            _solve(batch, _nonzeros(shard, pi, starts, limits.floor), limits)
            own[which, :rank] = batch.rows
            seen[KKT] = max(seen[KKT], batch.seen[KKT])
            seen[KKT + 1 :] += batch.seen[KKT + 1 :]

    def share_rows(self, count: int, rank: int) -> RowBatch:
        return RowBatch(self.method, count, rank)

    def add_sums(
        self,
        made: RowStarts,
        shard: PlainShard,
        factors: Sequence[Array],
        places: Sequence[tuple[int, int]],
        shared: RowBatch,
        limits: RowLimits,
        scratch: Array = None,
    ) -> None:
        for place, nonzeros in _of_places(made, shard, factors, places, shared, limits):
            if shared.state[place] != SOLVED:
                sums = nonzeros.sums(shared.rows[place, None], shared.curved and not shared.begins)
                shared.sums[place, : sums.shape[1]] += sums[0]

    def step(self, shared: RowBatch, limits: RowLimits, number: int) -> None:
        shared.step(limits, number)

    def add_changes(
        self,
        made: RowStarts,
        shard: PlainShard,
        factors: Sequence[Array],
        places: Sequence[tuple[int, int]],
        shared: RowBatch,
        limits: RowLimits,
        scratch: Array = None,
    ) -> None:
        for place, nonzeros in _of_places(made, shard, factors, places, shared, limits):
            if shared.state[place] == MOVING:
                changes = nonzeros.changes(shared.rows[place, None], shared.steps[place, None], LENGTHS)
                shared.changes[place] += changes[0]

    def advance(self, shared: RowBatch, limits: RowLimits, number: int) -> None:
        shared.advance(number)


def _solve(batch: RowBatch, nonzeros: RowNonzeros, limits: RowLimits) -> None:
    """Solve the rows of a batch, given all of their nonzeros."""
    before = np.ones(len(batch.rows), bool)
    batch.begin()
    for number in range(1 + limits.inner):
        unsolved = batch.state != SOLVED
        if not unsolved.any():
            return
        if (before & ~unsolved).any():
            nonzeros, before = nonzeros.restricted(unsolved[before]), unsolved
        sums = nonzeros.sums(batch.rows[unsolved], batch.curved and number > 0)
        batch.sums[unsolved, : sums.shape[1]] = sums
        batch.step(limits, number)
        moving = batch.state == MOVING
        if not moving.any():
            continue
        part = nonzeros.restricted(moving[unsolved]) if (moving != unsolved).any() else nonzeros
        batch.changes[moving, :1] = part.changes(batch.rows[moving], batch.steps[moving], 1)
        undecided = batch.undecided
        if number and undecided.any():
            part = part.restricted(undecided[moving])
            batch.changes[undecided] = part.changes(batch.rows[undecided], batch.steps[undecided], LENGTHS)
        batch.advance(number)


def _batches(starts: NDArray[np.int64], rank: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows with about `NUMBERS` products of factor rows."""
    ends = np.arange(starts[0], starts[-1], max(1, NUMBERS // rank))
    cuts = np.unique(np.append(np.searchsorted(starts, ends), starts.size - 1))
    yield from ((int(begin), int(end)) for begin, end in pairwise(cuts))


def _pi(shard: PlainShard, factors: Sequence[Array], rank: int) -> OtherRows:
    """Return the products of the input factor rows."""
    return shard.tree.other_rows([None, *(factor[:, :rank] for factor in factors)])


def _nonzeros(shard: PlainShard, pi: OtherRows, starts: NDArray[np.int64], floor: float) -> RowNonzeros:
    """Return the nonzeros of consecutive rows, which begin at `starts`."""
    which = slice(int(starts[0]), int(starts[-1]))
    return RowNonzeros(shard.tree.values[which], pi.of(which), starts - starts[0], floor)


def _of_places(
    made: RowStarts,
    shard: PlainShard,
    factors: Sequence[Array],
    places: Sequence[tuple[int, int]],
    shared: RowBatch,
    limits: RowLimits,
) -> Iterator[tuple[int, RowNonzeros]]:
    """Yield the position of each shared row, and its nonzeros in the shard, if it has any."""
    pi = _pi(shard, factors, shared.rows.shape[1])
    for place, row in places:
        number = int(np.searchsorted(made.rows, row))
        if number < made.rows.size and made.rows[number] == row:
            starts = made.starts[number : number + 2]
            yield place, _nonzeros(shard, pi, starts, limits.floor)


@ROWPROBLEMS.provider("plain")
def providers(device: PlainDevice) -> Sequence[RowProblemsProvider[RowLimits]]:
    """Return the providers of the operation, one for each method."""
    return [PlainRows("pdnr"), PlainRows("pqnr")]
