"""Compile-time parameters of `loss_tiles.cu`, and the sizes of its tiles; needs no GPU or CuPy."""

from __future__ import annotations

import math
from typing import NamedTuple

from partitioner.array_types import FloatDType
from partitioner.cuda.cubins import CudaSource

from ...formulas import Formula
from ...losses import Loss
from ...ops.loss_tiles import LossForm, tile_shape
from ..source import REALS, Macros, compile_options, with_formulas

THREADS, BLOCKS = 256, 8  # of a block; blocks per multiprocessor
WIDTH = 1 << 14  # columns of a tile, at most
ELEMENTS = 1 << 23  # of a tile, about: fewer take more launches, which the host queues one by one


class LossTilesCode(NamedTuple):
    """The compile-time parameters: formulas, the type of elements, and whether they have weights."""

    value: Formula
    slope: Formula
    dtype: FloatDType
    weighted: bool

    @classmethod
    def of(cls, loss: Loss, form: LossForm) -> LossTilesCode:
        """Return the code for a loss whose formulas are text."""
        formulas = loss.maps().formulas
        value, slope = formulas["value"], formulas["weight"]
        assert value is not None
        assert slope is not None
        return cls(value, slope, form.dtype, form.weighted)

    def source(self) -> CudaSource:
        """Return ``loss_tiles.cu`` with the formulas inserted."""
        macros: Macros = {"REAL": REALS[self.dtype], "WEIGHTED": int(self.weighted), "THREADS": THREADS}
        formulas = {"value": self.value, "slope": self.slope}
        return CudaSource("loss_tiles", with_formulas("loss_tiles", formulas), compile_options(macros))


def tile_elements(shape: tuple[int, int]) -> int:
    """Return the number of elements of the largest tile of a matrix."""
    return math.prod(tile_shape(shape, WIDTH, ELEMENTS))
