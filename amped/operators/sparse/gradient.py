"""The objective of a loss, and its gradient, over the elements of a placed sparse tensor."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats

from ...backend.losses import Loss, Maps, Moments
from ...parallel.mpi import Comm
from ..base import ValueAndGradients, in_turn
from ..products import RowSystems
from .operator import SparseOperator


def moments_of(owned: Sequence[Floats], comm: Comm) -> Moments:
    """Return the moments of all factor matrices from the rows that each rank owns. Collective."""
    moments = Moments.of(owned)
    if comm.size > 1:
        for each in moments:
            comm.all_reduce(each, "sum")
    return moments


class SparseGradient:
    """See `Gradient`: a mapped MTTKRP per mode; the sum over absent elements, if they are zeros, has a closed form.

    Parameters
    ----------
    operator : SparseOperator
        Placed for row systems with `maps`.
    loss : Loss
    maps : Maps
    zeros : bool
        Whether absent elements are zeros. Otherwise they do not count.
    """

    def __init__(self, operator: SparseOperator, loss: Loss, maps: Maps, zeros: bool) -> None:
        self.operator, self._loss, self._zeros = operator, loss, zeros
        self._product = RowSystems(maps)

    def evaluate(self) -> ValueAndGradients:
        operator, comm = self.operator, self.operator.machine.comm
        value = np.zeros(1)
        vector, gradients = _views([operator.owned(mode).shape for mode in range(operator.order)])
        for mode in range(operator.order):
            sums = operator.compute(self._product, mode, in_turn(mode, operator.order))
            systems = np.asarray(operator.machine.device.to_host(sums))
            if mode == 0:
                value[0] = systems[:, -1].sum()
            gradients[mode][...] = systems[:, :-1]
        if comm.size > 1:
            comm.all_reduce(value, "sum")
        if self._zeros:
            value += self._add_everywhere(gradients)
            self._scale_spare(gradients)
        return ValueAndGradients(float(value[0]), gradients, vector)

    def _add_everywhere(self, gradients: list[NDArray[np.float64]]) -> float:
        """Add what all elements would contribute if they were zeros to the gradients; return the value."""
        operator = self.operator
        owned = [np.asarray(operator.machine.device.to_host(operator.owned(m))) for m in range(operator.order)]
        moments = moments_of(owned, operator.machine.comm)
        for mode, gradient in enumerate(gradients):
            gradient += self._loss.gradient_everywhere(moments, mode, owned[mode])
        return self._loss.everywhere(moments)

    def _scale_spare(self, gradients: list[NDArray[np.float64]]) -> None:
        """Let a spare row, which is zero, stand for all unused indices: inner products are those of all their rows.

        In coordinates in which k equal rows are one, multiplied by the root of k, the gradient is multiplied by it too.
        """
        for mode, kept in self.operator.kept_rows.items():
            owned = self.operator.plan.modes[mode].owned
            for place in kept.spare[(kept.spare >= owned.start) & (kept.spare < owned.stop)]:
                gradients[mode][place - owned.start] *= np.sqrt(kept.unused)


def _views(shapes: Sequence[tuple[int, int]]) -> tuple[NDArray[np.float64], list[NDArray[np.float64]]]:
    """Return an uninitialised vector, and its parts as matrices of some shapes."""
    ends = np.cumsum([0, *(rows * columns for rows, columns in shapes)]).tolist()
    vector = np.empty(ends[-1])
    return vector, [
        vector[begin:end].reshape(shape) for (begin, end), shape in zip(pairwise(ends), shapes, strict=True)
    ]
