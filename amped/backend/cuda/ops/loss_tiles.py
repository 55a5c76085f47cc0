"""Sums of a loss over matrices on a GPU: products by cuBLAS, and ``loss_tiles.cu`` between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import cupy
import numpy as np

from partitioner.cuda.code import load, prepare
from partitioner.cuda.cubins import CudaFunction

from ...device import Array
from ...losses import Loss
from ...ops.loss_tiles import LOSS_TILES, LossForm, LossSums, LossTiles, LossTilesProvider, tiles
from .. import blas
from ..code.loss_tiles import BLOCKS, ELEMENTS, THREADS, WIDTH, LossTilesCode, tile_elements
from ..device import CudaDevice

MATRICES = 3  # of the size of both Khatri-Rao products: one of them transposed, and the results, one of them twice


class CudaLossTiles:
    """See `LossTiles`. The loss is evaluated in double precision."""

    def __init__(self, code: LossTilesCode, device: CudaDevice) -> None:
        self._evaluate, self._blocks = _compiled(code, device.number), BLOCKS * device.limits.processors

    def sums(self, elements: Array, weights: Array | None, first: Array, second: Array) -> LossSums:
        rows, columns = elements.shape
        values, model = cupy.zeros(self._blocks, np.float64), cupy.empty(tile_elements(elements.shape), np.float64)
        other = cupy.ascontiguousarray(second.T)
        results = cupy.zeros((rows, len(first)), np.float64), cupy.zeros(second.shape, np.float64)
        for down, across in tiles((0, rows), (0, columns), WIDTH, ELEMENTS):
            x, left = elements[down, across], first[:, down]
            slopes = model[: x.size].reshape(x.shape)
            blas.multiply(left, second[:, across], slopes, adds=False, transposed=True)
            shares = x if weights is None else weights[down, across]
            sizes = np.uint32(x.shape[0]), np.uint32(x.shape[1]), np.int64(columns)
            blocks = min(self._blocks, -(-x.size // THREADS))
            self._evaluate((blocks,), (THREADS,), (x, shares, slopes, values, *sizes))
            blas.multiply(slopes, other[across], results[0][down], adds=True, transposed=False)
            blas.multiply(left, slopes, results[1][:, across], adds=True, transposed=False)
        return LossSums(math.fsum(values.get().tolist()), cupy.ascontiguousarray(results[0].T), results[1])


class CudaLossTilesProvider:
    """See `LossTilesProvider`."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def suits(self, loss: Loss) -> bool:
        return loss.compiled

    def prepare(self, loss: Loss, form: LossForm) -> None:
        prepare([LossTilesCode.of(loss, form).source()])

    def bytes(self, form: LossForm) -> int:
        numbers = tile_elements(form.shape) + BLOCKS * self._device.limits.processors
        return 8 * (numbers + MATRICES * form.rank * sum(form.shape))

    def make(self, loss: Loss, form: LossForm) -> LossTiles:
        return CudaLossTiles(LossTilesCode.of(loss, form), self._device)


@cache
def _compiled(code: LossTilesCode, device: int) -> CudaFunction:
    return load(code.source()).get_function("evaluate")


@LOSS_TILES.provider("cuda")
def providers(device: CudaDevice) -> Sequence[LossTilesProvider]:
    """Return the providers of the operation."""
    return [CudaLossTilesProvider(device)]
