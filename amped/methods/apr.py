"""CP-APR: Poisson tensor factorisation by alternating updates of the modes.

The algorithms are MU of Chi and Kolda (On tensors, sparsity, and nonnegative factorizations, SIMAX 33(4), 2012,
Algorithms 1 to 3), as implemented by `cp_apr` of the Tensor Toolbox and by SparTen, and PDNR and PQNR of Hansen,
Plantenga and Kolda (Newton-based optimization for Kullback-Leibler nonnegative tensor factorizations, 2015). Each rank
updates the rows that it owns. Updating a mode only needs the rank's own rows of B, so only the last B is gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import FloatDType, Floats

from ..backend.device import Device
from ..backend.exchange import Machine
from ..backend.ops.mu_update import MU_UPDATE
from ..backend.ops.solve import SolverBytes
from ..models.kruskal import KruskalTensor
from ..operators.kept_rows import Compaction, LargestOfEmpty
from ..operators.placement import Solving
from ..operators.sparse.operator import SparseOperator
from .arranged import scale_to_unit_sums, sorted_columns
from .captured import CapturedIterations
from .driver import BaseMethod, MethodState
from .initial import unit_sums
from .poisson import Poisson, update_of
from .updates import DivergedError

COMPACTION = Compaction(LargestOfEmpty())


class CpApr(BaseMethod[SparseOperator]):
    """CP-APR; see `Method`.

    The state consists of two arrays and three series:

    weights : (R,)
        The sum of each component; columns of the factor matrices have unit sum.
    facts : (N, 2)
        For each mode, the last KKT violation and the number of updates in the current outer iteration. For row
        problems, the largest violation before a row's first update and the updates of all rows.
    loglikelihood
        ``sum x log m - sum of weights`` over the nonzeros, after each outer iteration.
    kkt
        The largest of the modes' last KKT violations.
    inner_iterations
        The number of updates of modes or rows.

    Parameters
    ----------
    operator : SparseOperator
        Placed for Phi or for row problems; holds the initial factor matrices, which are non-negative.
    params : Poisson
    """

    norm = 1
    own_start, measure = None, "loglikelihood"
    draws = True

    def __init__(self, operator: SparseOperator, params: Poisson) -> None:
        self.operator, self.params = operator, params
        device = operator.machine.device
        self._update = update_of(operator, params)
        self.name: str = params.method
        exchange, single = operator.machine.exchange, operator.machine.comm.size == 1
        # Row problems poll the device for the progress of shared rows; MU does not.
        self._captures = (
            device.queues and not self._update.streams and (single or exchange.overlaps) and not params.rows
        )
        self._captured = CapturedIterations(operator, operator, self._update.status.memory)
        self._warm = False  # whether all code of an iteration is compiled and loaded
        self.restart()

    def restart(self, state: MethodState | None = None) -> None:
        """See `Restartable`."""
        self.state = state or self._new_state()
        self._loaded = False

    def _new_state(self) -> MethodState:
        series: dict[str, list[float]] = {"loglikelihood": [], "kkt": [], "inner_iterations": []}
        arrays = {"weights": np.ones(self.operator.ranks[0]), "facts": np.zeros((self.operator.order, 2))}
        return MethodState(arrays, series)

    def merit(self) -> float:
        """See `Restartable`: the log-likelihood."""
        result = self.state.series["loglikelihood"]
        return result[-1] if result else -np.inf

    @property
    def rank(self) -> int:
        """See `Method`."""
        return self.operator.ranks[0]

    @property
    def facts(self) -> dict[str, object]:
        """See `Method`."""
        return {}

    def started(self, factors: Sequence[Floats], how: str | None) -> Sequence[Floats]:
        """See `Method`: requires non-negative matrices; the column sums become weights."""
        scaled, self.state.arrays["weights"] = unit_sums(factors, how)
        return scaled

    def drawn(self) -> None:
        """See `Method`: the column sums become weights."""
        self.state.arrays["weights"] = scale_to_unit_sums(self.operator)

    def step(self, stop: Callable[[], bool], left: int = 1) -> bool:
        state, first, update = self.state, self.state.mode, self._update
        if not self._loaded:
            update.status.load(state.arrays["weights"], state.arrays["facts"])
            self._loaded = True
        if self._captures and self._warm and state.iterations and not first:
            self.take(update.status.read(self._captured.launch(update.iteration)))
            return True
        if not first:
            update.status.clear()
        for mode in range(first, self.operator.order):
            if mode > first and stop():
                state.mode = mode
                _, state.arrays["weights"], state.arrays["facts"] = update.status.read()
                return False
            update.queue(mode, state.iterations)
        state.mode, self._warm = 0, self._warm or not first
        self.operator.wait_comm()
        self.take(update.status.read())
        return True

    def solve(self, mode: int) -> None:
        """Solve one mode with the other modes' matrices fixed; this does not count as an iteration."""
        update = self._update
        update.status.load(self.state.arrays["weights"], self.state.arrays["facts"])
        update.queue(mode, self.params.mu_iters)
        self.operator.wait_comm()
        _, self.state.arrays["weights"], self.state.arrays["facts"] = update.status.read()

    def take(self, read: tuple[float, NDArray[np.float64], NDArray[np.float64]]) -> None:
        """Record the result of an outer iteration, as `PoissonStatus.read` returns it."""
        state, (logs, weights, facts) = self.state, read
        likelihood = logs - float(weights.sum())
        if not np.isfinite(likelihood):
            raise DivergedError(f"iteration {state.iterations + 1}: the log-likelihood is {likelihood}")
        state.arrays["weights"], state.arrays["facts"] = weights, facts
        state.series["loglikelihood"].append(likelihood)
        state.series["kkt"].append(float(facts[:, 0].max()))
        state.series["inner_iterations"].append(float(facts[:, 1].sum()))
        state.iterations += 1

    def settled(self, tol: float) -> bool:
        """See `Method`: whether no mode was updated."""
        updates = self.state.series["inner_iterations"]
        return bool(updates) and updates[-1] == 0

    def model(self) -> KruskalTensor:
        """See `Method`: columns have unit sum; weights are descending."""
        weights = self.state.arrays["weights"]
        order = np.argsort(-weights, kind="stable")
        # The last bit of tiny entries is a mark; see `mu_update`.
        factors = sorted_columns(self.operator, order, self.on_device)
        return KruskalTensor(weights[order], factors, (), self.state.converged, self.state.series)


def prepare(device: Device, dtype: FloatDType) -> None:
    """Start compiling the code that CP-APR needs in addition to Phi; return immediately."""
    MU_UPDATE.require(device).prepare(dtype)


def solving_bytes(machine: Machine, params: Poisson, order: int) -> Solving:
    """Return a function of (rows, rank): the device memory that CP-APR needs in addition to Phi."""

    def takes(count: int, rank: int) -> SolverBytes:
        update = MU_UPDATE.require(machine.device).bytes(rank)
        return SolverBytes(8 * (5 + params.inner_iters + 2 * rank + 2 * order) + update)

    return takes
