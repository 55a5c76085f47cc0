"""Sums of a loss over the elements of a matrix, in tiles: of a dense tensor, unfolded by two groups of modes.

The model's values are a matrix product of the Khatri-Rao products of both groups. Two more products with the first
derivatives give the partial results of which the gradients of all modes follow (Hong, Kolda and Duersch 2020,
section 4).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from partitioner.array_types import FloatDType

from ..device import Array
from ..losses import Loss
from ..registry import Op


class LossForm(NamedTuple):
    """Properties of matrices from which memory is planned and code is compiled."""

    shape: tuple[int, int]  # the largest
    rank: int  # components
    dtype: FloatDType  # of elements: float32 or float64
    weighted: bool


class LossSums(NamedTuple):
    """Sums over the elements of a matrix.

    Attributes
    ----------
    value : float
        The loss.
    first : (R, rows) float64 device array
        The derivatives times the transposed second Khatri-Rao product.
    second : (R, columns) float64 device array
        The first Khatri-Rao product times the derivatives.
    """

    value: float
    first: Array
    second: Array


class LossTiles(Protocol):
    """Evaluates a loss and its first derivatives. Products and sums are in double precision."""

    def sums(self, elements: Array, weights: Array | None, first: Array, second: Array) -> LossSums:
        """Return the sums over a matrix.

        Parameters
        ----------
        elements : (rows, columns) device array
        weights : (rows, columns) float64 device array, optional
            A weight per element; those of weight 0 are missing.
        first, second : (R, rows) and (R, columns) float64 device arrays
            The transposed Khatri-Rao products.
        """


class LossTilesProvider(Protocol):
    """A provider of the operation."""

    def suits(self, loss: Loss) -> bool:
        """Return whether it can evaluate a loss."""

    def prepare(self, loss: Loss, form: LossForm) -> None:
        """Start compiling; return immediately."""

    def bytes(self, form: LossForm) -> int:
        """Return the device memory that `sums` needs, including its results."""

    def make(self, loss: Loss, form: LossForm) -> LossTiles:
        """Return the evaluation of a loss."""


LOSS_TILES = Op[LossTilesProvider]("loss_tiles")


def tile_shape(shape: tuple[int, int], width: int, elements: int) -> tuple[int, int]:
    """Return the rows and columns of the largest tile of a matrix; see `tiles`."""
    wide = max(1, min(shape[1], width))
    return max(1, min(shape[0], elements // wide)), wide


def tiles(rows: tuple[int, int], columns: tuple[int, int], width: int, elements: int) -> Iterator[tuple[slice, slice]]:
    """Yield ranges of rows and columns: tiles of at most `width` columns and about `elements` elements."""
    height, wide = tile_shape((rows[1] - rows[0], columns[1] - columns[0]), width, elements)
    for row in range(*rows, height):
        for column in range(*columns, wide):
            yield slice(row, min(row + height, rows[1])), slice(column, min(column + wide, columns[1]))
