"""Least squares of rows over their nonzeros, without compiled code; see `backend.ops.rowproblems`, method "als".

A row's matrix, the sum of ``v v^T`` over its nonzeros, is an MTTKRP of a tensor of ones: its factors have a column for
each pair of components, the product of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...device import Array
from ...ops.mttkrp import Kernel, Offers, Share
from ...ops.rowproblems import (
    DEFICIENT,
    RESIDUAL,
    ROWPROBLEMS,
    HostSums,
    RowBytes,
    RowMethod,
    RowProblemsProvider,
    RowTerms,
)
from ...rows import blocks_of
from ...systems import Matrix, Pairs, solve_systems
from ..device import PlainDevice
from .mttkrp import PRODUCTS, PlainShard, inputs_of

PRODUCT_BYTES = 64 << 20  # of the products that are computed at a time, for one pair or more
BLOCK_BYTES = 16 << 20  # of the matrices of a block of rows
BLOCKS = 5  # arrays of the size of these matrices


class ShardRows:
    """The data that the rows of a shard need: all is in the shard's tree."""

    nbytes = 0


class PlainLeastSquares:
    """Solves blocks of rows. See `RowProblemsProvider`.

    The sums of a row are its matrix, as pairs, and its right-hand side.
    """

    codes = 0
    method: RowMethod = "als"

    def suits(self, kernel: Kernel, share: Share) -> bool:
        return Offers.TREE in kernel.offers

    def prepare(self, kernel: Kernel, share: Share, rank: int) -> None:
        """See `RowProblemsProvider`: nothing is compiled."""

    def bytes(self, kernel: Kernel, share: Share, nnz: int) -> RowBytes:
        """See `RowProblemsProvider`: all modes share the products, which count for mode 0."""
        rows, pairs = share.rows.stop - share.rows.start, share.stride * (share.stride + 1) // 2
        inputs = len(share.lengths)
        products = 8 * nnz + _product_bytes(inputs, nnz) * min(pairs, _width(inputs, nnz))
        block = BLOCKS * max(BLOCK_BYTES, 8 * share.stride * (share.stride + 1))
        running = 8 * rows * (pairs + 2 * share.stride) + block + 3 * 8 * nnz
        return RowBytes(0 if share.column else products, running)

    def shared_bytes(self, rank: int) -> int:
        return 8 * (2 * rank + rank * (rank + 1) // 2 + 1)

    def make(self, shard: PlainShard, share: Share, whole: slice | None = None) -> ShardRows:
        return ShardRows()

    def run(
        self,
        made: ShardRows,
        shard: PlainShard,
        factors: Sequence[Array],
        own: Array,
        rank: int,
        limits: RowTerms,
        seen: Array,
        whole: slice | None = None,
        scratch: Array = None,
    ) -> None:
        rows = slice(0, len(own)) if whole is None else whole
        sums = self._sums(shard, factors, rank)[rows]
        own[rows, :rank], deficient = _solved(sums, own[rows, :rank], limits)
        seen[DEFICIENT] += deficient
        if limits.measured:
            some = None if rows == slice(0, len(own)) else rows  # others, which are shared, are solved later
            seen[RESIDUAL] += _squares(shard, factors, own, rank, some)

    def share_rows(self, count: int, rank: int) -> HostSums:
        return HostSums(count, rank, Pairs(rank).first.size + rank)

    def add_sums(
        self,
        made: ShardRows,
        shard: PlainShard,
        factors: Sequence[Array],
        places: Sequence[tuple[int, int]],
        shared: HostSums,
        limits: RowTerms,
        scratch: Array = None,
    ) -> None:
        at, rows = np.array(places).T
        shared.sums[at] += self._sums(shard, factors, shared.rows.shape[1])[rows]

    def step(self, shared: HostSums, limits: RowTerms, number: int) -> None:
        shared.rows[...], deficient = _solved(shared.sums, shared.rows, limits)
        shared.seen[DEFICIENT] += deficient

    def add_changes(
        self,
        made: ShardRows,
        shard: PlainShard,
        factors: Sequence[Array],
        places: Sequence[tuple[int, int]],
        shared: HostSums,
        limits: RowTerms,
        scratch: Array = None,
    ) -> None:
        if limits.measured:
            at, rows = np.array(places).T
            own = np.zeros((shard.tree.lengths[shard.mode], shared.rows.shape[1]))
            own[rows] = shared.rows[at]
            shared.changes[at[:1]] += _squares(shard, factors, own, shared.rows.shape[1], rows)

    def advance(self, shared: HostSums, limits: RowTerms, number: int) -> None:
        shared.add_residuals()

    def _sums(self, shard: PlainShard, factors: Sequence[Array], rank: int) -> Matrix:
        """Return the matrices, as pairs, and right-hand sides of all rows."""
        tree, mode, pairs = shard.tree, shard.mode, Pairs(rank)
        inputs = [None if factor is None else factor[:, :rank] for factor in inputs_of(shard, factors)]
        count = pairs.first.size
        sums = np.empty((tree.lengths[mode], count + rank))
        sums[:, count:] = tree.mttkrp(mode, inputs)
        exact = [None if factor is None else factor.astype(np.float64, copy=False) for factor in inputs]
        for block in blocks_of(count, _width(len(factors), shard.nnz)):
            one, other = pairs.first[block], pairs.second[block]
            of_pairs = [None if factor is None else factor[:, one] * factor[:, other] for factor in exact]
            sums[:, block] = tree.pattern.mttkrp(mode, of_pairs)
        return sums


def _product_bytes(inputs: int, nnz: int) -> int:
    """Return the bytes of the products of one pair, at most."""
    return 8 * PRODUCTS * inputs * nnz


def _width(inputs: int, nnz: int) -> int:
    """Return the number of pairs whose products are computed at a time, at most."""
    return max(1, PRODUCT_BYTES // max(1, _product_bytes(inputs, nnz)))


def _solved(sums: Matrix, start: Array, limits: RowTerms) -> tuple[Matrix, int]:
    """Return the solutions of rows, and how many have no unique solution."""
    rank, solution, deficient = start.shape[1], np.empty(start.shape), 0
    pairs = Pairs(rank)
    for block in blocks_of(len(sums), max(1, BLOCK_BYTES // (8 * rank * (rank + 1)))):
        part = np.ascontiguousarray(sums[block].T)
        begin = np.ascontiguousarray(start[block].T, np.float64)
        solved = solve_systems(part[pairs.index], part[len(pairs.first) :], limits.ridge, limits.sweeps, begin)
        solution[block] = solved.rows.T
        deficient += solved.deficient
    return solution, deficient


def _squares(shard: PlainShard, factors: Sequence[Array], own: Array, rank: int, rows: Any) -> float:
    """Return the sum of squared residuals in some rows, None for all."""
    inputs = [None if factor is None else factor[:, :rank] for factor in inputs_of(shard, factors)]
    return shard.tree.squares(shard.mode, inputs, own[:, :rank].astype(np.float64, copy=False), rows)


@ROWPROBLEMS.provider("plain")
def providers(device: PlainDevice) -> Sequence[RowProblemsProvider[RowTerms]]:
    """Return the providers of the operation."""
    return [PlainLeastSquares()]
