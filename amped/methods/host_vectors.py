"""Passes of L-BFGS-B over vectors in host memory, in threads.

Vectors are as long as all factor matrices together, and few operations are done per entry: each pass processes blocks
that stay in a core's cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np

from partitioner.host.threads import parallel_map

from ..backend.ops.lbfgs import Matrix, NewtonStep, Point, PointChange, Reach, Vector
from ..backend.rows import blocks_of

T = TypeVar("T")

BLOCK = 1 << 13  # entries: those of all pairs fit a core's private cache


class HostVectors:
    """See `LbfgsVectors`. Sums are added in the order of blocks, whatever the number of threads.

    Parameters
    ----------
    lower : (n,) array
        Lower bound of each entry; may be minus infinity.
    threads : int
    """

    def __init__(self, lower: Vector, threads: int = 1) -> None:
        same = bool(lower.size) and bool((lower == lower[0]).all())
        # Passes need not read equal bounds from memory.
        self._lower = np.broadcast_to(lower[:1], lower.shape) if same else lower
        self.bounded = bool(np.isfinite(lower).any())
        blocks = list(blocks_of(lower.size, BLOCK))
        ends = [len(blocks) * k // threads for k in range(threads + 1)]
        self._groups = [blocks[begin:end] for begin, end in pairwise(ends) if begin < end]  # one for each thread

    def _each(self, work: Callable[[slice], T]) -> list[T]:
        """Return what `work` returns for each block."""
        parts = parallel_map(lambda group: [work(b) for b in group], self._groups, len(self._groups) or 1)
        return [each for part in parts for each in part]

    def _total(self, work: Callable[[slice], Matrix], *shape: int) -> Matrix:
        """Return the sum over all blocks of what `work` returns for each, of this shape."""
        parts = self._each(work)
        total: Matrix = np.add.reduce(parts) if parts else np.zeros(shape)
        return total

    def empty(self, *shape: int) -> Matrix:
        return np.empty((*shape, self._lower.size))

    def dot(self, one: Vector, other: Vector) -> float:
        return float(self._total(lambda b: np.array([np.vdot(one[b], other[b])]), 1)[0])

    def largest(self, point: Point) -> float:
        parts = self._each(lambda b: abs(self._projected_gradient(point, b)).max())  # no block is empty
        return float(np.max(parts)) if parts else 0.0

    def square(self, point: Point) -> float:
        def square(b: slice) -> Vector:
            gradient = self._projected_gradient(point, b)
            return np.array([np.vdot(gradient, gradient)])

        return float(self._total(square, 1)[0])

    def _projected_gradient(self, point: Point, b: slice) -> Vector:
        """Return a block of the gradient, in which entries that may not decrease further are zero."""
        gradient = point.gradient[b]
        return np.where((point.x[b] > self._lower[b]) | (gradient < 0), gradient, 0.0)

    def changes(self, point: Point, new: Point, step: Vector) -> Vector:
        def products(b: slice) -> Vector:
            change = new.gradient[b] - point.gradient[b]
            return np.array([np.vdot(new.gradient[b], step[b]), np.vdot(change, change)])

        return self._total(products, 2)

    def moved(self, x: Vector, size: float, step: Vector) -> Vector:
        result = self.empty()

        def move(b: slice) -> None:
            np.multiply(step[b], size, out=result[b])
            result[b] += x[b]
            np.maximum(result[b], self._lower[b], out=result[b])

        self._each(move)
        return result

    def products(self, point: Point, sizes: Sequence[float], vectors: Matrix, change: PointChange | None) -> Matrix:
        rows, new = len(vectors), 0 if change is None else 2

        def products(b: slice) -> Matrix:
            right = np.empty((new + len(sizes), b.stop - b.start))
            if change is not None:
                np.subtract(change.new.gradient[b], change.point.gradient[b], out=right[0])
                np.subtract(change.new.x[b], change.point.x[b], out=right[1])
                vectors[change.row : change.row + 2, b] = right[:2]
            for step, size in zip(right[new:], sizes, strict=True):
                step[...] = self._path_step(point, size, b)
            squares = [*np.zeros(new), *(np.vdot(each, each) for each in right[new:])]
            return np.vstack([vectors[:, b] @ right.T, squares, right @ point.gradient[b]])

        return self._total(products, rows + 2, new + len(sizes))

    def _path_step(self, point: Point, size: float, b: slice) -> Vector:
        """Return a block of the step to a point of the path."""
        result: Vector = point.gradient[b] * -size
        result += point.x[b]
        np.maximum(result, self._lower[b], out=result)
        result -= point.x[b]
        return result

    def free_products(self, point: Point, size: float, vectors: Matrix, theta: float) -> Matrix:
        def products(b: slice) -> Matrix:
            step, some = self._path_step(point, size, b), vectors[:, b]
            free = step + point.x[b] > self._lower[b]
            chosen = some if free.all() else some * free
            step *= theta
            step += point.gradient[b]
            return np.column_stack([chosen @ some.T, chosen @ step])

        return self._total(products, len(vectors), len(vectors) + 1)

    def steepest(self, point: Point, factor: float, step: Vector) -> Reach:
        return self._towards(point, lambda b: point.x[b] - factor * self._projected_gradient(point, b), step)

    def minimum(self, point: Point, newton: NewtonStep, step: Vector) -> Reach:
        def target(b: slice) -> Vector:
            start = self._path_step(point, newton.size, b) + point.x[b]
            change = point.gradient[b] / newton.theta + newton.weights @ newton.vectors[:, b]
            return np.where(start > self._lower[b], point.x[b] - change, start)

        return self._towards(point, target, step)

    def _towards(self, point: Point, target: Callable[[slice], Vector], step: Vector) -> Reach:
        """Set `step` to the step to a point projected onto the bounds; `target` returns blocks of the point."""

        def block(b: slice) -> tuple[float, float]:
            own, x, lower = step[b], point.x[b], self._lower[b]
            np.subtract(np.maximum(target(b), lower), x, out=own)
            slope, longest = float(np.vdot(point.gradient[b], own)), math.inf
            if self.bounded:
                with np.errstate(divide="ignore", invalid="ignore"):
                    longest = float(np.where(own < 0, (lower - x) / own, math.inf).min())
            return slope, longest

        slopes, longest = np.array(self._each(block)).reshape(-1, 2).T
        return Reach(sum(slopes.tolist(), 0.0), float(longest.min(initial=math.inf)))
