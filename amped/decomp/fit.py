"""How well a model fits, from what CP-ALS has at hand, and to six digits also where that cancels.

``||X - M||**2`` is ``||X||**2 + ||M||**2 - 2 <X, M>``. Where the model is near the tensor, these terms nearly cancel,
and what is left is what single precision has rounded in ``<X, M>``. The inner product is then computed once more, in
double precision, from the factor matrices as they are stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..backend import rows
from ..operators.base import Operator
from ..options import Options
from .driver import State
from .updates import Matrix, Vector

ROUNDING = 2.0**-22  # of the inner product of a component, relative: a few roundings of products in single precision
SINGLE = 2.0**-24  # the relative error of a row of an MTTKRP: sums of more products have less
ACCURACY = 1e-6  # of a fit
NEAR = 0.75  # once a fit was above it, all are computed in double precision: a tolerance compares those of one kind


class Fits:
    """Computes the fit of what an operator's factor matrices and a state of `CpAls` describe."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._total = operator.machine.device.zeros((operator.ranks[0],), np.float64)

    def compute(self, state: State, grams: Sequence[Matrix], dots: Vector) -> float:
        """Return the fit, ``1 - ||X - M|| / ||X||``; NaN if a number is not finite. Collective.

        It is rank 0's, and so is the choice how it is computed, as ranks' arithmetic may differ in the last bit.

        Parameters
        ----------
        state : State
        grams : sequence of (R, R) arrays
            Of all factor matrices with their columns scaled.
        dots : (R,) array
            Inner products of the last mode's stored columns with those of its MTTKRP.
        """
        norm, comm = self._operator.norm, self._operator.machine.comm
        weights = state.arrays["weights"] * np.prod(state.arrays["scales"], axis=0)
        squared = state.arrays["weights"] @ np.prod(grams, axis=0) @ state.arrays["weights"]
        parts = weights * dots
        distance = _distance(norm, squared, parts)
        near = gains(self._operator.options) and _is_near(state, distance, float(np.abs(parts).sum()) / norm**2)
        distance, near = comm.bcast((distance, near))
        if near:
            distance = comm.bcast(_distance(norm, squared, weights * self._inner_products()))
        return 1 - distance

    def _inner_products(self) -> Vector:
        """Return the inner products of mode 0's stored columns with those of its MTTKRP, in double precision.

        Mode 0 is the one that is computed next, and the first to be copied to a device that does not hold it.
        """
        operator, total = self._operator, self._total
        total.fill(0)
        sums = operator.mttkrp(0, then=range(operator.order), double=True)
        with operator.span("solve", 0):
            rows.add_dots(operator.machine.device.xp, sums, operator.owned(0), total)
        return np.array(operator.reduce(total, "sum", 0))


def gains(options: Options) -> bool:
    """Return whether an operator computes better products if it is asked for double precision."""
    return options.precision == "fp32" and options.gather == "full"


def condition_limit(options: Options, state: State) -> float:
    """Return up to which condition number of the Gram matrices single precision suffices to solve for a mode.

    An MTTKRP with a relative error ``e`` gives a least-squares solution whose model is up to ``e * sqrt(condition)``
    times the tensor's norm away from the right one, at a right angle to the rest: that adds its square to the square of
    the distance. So the fit changes by the less, the farther model and tensor are apart.
    """
    if not gains(options):
        return np.inf
    fits = state.series["fit"]
    distance = max(1 - fits[-1], ACCURACY) if fits else 1.0
    return 2 * ACCURACY * distance / SINGLE**2


def _distance(norm: float, squared: float, parts: Vector) -> float:
    """Return ``||X - M|| / ||X||`` from ``||X||``, ``||M||**2`` and the components' parts of ``<X, M>``."""
    return float(np.sqrt(np.maximum(0.0, norm**2 + squared - 2 * parts.sum())) / norm)


def _is_near(state: State, distance: float, size: float) -> bool:
    """Return whether rounding may change the fit; `size` is the sum of the magnitudes of what makes ``<X, M>``.

    A change ``d`` of the squared distance changes the distance by ``d / 2 / distance``.
    """
    error = ROUNDING * size
    return error > ACCURACY * distance or max(state.series["fit"], default=0.0) > NEAR
