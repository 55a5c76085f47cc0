"""Least squares of rows over their nonzeros, on a CPU; see `backend.ops.rowproblems`, method "als"."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...device import Array
from ...ops.mttkrp import Kernel, Offers, Share
from ...ops.rowproblems import (
    DEFICIENT,
    RESIDUAL,
    ROWPROBLEMS,
    CommonEquations,
    HostSums,
    RowBytes,
    RowMethod,
    RowProblemsProvider,
    RowTerms,
)
from ..device import CpuDevice
from ..rows.gram import block_of, part_of, width_of
from ..rows.least_squares import grams_of_parts, residuals_of_parts, solve_rows, solve_sums
from ..rows.model import PART, PART_RANK
from ..rows.problems import RowOrder, order_bytes, order_rows, status_of
from ..rows.shared import parts_of
from ..shard import HostShard
from ..simd.vectors import LINE
from .rowproblems import RowThreads, add_parts, addresses, clear, heaviest, place_of

BATCH_BYTES = 32 << 20  # of rows whose nonzeros all threads share, solved at once
Form = tuple[bool, bool, int, int, int, int, int]
MATRICES = 6  # per thread, of the size of a Gram matrix


class HostLeastSquares:
    """Solves each row on one thread; all threads share the nonzeros of heavy rows. See `RowProblemsProvider`.

    The sums of a row are the Gram matrix of its products and values.
    """

    codes = 3
    method: RowMethod = "als"

    def __init__(self, device: CpuDevice) -> None:
        self._threads = RowThreads(device)

    def suits(self, kernel: Kernel, share: Share) -> bool:
        """See `RowProblemsProvider`: requires that the nonzeros of a row lie side by side."""
        return Offers.ROWS in kernel.offers

    def bytes(self, kernel: Kernel, share: Share, nnz: int) -> RowBytes:
        rows = min(nnz, share.rows.stop - share.rows.start)
        most = max(PART, PART_RANK * (share.stride - LINE // 4))
        parts = 2 * (nnz // most) + 2  # each part has at least half of that many nonzeros
        width = width_of(share.stride)
        scratch = self._threads.count * width * (MATRICES * width + block_of(width))
        running = 8 * (scratch + parts * (share.stride + 1) ** 2) + LINE
        running += min(nnz // most, self._batch(share.stride)) * self.shared_bytes(share.stride)
        return RowBytes(order_bytes(rows), running) if nnz else RowBytes(0, 0)

    def shared_bytes(self, rank: int) -> int:
        return 8 * (rank + (rank + 1) ** 2 + 1)

    def make(self, shard: HostShard, share: Share, whole: slice | None = None) -> RowOrder:
        return order_rows(shard)

    def run(
        self,
        made: RowOrder,
        shard: HostShard,
        factors: Sequence[Array],
        own: Array,
        rank: int,
        limits: RowTerms,
        seen: Array,
        whole: slice | None = None,
        scratch: Array = None,
    ) -> None:
        rows = slice(0, len(own)) if whole is None else whole
        if not limits.partial:
            clear(made, own[rows, :rank], rows, seen)
        statistics, most = status_of(self._threads.count), heaviest(made, self._threads.count, part_of(width_of(rank)))
        bounds = int(rows.start), int(rows.stop), most
        terms = *_terms(limits), *(limits.common or (np.empty((0, 0)), np.empty((0, 0))))
        args = _nonzeros(shard, factors, rank), tuple(made), place_of(own, factors[0]), bounds, terms
        self._threads.call(solve_rows, *args, statistics)
        seen[[RESIDUAL, DEFICIENT]] += statistics[:, [RESIDUAL, DEFICIENT]].sum(axis=0)
        heavy = made.rows[(made.counts > most) & (made.rows >= rows.start) & (made.rows < rows.stop)]
        batch = self._batch(rank)
        for first in range(0, heavy.size, batch):
            self._run_heavy(made, shard, factors, own, rank, limits, seen, heavy[first : first + batch], scratch)

    def _batch(self, rank: int) -> int:
        """Return how many heavy rows are solved at once."""
        return max(1, BATCH_BYTES // self.shared_bytes(rank))

    def _run_heavy(  # type: ignore[no-untyped-def]
        self, made, shard, factors, own, rank, limits, seen, heavy, scratch
    ) -> None:
        """Solve rows whose nonzeros all threads share."""
        shared, places = self.share_rows(heavy.size, rank), list(enumerate(heavy.tolist()))
        shared.rows[:] = own[heavy, :rank]
        self.add_sums(made, shard, factors, places, shared, limits, scratch)
        if limits.common is not None:
            _subtract(shared.sums, limits.common, heavy)
        self.step(shared, limits, 0)
        own[heavy, :rank] = shared.rows
        shared.rows[:] = own[heavy, :rank]  # as they are stored
        if limits.measured and limits.common is not None:
            padded = np.concatenate([shared.rows, np.full((len(heavy), 1), -1.0)], axis=1)
            matrices = shared.sums.reshape(len(heavy), rank + 1, -1)
            shared.seen[RESIDUAL] += np.einsum("ni,nij,nj", padded, matrices, padded)
        elif limits.measured:
            self.add_changes(made, shard, factors, places, shared, limits, scratch)
            self.advance(shared, limits, 0)
        seen[RESIDUAL:] += shared.seen[RESIDUAL:]

    def share_rows(self, count: int, rank: int) -> HostSums:
        return HostSums(count, rank, (rank + 1) ** 2)

    def add_sums(
        self,
        made: RowOrder,
        shard: HostShard,
        factors: Sequence[Array],
        places: Sequence[tuple[int, int]],
        shared: HostSums,
        limits: RowTerms,
        scratch: Array = None,
    ) -> None:
        rank = shared.rows.shape[1]
        parts = parts_of(made, places, part_of(width_of(rank)))
        out = np.empty((parts.places.size, shared.sums.shape[1]))
        self._threads.call(grams_of_parts, _nonzeros(shard, factors, rank), tuple(parts), out)
        add_parts(shared.sums, parts, out)

    def step(self, shared: HostSums, limits: RowTerms, number: int) -> None:
        ridge, sweeps, _ = _terms(limits)
        shared.seen[DEFICIENT] += solve_sums(
            shared.sums, shared.rows, ridge, sweeps, _form(False, True, 0, shared.rows.shape[1])
        )

    def add_changes(
        self,
        made: RowOrder,
        shard: HostShard,
        factors: Sequence[Array],
        places: Sequence[tuple[int, int]],
        shared: HostSums,
        limits: RowTerms,
        scratch: Array = None,
    ) -> None:
        if not limits.measured:
            return
        rank = shared.rows.shape[1]
        parts = parts_of(made, places, part_of(width_of(rank)))
        out = np.empty((parts.places.size, 1))
        self._threads.call(residuals_of_parts, _nonzeros(shard, factors, rank), tuple(parts), shared.rows, out)
        add_parts(shared.changes, parts, out)

    def advance(self, shared: HostSums, limits: RowTerms, number: int) -> None:
        shared.add_residuals()


def _subtract(sums: Array, common: CommonEquations, rows: Array) -> None:
    """Subtract Gram matrices from a common one; set their right-hand sides."""
    matrices = sums.reshape(len(rows), len(common.gram) + 1, -1)
    matrices[:, :-1, :-1] = common.gram - matrices[:, :-1, :-1]
    matrices[:, -1, :-1] = matrices[:, :-1, -1] = common.rights[rows]
    matrices[:, -1, -1] = 0.0


def _terms(limits: RowTerms) -> tuple[float, int, bool]:
    """Return the parameters in the types for which kernels are compiled."""
    return float(limits.ridge), int(limits.sweeps), bool(limits.measured)


def _nonzeros(shard: HostShard, factors: Sequence[Array], rank: int) -> tuple[Array, Array, Form]:
    """Return the addresses of columns and matrices, and their form; see `rows.gram`."""
    columns, matrices, (narrow, wide, stride, *_) = addresses(shard, factors, rank, rank)
    return columns, matrices, _form(bool(narrow), bool(wide), stride, rank)


def _form(narrow: bool, wide: bool, stride: int, rank: int) -> Form:
    width = width_of(rank)
    return narrow, wide, stride, rank, width, block_of(width), part_of(width)


@ROWPROBLEMS.provider("cpu")
def providers(device: CpuDevice) -> Sequence[RowProblemsProvider[RowTerms]]:
    """Return the providers of the operation."""
    return [HostLeastSquares(device)]
