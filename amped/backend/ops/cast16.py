"""The cast16 operation: rounds factor matrices to 16 bits for kernels to read.

The CPU has no provider: converting 16-bit numbers back takes longer there than reading 32-bit numbers.
"""

from __future__ import annotations

from typing import Protocol

from ..device import Array
from ..registry import Op


class Rounding(Protocol):
    """One 16-bit format of a device: a provider of the operation."""

    name: str  # the value of `Options.gather`

    def run(self, matrix: Array, out: Array) -> None:
        """Queue the rounding of a float32 matrix to a uint16 array of its shape."""


CAST16 = Op[Rounding]("cast16")
"""A provider for each format."""
