"""Multiple runs of CP-APR at once, by multiplicative updates; see `methods.apr` and `multi_run.als`.

Each model has some of the columns (see `backend.ops.phi`); operations on rows are done for all models together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ...backend.device import Array, Device
from ...backend.exchange import Machine
from ...backend.ops.mu_update import MU_UPDATE
from ...backend.ops.phi import Groups, GroupShape, InterleavedPhi
from ...backend.ops.solve import SolverBytes
from ...operators.base import in_turn
from ...operators.columns import Columns
from ...operators.placement import Solving
from ...operators.products import Phi
from ...operators.sparse.operator import SparseOperator
from ..apr import CpApr
from ..poisson import Poisson, normalise
from .als import Key, MultiRun, columns_of

Numbers = NDArray[np.float64]


class AprRuns(MultiRun[Key, CpApr]):
    """Multiple runs of CP-APR. All groups of models have the same number of columns. See `MultiRun`."""

    def __init__(
        self,
        operator: SparseOperator,
        start: Callable[[Columns, Key], CpApr],
        params: Poisson,
        phi: InterleavedPhi,
    ) -> None:
        super().__init__(operator, start)
        self._counts, self._params, self._phi = operator, params, phi
        self._dtype = operator.options.dtype
        self._width, self._columns = self._phi.width(self._dtype), operator.ranks[0]
        machine = operator.machine
        self._multiply = MU_UPDATE.require(machine.device).make(machine.device, self._columns, self._dtype)
        self._status = _Status(machine.device, operator.order, self._columns, params.inner_iters)
        # See `Multiplicative`. Only the CPU skips models that are done by passing fewer groups.
        self._on_host = machine.device.on_host
        self._polls = self._on_host or any(machine.comm.allgather(operator.plan.slot > 0))
        self._models: dict[int, list[int]] = {}  # by a group's first column: ranks of its models, 0 for free places
        self._used = set[int]()  # columns that may be nonzero
        self._places: dict[int, tuple[int, int]] = {}  # by a model's first column: its group's, and its number in it

    def _place(self, rank: int) -> Columns | None:
        """See `MultiRun`: reserves a model's columns in an existing group or in a new one."""
        models = self._phi.models(rank, self._dtype)
        for first, taken in self._models.items():
            if len(taken) == models and not all(taken):
                return self._take(first, taken.index(0), rank)
        free = [first for first in range(0, self._columns, self._width) if first not in self._models]
        if not free:
            return None
        self._models[free[0]] = [0] * models
        return self._take(free[0], 0, rank)

    def _take(self, first: int, model: int, rank: int) -> Columns:
        models = self._models[first]
        models[model] = rank
        place = self._phi.columns(model, len(models), self._dtype)
        begin, apart, every = first + place.start, place.step or 1, self._width // len(models)
        self._places[begin] = first, model
        if begin in self._used:  # the columns that a smaller model does not use must be zero
            whole = Columns(self._counts, begin, every, apart)
            for mode, length in enumerate(self._counts.shape):
                whole.set_factor(mode, np.zeros((length, every), self._dtype))
        return Columns(self._counts, begin, rank, apart)

    def _leave(self, columns: Columns) -> None:
        first, model = self._places.pop(columns.columns.start)
        self._models[first][model] = 0
        if not any(self._models[first]):
            del self._models[first]
            self._used.update(range(first, first + self._width))
        self._used.add(columns.columns.start)

    def _groups(self, columns: Sequence[slice]) -> Groups:
        """Return the groups that contain these columns."""
        result = defaultdict[GroupShape, list[int]](list)
        for first in sorted({self._places[each.start][0] for each in columns}):
            models = self._models[first]
            result[GroupShape(len(models), max(models))].append(first)
        return {kind: np.array(firsts, np.int64) for kind, firsts in result.items()}

    def _iterate(self, methods: Sequence[CpApr]) -> None:
        operator, status, places = self._counts, self._status, [columns_of(method).columns for method in methods]
        self._load(methods, places)
        groups, least = self._groups(places), self._params.kappa_tol
        for mode in range(operator.order):
            operator.wait_comm()
            with operator.span("solve", mode):
                status.begin()
                self._multiply.begin(operator.computed(mode), status.weights, status.kappa, least)
            phi = self._update(mode, places, groups)
            if mode == operator.order - 1:
                product = Phi(self._params.eps, groups=groups)
                operator.add(product, mode, status.logs, in_turn(mode, operator.order))
            normalise(operator, self._multiply, mode, phi, (status.sums, status.weights), least)
        operator.wait_comm()
        logs, weights, facts = status.read()
        for method, place in zip(methods, places, strict=True):
            method.take((float(logs[place.start]), weights[place].copy(), facts[:, place.start].copy()))

    def _load(self, methods: Sequence[CpApr], places: Sequence[slice]) -> None:
        """Start an outer iteration with the weights of each run."""
        weights, kappa, idle = np.zeros(self._columns), np.zeros(self._columns), np.ones(self._columns, np.int32)
        for method, place in zip(methods, places, strict=True):
            weights[place] = method.state.arrays["weights"]
            kappa[place] = self._params.kappa if method.state.iterations else 0.0
            idle[place.start] = 0
        self._status.load(weights, kappa, idle)

    def _update(self, mode: int, places: Sequence[slice], groups: Groups) -> Array:
        """Multiply B by Phi until each run's violation is small; return the last Phi. See `Multiplicative.queue`."""
        operator, params, status = self._counts, self._params, self._status
        matrix, others = operator.computed(mode), in_turn(mode, operator.order)
        for inner in range(params.inner_iters):
            violations, then = status.violations[inner], [mode] * (params.inner_iters - inner - 1) + others
            phi = operator.compute(Phi(params.eps, status.done, groups), mode, then)
            with operator.span("solve", mode):
                self._phi.measure(phi, matrix, groups, violations, status.done)
            operator.reduce(violations, "max", mode)
            with operator.span("solve", mode):
                self._phi.apply(phi, matrix, groups, violations, status.facts[mode], params.tol, status.done)
            if self._polls:
                done = operator.machine.device.to_host(status.done)
                left = [place for place in places if not done[place.start]]
                if not left:
                    break
                if self._on_host and len(left) < len(places):
                    places, groups = left, self._groups(left)
        return phi


