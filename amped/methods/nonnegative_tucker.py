"""Non-negative Tucker decompositions: core and factor matrices without negative numbers.

Minimises ``||X - M||**2`` by block coordinate descent: the rows of a factor matrix by HALS (Phan and Cichocki, Extended
HALS algorithm for nonnegative Tucker decomposition and its applications for multiway analysis and classification,
Neurocomputing 74(11), 2011), the core by accelerated projected gradients. Neither increases the objective.

The product of the tensor with all factor matrices but one does not depend on that one, nor on the core. So each product
serves two updates, of a factor matrix and of the core.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats

from ..backend.device import Array
from ..backend.normal_equations.hals import sweep_columns
from ..errors import InputError
from ..models.tucker import TuckerTensor
from ..operators.base import CoreOperator, in_turn
from ..operators.products import Ttmc
from .driver import MethodState
from .extrapolation import BEGIN, QUIET, Extrapolation
from .nonnegative_core import solve_core, times
from .tucker import FEW, TuckerMethod
from .tucker_params import Compression
from .updates import DivergedError

SWEEPS = 10  # of HALS over the columns
STEPS = 30  # of the core
FIRST_STEPS = 100  # of the first core

Matrix = NDArray[np.float64]


class NonnegativeTucker(TuckerMethod):
    """Non-negative Tucker decomposition; see `Method` and `TuckerMethod`, whose state it has."""

    norm = 1

    def __init__(self, operator: CoreOperator, wanted: Compression, own_start: Sequence[Floats] | None = None) -> None:
        modes = wanted.solved(operator.order)
        extrapolates = wanted.accelerate and len(modes) > 1
        self._extrapolation = Extrapolation(operator, modes, modes, ["core"]) if extrapolates else None
        self.quiet = QUIET if extrapolates else 1
        super().__init__(operator, wanted, own_start)
        self.name = "hals"

    def restart(self, state: MethodState | None = None) -> None:
        super().restart(state)
        self._grams: list[Matrix] | None = None
        if self._extrapolation:
            self._extrapolation.restart()

    def started(self, factors: Sequence[Floats], how: str | None) -> Sequence[Floats]:
        """See `Method`: accepts non-negative matrices; singular vectors are replaced by their magnitudes."""
        result = [np.abs(each) if how == "nvecs" else each for each in super().started(factors, how)]
        for mode, factor in enumerate(result):
            if factor.min() < 0:
                raise InputError(f"factor_{mode} of the start has negative entries, but the model is non-negative")
        return result

    def step(self, stop: Callable[[], bool], left: int = 1) -> bool:
        if self._extrapolation is None or self.state.mode or self.state.iterations < BEGIN:
            return self.iterate(stop)
        return self._extrapolation.step(self, stop)

    def reload(self, moved: Sequence[int] = ()) -> None:
        """See `Extrapolated`."""
        self._grams = None

    def column_scales(self, mode: int) -> None:
        """See `Extrapolated`: matrices are stored as they are."""

    def iterate(self, stop: Callable[[], bool], left: int = 1) -> bool:
        """See `step`; without extrapolation."""
        operator, state = self.operator, self.state
        if self._grams is None:
            self._grams = [self._gram(mode) for mode in range(operator.order)]
        modes = [mode for mode in self._modes if mode >= state.mode]
        for mode in modes:
            if mode > modes[0] and stop():
                state.mode = mode
                return False
            ttmc = operator.compute(Ttmc(self._needs_double), mode, in_turn(mode, operator.order, self._modes))
            with operator.span("solve", mode):
                data = self._solve_mode(mode, ttmc)
            operator.publish(mode)
        self._record(data)
        return True

    @property
    def _needs_double(self) -> bool:
        """Whether products are computed in double precision, because the error is near their rounding error."""
        fits = self.state.series["fit"]
        return bool(fits) and 1 - fits[-1] < FEW * math.sqrt(self._noise)

    def _solve_mode(self, mode: int, ttmc: Array) -> Matrix:
        """Update a factor matrix and the core; return the tensor times all transposed factor matrices. Collective."""
        operator, device, core = self.operator, self.operator.machine.device, self.state.arrays["core"]
        rows = device.xp.ascontiguousarray(operator.owned(mode).T, dtype=np.float64)
        assert self._grams is not None
        operator.wait_comm()
        if not self.state.iterations and mode == self._modes[0]:
            data = self._data(mode, rows, ttmc)
            core = solve_core(np.zeros(core.shape), data, self._grams, FIRST_STEPS)
        unfolded = np.ascontiguousarray(np.moveaxis(core, mode, 0).reshape(core.shape[mode], -1))
        others = np.moveaxis(times(core, self._grams, mode), mode, 0).reshape(unfolded.shape)
        right = device.xp.matmul(device.to_device(unfolded), ttmc.T)
        sweep_columns(device.xp, rows, right, unfolded @ others.T, SWEEPS)
        operator.owned(mode)[...] = rows.T
        rows = device.xp.ascontiguousarray(operator.owned(mode).T, dtype=np.float64)
        data = self._data(mode, rows, ttmc)
        core = solve_core(core, data, self._grams, STEPS)
        if not np.isfinite(core).all():
            raise DivergedError(f"iteration {self.state.iterations + 1}, mode {mode}: the core tensor is not finite")
        self.state.arrays["core"] = core
        return data

    def _data(self, mode: int, rows: Array, ttmc: Array) -> Matrix:
        """Return the tensor times all transposed factor matrices; update the Gram matrix of a mode. Collective.

        `rows`, (R_n, owned), are the owned ones of its factor matrix.
        """
        operator, device, rank = self.operator, self.operator.machine.device, len(rows)
        sums = device.empty((rank, ttmc.shape[1] + rank), np.float64)
        sums[:, :rank], sums[:, rank:] = device.xp.matmul(rows, rows.T), device.xp.matmul(rows, ttmc)
        operator.reduce(sums, "sum", mode)
        numbers = np.array(operator.machine.comm.bcast(device.to_host(sums)))
        assert self._grams is not None
        self._grams[mode] = numbers[:, :rank]
        others = [each for m, each in enumerate(operator.ranks) if m != mode]
        return np.ascontiguousarray(np.moveaxis(numbers[:, rank:].reshape(rank, *others), 0, mode))

    def _record(self, data: Matrix) -> None:
        """Record the fit of an iteration, from the tensor times all transposed factor matrices."""
        state, norm, core = self.state, self.operator.norm, self.state.arrays["core"]
        assert self._grams is not None
        scaled = core / norm
        left = 1 - 2 * float(np.vdot(data / norm, scaled)) + float(np.vdot(scaled, times(scaled, self._grams)))
        state.series["fit"].append(1 - math.sqrt(max(0.0, left)))
        state.mode = 0
        state.iterations += 1

    def model(self) -> TuckerTensor:
        """See `Method`: columns have unit sum, except of matrices that are fixed or the identity."""
        operator, state, core = self.operator, self.state, self.state.arrays["core"]
        factors, final = list[Floats](), {*self.wanted.fixed, *self.wanted.uncompressed}
        for mode in range(operator.order):
            rows = operator.rows(mode)
            if mode not in final:
                sums = rows.sum(axis=0, dtype=np.float64)
                sums[sums == 0] = 1
                rows = (rows / sums).astype(rows.dtype)
                core = np.moveaxis(np.moveaxis(core, mode, -1) * sums, -1, mode)
            factors.append(operator.expand(mode, rows))
        return TuckerTensor(np.ascontiguousarray(core), factors, state.series["fit"], state.converged)
