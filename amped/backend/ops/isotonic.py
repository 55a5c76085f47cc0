"""The isotonic operation: the closest matrices with monotone or unimodal columns, on devices other than the host."""

from __future__ import annotations

from typing import Protocol

from ..device import Array
from ..registry import Op


class Isotonic(Protocol):
    """Regression of all columns of a matrix at once: a provider of the operation."""

    def monotone(self, matrix: Array, decreasing: bool) -> Array:
        """Return the closest (I, R) float64 matrix whose columns never decrease (or never increase)."""

    def unimodal(self, matrix: Array, low: float, high: float) -> Array:
        """Return the closest (I, R) float64 matrix within bounds whose columns rise to a peak, then fall."""


ISOTONIC = Op[Isotonic]("isotonic")
"""Devices without a provider use the host."""
