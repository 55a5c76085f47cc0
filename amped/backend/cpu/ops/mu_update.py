"""CP-APR's elementwise updates on the host, in blocks of rows; see `MuUpdate`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from partitioner.array_types import FloatDType

from ...device import Array, Device
from ...ops.mu_update import MU_UPDATE, MuUpdate, MuUpdateProvider

BLOCK = 1 << 14  # numbers of a block, which stays in a core's cache


class HostMuUpdate:
    """See `MuUpdate`."""

    def begin(self, matrix: Array, weights: Array, kappa: Array | float, least: float) -> None:
        for (rows,) in _blocks(matrix):
            bits = _bits(rows)
            shifts = np.where((rows < least) & (bits & 1 > 0), kappa, 0.0)
            bits[rows < least] &= ~np.ones((), bits.dtype)  # clear the mark, so that zeros are zeros
            np.multiply(rows + shifts, weights, out=rows, casting="same_kind")

    def measure(self, phi: Array, matrix: Array, violation: Array, done: Array) -> None:
        if done[0]:
            return
        for of_phi, rows in _blocks(phi, matrix):
            violation[0] = np.maximum(violation[0], np.max(np.abs(np.minimum(rows, 1 - of_phi))))

    def apply(self, phi: Array, matrix: Array, violation: Array, fact: Array, tol: float, done: Array) -> None:
        if done[0]:
            return
        fact[0] = violation[0]
        if violation[0] < tol:
            done[0] = 1
            return
        fact[1] += 1
        for of_phi, rows in _blocks(phi, matrix):
            np.multiply(rows, of_phi, out=rows, casting="same_kind")

    def add_columns(self, matrix: Array, sums: Array) -> None:
        for (rows,) in _blocks(matrix):
            sums += rows.sum(axis=0, dtype=np.float64)

    def end(self, phi: Array, matrix: Array, sums: Array, least: float) -> None:
        divisor = np.where(sums > 0, sums, 1)
        for of_phi, rows in _blocks(phi, matrix):
            np.divide(rows, divisor, out=rows, casting="same_kind")
            bits, small = _bits(rows), rows < least
            bits[small] = (bits[small] | 1) - (of_phi[small] <= 1)


class HostProvider:
    """See `MuUpdateProvider`."""

    def bytes(self, rank: int) -> int:
        return 0

    def prepare(self, dtype: FloatDType) -> None:
        """See `MuUpdateProvider`: nothing to compile."""

    def make(self, device: Device, rank: int, dtype: FloatDType) -> MuUpdate:
        return HostMuUpdate()


@MU_UPDATE.provider("cpu")
def providers(device: Device) -> Sequence[MuUpdateProvider]:
    """Return the providers of the operation."""
    return [HostProvider()]


def _bits(rows: Array) -> Array:
    """Return a view of numbers as unsigned integers."""
    return rows.view(np.uint32 if rows.itemsize == 4 else np.uint64)


def _blocks(*matrices: Array) -> Iterator[tuple[Array, ...]]:
    """Yield blocks of rows of the matrices; nothing if they have no rows."""
    rows, columns = matrices[0].shape
    step = max(1, BLOCK // max(1, columns))
    for begin in range(0, rows, step):
        yield tuple(matrix[begin : begin + step] for matrix in matrices)
