"""The objective of a loss, and its gradient, over the elements of a placed sparse tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from ...backend.device import Array, Device
from ...backend.exchange import Machine
from ...backend.losses import Loss, Maps, Moments
from ...backend.ops.columns import COLUMNS
from ...backend.ops.gram import gram
from ..base import ValueAndGradients, in_turn
from ..products import Mapped, RowSystems
from .operator import SparseOperator


def moments_of(owned: Sequence[Array], machine: Machine) -> Moments:
    """Return the moments of all factor matrices, in host memory, from the rows that each rank owns. Collective."""
    device, comm = machine.device, machine.comm
    moments = Moments.of(owned) if device.on_host else _moved(_moments_on(device, owned), device.to_host)
    if comm.size > 1:
        for each in moments:
            comm.all_reduce(each, "sum")
    return moments


def _moved(moments: Moments, move: Callable[[Array], Array]) -> Moments:
    """Return contiguous moments in other memory."""
    return Moments(*(np.ascontiguousarray(move(each)) for each in moments))


def _moments_on(device: Device, owned: Sequence[Array], squares: bool = True) -> Moments:
    """Queue the moments of matrices in the memory of a GPU, without Gram matrices unless `squares`."""
    order, rank, columns = len(owned), owned[0].shape[1], COLUMNS.require(device)
    sums = device.empty((order, rank), np.float64)
    grams = device.empty((order, rank if squares else 0, rank), np.float64)
    for mode, matrix in enumerate(owned):
        sums[mode] = columns.totals(matrix)
        if squares:
            grams[mode] = gram(device, matrix)
    return Moments(sums, grams)


class GradientSums(Protocol):
    """Computes the nonzeros' part of a loss and of its gradient, by a product of a placed tensor."""

    total: Array | None  # this rank's part of the loss, (1,) float64 of the device, if all work is queued

    def begin(self) -> None:
        """Begin an evaluation, which computes the modes in order."""

    def gradient(self, mode: int) -> Array:
        """Return the gradient of the rows that this rank owns, valid until that of the next mode is computed."""

    def value(self) -> float:
        """Return this rank's part of the loss, after the gradients of all modes."""


class SystemSums:
    """From row systems without second derivatives, and with values in the first mode only. See `GradientSums`."""

    total = None

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
        self._operator, self.total = operator, operator.machine.device.zeros((1,), np.float64)
        self._products = [Mapped(maps, self.total), *(Mapped(maps) for _ in range(operator.order - 1))]

    def begin(self) -> None:
        self.total[:] = 0

    def gradient(self, mode: int) -> Array:
        operator = self._operator
        return operator.compute(self._products[mode], mode, in_turn(mode, operator.order))

    def value(self) -> float:
        return float(self._operator.machine.device.to_host(self.total)[0])


class _Evaluation:
    """Queues evaluations of a loss; see `SparseGradient`."""

    def __init__(self, operator: SparseOperator, sums: GradientSums, loss: Loss, zeros: bool) -> None:
        self.operator, self.sums, self.loss, self.zeros = operator, sums, loss, zeros

    @property
    def captures(self) -> bool:
        """Whether it can be captured: it does not wait for the host, and CuPy's matrix products cannot be."""
        machine, plan = self.operator.machine, self.operator.plan
        alone = machine.device.queues and machine.comm.size == 1 and not plan.slot
        return alone and self.sums.total is not None and not (self.zeros and self.loss.squares_zeros)

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """The shapes of the gradients."""
        return [self.operator.owned(mode).shape for mode in range(self.operator.order)]

    def queue(self, result: ValueAndGradients) -> Moments | None:
        """Queue the gradients and the nonzeros' part of the loss; return the moments if absent elements are zeros."""
        operator, xp = self.operator, self.operator.machine.device.xp
        moments = self._moments() if self.zeros else None
        others = None if moments is None else moments.others(xp)
        self.sums.begin()
        for mode, gradient in enumerate(result.gradients):
            sums = self.sums.gradient(mode)
            if others is None:
                gradient[...] = sums
            else:
                xp.add(sums, self.loss.gradient_everywhere(others, mode, operator.owned(mode)), out=gradient)
        if moments is not None:
            self._scale_spare(result.gradients)
        return moments

    def _moments(self) -> Moments:
        """Return the moments of the factor matrices, where the device computes, if possible without waiting."""
        operator, machine = self.operator, self.operator.machine
        owned, device = [operator.owned(mode) for mode in range(operator.order)], machine.device
        if device.on_host:
            return moments_of(owned, machine)
        if machine.comm.size > 1:
            return Moments(*map(device.to_device, moments_of(owned, machine)))
        return _moments_on(device, owned, self.loss.squares_zeros)

    def _scale_spare(self, gradients: Sequence[Array]) -> None:
        """Let a spare row, which is zero, stand for all unused indices: inner products are those of all their rows.

        In coordinates in which k equal rows are one, multiplied by the root of k, the gradient is multiplied by it too.
        """
        for mode, kept in self.operator.kept_rows.items():
            owned = self.operator.plan.modes[mode].owned
            for place in kept.spare[(kept.spare >= owned.start) & (kept.spare < owned.stop)]:
                gradients[mode][place - owned.start] *= np.sqrt(kept.unused)


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
        self.operator, self._evaluation = operator, _Evaluation(operator, sums, loss, zeros)
        self._captured: _Captured | None = None
        self._warm = False  # whether all code is compiled and loaded

    @np.errstate(over="ignore", invalid="ignore")  # of models that a line search tries; the result is not finite
    def evaluate(self) -> ValueAndGradients:
        evaluation, machine = self._evaluation, self.operator.machine
        if self._warm and evaluation.captures:
            self._captured = self._captured or _Captured(evaluation)
            return self._captured.evaluate()
        result = ValueAndGradients.empty(evaluation.shapes, machine.device)
        moments, self._warm = evaluation.queue(result), True
        value = np.array([evaluation.sums.value()])  # last, as it waits for the device
        if machine.comm.size > 1:
            machine.comm.all_reduce(value, "sum")
        everywhere = 0.0 if moments is None else evaluation.loss.everywhere(_moved(moments, machine.device.to_host))
        return result._replace(value=everywhere + float(value[0]))


class _Captured:
    """An evaluation that a device repeats as a whole: a small tensor takes less time than the launches one by one."""

    def __init__(self, evaluation: _Evaluation) -> None:
        operator, device, zeros = evaluation.operator, evaluation.operator.machine.device, evaluation.zeros
        self._shapes, self._everywhere = evaluation.shapes, evaluation.loss.everywhere if zeros else None
        self._result = result = ValueAndGradients.empty(self._shapes, device)
        self._sums = len(self._shapes), self._shapes[0][1]
        report = device.empty((1 + math.prod(self._sums) * zeros,), np.float64)

        def queue() -> None:
            moments = evaluation.queue(result)
            report[:1] = evaluation.sums.total
            if moments is not None:
                report[1:] = moments.sums.reshape(-1)

        operator.synchronize()
        replay = device.capture(queue, report.view(np.uint8), operator.clock)
        assert replay is not None
        self._replay = replay

    def evaluate(self) -> ValueAndGradients:
        """See `Gradient`. The gradients are a copy."""
        self._replay.launch()
        gradients = self._result.vector.copy()  # queued before the host waits
        found = self._replay.wait().view(np.float64)
        value = float(found[0])
        if self._everywhere is not None:
            order, rank = self._sums
            value += self._everywhere(Moments(found[1:].reshape(self._sums), np.zeros((order, rank, rank))))
        return ValueAndGradients.of(gradients, self._shapes)._replace(value=value)
