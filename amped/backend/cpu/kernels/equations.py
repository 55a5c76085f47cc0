"""Small matrices beside a CPU's factor matrices: in compiled code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...equations import CONDITION, Equations, Provider, Terms
from ...onhost import OnHost
from ...small import FIT, ITERATIONS, HostEquations, noise_limit
from .. import small
from ..device import CpuDevice


class CpuEquations(HostEquations):
    """See `Equations`."""

    def prepare(self, mode: int, double: bool = False) -> None:
        state = self._state
        condition = small.prepare(
            state.grams, state.norms, state.scales, mode, self.totals, state.divisor, self.inverse
        )
        if not condition <= min(CONDITION, np.inf if double else noise_limit(self._terms, state.facts[FIT])):
            super().prepare(mode, double)

    def finish(self, mode: int, again: bool = False) -> None:
        state, most = self._state, self._terms.most
        first = state.facts[ITERATIONS] == 0
        columns = state.norms, state.scales, state.grams
        if flag := small.finish(self.totals, state.divisor, mode, *columns, first, again, most):
            self._raise(flag)


class Compiled(OnHost):
    """See `Provider`; suits all."""

    def make(self, terms: Terms, dtype: np.dtype[np.floating]) -> Equations:
        return CpuEquations(self._device, terms)


def providers(device: CpuDevice) -> Sequence[Provider]:
    """Return the providers of the family."""
    return [Compiled(device)]
