"""Small matrices beside a CPU's factor matrices: in compiled code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...normal_equations.constrained import HostConstrained
from ...normal_equations.host import FIT, ITERATIONS, HostEquations, Matrix, noise_limit
from ...normal_equations.host_provider import HostEquationsProvider
from ...ops.equations import (
    CONDITION,
    EQUATIONS,
    NOT_FINITE,
    ConstrainedEquations,
    ConstraintBounds,
    Equations,
    EquationsProvider,
    Terms,
)
from ..device import CpuDevice
from ..kernels import normal_equations

MOST_COMPILED = 96  # columns: with more, elimination in compiled code takes longer than LAPACK


class CpuEquations(HostEquations):
    """See `Equations`."""

    def prepare(self, mode: int, double: bool = False) -> None:
        state = self._state
        if self._terms.rank > MOST_COMPILED:
            super().prepare(mode, double)
            return
        condition = normal_equations.prepare(
            state.grams, state.norms, state.scales, mode, self.totals, state.divisor, self.inverse
        )
        if not condition <= min(CONDITION, np.inf if double else noise_limit(self._terms, state.facts[FIT])):
            super().prepare(mode, double)

    def finish(self, mode: int, again: bool = False) -> None:
        state, most = self._state, self._terms.most
        first = state.facts[ITERATIONS] == 0
        columns = state.norms, state.scales, state.grams
        if flag := normal_equations.finish(self.totals, state.divisor, mode, *columns, first, again, most):
            self._raise(flag)


class CpuConstrained(HostConstrained):
    """See `ConstrainedEquations`."""

    def _prepare_system(self, begin: Matrix) -> None:
        state, mode, system = self._state, self._mode, self.system
        own = state.divisor, self._ridge[mode]
        if not normal_equations.constrain(state.grams, state.scales, mode, *own, system.gram, system.right):
            self._raise(NOT_FINITE)
        system.begin[...] = begin

    def finish(self, mode: int, again: bool = False) -> None:
        state = self._state
        columns = state.norms, state.scales, state.grams
        if flag := normal_equations.finish(self.totals, state.divisor, mode, *columns, True, again, self._terms.most):
            self._raise(flag)
        else:
            state.weights[...] = state.norms[mode]


class CpuEquationsProvider(HostEquationsProvider):
    """See `EquationsProvider`; suits all."""

    def make(self, terms: Terms, dtype: np.dtype[np.floating]) -> Equations:
        return CpuEquations(self._device, terms)

    def make_constrained(
        self, terms: Terms, dtype: np.dtype[np.floating], bounds: ConstraintBounds
    ) -> ConstrainedEquations:
        return CpuConstrained(self._device, terms, bounds)


@EQUATIONS.provider("cpu")
def providers(device: CpuDevice) -> Sequence[EquationsProvider]:
    """Return the providers of the operation."""
    return [CpuEquationsProvider(device)]
