"""The eigh operation: leading eigenvectors of Gram matrices on a device, without waiting for the host.

A symmetric matrix is reduced to tridiagonal form, its largest eigenvalues are found by bisection, and each eigenvector
is computed separately. Eigenvectors of nearly equal eigenvalues may be nearly parallel, so callers must check the
returned status.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..device import Array, Device
from ..registry import Op

TURNS = 3  # number of times that columns are whitened


class EighStatus(NamedTuple):
    """Accuracy of leading eigenvectors, and of columns that are made orthonormal."""

    values: NDArray[np.float64]  # the largest eigenvalues, descending
    left_over: NDArray[np.float64]  # residuals of the tridiagonal matrix's eigenvectors, relative to the matrix
    off: NDArray[np.float64]  # per turn, the largest entry of the Gram matrix minus the identity
    pivots: NDArray[np.float64]  # per turn, the smallest pivot of the Gram matrix scaled to unit diagonal


def status_size(count: int) -> int:
    """Return the number of float64 numbers in the status of `count` eigenvectors."""
    return 2 * count + 2 * TURNS


def status_of(facts: NDArray[np.float64]) -> EighStatus:
    """Unpack a status."""
    count = (len(facts) - 2 * TURNS) // 2
    values, left_over, off, pivots = np.split(facts, (count, 2 * count, 2 * count + TURNS))
    return EighStatus(values, left_over, off, pivots)


class Eigh(Protocol):
    """A provider of the operation. All arrays are float64 and C-contiguous; `facts` is the status."""

    def suits(self, size: int, count: int) -> bool:
        """Return whether it supports `count` eigenvectors of matrices of `size` rows."""

    def prepare(self, size: int, count: int) -> None:
        """Start compiling for such matrices; return immediately."""

    def bytes(self, size: int, count: int) -> int:
        """Return the bytes of temporary memory in addition to Gram matrices."""

    def eigenvectors(self, gram: Array, out: Array, facts: Array) -> None:
        """Queue the eigenvectors, each divided by the square root of its eigenvalue, to `out`, (size, count)."""

    def whiten(self, gram: Array, out: Array, facts: Array, turn: int) -> None:
        """Queue the upper triangular matrix `out` that makes columns with this Gram matrix orthonormal."""


EIGH = Op[Eigh]("eigh")


def eigh_of(device: Device, size: int, count: int) -> Eigh | None:
    """Return the device's provider for `count` leading eigenvectors; None if it has none."""
    return EIGH.first(device, lambda provider: provider.suits(size, count))
