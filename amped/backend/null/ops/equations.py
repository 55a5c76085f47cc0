"""As on a CPU, but for the memory that a GPU would have them in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...cpu.ops.equations import CpuEquations
from ...normal_equations.constrained import HostConstrained
from ...normal_equations.host_provider import HostEquationsProvider
from ...ops.equations import EQUATIONS, ConstrainedEquations, ConstraintBounds, Equations, EquationsProvider, Terms
from ..device import NullDevice


class NullEquations(CpuEquations):
    """See `Equations`: they can be queued ahead of the host."""

    def __init__(self, device: NullDevice, terms: Terms) -> None:
        super().__init__(device, terms)
        self.memory = self._state.memory


class NullConstrained(HostConstrained):
    """See `ConstrainedEquations`: they can be queued ahead of the host."""

    def __init__(self, device: NullDevice, terms: Terms, bounds: ConstraintBounds) -> None:
        super().__init__(device, terms, bounds)
        self.memory = self._state.memory


class Null(HostEquationsProvider):
    """See `EquationsProvider`; suits all."""

    def __init__(self, device: NullDevice) -> None:
        super().__init__(device)
        self._null = device

    def make(self, terms: Terms, dtype: np.dtype[np.floating]) -> Equations:
        return NullEquations(self._null, terms)

    def make_constrained(
        self, terms: Terms, dtype: np.dtype[np.floating], bounds: ConstraintBounds
    ) -> ConstrainedEquations:
        return NullConstrained(self._null, terms, bounds)


@EQUATIONS.provider("null")
def providers(device: NullDevice) -> Sequence[EquationsProvider]:
    """Return the providers of the operation."""
    return [Null(device)]
