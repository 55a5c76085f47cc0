"""The operation that rounds factor matrices to 16 bits, for kernels to read.

A CPU has none: it takes longer to widen such numbers than to read those of 32 bits.
"""

from __future__ import annotations

from typing import Protocol

from ..device import Array
from ..registry import Op


class Rounding(Protocol):
    """One 16-bit format of a device: a provider of the operation."""

    name: str  # as `Options.gather` has it

    def run(self, matrix: Array, out: Array) -> None:
        """Queue the rounding of a float32 matrix to a uint16 array of its shape."""


CAST16 = Op[Rounding]("cast16")
"""A provider for each format."""
