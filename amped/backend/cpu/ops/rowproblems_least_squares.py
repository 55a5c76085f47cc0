"""Least squares of rows over their nonzeros, on a CPU; see `backend.ops.rowproblems`, method "als"."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import FloatDType

from ...device import Array
from ...ops.rowproblems import (
    DEFICIENT,
    RESIDUAL,
    ROWPROBLEMS,
    CommonEquations,
    HostSums,
    RowMethod,
    RowProblemsProvider,
    RowTerms,
)
from ...rows import blocks_of
from ...systems import solve_systems
from ..device import CpuDevice
from ..rows.gram import block_of, part_of, width_of
from ..rows.least_squares import grams_of_parts, residuals_of_parts, solve_rows, solve_sums
from ..rows.problems import RowOrder, status_of
from ..rows.shared import parts_of
from ..rows.threaded import ThreadedRows, add_parts, addresses, place_of
from ..shard import HostShard

Form = tuple[bool, bool, int, int, int, int, int]
MATRICES = 6  # per thread, of the size of a Gram matrix
BLOCK = 1 << 12  # rows without gaps that are solved at a time


class HostLeastSquares(ThreadedRows):
    """See `ThreadedRows`; the sums of a row are the Gram matrix of its products and values."""

    method: RowMethod = "als"

    def shared_bytes(self, rank: int) -> int:
        return 8 * (rank + (rank + 1) ** 2 + 1)

    def _thread_numbers(self, rank: int) -> int:
        width = width_of(rank)
        return width * (MATRICES * width + block_of(width))

    def _part_numbers(self, rank: int) -> int:
        return (rank + 1) ** 2

    def _part_of(self, rank: int) -> int:
        return part_of(width_of(rank))

    def _run_light(  # type: ignore[no-untyped-def]
        self, made, shard, factors, own, rank, limits, seen, bounds, scratch
    ) -> None:
        of_threads = status_of(self._threads.count)
        terms = *_terms(limits), *(limits.common or (np.empty((0, 0)), np.empty((0, 0))))
        args = _nonzeros(shard, factors, rank), tuple(made), place_of(own, factors[0]), bounds, terms
        self._threads.call(solve_rows, *args, of_threads)
        seen[[RESIDUAL, DEFICIENT]] += of_threads[:, [RESIDUAL, DEFICIENT]].sum(axis=0)

    def _run_heavy(  # type: ignore[no-untyped-def]
        self, made, shard, factors, own, rank, limits, seen, heavy, scratch
    ) -> None:
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
        parts = parts_of(made, places, self._part_of(rank))
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
        parts = parts_of(made, places, self._part_of(rank))
        out = np.empty((parts.places.size, 1))
        self._threads.call(residuals_of_parts, _nonzeros(shard, factors, rank), tuple(parts), shared.rows, out)
        add_parts(shared.changes, parts, out)

    def advance(self, shared: HostSums, limits: RowTerms, number: int) -> None:
        shared.add_residuals()


class HostGaps(HostLeastSquares):
    """See `GapRowsProvider`."""

    method: RowMethod = "gaps"

    def make_common(self, rows: NDArray[np.intp], rank: int, dtype: FloatDType) -> NDArray[np.intp]:
        return rows

    def run_common(self, made: NDArray[np.intp], own: Array, rank: int, limits: RowTerms, seen: Array) -> None:
        assert limits.common is not None
        rows, (gram, rights) = made, limits.common
        if not limits.sweeps:
            every = np.broadcast_to(gram[..., None], (rank, rank, rank))
            inverse = solve_systems(every, np.eye(rank), limits.ridge, 0, np.zeros((rank, rank)))
            seen[DEFICIENT] += rows.size if inverse.deficient else 0
        for block in blocks_of(rows.size, BLOCK):
            names, right = rows[block], rights[rows[block]]
            if limits.sweeps:
                start = own[names, :rank].T.astype(np.float64)
                solved = solve_systems(gram[..., None], right.T.copy(), limits.ridge, limits.sweeps, start)
                own[names, :rank] = solved.rows.T
            else:
                own[names, :rank] = right @ inverse.rows.T
            if limits.measured:
                stored = own[names, :rank].astype(np.float64)
                seen[RESIDUAL] += np.vdot(stored @ gram - 2 * right, stored)

    def common_bytes(self, rows: int, rank: int) -> int:
        return 0


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
    columns, matrices, stored = addresses(shard, factors)
    return columns, matrices, _form(*stored, rank)


def _form(narrow: bool, wide: bool, stride: int, rank: int) -> Form:
    width = width_of(rank)
    return narrow, wide, stride, rank, width, block_of(width), part_of(width)


@ROWPROBLEMS.provider("cpu")
def providers(device: CpuDevice) -> Sequence[RowProblemsProvider[RowTerms]]:
    """Return the providers of the operation."""
    return [HostLeastSquares(device), HostGaps(device)]
