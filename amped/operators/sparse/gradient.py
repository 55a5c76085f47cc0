"""The objective of a loss, and its gradient, over the elements of a placed sparse tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ...backend.device import Array, Device
from ...backend.exchange import Machine
from ...backend.losses import Loss, Maps, Moments
from ..base import ValueAndGradients, in_turn
from ..products import Mapped, RowSystems
from .operator import SparseOperator

ROWS = 1 << 20  # of which a GPU computes moments at a time


def moments_of(owned: Sequence[Array], machine: Machine) -> Moments:
    """Return the moments of all factor matrices from the rows that each rank owns. Collective."""
    device, comm = machine.device, machine.comm
    moments = Moments.of(owned) if device.on_host else _moments_on(device, owned)
    if comm.size > 1:
        for each in moments:
            comm.all_reduce(each, "sum")
    return moments


def _moments_on(device: Device, owned: Sequence[Array]) -> Moments:
    """Return the moments of matrices in the memory of a GPU."""
    order, rank = len(owned), owned[0].shape[1]
    total = device.zeros((order, 1 + rank, rank), np.float64)
    for matrix, sums, grams in zip(owned, total[:, 0], total[:, 1:], strict=True):
        for begin in range(0, len(matrix), ROWS):
            exact = matrix[begin : begin + ROWS].astype(np.float64, copy=False)
            sums += exact.sum(axis=0)
            grams += exact.T @ exact
    found = np.array(device.to_host(total))
    return Moments(np.ascontiguousarray(found[:, 0]), np.ascontiguousarray(found[:, 1:]))


class GradientSums(Protocol):
    """Computes the nonzeros' part of a loss and of its gradient, by a product of a placed tensor."""

    def begin(self) -> None:
        """Begin an evaluation, which computes the modes in order."""

    def gradient(self, mode: int) -> Array:
        """Return the gradient of the rows that this rank owns, valid until that of the next mode is computed."""

    def value(self) -> float:
        """Return this rank's part of the loss, after the gradients of all modes."""


class SystemSums:
    """From row systems without second derivatives, and with values in the first mode only. See `GradientSums`."""

    def __init__(self, operator: SparseOperator, maps: Maps) -> None:
        self._operator, self._value = operator, 0.0
        others = RowSystems(maps._replace(value=None))
        self._products = [RowSystems(maps), *(others for _ in range(operator.order - 1))]

    def begin(self) -> None:
        """See `GradientSums`: nothing is to be done."""

    def gradient(self, mode: int) -> Array:
        operator = self._operator
        systems = operator.compute(self._products[mode], mode, in_turn(mode, operator.order))
        if mode == 0:
            self._value = float(operator.machine.device.to_host(systems[:, -1]).sum())
        return systems[:, :-1]

    def value(self) -> float:
        return self._value


class MappedSums:
    """From mapped MTTKRPs, the first of which adds up the loss. See `GradientSums`."""

    def __init__(self, operator: SparseOperator, maps: Maps) -> None:
        self._operator, self._total = operator, operator.machine.device.zeros((1,), np.float64)
        self._products = [Mapped(maps, self._total), *(Mapped(maps) for _ in range(operator.order - 1))]

    def begin(self) -> None:
        self._total[:] = 0

    def gradient(self, mode: int) -> Array:
        operator = self._operator
        return operator.compute(self._products[mode], mode, in_turn(mode, operator.order))

    def value(self) -> float:
        return float(self._operator.machine.device.to_host(self._total)[0])


class SparseGradient:
    """See `Gradient`. The sum over absent elements, if they are zeros, has a closed form.

    Parameters
    ----------
    operator : SparseOperator
    sums : GradientSums
        Of its nonzeros.
    loss : Loss
    zeros : bool
        Whether absent elements are zeros. Otherwise they do not count.
    """

    def __init__(self, operator: SparseOperator, sums: GradientSums, loss: Loss, zeros: bool) -> None:
        self.operator, self._sums, self._loss, self._zeros = operator, sums, loss, zeros

    @np.errstate(over="ignore", invalid="ignore")  # of models that a line search tries; the result is not finite
    def evaluate(self) -> ValueAndGradients:
        operator, comm = self.operator, self.operator.machine.comm
        shapes = [operator.owned(mode).shape for mode in range(operator.order)]
        result = ValueAndGradients.empty(shapes, operator.machine.device)
        self._sums.begin()
        for mode, gradient in enumerate(result.gradients):
            gradient[...] = self._sums.gradient(mode)
        everywhere = self._add_everywhere(result.gradients) if self._zeros else 0.0
        value = np.array([self._sums.value()])  # last, as it waits for the device
        if comm.size > 1:
            comm.all_reduce(value, "sum")
        return result._replace(value=everywhere + float(value[0]))

    def _add_everywhere(self, gradients: Sequence[Array]) -> float:
        """Add what all elements would contribute if they were zeros to the gradients; return the value."""
        operator = self.operator
        owned = [operator.owned(mode) for mode in range(operator.order)]
        moments, xp = moments_of(owned, operator.machine), operator.machine.device.xp
        for mode, gradient in enumerate(gradients):
            gradient += self._loss.gradient_everywhere(moments, mode, owned[mode], xp)
        self._scale_spare(gradients)
        return self._loss.everywhere(moments)

    def _scale_spare(self, gradients: Sequence[Array]) -> None:
        """Let a spare row, which is zero, stand for all unused indices: inner products are those of all their rows.

        In coordinates in which k equal rows are one, multiplied by the root of k, the gradient is multiplied by it too.
        """
        for mode, kept in self.operator.kept_rows.items():
            owned = self.operator.plan.modes[mode].owned
            for place in kept.spare[(kept.spare >= owned.start) & (kept.spare < owned.stop)]:
                gradients[mode][place - owned.start] *= np.sqrt(kept.unused)
