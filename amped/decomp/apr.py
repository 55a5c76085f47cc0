"""CP-APR: Poisson tensor factorisation by alternating multiplicative updates, over all ranks.

The algorithm is MU of Chi and Kolda (On tensors, sparsity, and nonnegative factorizations, SIMAX 33(4), 2012,
Algorithms 1 to 3), as `cp_apr` of the Tensor Toolbox and SparTen compute it. Each rank updates the rows that it owns.
The updates of a mode need its own rows of B and of Phi alone: only the last B is gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.given import real, whole

from ..backend.base import Device, Replay
from ..backend.exchange import Machine
from ..backend.providers import multiplies
from ..backend.solve import Takes
from ..models.kruskal import KruskalTensor
from ..operators.base import Operator, in_turn
from ..operators.placement import Solving
from .driver import State
from .initial import unit_sums
from .updates import DivergedError

MOST_INNER = 1000


@dataclass(frozen=True)
class Poisson:
    """What CP-APR is asked for, beside the number of outer iterations; the names are the Tensor Toolbox's.

    Attributes
    ----------
    tol : float
        An inner iteration stops where no KKT violation of its mode, max |min(B, 1 - Phi)|, is as large.
    inner_iters : int
        Updates of a mode in an outer iteration, at most.
    kappa, kappa_tol : float
        What is added to entries that are below `kappa_tol` and should not be zero, as their Phi is above 1.
    eps : float
        The least that values are divided by.
    """

    tol: float = 1e-4
    inner_iters: int = 10
    kappa: float = 1e-2
    kappa_tol: float = 1e-10
    eps: float = 1e-10

    def __post_init__(self) -> None:
        object.__setattr__(self, "inner_iters", whole("inner iters", self.inner_iters, 1, MOST_INNER))
        for name in ("tol", "kappa", "kappa_tol"):
            number = real(name.replace("_", " "), getattr(self, name), "a number of at least 0")
            object.__setattr__(self, name, number)
        object.__setattr__(self, "eps", real("eps", self.eps, "a number above 0", above=True))


class CpApr:
    """See `Method`.

    The state has two arrays and three series:

    weights : (R,)
        The sums of the components' counts; factor matrices have columns of unit sum.
    facts : (N, 2)
        Of each mode: the last KKT violation, and the updates, in the iteration at hand.
    loglikelihood
        ``sum x log m - sum of weights`` after each outer iteration, over the nonzeros.
    kkt
        The largest KKT violation over the modes, as last computed for each.
    inner_iterations
        How often modes were updated.

    Parameters
    ----------
    operator : Operator
        Placed for Phi; holds the factor matrices to start from, which are not negative.
    asked : Poisson
    """

    name, norm = "mu", 1

    def __init__(self, operator: Operator, asked: Poisson) -> None:
        self.operator, self.asked = operator, asked
        device = operator.machine.device
        self._update = _Update(operator, asked)
        exchange, alone = operator.machine.exchange, operator.machine.comm.size == 1
        self._notes = device.queues and not operator.plan.slot and (alone or exchange.overlaps)
        self._replay: Replay | None = None  # of an iteration
        self._warm = False  # whether all that an iteration takes has been compiled and loaded
        self.restart()

    def restart(self, state: State | None = None) -> None:
        """See `Restartable`."""
        self.state = state or self._new_state()
        self._loaded = False

    def _new_state(self) -> State:
        series: dict[str, list[float]] = {"loglikelihood": [], "kkt": [], "inner_iterations": []}
        arrays = {"weights": np.ones(self.operator.ranks[0]), "facts": np.zeros((self.operator.order, 2))}
        return State(arrays, series)

    def merit(self) -> float:
        """See `Restartable`: the log-likelihood."""
        found = self.state.series["loglikelihood"]
        return found[-1] if found else -np.inf

    @property
    def facts(self) -> dict[str, Any]:
        """See `Method`."""
        return {}

    def started(self, factors: Sequence[NDArray[Any]], how: str | None) -> Sequence[NDArray[Any]]:
        """See `Method`: from what is not negative; the sums of columns become weights."""
        scaled, self.state.arrays["weights"] = unit_sums(factors, how)
        return scaled

    def step(self, stop: Callable[[], bool], left: int = 1) -> bool:
        state, first, update = self.state, self.state.mode, self._update
        if not self._loaded:
            update.told.load(state.arrays["weights"], state.arrays["facts"])
            self._loaded = True
        if self._notes and self._warm and state.iterations and not first:
            self._take(update.told.read(self._launched()))
            return True
        if not first:
            update.told.clear()
        for mode in range(first, self.operator.order):
            if mode > first and stop():
                state.mode = mode
                _, state.arrays["weights"], state.arrays["facts"] = update.told.read()
                return False
            update.queue(mode, self.asked.kappa if state.iterations else 0.0)
        state.mode, self._warm = 0, self._warm or not first
        self.operator.join()
        self._take(update.told.read())
        return True

    def _launched(self) -> NDArray[np.uint8]:
        """Compute an iteration as a whole; return what it tells."""
        if self._replay is None:
            operator, told = self.operator, self._update.told
            operator.synchronize()
            self._replay = operator.machine.device.note(self._update.iteration, told.memory, operator.clock)
        assert self._replay is not None
        self._replay.launch()
        return self._replay.wait()

    def _take(self, found: tuple[float, NDArray[np.float64], NDArray[np.float64]]) -> None:
        """Note what an outer iteration has come to."""
        state, (logs, weights, facts) = self.state, found
        likelihood = logs - float(weights.sum())
        if not np.isfinite(likelihood):
            raise DivergedError(f"iteration {state.iterations + 1}: the log-likelihood is {likelihood}")
        state.arrays["weights"], state.arrays["facts"] = weights, facts
        state.series["loglikelihood"].append(likelihood)
        state.series["kkt"].append(float(facts[:, 0].max()))
        state.series["inner_iterations"].append(float(facts[:, 1].sum()))
        state.iterations += 1

    def change(self) -> float | None:
        """See `Method`: of the log-likelihood."""
        found = self.state.series["loglikelihood"]
        return found[-1] - found[-2] if len(found) > 1 else None

    def settled(self, tol: float) -> bool:
        """See `Method`: no mode was updated."""
        updates = self.state.series["inner_iterations"]
        return bool(updates) and updates[-1] == 0

    def factor(self, mode: int) -> NDArray[Any]:
        """See `Method`."""
        return self.operator.factor(mode)

    def model(self) -> KruskalTensor:
        """See `Method`: columns of unit sum, weights descending."""
        weights = self.state.arrays["weights"]
        order = np.argsort(-weights, kind="stable")
        factors = [self.factor(mode)[:, order] for mode in range(self.operator.order)]
        for factor in factors:  # the last bit of what is nearly zero is no number's
            factor[factor <= np.finfo(factor.dtype).smallest_subnormal] = 0
        return KruskalTensor(weights[order], factors, (), self.state.converged, self.state.series)


class _Update:
    """Queues the updates of modes."""

    def __init__(self, operator: Operator, asked: Poisson) -> None:
        self._operator, self._asked = operator, asked
        rank, device = operator.ranks[0], operator.machine.device
        self._multiply = multiplies(device).make(device, rank, operator.options.dtype)
        self.told = _Told(device, operator.order, rank, asked.inner_iters)
        # Where that costs little, or spares much, the host asks whether a mode is done.
        self._asks = device.on_host or operator.plan.slot > 0

    def iteration(self) -> None:
        """Queue an outer iteration, but the first one."""
        self.told.clear()
        for mode in range(self._operator.order):
            self.queue(mode, self._asked.kappa)
        self._operator.join()

    def queue(self, mode: int, kappa: float) -> None:
        """Update a mode until its KKT violations are small; wait for nothing that a device can decide."""
        operator, asked, told, multiply = self._operator, self._asked, self.told, self._multiply
        matrix, others = operator.computed(mode), in_turn(mode, operator.order)
        operator.join()
        with operator.span("solve", mode):
            told.begin()
            multiply.begin(matrix, told.weights, kappa, asked.kappa_tol)
        for inner in range(asked.inner_iters):
            violation = told.violations[inner : inner + 1]
            then = [mode] * (asked.inner_iters - inner - 1) + others
            phi = operator.phi(mode, asked.eps, then, told.done)
            with operator.span("solve", mode):
                multiply.measure(phi, matrix, violation, told.done)
            operator.reduce(violation, "max", mode)
            with operator.span("solve", mode):
                multiply.apply(phi, matrix, violation, told.facts[mode], asked.tol, told.done)
            if self._asks and told.is_done():
                break
        if mode == operator.order - 1:
            operator.add_logs(mode, asked.eps, told.likelihood, others)
        with operator.span("solve", mode):
            multiply.add_columns(operator.owned(mode), told.sums)
        operator.reduce(told.sums, "sum", mode)
        with operator.span("solve", mode):
            multiply.end(phi, matrix, told.sums, asked.kappa_tol)
            told.weights[...] = told.sums
        operator.publish(mode)


class _Told:
    """Device memory for what decides and what is told of an iteration.

    Attributes
    ----------
    memory : (bytes,) uint8 device array
        What is told: `likelihood`, (1,), the sum of ``x log m``; `weights`, (R,); `facts`, (order, 2), of each mode the
        last violation and the updates.
    sums, violations, done : device arrays
        Sums of columns, (R,); of each update of a mode its violation; (1,) int32, not 0 once a mode is done.
    """

    def __init__(self, device: Device, order: int, rank: int, inner: int) -> None:
        self._device, self._rank = device, rank
        numbers = device.zeros((1 + rank + 2 * order,), np.float64)
        self.memory, self.likelihood, self.weights = numbers.view(np.uint8), numbers[:1], numbers[1 : 1 + rank]
        self.facts = numbers[1 + rank :].reshape(order, 2)
        self._of_mode = device.zeros((rank + inner + 1,), np.float64)
        self.sums, self.violations = self._of_mode[:rank], self._of_mode[rank:-1]
        self.done = self._of_mode[-1:].view(np.int32)[:1]

    def clear(self) -> None:
        """Begin an outer iteration."""
        self.likelihood.fill(0)
        self.facts.fill(0)

    def begin(self) -> None:
        """Begin a mode."""
        self._of_mode.fill(0)

    def is_done(self) -> bool:
        """Wait; return whether the mode at hand is done."""
        return bool(self._device.to_host(self.done)[0])

    def load(self, weights: NDArray[np.float64], facts: NDArray[np.float64]) -> None:
        """Take weights and facts from the host."""
        self._device.fill([self.weights, self.facts.reshape(-1)], [weights, facts.reshape(-1)])

    def read(self, memory: NDArray[np.uint8] | None = None) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
        """Return likelihood, weights and facts: those of a copy of `memory`, or as they are once all is done."""
        numbers = np.array(self._device.to_host(self.memory) if memory is None else memory).view(np.float64)
        end = 1 + self._rank
        return float(numbers[0]), numbers[1:end].copy(), numbers[end:].reshape(-1, 2).copy()


def prepare(device: Device, dtype: np.dtype[Any]) -> None:
    """Begin to compile what CP-APR needs beside Phi, and return at once."""
    multiplies(device).prepare(dtype)


def solving_bytes(machine: Machine, asked: Poisson, order: int) -> Solving:
    """Return how many bytes CP-APR of a tensor of so many modes takes on a device beside Phi."""

    def takes(count: int, rank: int) -> Takes:
        return Takes(8 * (2 + asked.inner_iters + 2 * rank + 2 * order) + multiplies(machine.device).bytes(rank))

    return takes
