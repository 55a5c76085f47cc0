"""Normal equations beside a CPU's factor matrices: in compiled code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...normal_equations.host import HostEquations, HostEquationsProvider
from ...normal_equations.inverse import noise_limit
from ...normal_equations.state import FIT, ITERATIONS, Matrix
from ...ops.equations import CONDITION, EQUATIONS, NOT_FINITE, Case, Equations, EquationsProvider
from ..device import CpuDevice
from ..kernels import normal_equations

MOST_COMPILED = 96  # columns: with more, elimination in compiled code takes longer than LAPACK


class CpuEquations(HostEquations):
    """See `Equations`."""

    def prepare(self, mode: int, double: bool = False) -> None:
        state = self._state
        if self._bounds.constrained or self._terms.rank > MOST_COMPILED:
            super().prepare(mode, double)
            return
        condition = normal_equations.prepare(
            state.grams, state.norms, state.scales, mode, self._totals, state.divisor, self.inverse
        )
        if not condition <= min(CONDITION, np.inf if double else noise_limit(self._terms, state.facts[FIT])):
            super().prepare(mode, double)

    def _prepare_system(self, mode: int, begin: Matrix) -> None:
        state, system = self._state, self.system
        own = state.divisor, self._bounds.ridge[mode]
        if not normal_equations.constrain(state.grams, state.scales, mode, *own, system.gram, system.right):
            self._raise(NOT_FINITE)
        system.begin[...] = begin

    def finish(self, mode: int, again: bool = False) -> None:
        state, constrained = self._state, self._bounds.constrained
        unit = constrained or state.facts[ITERATIONS] == 0
        columns = state.norms, state.scales, state.grams
        if flag := normal_equations.finish(self._totals, state.divisor, mode, *columns, unit, again, self._terms.most):
            self._raise(flag)
        elif constrained:
            state.weights[...] = state.norms[mode]


class CpuEquationsProvider(HostEquationsProvider):
    """See `EquationsProvider`; suits all."""

    def make(self, case: Case) -> Equations:
        return CpuEquations(self._device, case)


@EQUATIONS.provider("cpu")
def providers(device: CpuDevice) -> Sequence[EquationsProvider]:
    """Return the providers of the operation."""
    return [CpuEquationsProvider(device)]
