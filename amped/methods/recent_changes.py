"""Vectors of L-BFGS-B, whose parts are on different ranks: passes over their blocks, and recent changes.

Vectors are as long as all factor matrices together, and few operations use a number of them: each pass processes
blocks that stay in a core's cache. On a GPU vectors may be in its memory; inner products are on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from partitioner.host.threads import parallel_map

from ..backend.rows import blocks_of
from ..parallel.mpi import Comm

Vector = NDArray[np.float64]
"""In host memory, or of the device."""
Matrix = NDArray[np.float64]
T = TypeVar("T")

PAIRS = 5
CURVED = 2e-16  # least curvature of a pair of changes, relative to the squared change of the gradient
BLOCK = 1 << 13  # entries: those of all pairs fit a core's private cache
GPU_BLOCK = 1 << 20  # entries: enough for a GPU, and temporary arrays are small


class Point(NamedTuple):
    """A point, this rank's part, with the objective and the gradient there."""

    x: Vector
    value: float
    gradient: Vector


class QuadraticModel(NamedTuple):
    """The Hessian of a quadratic model of the objective: ``theta I - W middle W^T``.

    Attributes
    ----------
    theta : float
    vectors : (rows, n) array
        W^T: changes of the gradient and steps in turn. A pair may be unused.
    middle : (rows, rows) array
    grams : (rows, rows) array
        ``W^T W``.
    """

    theta: float
    vectors: Matrix
    middle: Matrix
    grams: Matrix


class VectorPlace(NamedTuple):
    """Where vectors are: the array module, NumPy or CuPy, and the threads that share the work on a host."""

    xp: Any = np
    threads: int = 1


HOST = VectorPlace()


class Passes:
    """Passes over the blocks of vectors. All methods are collective.

    Parameters
    ----------
    comm : Comm
    length : int
        Entries of this rank's part.
    place : VectorPlace
    """

    def __init__(self, comm: Comm, length: int, place: VectorPlace = HOST) -> None:
        self._comm, self.xp, threads = comm, place.xp, place.threads
        blocks = list(blocks_of(length, BLOCK if self.xp is np else GPU_BLOCK))
        ends = [len(blocks) * k // threads for k in range(threads + 1)]
        self._groups = [blocks[begin:end] for begin, end in pairwise(ends) if begin < end]  # one for each thread

    def summed(self, numbers: Vector) -> Vector:
        """Return the sum of an array over all ranks, in its place."""
        if self._comm.size > 1:
            self._comm.all_reduce(numbers, "sum")
        return numbers

    def total(self, work: Callable[[slice], NDArray[np.float64]], shape: tuple[int, ...]) -> Vector:
        """Return the sum over all blocks of all ranks of what `work` returns for each, of this shape, on the host."""
        parts = self.each(work)
        if self.xp is not np:
            parts = [self.xp.asnumpy(part) for part in parts]
        return self.summed(np.add.reduce(parts) if parts else np.zeros(shape))

    def each(self, work: Callable[[slice], T]) -> list[T]:
        """Return what `work` returns for each block of this rank."""
        parts = parallel_map(lambda group: [work(b) for b in group], self._groups, len(self._groups) or 1)
        return [each for part in parts for each in part]

    def dot(self, one: Vector, other: Vector) -> float:
        """Return the inner product over all ranks."""
        return float(self.total(lambda b: self.products((one[b], other[b])), (1,))[0])

    def products(self, *pairs: tuple[Vector, Vector]) -> Vector:
        """Return the inner products of pairs of blocks."""
        found = [self.xp.vdot(one, other) for one, other in pairs]
        result: Vector = np.array(found) if self.xp is np else self.xp.stack(found)
        return result


class RecentChanges:
    """The recent steps of a search and the changes of the gradient, with their inner products.

    A new pair is written, block by block, in the pass over vectors that needs it first.

    Attributes
    ----------
    rows : int
        The number of vectors in use.
    model : QuadraticModel or None
        The model of these changes, in the compact form of Byrd, Nocedal and Schnabel (1994); None if there are none.
    """

    def __init__(self, length: int, xp: Any = np) -> None:
        self._length, self._xp = length, xp
        self._vectors = xp.empty((0, length))  # of a pair in two rows, the change of the gradient first
        self._grams = np.zeros((2 * PAIRS, 2 * PAIRS))
        self.forget()

    def forget(self) -> None:
        """Discard the changes."""
        self._slots = list[int]()  # of the pairs, the oldest first
        self.rows = 0
        self._coming: tuple[Point, Point] | None = None  # the ends of the change in the last slot, if it is not written
        self.model: QuadraticModel | None = None

    @property
    def exist(self) -> bool:
        """Whether there are changes."""
        return bool(self._slots)

    def add(self, point: Point, new: Point) -> None:
        """Add the change from a point to another one, which replaces the oldest if there are `PAIRS`."""
        if not len(self._vectors):
            self._vectors = self._xp.empty((2 * PAIRS, self._length))
        slot = self._slots.pop(0) if len(self._slots) == PAIRS else min(set(range(PAIRS)) - {*self._slots})
        self._slots.append(slot)
        self.rows, self._coming = max(self.rows, 2 * slot + 2), (point, new)

    @property
    def coming(self) -> int:
        """The number of vectors that `new` writes: 2 for a new pair, or 0."""
        return 0 if self._coming is None else 2

    def block(self, b: slice) -> Matrix:
        """Return a block of all vectors; `new` writes those of a new pair."""
        vectors: Matrix = self._vectors[: self.rows, b]
        return vectors

    def new(self, b: slice) -> Matrix:
        """Write the block of a new pair, if there is one; return it."""
        first = 2 * self._slots[-1]
        own: Matrix = self._vectors[first : first + self.coming, b]
        if self._coming is not None:
            point, new = self._coming
            self._xp.subtract(new.gradient[b], point.gradient[b], out=own[0])
            self._xp.subtract(new.x[b], point.x[b], out=own[1])
        return own

    def complete(self, products: Matrix) -> None:
        """Take the inner products of all vectors with those of a new pair, (rows, 2), if there is one.

        The pair is discarded if the gradient's change has no positive curvature.
        """
        if self._coming is None:
            return
        first, self._coming = 2 * self._slots[-1], None
        self._grams[: self.rows, first : first + 2] = products
        self._grams[first : first + 2, : self.rows] = products.T
        if not self._grams[first, first + 1] > CURVED * self._grams[first, first]:
            self._slots.pop()
        self.model = self._built() if self._slots else None

    def _built(self) -> QuadraticModel:
        changes, steps = 2 * np.array(self._slots), 2 * np.array(self._slots) + 1
        grams, last = self._grams[: self.rows, : self.rows].copy(), changes[-1]
        theta = float(grams[last, last] / grams[last, last + 1])
        mixed = grams[np.ix_(steps, changes)]
        lower = np.tril(mixed, -1) / theta
        inverse = np.block([[-np.diag(np.diag(mixed)), lower.T], [lower, grams[np.ix_(steps, steps)] / theta]])
        middle, places = np.zeros_like(grams), np.concatenate([changes, steps])
        middle[np.ix_(places, places)] = np.linalg.inv(inverse)
        return QuadraticModel(theta, self._vectors[: self.rows], middle, grams)
