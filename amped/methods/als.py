"""CP-ALS: the canonical polyadic decomposition by alternating least squares.

The algorithm is that of Kolda and Bader (SIAM Review 51(3), 2009, Figure 3.3), as implemented by `cp_als` of the Tensor
Toolbox. Each rank solves the rows that it owns. Once per mode, the ranks all-gather the solved rows and sum the Gram
matrices, norms and inner products, which are small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import FloatDType, Floats
from partitioner.tensors.value_range import NO_NORM
from partitioner.wording import setting

from ..backend.device import Array, Device
from ..backend.exchange import Machine
from ..backend.normal_equations.row_solvers import solver_bytes
from ..backend.ops.equations import EquationsStatus, RunStopped, equations_of
from ..backend.ops.gram import gram_bytes
from ..backend.ops.nonnegative import nonnegative_solver
from ..backend.ops.solve import SolverBytes, solver
from ..models.kruskal import KruskalTensor
from ..operators.base import Operator
from ..operators.kept_rows import Compaction, GramOfEmpty
from ..operators.placement import Solving
from .arranged import arranged
from .constraints import NONE, Constraints
from .driver import ConstrainedCp, MethodState, never
from .extrapolation import BEGIN, QUIET, Extrapolation
from .pipelined import Pipelined
from .plain_als import PlainAls
from .updates import DivergedError, LeastSquares, Passes, run_passes

MOST_CHECKED = 64  # iterations computed with the host before pipelining is tried again


class CpAls(ConstrainedCp[Operator]):
    """CP-ALS; see `Method`.

    The state consists of three arrays and one or two series:

    weights : (R,)
        Column norms of the factor matrix that was solved last.
    norms : (N, R)
        Column norms removed from each factor matrix when it was last solved.
    scales : (N, R)
        Factors by which the columns of the operator's factor matrices must be multiplied. Rows are stored before the
        norms of their columns are known, divided by roughly the column's largest magnitude in an earlier iteration.
    fit
        ``1 - ||X - M|| / ||X||`` after each iteration.
    objective
        Present if all modes have the same ridge: ``||X - M||**2`` plus `ridge` times the squared norms of the
        components, relative to ``||X||**2``. It never increases.

    In most iterations the host only launches work and reads the fit. The host takes part in the first iteration and
    whenever a flag reports an exceptional case; the device then restores the state at the beginning of the iteration.

    Parameters
    ----------
    operator : Operator
        Has the same number of columns in all modes, and holds the initial factor matrices.
    constraints : Constraints
    accelerate : bool
        Whether iterations begin at extrapolated factor matrices; see `extrapolation.suits`. They never lower the fit.

    Attributes
    ----------
    checked : int
        Number of coming iterations in which the host takes part.
    """

    name = "als"
    own_start = None

    def __init__(self, operator: Operator, constraints: Constraints = NONE, accelerate: bool = False) -> None:
        self.operator, self.constraints = operator, constraints
        first = constraints.solved(operator.order)[0]
        self.draws = not constraints.fixed
        # Constrained runs take the lengths of all columns out of the start.
        self.unread_start = () if constraints or not operator.machine.device.on_host else (first,)
        self._plain = PlainAls(operator, constraints) if PlainAls.suits(operator) else None
        self._pipelined = None if self._plain else self._pipeline()
        modes = constraints.solved(operator.order)
        extrapolates = accelerate and len(modes) > 1
        self._extrapolation = Extrapolation(operator, modes, constraints.nonnegative) if extrapolates else None
        self.quiet = QUIET if extrapolates else 1
        self.restart()

    def _pipeline(self) -> Pipelined | None:
        operator = self.operator
        if not all(operator.machine.everyone.allgather(operator.plan.pipelined and self._update.can_pipeline)):
            return None
        return Pipelined(operator, self._update.equations, self._update.iteration)

    @cached_property
    def _update(self) -> LeastSquares:
        """The row solver, created on first use: batched runs rarely need their own."""
        return LeastSquares.of_run(self.operator, self.constraints)

    def restart(self, state: MethodState | None = None) -> None:
        """See `Restartable`."""
        if self._pipelined:
            self._pipelined.settle()
        self.state = state or self._new_state()
        self._loaded = False  # whether the equations hold this state
        self._exact = False  # whether fits are near 1 and so computed in double precision
        self._plain_loaded = False
        self.checked = self._next_checked = 1 if self._plain is None else 0
        if self._extrapolation:
            self._extrapolation.restart()

    def started(self, factors: Sequence[Floats], how: str | None) -> Sequence[Floats]:
        """See `Method`: accepts any matrices that satisfy the constraints."""
        self.constraints.check_start(factors, how)
        return factors

    def _new_state(self) -> MethodState:
        rank, shape = self.operator.ranks[0], (self.operator.order, self.operator.ranks[0])
        arrays = {"weights": np.ones(rank), "norms": np.ones(shape), "scales": np.ones(shape)}
        return MethodState(arrays, {"fit": [], **({"objective": []} if self.constraints.common_ridge else {})})

    def step(self, stop: Callable[[], bool], left: int = 1) -> bool:
        if self._extrapolation is None or self.state.mode or self.state.iterations < BEGIN:
            return self.iterate(stop, left)
        return self._extrapolation.step(self, stop)

    def reload(self, moved: Sequence[int] = ()) -> None:
        """See `Extrapolated`."""
        if self._plain is not None and self._plain_loaded and moved:
            self._plain.reload(moved)
            return
        self._plain_loaded = False
        if self._loaded:
            self._update.reload(*self.standing())

    def column_scales(self, mode: int) -> NDArray[np.float64]:
        """See `Extrapolated`."""
        scales: NDArray[np.float64] = self.state.arrays["scales"][mode]
        return scales

    def iterate(self, stop: Callable[[], bool], left: int = 1) -> bool:
        """See `step`; without extrapolation."""
        pipelined = self._pipelined
        if self._plain is not None and not self.checked and not self.state.mode:
            return self._step_plain(self._plain, stop)
        if not self._loaded:
            self._load()
        if pipelined is None or self.checked or self.state.mode:
            self._plain_loaded = False
            return run_passes(self.operator, self.passes(stop))
        status = pipelined.next(self._exact, left)
        flags, fit = self._agreed(status)
        if flags:
            pipelined.back()
            self._raised()
            return run_passes(self.operator, self.passes(stop))
        self._take(status, self._update.modes[-1])
        self.advance(fit, status.squares)
        return True

    def _step_plain(self, plain: PlainAls, stop: Callable[[], bool]) -> bool:
        state, arrays = self.state, self.state.arrays
        if not self._plain_loaded:
            arrays.update(plain.load(*self.standing()))
            self._loaded, self._plain_loaded = False, True
        # Copies, because an earlier state may have the old arrays.
        arrays["norms"], arrays["scales"] = arrays["norms"].copy(), arrays["scales"].copy()
        status = plain.iteration(arrays["norms"], arrays["scales"], arrays["weights"], state.iterations == 0, stop)
        arrays["weights"] = status.weights.copy()
        if not np.isfinite(status.fit):
            state.mode, self._plain_loaded = status.mode, False
            if status.stopped:
                return False
            self._raised()
            self._load()
            return run_passes(self.operator, self.passes(stop))
        self.advance(status.fit, status.squares)
        return True

    def _raised(self) -> None:
        """Check the next iterations on the host after a flag; each further flag doubles their number."""
        self.checked = self._next_checked
        self._next_checked = min(2 * self._next_checked, MOST_CHECKED)

    def advance(self, fit: float, squares: float) -> None:
        """Record an iteration computed without the host and its fit; `squares`: see `EquationsStatus`."""
        self._next_checked = max(1, self._next_checked // 2)
        self._count(fit, squares)

    def stand(self, stopped: RunStopped, raised: bool) -> None:
        """Continue from the state in which a batch left the run; `raised`: because it raised a flag."""
        status, state = stopped.status, self.state
        arrays = {"norms": status.norms, "scales": status.scales, "weights": stopped.weights}
        state.arrays.update(arrays)
        state.mode, self._loaded = stopped.mode, False
        if raised:
            self._raised()

    def standing(self) -> tuple[EquationsStatus, float, NDArray[np.float64] | None]:
        """Return the state in the form that equations take: status, best fit, and weights (None before any solve)."""
        state, fits = self.state, self.state.series["fit"]
        last, best = (fits[-1], max(fits)) if fits else (np.nan, 0.0)
        status = EquationsStatus(0, state.iterations, last, state.arrays["norms"], state.arrays["scales"])
        return status, best, state.arrays["weights"] if state.iterations or state.mode else None

    def _load(self) -> None:
        self._update.load(*self.standing())
        self._loaded = True

    def _agreed(self, status: EquationsStatus) -> tuple[bool, float]:
        """Return whether any rank raised a flag, and rank 0's fit: ranks may differ in the last bit."""
        comm = self.operator.machine.everyone
        agreed = np.array([status.flags, status.fit if comm.rank == 0 else -np.inf])
        if comm.size > 1:
            comm.all_reduce(agreed, "max")
        return bool(agreed[0]), float(agreed[1])

    def passes(self, stop: Callable[[], bool] = never) -> Passes[bool]:
        """Compute an iteration with the host taking part; the caller computes the MTTKRPs that this yields."""
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
        if first == 0:  # a whole iteration has run: all code is compiled
            self.checked = max(0, self.checked - 1)
        self._count(status.fit, status.squares)
        return True

    def _take(self, status: EquationsStatus, mode: int) -> None:
        arrays = self.state.arrays
        arrays["norms"], arrays["scales"], arrays["weights"] = status.norms, status.scales, status.norms[mode].copy()

    def _count(self, fit: float, squares: float) -> None:
        series = self.state.series
        series["fit"].append(1.0 if self.operator.norm == NO_NORM else fit)
        if "objective" in series:
            series["objective"].append(self.constraints.objective(fit, squares, self.operator.norm))
        self.state.iterations += 1

    def merit(self) -> float:
        """See `Restartable`: the fit, or the negative objective."""
        series = self.state.series
        objectives = series.get("objective", [])
        return -objectives[-1] if objectives else series["fit"][-1] if series["fit"] else -np.inf

    def factor(self, mode: int) -> Floats:
        """See `Method`."""
        return self.operator.factor(mode, self._matrices)

    def model(self) -> KruskalTensor:
        """See `Method`: columns have unit norm as defined by the constraints; weights are descending."""
        state, constraints = self.state, self.constraints
        weights, scales = state.arrays["weights"], state.arrays["scales"]
        result = arranged(
            self.operator, self._matrices, weights, scales, constraints.norm, not constraints, self.on_device
        )
        result.fits, result.converged = tuple(state.series["fit"]), state.converged
        return result

    @property
    def _matrices(self) -> Array | None:
        return self._pipelined.matrices if self._pipelined else None

    @contextmanager
    def _located(self, mode: int) -> Iterator[None]:
        """Add the place and the likely cause to a `DivergedError`; replicas raise that of any of them. Collective."""
        diverged: DivergedError | None = None
        try:
            yield
        except DivergedError as error:
            diverged = self._explained(error, mode)
        if (others := self.operator.machine.others) is not None:  # the arithmetic of replicas may differ
            diverged = next((each for each in others.allgather(diverged) if each is not None), None)
        if diverged is not None:
            raise diverged from None

    def _explained(self, error: DivergedError, mode: int) -> DivergedError:
        """Return the error with the place and the likely cause."""
        options = self.operator.options
        if options.gather == "fp16":
            cause = f"numbers above 65504, the limit of {setting('gather', 'fp16')}: use bf16 or full"
        elif options.precision == "fp32":
            cause = f"products beyond single precision: try {setting('precision', 'fp64')} or smaller values"
        else:
            cause = "values or initial factors so large that products exceed double precision"
        where = f"iteration {self.state.iterations + 1}, mode {mode}"
        return DivergedError(f"{where}: {error}; likely cause: {cause}")


def prepare(device: Device, rank: int, dtype: FloatDType, nonnegative: bool = False) -> None:
    """Start compiling the code that a decomposition needs in addition to MTTKRPs; return immediately."""
    if nonnegative:
        nonnegative_solver(device, rank, dtype).prepare(rank, dtype)
    solver(device, rank, dtype).prepare(rank, dtype)
    equations_of(device, rank).prepare(rank, dtype)


def compaction(constraints: Constraints = NONE) -> Compaction:
    """Return how hypersparse modes are compacted: fixed modes keep all rows."""
    return Compaction(GramOfEmpty(), constraints.fixed)


def solving_bytes(machine: Machine, dtype: FloatDType, order: int, constraints: Constraints = NONE) -> Solving:
    """Return a function of (rows, rank): the device memory that CP-ALS needs in addition to an MTTKRP."""
    device, parts = machine.device, machine.comm.size

    def takes(count: int, rank: int) -> SolverBytes:
        kept, passing = solver_bytes(device, count, rank, dtype, bool(constraints))
        small = equations_of(device, rank).bytes(order, rank, parts)
        grams = gram_bytes(device, count, rank)  # the Gram matrices of the start
        return SolverBytes(kept + small, max(passing, grams))

    return takes
