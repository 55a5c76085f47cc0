"""Passes of L-BFGS-B on a GPU: compiling and launching ``lbfgs.cu``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import cupy
import numpy as np

from partitioner.cuda.code import load, prepare
from partitioner.cuda.cubins import CudaFunction

from ...device import Array
from ...ops.lbfgs import (
    LBFGS,
    PAIRS,
    LbfgsProvider,
    LbfgsVectors,
    Matrix,
    NewtonStep,
    Point,
    PointChange,
    Reach,
    Vector,
)
from ..device import CudaDevice
from ..source import by_value, unit
from .columns import columns_unit

THREADS, COLUMNS = 256, 4  # as in lbfgs.cu
MOST = 2 * PAIRS  # vectors of recent changes
BLOCKS = 2  # per multiprocessor
PRODUCTS = MOST * (MOST + 1) // 2 + MOST
CODE = unit("lbfgs", {"MOST": MOST})
NO_CHANGE = by_value(np.zeros(5, np.uint64))
NO_WEIGHTS = by_value(np.zeros(MOST))


class CudaVectors:
    """See `LbfgsVectors`."""

    def __init__(self, device: CudaDevice, lower: Vector) -> None:
        self._code, self._length = _code(device.number), lower.size
        self._blocks = max(1, min(-(-lower.size // THREADS), device.limits.processors * BLOCKS))
        same = bool((lower == lower[:1]).all())
        self._lower_stride, self._lower = int(not same), cupy.asarray(lower[:1] if same and lower.size else lower)
        self.bounded = bool(np.isfinite(lower).any())

    def empty(self, *shape: int) -> Array:
        return cupy.empty((*shape, self._length), np.float64)

    def dot(self, one: Vector, other: Vector) -> float:
        return float(self._parts(self._code.dot, 1, one, other, np.int64(one.size)).sum())

    def largest(self, point: Point) -> float:
        return float(self._norms(point)[:, 0].max())

    def square(self, point: Point) -> float:
        return float(self._norms(point)[:, 1].sum())

    def _norms(self, point: Point) -> Matrix:
        return self._parts(self._code.gradient_norms, 2, self._point(point))

    def changes(self, point: Point, new: Point, step: Vector) -> Vector:
        found: Vector = self._parts(self._code.changes, 2, self._point(point), new.gradient, step).sum(axis=0)
        return found

    def moved(self, x: Vector, size: float, step: Vector) -> Vector:
        result = self.empty()
        self._launch(self._code.move, self._point(Point(x, 0.0, x)), step, np.float64(size), result)
        return result  # type: ignore[no-any-return]

    def products(self, point: Point, sizes: Sequence[float], vectors: Matrix, change: PointChange | None) -> Matrix:
        rows, ends = len(vectors), (np.float64(sizes[0]), np.float64(sizes[-1]))
        arguments = vectors, np.int32(rows), _change(change), np.int32(len(sizes)), *ends
        parts = self._parts(self._code.path_products, (MOST + 2) * COLUMNS, self._point(point), *arguments)
        sums = parts.sum(axis=0).reshape(MOST + 2, COLUMNS)
        columns = [*range(0 if change is None else 2), *range(2, 2 + len(sizes))]
        return np.ascontiguousarray(sums[[*range(rows), MOST, MOST + 1]][:, columns])

    def free_products(self, point: Point, size: float, vectors: Matrix, theta: float) -> Matrix:
        rows = len(vectors)
        arguments = vectors, np.int32(rows), np.float64(size), np.float64(theta)
        sums = self._parts(self._code.free_products, PRODUCTS, self._point(point), *arguments).sum(axis=0)
        pairs = np.zeros((MOST, MOST))
        pairs[np.tril_indices(MOST)] = sums[:-MOST]
        pairs = pairs + np.tril(pairs, -1).T
        return np.column_stack([pairs[:rows, :rows], sums[-MOST:][:rows]])

    def steepest(self, point: Point, factor: float, step: Vector) -> Reach:
        return self._towards(point, step, np.uint64(0), 0, factor, 1.0, NO_WEIGHTS)

    def minimum(self, point: Point, newton: NewtonStep, step: Vector) -> Reach:
        rows, weights = len(newton.vectors), np.zeros(MOST)
        weights[:rows] = newton.weights
        return self._towards(point, step, newton.vectors, rows, newton.size, newton.theta, by_value(weights))

    def _towards(
        self, point: Point, step: Vector, vectors: object, rows: int, size: float, theta: float, weights: np.void
    ) -> Reach:
        arguments = vectors, np.int32(rows), np.float64(size), np.float64(theta), weights, step
        found = self._parts(self._code.towards, 2, self._point(point), *arguments)
        return Reach(float(found[:, 1].sum()), float(found[:, 0].min()) if self.bounded else math.inf)

    def _point(self, point: Point) -> np.void:
        places = [each.data.ptr for each in (point.x, point.gradient, self._lower)]  # type: ignore[union-attr]
        return by_value(np.array(places, np.uint64), np.array([self._lower_stride, self._length]))

    def _parts(self, function: CudaFunction, numbers: int, *arguments: object) -> Matrix:
        """Launch a function, whose last argument gets the sums of thread blocks; return them, (blocks, numbers)."""
        parts = cupy.empty((self._blocks, numbers), np.float64)
        self._launch(function, *arguments, parts)
        result: Matrix = parts.get()
        return result

    def _launch(self, function: CudaFunction, *arguments: object) -> None:
        function((self._blocks,), (THREADS,), arguments)


class CudaLbfgs:
    """See `LbfgsProvider`."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def prepare(self) -> None:
        prepare([CODE, columns_unit(np.dtype(np.float64))])

    def make(self, lower: Vector) -> LbfgsVectors:
        return CudaVectors(self._device, lower)


@LBFGS.provider("cuda")
def providers(device: CudaDevice) -> Sequence[LbfgsProvider]:
    """Return the providers of the operation."""
    return [CudaLbfgs(device)]


def _change(change: PointChange | None) -> np.void:
    if change is None:
        return NO_CHANGE
    vectors = change.point.x, change.point.gradient, change.new.x, change.new.gradient
    return by_value(np.array([*(each.data.ptr for each in vectors), change.row], np.uint64))  # type: ignore[attr-defined]


class _Code(NamedTuple):
    """The functions of ``lbfgs.cu``."""

    dot: CudaFunction
    gradient_norms: CudaFunction
    changes: CudaFunction
    move: CudaFunction
    path_products: CudaFunction
    free_products: CudaFunction
    towards: CudaFunction


@cache
def _code(device: int) -> _Code:
    module = load(CODE)
    return _Code(*map(module.get_function, _Code._fields))
