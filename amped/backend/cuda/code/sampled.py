"""Compile-time parameters of `sampled.cu` and `stochastic_steps.cu`, and their launches; needs no GPU or CuPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from partitioner.array_types import FloatDType
from partitioner.cuda.cubins import CudaSource

from ...formulas import Formula
from ...ops.sampled import Stratum
from ..layout import VECTOR, Limits
from ..source import REALS, Macros, compile_options, unit, with_formulas

WARP, THREADS = 32, 256  # as in ``sampled.cu``
WARPS = THREADS // WARP
STRATA = 2  # of a launch
BLOCKS = 2  # thread blocks per multiprocessor
FEW_ROWS, LONG_RUN, SHORT_RUN = 16_384, 8, 4
WARPS_AT_ONCE = 64  # of a multiprocessor


def run_for(rows: int) -> int:
    """Return the least number of consecutive samples of a team, for a matrix of `rows`.

    Longer runs add to memory less often, which pays where many samples share a row; shorter ones have more teams.
    """
    return LONG_RUN if rows < FEW_ROWS else SHORT_RUN


class SampledCode(NamedTuple):
    """The compile-time parameters: order, columns in memory, type, whether sums are exact, run, and formulas."""

    order: int
    stride: int
    dtype: FloatDType
    exact: bool
    run: int  # see `run_for`
    value: Formula | None  # None: code that only plans memory
    slope: Formula | None

    @property
    def lanes(self) -> int:
        """Threads of a team."""
        return min(WARP, 1 << (self.stride * self.dtype.itemsize // VECTOR - 1).bit_length())

    @property
    def samples(self) -> int:
        """Samples of a thread block."""
        return THREADS * max(1, self.run // self.lanes)

    @property
    def summed(self) -> FloatDType:
        """The type of gradients."""
        return np.dtype(np.float64) if self.exact else self.dtype

    def blocks(self, strata: Sequence[Stratum]) -> list[int]:
        """Return the thread blocks of each stratum."""
        return [-(-stratum.samples // self.samples) for stratum in strata]

    def span(self, rows: int, limits: Limits) -> int:
        """Return the rows of a warp that takes steps: as few as occupy the device."""
        least, most = WARP // self.lanes, WARP
        return min(most, max(least, -(-rows // (limits.processors * WARPS_AT_ONCE))))

    def source(self) -> CudaSource:
        """Return ``sampled.cu`` with the formulas inserted."""
        options = compile_options(self._macros() | {"BLOCKS": BLOCKS, "LEAST": self.run})
        return CudaSource("sampled", with_formulas("sampled", {"value": self.value, "slope": self.slope}), options)

    def steps(self) -> CudaSource:
        """Return ``stochastic_steps.cu``."""
        return unit("stochastic_steps", self._macros())

    def _macros(self) -> Macros:
        sizes: Macros = {"ORDER": self.order, "COLUMNS": self.stride}
        return sizes | {"REAL": REALS[self.dtype], "EXACT": int(self.exact)}


def table_source(order: int) -> CudaSource:
    """Return ``coordinate_table.cu``."""
    return unit("coordinate_table", {"ORDER": order})
