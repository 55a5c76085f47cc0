"""The columns operation: sums and arrangement of the columns of factor matrices in device memory.

Only devices other than the host have a provider; `models.columns` has the same functions for host memory.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats

from ..device import Array
from ..registry import Op


class ColumnSums(NamedTuple):
    """Sums over the rows of a matrix, each (R,) float64."""

    squares: NDArray[np.float64]
    magnitudes: NDArray[np.float64]
    signed_squares: NDArray[np.float64]


class ColumnsProvider(Protocol):
    """A provider of the operation. Matrices are (rows, R) views of device memory, whose rows may be padded."""

    def sums(self, matrix: Array) -> ColumnSums:
        """Return the sums of each column."""

    def totals(self, matrix: Array) -> Array:
        """Return the sums of the columns, (R,) float64, in device memory; queued on the current stream."""

    def arranged(self, matrix: Array, order: NDArray[np.intp], divisor: Floats, flushed: float) -> Array:
        """Return a C-contiguous copy whose column c is column ``order[c]`` divided by ``divisor[c]``.

        Numbers up to `flushed` become 0.
        """

    def on_host(self, matrix: Array, order: NDArray[np.intp], divisor: Floats, flushed: float) -> Floats:
        """Return the copy of `arranged` in host memory, made in parts."""


COLUMNS = Op[ColumnsProvider]("columns")
