"""The update-equations operation: least-squares updates of a model on a device that the host does not wait for."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import FloatDType

from ..device import Array
from ..registry import Op

Matrices = NDArray[np.float64]


class UpdateEquations(Protocol):
    """The (R, R) matrices of all modes during an update, in the device's memory; see `methods.incremental`.

    For each mode these are ``U^T U`` and ``H^T U`` of its current rows, U, and those before the update, H, and the same
    products of its other rows. Work is queued, except by `changes`.
    """

    def set_gram(self, mode: int, gram: Array) -> None:
        """Set ``H^T H`` of a mode's current rows, (R, R) in device memory; otherwise it is that of the last update."""

    def begin(self, others: Matrices) -> None:
        """Begin an update; `others` has the Gram matrix of the other rows of each mode, (N, R, R)."""

    def solve(self, mode: int, sums: Array, before: Array, target: Array, keeps: bool) -> None:
        """Set the current rows of a mode, ``(sums + H C) G^-1``.

        Parameters
        ----------
        mode : int
        sums : (I_n, R) array
            The MTTKRP of the new elements.
        before, target : (I_n, R) arrays
            The rows before the update, and those that are set; both have the same stride.
        keeps : bool
            Whether the mode's other rows stay as they are, instead of being multiplied by ``C G^-1``.
        """

    def changes(self) -> Matrices | None:
        """Return by what the other rows of each mode are multiplied, (N, R, R); None if equations were singular.

        Then rows are undefined, and so are Gram matrices.
        """


class UpdateEquationsProvider(Protocol):
    """A provider of the operation."""

    def suits(self, rank: int) -> bool:
        """Return whether models of this rank are supported."""

    def make(self, order: int, rank: int, dtype: FloatDType) -> UpdateEquations:
        """Return equations for matrices of a type."""


UPDATE_EQUATIONS = Op[UpdateEquationsProvider]("update_equations")
"""Only GPUs have a provider, for some ranks."""
