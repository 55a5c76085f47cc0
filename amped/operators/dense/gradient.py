"""The objective of a loss, and its gradient, over the elements of a dense tensor on CPUs.

The model's values are a matrix product of the Khatri-Rao products of two groups of modes. Two more products with the
first derivatives give the gradients of all modes (Hong, Kolda and Duersch 2020, section 4).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import DTypeLike

from partitioner.array_types import Floats
from partitioner.host.threads import parallel_map

from ...backend.device import Array
from ...backend.formula_steps import TemporaryArrays
from ...backend.formulas import evaluate
from ...backend.losses import Loss
from ...backend.plain.split import Matrix, contract, khatri_rao, split_of
from ..base import Placed, ValueAndGradients

WIDTH = 2048  # columns of a tile, at most
ELEMENTS = 1 << 16  # evaluated at once by a thread, in the caches of a core
PARTS = 4  # per thread
PRODUCT, CONVERTED = -1, -2  # numbers of temporary arrays


class DenseBlocks(Placed, Protocol):
    """A placed dense tensor whose elements can be read."""

    @property
    def modes(self) -> Sequence[int]:
        """The modes in memory order."""

    @property
    def ranges(self) -> Sequence[slice]:
        """The ranges of this rank's block, in memory order of the modes."""

    def slabs(self) -> Iterator[tuple[int, Array]]:
        """Yield parts of this rank's block: the first index of the first mode, and the elements."""


class _LossSums(NamedTuple):
    """Sums over some elements: the value, and partial gradients of both groups of modes."""

    value: float
    first: Matrix
    second: Matrix


class DenseGradient:
    """See `Gradient`. Each rank evaluates its block; the ranks' gradients are added.

    The loss is evaluated in the precision of the elements, all products and sums in double precision.

    Parameters
    ----------
    operator : DenseBlocks
    loss : Loss
    threads : int
    weights : array, optional
        A weight per element of this rank's block, in memory order: 0 where elements are missing.
    """

    def __init__(self, operator: DenseBlocks, loss: Loss, threads: int, weights: Floats | None = None) -> None:
        self.operator, self._loss, self._threads, self._weights = operator, loss, threads, weights

    def evaluate(self) -> ValueAndGradients:
        operator = self.operator
        comm, order = operator.machine.comm, operator.order
        rank = operator.ranks[0]
        totals = [np.zeros((rank, length)) for length in operator.shape]
        factors = [operator.factor(mode).astype(np.float64, copy=False).T for mode in range(order)]
        value = np.zeros(1)
        with operator.span("compute", 0):
            for start, slab in operator.slabs():
                value += self._add(start, np.asarray(slab), factors, totals)
        if comm.size > 1:
            for each in (value, *totals):
                comm.all_reduce(each, "sum")
        return ValueAndGradients(float(value[0]), [self._owned(mode, total.T) for mode, total in enumerate(totals)])

    def _owned(self, mode: int, rows: Matrix) -> Matrix:
        """Return a copy of the rows that this rank owns."""
        alone = self.operator.machine.comm.size == 1
        return np.array(rows if alone else rows[self.operator.plan.modes[mode].owned], order="C")

    def _add(self, start: int, slab: Floats, factors: Sequence[Matrix], totals: Sequence[Matrix]) -> float:
        """Add the gradients of a slab; return its value."""
        operator = self.operator
        first, *others = operator.ranges
        rows = [slice(first.start + start, first.start + start + len(slab)), *others]
        own = [np.ascontiguousarray(factors[m][:, each]) for m, each in zip(operator.modes, rows, strict=True)]
        split = split_of(slab.shape)
        weights = None if self._weights is None else self._weights[start : start + len(slab)]
        sums = self._evaluated(slab, weights, khatri_rao(own[:split]), khatri_rao(own[split:]))
        for group, partial in ((range(split), sums.first), (range(split, slab.ndim), sums.second)):
            for place in group:
                before, after = own[group.start : place], own[place + 1 : group.stop]
                gradient = contract(
                    partial, khatri_rao(before) if before else None, khatri_rao(after) if after else None
                )
                totals[operator.modes[place]][:, rows[place]] += gradient
        return sums.value

    def _evaluated(self, slab: Floats, weights: Floats | None, first: Matrix, second: Matrix) -> _LossSums:
        """Return the sums over a slab, given the Khatri-Rao products of both groups, (R, rows) and (R, columns).

        Threads take ranges of the longer dimension, in tiles.
        """
        elements = slab.reshape(first.shape[1], second.shape[1])
        shares = None if weights is None else weights.reshape(elements.shape)
        longer, shorter = (1, 0) if elements.shape[1] > elements.shape[0] else (0, 1)
        sums, short = [np.zeros_like(first), np.zeros_like(second)], elements.shape[shorter]

        def part(span: tuple[int, int]) -> tuple[float, Matrix]:
            own, value, temporary = list(sums), 0.0, TemporaryArrays()
            own[shorter] = np.zeros_like(sums[shorter])
            for rows, columns in _tiles(*((span, (0, short)) if longer == 0 else ((0, short), span))):
                x, left, right = elements[rows, columns], first[:, rows], second[:, columns]
                product = np.matmul(left.T, right, out=temporary.array(PRODUCT, x.shape, np.float64))
                model = _converted(product, x.dtype, temporary)
                values, slopes = evaluate((self._loss.of, self._loss.slope), x, model, temporary)
                slopes = _converted(slopes, product.dtype, temporary)
                if shares is not None:
                    values, slopes = (_weighted(each, shares[rows, columns]) for each in (values, slopes))
                value += float(values.sum(dtype=np.float64))
                own[0][:, rows] += right @ slopes.T
                own[1][:, columns] += left @ slopes
            return value, own[shorter]

        count = max(1, min(self._threads * PARTS, elements.size // ELEMENTS))
        ends = np.linspace(0, elements.shape[longer], count + 1).astype(int)
        found = parallel_map(part, list(pairwise(ends.tolist())), min(count, self._threads))
        sums[shorter] = np.add.reduce([partial for _, partial in found])
        return _LossSums(math.fsum(value for value, _ in found), *sums)


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


def _tiles(rows: tuple[int, int], columns: tuple[int, int]) -> Iterator[tuple[slice, slice]]:
    """Yield ranges of rows and columns with at most `ELEMENTS` elements."""
    width = min(columns[1] - columns[0], WIDTH)
    height = max(1, ELEMENTS // max(width, 1))
    for row in range(*rows, height):
        for column in range(*columns, width):
            yield slice(row, min(row + height, rows[1])), slice(column, min(column + width, columns[1]))
