"""Sums of a loss over matrices by NumPy, in threads. The loss is evaluated in the precision of the elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

import numpy as np
from numpy.typing import DTypeLike

from partitioner.array_types import Floats
from partitioner.host.threads import parallel_map

from ...device import Array
from ...formula_steps import TemporaryArrays
from ...formulas import evaluate, evaluate_sum
from ...losses import Loss
from ...ops.loss_tiles import LOSS_TILES, LossForm, LossSums, LossTiles, LossTilesProvider, tiles
from ..device import PlainDevice
from ..split import Matrix

WIDTH = 2048  # columns of a tile, at most
ELEMENTS = 1 << 17  # evaluated at once by a thread: with fewer, threads wait for Python's lock
PARTS, TILES = 4, 8  # parts per thread, if each has several tiles
TEMPORARY = 10  # arrays of the size of a tile
PRODUCT, CONVERTED = -1, -2  # numbers of temporary arrays


class PlainLossTiles:
    """See `LossTiles`."""

    def __init__(self, loss: Loss, threads: int) -> None:
        self._loss, self._threads = loss, threads
        self._unused = list[TemporaryArrays]()  # taken again: new memory would have to be cleared

    def sums(self, elements: Array, weights: Array | None, first: Array, second: Array) -> LossSums:
        """See `LossTiles`: threads take ranges of the longer dimension, in tiles."""
        longer, shorter = (1, 0) if elements.shape[1] > elements.shape[0] else (0, 1)
        sums, short = [np.zeros_like(first), np.zeros_like(second)], elements.shape[shorter]

        @np.errstate(over="ignore", invalid="ignore")  # of models that a line search tries; the result is not finite
        def part(span: tuple[int, int]) -> tuple[float, Matrix]:
            own, value, temporary = list(sums), 0.0, self._temporary()
            own[shorter] = np.zeros_like(sums[shorter])
            down, across = (span, (0, short)) if longer == 0 else ((0, short), span)
            for rows, columns in tiles(down, across, WIDTH, ELEMENTS):
                left, right = first[:, rows], second[:, columns]
                shares = None if weights is None else weights[rows, columns]
                found, slopes = self._evaluated(elements[rows, columns], shares, left, right, temporary)
                value += found
                own[0][:, rows] += right @ slopes.T
                own[1][:, columns] += left @ slopes
            self._unused.append(temporary)
            return value, own[shorter]

        count = _parts(elements.size, self._threads)
        ends = np.linspace(0, elements.shape[longer], count + 1).astype(int)
        found = parallel_map(part, list(pairwise(ends.tolist())), min(count, self._threads))
        sums[shorter] = np.add.reduce([partial for _, partial in found])
        return LossSums(math.fsum(value for value, _ in found), *sums)

    def _temporary(self) -> TemporaryArrays:
        """Return arrays that no other thread uses."""
        with suppress(IndexError):
            return self._unused.pop()
        return TemporaryArrays()

    def _evaluated(
        self, x: Floats, weights: Floats | None, left: Matrix, right: Matrix, temporary: TemporaryArrays
    ) -> tuple[float, Floats]:
        """Return the loss of a tile's elements and its derivatives, times the weights."""
        product = np.matmul(left.T, right, out=temporary.array(PRODUCT, x.shape, np.float64))
        model = _converted(product, x.dtype, temporary)
        if weights is None:
            value, slopes = evaluate_sum(self._loss.of, self._loss.slope, x, model, temporary)
            return value, _converted(slopes, product.dtype, temporary)
        values, slopes = evaluate((self._loss.of, self._loss.slope), x, model, temporary)
        return float(_weighted(values, weights).sum()), _weighted(slopes, weights)


def _parts(size: int, threads: int) -> int:
    """Return how many parts of `size` elements threads take in turn."""
    turns = max(1, min(PARTS, size // (threads * TILES * ELEMENTS)))
    return max(1, min(threads * turns, size // ELEMENTS))


def _weighted(numbers: Floats, weights: Floats) -> Floats:
    """Return numbers times their weights; those without a weight are missing, and may not be finite."""
    with np.errstate(all="ignore"):
        return np.where(weights > 0, numbers * weights, 0.0)


def _converted(array: Floats, dtype: DTypeLike, temporary: TemporaryArrays) -> Floats:
    """Return an array of a type, in a temporary array if it has another one."""
    if array.dtype == dtype:
        return array
    result: Floats = temporary.array(CONVERTED, array.shape, dtype)
    np.copyto(result, array, casting="same_kind")
    return result


class PlainLossTilesProvider:
    """See `LossTilesProvider`: evaluates all losses."""

    def __init__(self, device: PlainDevice) -> None:
        self._threads = device.cores

    def suits(self, loss: Loss) -> bool:
        return True

    def prepare(self, loss: Loss, form: LossForm) -> None:
        """See `LossTilesProvider`: compiles nothing."""

    def bytes(self, form: LossForm) -> int:
        own = (self._threads * PARTS + 1) * min(form.shape) + max(form.shape)
        return 8 * (form.rank * own + self._threads * ELEMENTS * TEMPORARY)

    def make(self, loss: Loss, form: LossForm) -> LossTiles:
        return PlainLossTiles(loss, self._threads)


@LOSS_TILES.provider("plain")
def providers(device: PlainDevice) -> Sequence[LossTilesProvider]:
    """Return the providers of the operation."""
    return [PlainLossTilesProvider(device)]
