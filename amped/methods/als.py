"""CP-ALS: the canonical polyadic decomposition by alternating least squares, over all ranks.

The algorithm is that of Kolda and Bader (SIAM Review 51(3), 2009, Figure 3.3), as `cp_als` of the Tensor Toolbox
computes it. Each rank solves the rows that it owns; ranks then all-gather the solved rows, once for each mode,
and add up Gram matrices, norms and inner products, which are small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backend import rows
from ..backend.device import Device
from ..backend.exchange import Machine
from ..backend.normal_equations.row_solvers import solver_bytes
from ..backend.ops.equations import EquationsStatus, RunStopped, equations_of
from ..backend.ops.nonnegative import nonnegative_solver
from ..backend.ops.solve import SolverBytes, solver
from ..models.kruskal import KruskalTensor
from ..operators.base import Operator
from ..operators.placement import Solving
from .constraints import NONE, Constraints
from .driver import MethodState, never
from .pipelined import Pipelined
from .updates import DivergedError, LeastSquares, Passes, run_passes

MOST_CHECKED = 64  # iterations in which the host takes part, before the device is let go ahead once more


class CpAls:
    """See `Method`.

    The state has three arrays and a series:

    weights : (R,)
        Norms taken out of the last factor matrix that was solved.
    norms : (N, R)
        Norms taken out of each factor matrix when it was last solved.
    scales : (N, R)
        What the columns of the operator's factor matrices are to be multiplied with. Rows are stored before the norms
        of their columns are known, divided by about the largest number of the column in an iteration before.
    fit
        ``1 - ||X - M|| / ||X||`` after each iteration.
    objective
        With a ridge that is the same for all modes: ``||X - M||**2`` and `ridge` times the squared norms of the
        components, relative to ``||X||**2``. No iteration makes it larger.

    In most iterations the host only launches and reads the fit. It takes part in the first one, and in those where a
    number says that more than the usual is to be done: then the device goes back to where the iteration began.

    Parameters
    ----------
    operator : Operator
        Of one rank for all modes; holds the factor matrices to start from.
    constraints : Constraints

    Attributes
    ----------
    checked : int
        Iterations in which the host is still to take part.
    """

    name = "als"
    own_start = None

    def __init__(self, operator: Operator, constraints: Constraints = NONE) -> None:
        self.operator, self.constraints = operator, constraints
        can_pipeline = all(operator.machine.comm.allgather(operator.plan.ahead and self._update.can_pipeline))
        self._pipelined = Pipelined(operator, self._update.equations, self._update.iteration) if can_pipeline else None
        self.restart()

    @cached_property
    def _update(self) -> LeastSquares:
        """What solves rows; made when it is needed, as runs side by side seldom do."""
        return LeastSquares.of_run(self.operator, self.constraints)

    def restart(self, state: MethodState | None = None) -> None:
        """See `Restartable`."""
        if self._pipelined:
            self._pipelined.settle()
        self.state = state or self._new_state()
        self._loaded, self._exact = False, False  # whether equations are those of the state; whether fits are near 1
        self.checked = self._next_checked = 1

    @property
    def rank(self) -> int:
        """See `Method`."""
        return self.operator.ranks[0]

    @property
    def norm(self) -> int:
        """See `Method`."""
        return self.constraints.norm

    @property
    def facts(self) -> dict[str, Any]:
        """See `Method`: the constraints."""
        return self.constraints.facts

    def started(self, factors: Sequence[NDArray[Any]], how: str | None) -> Sequence[NDArray[Any]]:
        """See `Method`: from any that the constraints allow."""
        self.constraints.check_start(factors, how)
        return factors

    def _new_state(self) -> MethodState:
        rank, shape = self.operator.ranks[0], (self.operator.order, self.operator.ranks[0])
        arrays = {"weights": np.ones(rank), "norms": np.ones(shape), "scales": np.ones(shape)}
        return MethodState(arrays, {"fit": [], **({"objective": []} if self.constraints.common_ridge else {})})

    def step(self, stop: Callable[[], bool], left: int = 1) -> bool:
        ahead = self._pipelined
        if not self._loaded:
            self._load()
        if ahead is None or self.checked or self.state.mode:
            return run_passes(self.operator, self.passes(stop))
        status = ahead.next(self._exact, left)
        flags, fit = self._agreed(status)
        if flags:
            ahead.back()
            self._raised()
            return run_passes(self.operator, self.passes(stop))
        self._take(status, self._update.modes[-1])
        self.advance(fit, status.squares)
        return True

    def _raised(self) -> None:
        """Let the host take part for a while, as a flag was raised; the longer the more often that happens."""
        self.checked = self._next_checked
        self._next_checked = min(2 * self._next_checked, MOST_CHECKED)

    def advance(self, fit: float, squares: float) -> None:
        """Note an iteration that was computed without the host, and its fit; `squares`: see `EquationsStatus`."""
        self._next_checked = max(1, self._next_checked // 2)
        self._count(fit, squares)

    def stand(self, stopped: RunStopped, raised: bool) -> None:
        """Go on from where a batch has left the run; `raised`: as a flag was raised."""
        status, state = stopped.status, self.state
        arrays = {"norms": status.norms, "scales": status.scales, "weights": stopped.weights}
        state.arrays.update(arrays)
        state.mode, self._loaded = stopped.mode, False
        if raised:
            self._raised()

    def standing(self) -> tuple[EquationsStatus, float, NDArray[np.float64] | None]:
        """Return the state as equations take it: what was told, the best fit, and the weights; None at a start."""
        state, fits = self.state, self.state.series["fit"]
        last, best = (fits[-1], max(fits)) if fits else (np.nan, 0.0)
        status = EquationsStatus(0, state.iterations, last, state.arrays["norms"], state.arrays["scales"])
        return status, best, state.arrays["weights"] if state.iterations or state.mode else None

    def _load(self) -> None:
        self._update.load(*self.standing())
        self._loaded = True

    def _agreed(self, status: EquationsStatus) -> tuple[bool, float]:
        """Return whether any rank has raised a flag, and rank 0's fit: ranks' arithmetic may differ in the last bit."""
        comm = self.operator.machine.comm
        agreed = np.array([status.flags, status.fit if comm.rank == 0 else -np.inf])
        if comm.size > 1:
            comm.all_reduce(agreed, "max")
        return bool(agreed[0]), float(agreed[1])

    def passes(self, stop: Callable[[], bool] = never) -> Passes[bool]:
        """Do what `step` does where the host takes part, but for MTTKRPs."""
        state, first = self.state, self.state.mode
        if not self._loaded:
            self._load()
        modes = [mode for mode in self._update.modes if mode >= first]
        for mode in modes:
            if mode > modes[0] and stop():
                state.mode = mode
                return False
            with self._located(mode):
                self._take((yield from self._update.checked(mode)), mode)
        state.mode = 0
        status, self._exact = yield from self._update.checked_fit()
        with self._located(self.operator.order - 1):
            if not np.isfinite(status.fit):
                raise DivergedError(f"the fit is {status.fit}")
        if first == 0:  # a whole one: all that it takes is compiled
            self.checked = max(0, self.checked - 1)
        self._count(status.fit, status.squares)
        return True

    def _take(self, status: EquationsStatus, mode: int) -> None:
        arrays = self.state.arrays
        arrays["norms"], arrays["scales"], arrays["weights"] = status.norms, status.scales, status.norms[mode].copy()

    def _count(self, fit: float, squares: float) -> None:
        series = self.state.series
        series["fit"].append(fit)
        if "objective" in series:
            series["objective"].append(self.constraints.objective(fit, squares, self.operator.norm))
        self.state.iterations += 1

    def change(self) -> float | None:
        """See `Method`: of the fit."""
        fits = self.state.series["fit"]
        return fits[-1] - fits[-2] if len(fits) > 1 else None

    def settled(self, tol: float) -> bool:
        """See `Method`: the fit has changed by less."""
        change: Any = self.change()
        return change is not None and abs(change) < tol

    def merit(self) -> float:
        """See `Restartable`: the fit, or minus the objective."""
        series = self.state.series
        objectives = series.get("objective", [])
        return -objectives[-1] if objectives else series["fit"][-1] if series["fit"] else -np.inf

    def factor(self, mode: int) -> NDArray[Any]:
        """See `Method`."""
        return self._pipelined.factor(mode) if self._pipelined else self.operator.factor(mode)

    def model(self) -> KruskalTensor:
        """See `Method`: columns of unit norm, the one that `constraints` say, weights descending."""
        state, factors = self.state, [self.factor(mode) for mode in range(self.operator.order)]
        result = KruskalTensor(state.arrays["weights"], factors, state.series["fit"], state.converged)
        result.arrange(state.arrays["scales"], self.constraints.norm)
        return result if self.constraints else result.signed()

    @contextmanager
    def _located(self, mode: int) -> Iterator[None]:
        """Say of a `DivergedError` where it was, and what is likely to be the cause."""
        try:
            yield
        except DivergedError as error:
            options = self.operator.options
            if options.gather == "fp16":
                cause = "numbers above 65504, which --gather fp16 cannot hold: bf16 or full can"
            elif options.precision == "fp32":
                cause = "products beyond single precision: --precision fp64, or smaller values, may help"
            else:
                cause = "values, or a start, so large that products are beyond double precision"
            where = f"iteration {self.state.iterations + 1}, mode {mode}"
            raise DivergedError(f"{where}: {error}; the likely cause: {cause}") from None


def prepare(device: Device, rank: int, dtype: np.dtype[np.floating], nonnegative: bool = False) -> None:
    """Begin to compile what a decomposition needs beside MTTKRPs, and return at once."""
    if nonnegative:
        nonnegative_solver(device, rank, dtype).prepare(rank, dtype)
    solver(device, rank, dtype).prepare(rank, dtype)
    equations_of(device, rank).prepare(rank, dtype)


def solving_bytes(
    machine: Machine, dtype: np.dtype[np.floating], order: int, constraints: Constraints = NONE
) -> Solving:
    """Return how many bytes CP-ALS of a tensor of so many modes takes on a device beside an MTTKRP."""
    device, parts = machine.device, machine.comm.size

    def takes(count: int, rank: int) -> SolverBytes:
        kept, passing = solver_bytes(device, count, rank, dtype, bool(constraints))
        small = equations_of(device, rank).bytes(order, rank, parts)
        grams = min(8 * count * rank, rows.GRAM_BYTES)  # the first ones
        return SolverBytes(kept + small, max(passing, grams))

    return takes
