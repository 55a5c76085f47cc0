"""The objective of a loss, and its gradient, over the elements of a dense tensor; see `backend.ops.loss_tiles`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from partitioner.array_types import FloatDType, Floats

from ...backend.device import Array
from ...backend.losses import Loss
from ...backend.ops.loss_tiles import LOSS_TILES, LossForm
from ...backend.plain.split import contract, khatri_rao, split_of
from ..base import Placed, ValueAndGradients


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


def loss_form(block: Sequence[int], rank: int, dtype: FloatDType, weighted: bool) -> LossForm:
    """Return the form of the matrices as which a block of `block` elements is evaluated."""
    split = split_of(block)
    return LossForm((math.prod(block[:split]), math.prod(block[split:])), rank, dtype, weighted)


def gradient_bytes(shape: Sequence[int], rank: int) -> int:
    """Return the device memory of the matrices of an evaluation: gradients, and factor matrices, whole and in part."""
    return 8 * 3 * rank * sum(shape)


class DenseGradient:
    """See `Gradient`. Each rank evaluates its block; the ranks' gradients are added.

    Parameters
    ----------
    operator : DenseBlocks
    loss : Loss
        Supported by the device.
    weights : array, optional
        A weight per element of this rank's block, in memory order: 0 where elements are missing.
    """

    def __init__(self, operator: DenseBlocks, loss: Loss, weights: Floats | None = None) -> None:
        self.operator, device = operator, operator.machine.device
        device.trim()  # of what loading the elements took
        self._weights: Array = None if weights is None else device.to_device(np.ascontiguousarray(weights))
        form = loss_form(
            [each.stop - each.start for each in operator.ranges], operator.ranks[0], operator.stored(0).dtype,
            weights is not None,
        )  # fmt: skip
        self._tiles = LOSS_TILES.require(device, lambda provider: provider.suits(loss)).make(loss, form)

    @np.errstate(over="ignore", invalid="ignore")  # of models that a line search tries; the result is not finite
    def evaluate(self) -> ValueAndGradients:
        operator, device = self.operator, self.operator.machine.device
        comm, order = operator.machine.comm, operator.order
        totals = [device.zeros((operator.ranks[0], length), np.float64) for length in operator.shape]
        operator.machine.exchange.wait_comm()
        factors = [operator.stored(mode).astype(np.float64, copy=False).T for mode in range(order)]
        value = np.zeros(1)
        with operator.span("compute", 0):
            for start, slab in operator.slabs():
                value += self._add(start, slab, factors, totals)
        if comm.size > 1:
            comm.all_reduce(value, "sum")
        result = ValueAndGradients.empty([operator.owned(mode).shape for mode in range(order)], device)
        for mode, total in enumerate(totals):
            operator.reduce(total, "sum", mode)
            rows = slice(None) if comm.size == 1 else operator.plan.modes[mode].owned
            result.gradients[mode][...] = total.T[rows]
        return result._replace(value=float(value[0]))

    def _add(self, start: int, slab: Array, factors: Sequence[Array], totals: Sequence[Array]) -> float:
        """Add the gradients of a slab; return its value."""
        operator, xp = self.operator, self.operator.machine.device.xp
        first, *others = operator.ranges
        rows = [slice(first.start + start, first.start + start + len(slab)), *others]
        own = [xp.ascontiguousarray(factors[m][:, each]) for m, each in zip(operator.modes, rows, strict=True)]
        split = split_of(slab.shape)
        left, right = khatri_rao(own[:split]), khatri_rao(own[split:])
        shape = left.shape[1], right.shape[1]
        weights = None if self._weights is None else self._weights[start : start + len(slab)].reshape(shape)
        sums = self._tiles.sums(slab.reshape(shape), weights, left, right)
        for group, partial in ((range(split), sums.first), (range(split, slab.ndim), sums.second)):
            for place in group:
                before, after = own[group.start : place], own[place + 1 : group.stop]
                gradient = contract(
                    partial, khatri_rao(before) if before else None, khatri_rao(after) if after else None
                )
                totals[operator.modes[place]][:, rows[place]] += gradient
        return sums.value
