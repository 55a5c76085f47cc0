"""The L-BFGS operation: passes of L-BFGS-B over vectors in device memory.

Only devices other than the host have a provider; `methods.host_vectors` has the same passes for host memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..device import Array
from ..registry import Op

Vector = NDArray[np.float64]
"""In host memory, or of the device."""
Matrix = NDArray[np.float64]
PAIRS = 5  # recent changes of the gradient and of x that are kept


class Point(NamedTuple):
    """A point, this rank's part, with the objective and the gradient there."""

    x: Vector
    value: float
    gradient: Vector


class PointChange(NamedTuple):
    """A change between two points that has not been written yet: of the gradient in a row, of x in the next one."""

    row: int
    point: Point
    new: Point


class NewtonStep(NamedTuple):
    """The step to the minimum of a quadratic model over the entries inside the bounds at a point of the path.

    With p the step of size `size` along the path, entries at their bounds after p move by p, others by
    ``-(gradient / theta + weights @ vectors)``.
    """

    size: float
    theta: float
    weights: Vector  # (rows,), in host memory
    vectors: Matrix  # (rows, n)


class Reach(NamedTuple):
    """The slope along a step, and the largest multiple of the step within the bounds, of this rank's entries."""

    slope: float
    longest: float


class LbfgsVectors(Protocol):
    """Passes over vectors of n float64 entries, this rank's part. Sums are over this part only, and in host memory.

    The *path* of a point is that of steepest descent, projected: ``max(x - size * gradient, lower)``.

    Attributes
    ----------
    bounded : bool
        Whether an entry has a lower bound.
    """

    bounded: bool

    def empty(self, *shape: int) -> Array:
        """Return an array, (*shape, n), where vectors are."""

    def dot(self, one: Vector, other: Vector) -> float:
        """Return an inner product."""

    def largest(self, point: Point) -> float:
        """Return the largest magnitude of an entry of the gradient, except entries that may not decrease further."""

    def square(self, point: Point) -> float:
        """Return the sum of squares of the same entries."""

    def changes(self, point: Point, new: Point, step: Vector) -> Vector:
        """Return the slope along a step at a new point, and the squared change of the gradient, (2,)."""

    def moved(self, x: Vector, size: float, step: Vector) -> Vector:
        """Return ``max(x + size * step, lower)``."""

    def products(self, point: Point, sizes: Sequence[float], vectors: Matrix, change: PointChange | None) -> Matrix:
        """Write a change, if there is one; return the inner products of the vectors with it and steps of the path.

        Parameters
        ----------
        point : Point
        sizes : sequence of float
            Of one or two steps of the point's path.
        vectors : (rows, n) array
            Includes the rows of the change.
        change : PointChange, optional

        Returns
        -------
        (rows + 2, columns) array
            Columns of the change, if there is one, then of the steps. The last two rows have the squares of the steps,
            and the products with the gradient.
        """

    def free_products(self, point: Point, size: float, vectors: Matrix, theta: float) -> Matrix:
        """Return ``W W^T`` and ``W (gradient + theta p)``, (rows, rows + 1), for vectors W and a step p of the path.

        Only entries that are inside the bounds after the step count.
        """

    def steepest(self, point: Point, factor: float, step: Vector) -> Reach:
        """Set `step` to the step to ``max(x - factor * projected gradient, lower)``; return its reach."""

    def minimum(self, point: Point, newton: NewtonStep, step: Vector) -> Reach:
        """Set `step` to a Newton step, shortened to the bounds; return its reach."""


class LbfgsProvider(Protocol):
    """A provider of the operation."""

    def prepare(self) -> None:
        """Start compiling; return immediately."""

    def make(self, lower: Vector) -> LbfgsVectors:
        """Return the passes for entries with lower bounds, (n,), in host memory; they may be minus infinity."""


LBFGS = Op[LbfgsProvider]("lbfgs")
