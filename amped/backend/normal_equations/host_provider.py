"""Equations of which the host decides what becomes of them, on any device: a provider for all."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..device import Device
from ..ops.equations import ConstrainedEquations, ConstraintBounds, Equations, Terms
from .constrained import HostConstrained
from .host import HostEquations

INVERTING = 6  # matrices that are there for a while


class HostEquationsProvider:
    """See `EquationsProvider`; suits all."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def suits(self, rank: int) -> bool:
        return True

    def prepare(self, rank: int, dtype: np.dtype[Any]) -> None:
        """See `EquationsProvider`: nothing is compiled."""

    def bytes(self, order: int, rank: int, parts: int) -> int:
        matrices = 2 if self._device.on_host else 2 + order + INVERTING
        return 8 * rank * (matrices * rank + parts + 3)

    def make(self, terms: Terms, dtype: np.dtype[np.floating]) -> Equations:
        return HostEquations(self._device, terms)

    def make_constrained(
        self, terms: Terms, dtype: np.dtype[np.floating], bounds: ConstraintBounds
    ) -> ConstrainedEquations:
        return HostConstrained(self._device, terms, bounds)
