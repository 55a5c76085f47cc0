"""Parameters of CP-APR, and its updates of a mode: multiplicative updates, or row by row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from partitioner.validate import real, whole

from ..backend.device import Array, Device
from ..backend.ops.mu_update import MU_UPDATE, MuUpdate
from ..backend.ops.rowproblems import ITERATIONS, KKT, RowLimits
from ..operators.base import in_turn
from ..operators.products import Phi
from ..operators.sparse.operator import SparseOperator
from ..operators.sparse.row_solver import RowProblems, RowSolver

MOST_INNER = 1000
PoissonMethod = Literal["mu", "pdnr", "pqnr"]


@dataclass(frozen=True)
class Poisson:
    """Parameters of CP-APR, except the number of outer iterations; the names are those of the Tensor Toolbox.

    Attributes
    ----------
    tol : float
        Largest KKT violation, max |min(B, 1 - Phi)|, at which a mode (MU) or a row (PDNR, PQNR) counts as solved.
    inner_iters : int
        Maximum number of updates of a mode or row per outer iteration.
    kappa, kappa_tol : float
        MU adds `kappa` to entries below `kappa_tol` whose Phi is above 1, which should not be zero.
    eps : float
        Lower bound of divisors.
    method : {"mu", "pdnr", "pqnr"}
    mu_iters : int
        Number of initial outer iterations in which PDNR and PQNR use MU.
    """

    tol: float = 1e-4
    inner_iters: int = 10
    kappa: float = 1e-2
    kappa_tol: float = 1e-10
    eps: float = 1e-10
    method: PoissonMethod = "mu"
    mu_iters: int = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "inner_iters", whole("inner iters", self.inner_iters, 1, MOST_INNER))
        object.__setattr__(self, "mu_iters", whole("mu iters", self.mu_iters, 0))
        for name in ("tol", "kappa", "kappa_tol"):
            number = real(name.replace("_", " "), getattr(self, name), "a number of at least 0")
            object.__setattr__(self, name, number)
        object.__setattr__(self, "eps", real("eps", self.eps, "a number above 0", above=True))

    @property
    def rows(self) -> RowProblems | None:
        """The row problems that the method solves; None for MU."""
        return None if self.method == "mu" else RowProblems(self.method)


class Update(ABC):
    """Queues updates of modes. Each update first multiplies the weights into the matrix, giving B, and last divides
    B by its column sums.
    """

    def __init__(self, operator: SparseOperator, params: Poisson) -> None:
        self._operator, self._params = operator, params
        rank, device = operator.ranks[0], operator.machine.device
        self._multiply = MU_UPDATE.require(device).make(device, rank, operator.options.dtype)
        self.status = PoissonStatus(device, operator.order, rank, params.inner_iters)

    @abstractmethod
    def queue(self, mode: int, iteration: int) -> None:
        """Queue the update of a mode in an outer iteration, counted from 0."""

    def iteration(self) -> None:
        """Queue an outer iteration other than the first."""
        self.status.clear()
        for mode in range(self._operator.order):
            self.queue(mode, 1)
        self._operator.wait_comm()

    def _begin(self, mode: int, kappa: float, least: float) -> None:
        operator, status = self._operator, self.status
        operator.wait_comm()
        with operator.span("solve", mode):
            status.begin()
            self._multiply.begin(operator.computed(mode), status.weights, kappa, least)

    def _end(self, mode: int, phi: Array, least: float) -> None:
        """Divide the columns by their sums; see `MuUpdate.end`."""
        operator, status = self._operator, self.status
        if mode == operator.order - 1:
            operator.add(Phi(self._params.eps), mode, status.likelihood, in_turn(mode, operator.order))
        normalise(operator, self._multiply, mode, phi, (status.sums, status.weights), least)


def normalise(
    operator: SparseOperator, multiply: MuUpdate, mode: int, phi: Array, sums: tuple[Array, Array], least: float
) -> None:
    """Divide the columns of B by their sums, which become the weights: write the `sums` and their copy."""
    columns, weights = sums
    with operator.span("solve", mode):
        multiply.add_columns(operator.owned(mode), columns)
    operator.reduce(columns, "sum", mode)
    with operator.span("solve", mode):
        multiply.end(phi, operator.computed(mode), columns, least)
        weights[...] = columns
    operator.publish(mode)


class Multiplicative(Update):
    """MU: multiplies all rows of a mode by Phi until the largest KKT violation is small."""

    def __init__(self, operator: SparseOperator, params: Poisson) -> None:
        super().__init__(operator, params)
        # The host polls whether a mode is solved if polling is cheap or saves much work: on all ranks, or on none.
        self.streams = any(operator.machine.comm.allgather(operator.plan.slot > 0))
        self._polls = operator.machine.device.on_host or self.streams

    def queue(self, mode: int, iteration: int) -> None:
        """See `Update`: the device decides when to stop."""
        operator, params, status, multiply = self._operator, self._params, self.status, self._multiply
        matrix, others = operator.computed(mode), in_turn(mode, operator.order)
        self._begin(mode, params.kappa if iteration else 0.0, params.kappa_tol)
        for inner in range(params.inner_iters):
            violation = status.violations[inner : inner + 1]
            then = [mode] * (params.inner_iters - inner - 1) + others
            phi = operator.compute(Phi(params.eps, status.done), mode, then)
            with operator.span("solve", mode):
                multiply.measure(phi, matrix, violation, status.done)
            operator.reduce(violation, "max", mode)
            with operator.span("solve", mode):
                multiply.apply(phi, matrix, violation, status.facts[mode], params.tol, status.done)
            if self._polls and status.is_done():
                break
        self._end(mode, phi, params.kappa_tol)


class RowByRow(Multiplicative):
    """PDNR and PQNR: solves each row separately. Zero entries can become positive again, so none are shifted.

    The first outer iterations use MU: rows solved for random factor matrices become sparse by chance, and a component
    that becomes zero in all rows of a mode stays zero.
    """

    def __init__(self, operator: SparseOperator, params: Poisson, problems: RowProblems) -> None:
        super().__init__(operator, params)
        self._rows = RowSolver(operator, problems)

    def queue(self, mode: int, iteration: int) -> None:
        """See `Update`."""
        operator, params, status = self._operator, self._params, self.status
        if iteration < params.mu_iters:
            super().queue(mode, iteration)
            return
        self._begin(mode, 0.0, params.kappa_tol)  # MU marks entries that are nearly zero
        limits = RowLimits(params.inner_iters, params.tol, params.eps)
        self._rows.solve(mode, limits, status.seen, in_turn(mode, operator.order))
        operator.reduce(status.seen[: KKT + 1], "max", mode)
        operator.reduce(status.seen[ITERATIONS:], "sum", mode)
        with operator.span("solve", mode):
            status.facts[mode] = status.seen[: ITERATIONS + 1]
        self._end(mode, operator.spare(mode), 0.0)


def update_of(operator: SparseOperator, params: Poisson) -> Multiplicative:
    """Return the updates for a method."""
    return RowByRow(operator, params, params.rows) if params.rows else Multiplicative(operator, params)


class PoissonStatus:
    """Device memory for the status of an outer iteration.

    Attributes
    ----------
    memory : (bytes,) uint8 device array
        The part that the host reads: `likelihood`, (1,), the sum of ``x log m``; `weights`, (R,); `facts`, (order, 2),
        the last violation and the number of updates of each mode.
    sums : (R,) float64 device array
        Column sums.
    violations : (inner_iters,) float64 device array
        The violation of each update of the current mode.
    done : (1,) int32 device array
        Nonzero once the current mode is solved.
    seen : (3,) float64 device array
        Statistics of the current mode's row problems; see `backend.ops.rowproblems.KKT`.
    """

    def __init__(self, device: Device, order: int, rank: int, inner: int) -> None:
        self._device, self._rank = device, rank
        numbers = device.zeros((1 + rank + 2 * order,), np.float64)
        self.memory, self.likelihood, self.weights = numbers.view(np.uint8), numbers[:1], numbers[1 : 1 + rank]
        self.facts = numbers[1 + rank :].reshape(order, 2)
        self._of_mode = device.zeros((rank + inner + 4,), np.float64)
        self.sums, self.violations = self._of_mode[:rank], self._of_mode[rank:-4]
        self.seen = self._of_mode[-4:-1]
        self.done = self._of_mode[-1:].view(np.int32)[:1]

    def clear(self) -> None:
        """Reset for an outer iteration."""
        self.likelihood.fill(0)
        self.facts.fill(0)

    def begin(self) -> None:
        """Reset for a mode."""
        self._of_mode.fill(0)

    def is_done(self) -> bool:
        """Wait for the device; return whether the current mode is solved."""
        return bool(self._device.to_host(self.done)[0])

    def load(self, weights: NDArray[np.float64], facts: NDArray[np.float64]) -> None:
        """Copy weights and facts from the host."""
        self._device.fill([self.weights, self.facts.reshape(-1)], [weights, facts.reshape(-1)])

    def read(self, memory: NDArray[np.uint8] | None = None) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
        """Return likelihood, weights and facts: from a copy of `memory`, or from the device after waiting for it."""
        numbers = np.array(self._device.to_host(self.memory) if memory is None else memory).view(np.float64)
        end = 1 + self._rank
        return float(numbers[0]), numbers[1:end].copy(), numbers[end:].reshape(-1, 2).copy()
