"""CP-ALS: the canonical polyadic decomposition by alternating least squares, over all ranks.

The algorithm is that of Kolda and Bader (SIAM Review 51(3), 2009, Figure 3.3), as `cp_als` of the Tensor Toolbox
computes it. Each rank solves the rows that it owns; ranks then all-gather the solved rows, once for each mode,
and add up Gram matrices, norms and inner products, which are small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from ..backend import rows
from ..backend.base import Device
from ..backend.providers import solver
from ..backend.solve import Takes
from ..models.kruskal import KruskalTensor
from ..operators.base import Operator, in_turn
from ..operators.limits import far
from ..operators.placement import Solving
from .driver import State
from .fit import Fits, condition_limit
from .updates import DivergedError, LeastSquares, Matrix, Totals, Vector

VANISHED = 1e-30  # of the longest component: shorter ones are of no consequence


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

    Parameters
    ----------
    operator : Operator
        Of one rank for all modes; holds the factor matrices to start from.
    """

    name = "als"

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        rank, shape = operator.ranks[0], (operator.order, operator.ranks[0])
        arrays = {"weights": np.ones(rank), "norms": np.ones(shape), "scales": np.ones(shape)}
        self.state = State(arrays, {"fit": []})
        self._update, self._fits = LeastSquares(operator), Fits(operator)
        self._grams: list[Matrix] = []

    def step(self, stop: Callable[[], bool]) -> bool:
        state, operator = self.state, self.operator
        arrays, first = state.arrays, state.mode
        self._grams = self._grams or [self._gram(mode) * np.outer(s, s) for mode, s in enumerate(arrays["scales"])]
        for mode in range(first, operator.order):
            if mode > first and stop():
                state.mode = mode
                return False
            with self._telling(mode):
                dots = self._solve(mode)
            arrays["weights"] = arrays["norms"][mode].copy()
        state.mode = 0
        fit = self._fits.compute(state, self._grams, dots)
        with self._telling(operator.order - 1):
            if not np.isfinite(fit):
                raise DivergedError(f"the fit is {fit}")
        state.series["fit"].append(fit)
        state.iterations += 1
        return True

    def change(self) -> float | None:
        """See `Method`: of the fit."""
        fits = self.state.series["fit"]
        return fits[-1] - fits[-2] if len(fits) > 1 else None

    def model(self) -> KruskalTensor:
        """See `Method`: unit 2-norm columns, weights descending."""
        state = self.state
        found = KruskalTensor(state.arrays["weights"], [], state.series["fit"], state.converged)
        for mode, scale in enumerate(state.arrays["scales"]):
            found.factors.append(factor := self.operator.factor(mode))
            np.multiply(factor, scale, out=factor, casting="same_kind")
        return found.arrange()

    @contextmanager
    def _telling(self, mode: int) -> Iterator[None]:
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

    def _solve(self, mode: int) -> Vector:
        """Compute, solve and publish the owned rows of a mode, and normalise its columns; return `Totals.dots`.

        Where columns of the other modes nearly depend on each other, a small rounding error of the MTTKRP becomes a
        large error of the solution. Where it may be too large, the MTTKRP is computed again in double precision.
        """
        totals = self._solve_once(mode, condition_limit(self.operator.options, self.state))
        if totals.noisy:
            totals = self._solve_once(mode, double=True)
        return totals.dots

    def _solve_once(self, mode: int, limit: float = np.inf, double: bool = False) -> Totals:
        operator, arrays, update = self.operator, self.state.arrays, self._update
        norms, scales, most = arrays["norms"], arrays["scales"], far(operator.order)
        divisor = norms[mode] * scales[mode]  # as they were stored last
        solve = update.rows(mode, self._grams, scales, divisor, limit)
        solved = operator.mttkrp(mode, solve, in_turn(mode, operator.order), double)
        gram, _, largest, noisy = totals = update.totals(mode)
        if noisy:
            return totals
        if not np.all((largest == 0) | ((largest > 1 / most) & (largest < most))):  # products could overflow
            # By powers of two: so rows are rounded as if they were not divided. A component that has all but vanished
            # beside the others is not enlarged: its scale would fall from mode to mode until it is 0.
            lengths = largest * divisor
            grown = divisor * np.exp2(np.round(np.log2(np.where(largest > 0, largest, 1.0))))
            divisor = np.where(lengths > VANISHED * lengths.max(), grown, 1.0)
            update.rows(mode, self._grams, scales, divisor)(solved, operator.owned(mode))
            operator.publish(mode)
            gram, _, largest, _ = totals = update.totals(mode)
        if not np.all(np.isfinite(gram)):  # on every rank, as in a sum a NaN stays one
            raise DivergedError("the factor matrix is not finite")
        length = np.maximum(largest * divisor, 1.0) if self.state.iterations else np.sqrt(np.diag(gram)) * divisor
        norms[mode] = np.where(length > 0, length, 1.0)
        scales[mode] = scale = divisor / norms[mode]
        self._grams[mode] = gram * np.outer(scale, scale)
        return totals

    def _gram(self, mode: int) -> Matrix:
        device, rank = self.operator.machine.device, self.operator.ranks[mode]
        total = device.zeros((rank, rank), np.float64)
        rows.add_gram(device.xp, self.operator.owned(mode), total)
        return np.array(self.operator.reduce(total, "sum", mode))


def solving_bytes(device: Device, dtype: np.dtype[np.floating]) -> Solving:
    """Return how many bytes CP-ALS takes on a device beside an MTTKRP."""

    def takes(count: int, rank: int) -> Takes:
        kept, passing = solver(device, rank, dtype).bytes(count, rank)
        return Takes(kept, max(passing, min(8 * count * rank, rows.GRAM_BYTES)))  # the first Gram matrices

    return takes
