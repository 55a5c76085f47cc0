"""CP-APR's elementwise updates on the host, in parallel blocks of rows; see `MuUpdate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

import numpy as np

from partitioner.array_types import FloatDType

from ...device import Array, Device
from ...ops.mu_update import MU_UPDATE, MuUpdate, MuUpdateProvider
from ...rows import blocks_of
from ..kernels import mu_update as kernels

T = TypeVar("T")

BLOCK = 1 << 14  # numbers of a block, which stays in a core's cache
LEAST_NUMBERS = 1 << 18  # with fewer, starting a thread takes longer than the work


class HostMuUpdate:
    """See `MuUpdate`. Blocks of rows are computed in parallel, by NumPy."""

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def begin(self, matrix: Array, weights: Array, kappa: Array | float, least: float) -> None:
        shifts = np.ascontiguousarray(np.broadcast_to(np.float64(kappa), weights.shape))
        self._by_blocks(lambda block: self._begin(matrix[block], weights, shifts, least), matrix)

    def _begin(self, rows: Array, weights: Array, kappa: Array, least: float) -> None:
        """Convert rows of A to B."""
        small = rows < least
        shifts: Array = 0.0
        if small.any():
            bits = _bits(rows)
            shifts = np.where(small & (bits & 1 > 0), kappa, 0.0)
            bits &= ~small.astype(bits.dtype)  # clear the mark, so that zeros are zeros
        np.multiply(rows + shifts, weights, out=rows, casting="same_kind")

    def measure(self, phi: Array, matrix: Array, violation: Array, done: Array) -> None:
        if not done[0]:
            parts = self._by_parts(lambda part: self._largest(phi[part], matrix[part]), matrix)
            violation[0] = np.max([violation[0], *parts])

    def _largest(self, phi: Array, rows: Array) -> float:
        """Return the violation of some rows."""
        return float(np.max(np.abs(np.minimum(rows, 1 - phi)), initial=0))

    def apply(self, phi: Array, matrix: Array, violation: Array, fact: Array, tol: float, done: Array) -> None:
        if done[0]:
            return
        fact[0] = violation[0]
        if violation[0] < tol:
            done[0] = 1
            return
        fact[1] += 1
        self._by_parts(lambda part: self._multiply(phi[part], matrix[part]), matrix)

    def _multiply(self, phi: Array, rows: Array) -> None:
        """Multiply rows of B by those of Phi."""
        np.multiply(rows, phi, out=rows, casting="same_kind")

    def add_columns(self, matrix: Array, sums: Array) -> None:
        for each in self._by_blocks(lambda block: matrix[block].sum(axis=0, dtype=np.float64), matrix):
            sums += each

    def end(self, phi: Array, matrix: Array, sums: Array, least: float) -> None:
        divisor = np.where(sums > 0, sums, 1)
        self._by_blocks(lambda block: self._end(phi[block], matrix[block], divisor, least), matrix)

    def _end(self, phi: Array, rows: Array, divisor: Array, least: float) -> None:
        """Convert rows of B to A."""
        np.divide(rows, divisor, out=rows, casting="same_kind")
        if (small := rows < least).any():
            bits = _bits(rows)
            bits &= ~small.astype(bits.dtype)
            bits |= small & ~(phi <= 1)

    def _by_blocks(self, work: Callable[[slice], T], matrix: Array) -> list[T]:
        """Call `work` for blocks of rows that stay in a core's cache; return the results in order."""
        return self._in_parallel(work, matrix, max(1, BLOCK // max(1, matrix.shape[1])))

    def _by_parts(self, work: Callable[[slice], T], matrix: Array) -> list[T]:
        """Call `work` for parts of the rows, whose results do not depend on the parts; return the results."""
        return self._by_blocks(work, matrix)

    def _in_parallel(self, work: Callable[[slice], T], matrix: Array, step: int) -> list[T]:
        blocks = list(blocks_of(len(matrix), step))
        if self._threads == 1 or matrix.size < LEAST_NUMBERS:
            return list(map(work, blocks))
        ends = [len(blocks) * part // self._threads for part in range(self._threads + 1)]
        parts = [blocks[begin:end] for begin, end in pairwise(ends)]
        return [each for some in self._pool.map(lambda part: list(map(work, part)), parts) for each in some]

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._threads, "amped-update")


class CompiledMuUpdate(HostMuUpdate):
    """See `MuUpdate`. All but sums of columns is compiled."""

    def _begin(self, rows: Array, weights: Array, kappa: Array, least: float) -> None:
        kernels.begin(rows, _bits(rows), weights, kappa, _limit(rows, least), np.empty(len(weights)))

    def _end(self, phi: Array, rows: Array, divisor: Array, least: float) -> None:
        kernels.end(phi, rows, _bits(rows), divisor, _limit(rows, least))

    def _largest(self, phi: Array, rows: Array) -> float:
        return float(np.max(kernels.measure(phi, rows)))

    def _multiply(self, phi: Array, rows: Array) -> None:
        kernels.apply(phi, rows)

    def _by_parts(self, work: Callable[[slice], T], matrix: Array) -> list[T]:
        return self._in_parallel(work, matrix, max(1, -(-len(matrix) // self._threads)))


class HostProvider:
    """See `MuUpdateProvider`."""

    def bytes(self, rank: int) -> int:
        return 0

    def prepare(self, dtype: FloatDType) -> None:
        """See `MuUpdateProvider`: compiled code is cached on disk."""

    def make(self, device: Device, rank: int, dtype: FloatDType) -> MuUpdate:
        return (CompiledMuUpdate if device.code_bytes else HostMuUpdate)(device.cores)


@MU_UPDATE.provider("cpu")
def providers(device: Device) -> Sequence[MuUpdateProvider]:
    """Return the providers of the operation."""
    return [HostProvider()]


def _bits(rows: Array) -> Array:
    """Return a view of numbers as unsigned integers."""
    return rows.view(np.uint32 if rows.itemsize == 4 else np.uint64)


def _limit(rows: Array, least: float) -> Array:
    """Return the bits of `least` as a number of the type of rows. Positive numbers and their bits have one order."""
    return _bits(np.full(1, least, rows.dtype))[0]
