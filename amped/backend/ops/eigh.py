"""Leading eigenvectors of Gram matrices on a device: queued, so that the host does not wait.

A symmetric matrix is made tridiagonal, its largest eigenvalues are found by counting, and each eigenvector by itself.
Eigenvectors of eigenvalues that are very near each other may come out alike: what is found is told, and to be checked.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..device import Array, Device
from ..registry import Op

TURNS = 3  # Gram matrices that are whitened


class EighStatus(NamedTuple):
    """What is told of leading eigenvectors, and of matrices whose columns are made orthonormal."""

    values: NDArray[np.float64]  # the largest eigenvalues, descending
    left_over: NDArray[np.float64]  # what they leave of the tridiagonal matrix times its eigenvectors, relative to it
    off: NDArray[np.float64]  # for each turn the largest number by which the Gram matrix is not the identity
    pivots: NDArray[np.float64]  # for each turn the least one of the Gram matrix with ones on its diagonal


def status_size(count: int) -> int:
    """Return how many numbers tell of so many eigenvectors."""
    return 2 * count + 2 * TURNS


def status_of(facts: NDArray[np.float64]) -> EighStatus:
    """Return what the numbers tell."""
    count = (len(facts) - 2 * TURNS) // 2
    values, left_over, off, pivots = np.split(facts, (count, 2 * count, 2 * count + TURNS))
    return EighStatus(values, left_over, off, pivots)


class Eigh(Protocol):
    """One way to do it on a device: a provider of the operation. All arrays are float64 and C-contiguous."""

    def suits(self, size: int, count: int) -> bool:
        """Tell whether it finds `count` eigenvectors of matrices of `size` rows."""

    def prepare(self, size: int, count: int) -> None:
        """Begin to compile for such matrices, and return at once."""

    def bytes(self, size: int, count: int) -> int:
        """Return the bytes that it takes for a while, beside Gram matrices."""

    def eigenvectors(self, gram: Array, out: Array, facts: Array) -> None:
        """Queue the eigenvectors of a matrix over the roots of their eigenvalues: as `out`, (size, count)."""

    def whiten(self, gram: Array, out: Array, facts: Array, turn: int) -> None:
        """Queue what makes columns orthonormal whose Gram matrix this is: `out`, upper triangular, is multiplied."""


EIGH = Op[Eigh]("eigh")


def eigh_of(device: Device, size: int, count: int) -> Eigh | None:
    """Return what finds this many leading eigenvectors without the host, if anything does."""
    return EIGH.first(device, lambda provider: provider.suits(size, count))