class _Status:
    """Device memory for the status of an outer iteration; see `PoissonStatus`.

    Numbers of a model are stored at its first column.

    Attributes
    ----------
    logs, weights, kappa, sums : (R,) float64 device arrays
    facts : (order, R, 2) float64 device array
    violations : (inner iterations, R) float64 device array
    done : (R,) int32 device array
        Nonzero once a model has solved the current mode, and in all columns without a run.
    """

    def __init__(self, device: Device, order: int, columns: int, inner: int) -> None:
        self._device = device
        self._status = device.zeros((2 + 2 * order, columns), np.float64)
        self.logs, self.weights, self.facts = (
            self._status[0],
            self._status[1],
            self._status[2:].reshape(order, columns, 2),
        )
        self._of_mode = device.zeros((1 + inner, columns), np.float64)
        self.sums, self.violations = self._of_mode[0], self._of_mode[1:]
        self.kappa, self.done = device.zeros((columns,), np.float64), device.zeros((columns,), np.int32)
        self._idle = device.zeros((columns,), np.int32)

    def load(self, weights: Numbers, kappa: Numbers, idle: NDArray[np.int32]) -> None:
        """Reset for an outer iteration; `idle` is the value of `done` at the beginning of each mode."""
        self._status.fill(0)
        self._device.fill([self.weights, self.kappa, self._idle], [weights, kappa, idle])

    def begin(self) -> None:
        """Reset for a mode."""
        self._of_mode.fill(0)
        self.done[...] = self._idle

    def read(self) -> tuple[Numbers, Numbers, Numbers]:
        """Wait for the device; return log-likelihoods, weights and facts."""
        result = self._device.to_host(self._status)
        return result[0], result[1], result[2:].reshape(self.facts.shape)


def solving_bytes(machine: Machine, params: Poisson, order: int) -> Solving:
    """Return a function of (rows, columns of all runs): the device memory needed in addition to Phi."""

    def takes(count: int, columns: int) -> SolverBytes:
        each = 8 * (5 + params.inner_iters + 2 * order + 1)
        return SolverBytes(each * columns + 2 * MU_UPDATE.require(machine.device).bytes(columns))

    return takes
