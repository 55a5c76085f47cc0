"""Normal equations as on the CPU, with their state in device memory as on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from ...cpu.ops.equations import CpuEquations, CpuEquationsProvider
from ...ops.equations import EQUATIONS, Equations, EquationsCase, EquationsProvider
from ..device import NullDevice


class NullEquations(CpuEquations):
    """See `Equations`: work can be queued ahead of the host."""

    def __init__(self, device: NullDevice, case: EquationsCase) -> None:
        super().__init__(device, case)
        self.memory, self.reported = self._state.memory, self._state.memory[: self._state.status_bytes]


class NullEquationsProvider(CpuEquationsProvider):
    """See `EquationsProvider`; supports all ranks."""

    def __init__(self, device: NullDevice) -> None:
        super().__init__(device)
        self._null = device

    def make(self, case: EquationsCase) -> Equations:
        return NullEquations(self._null, case)


@EQUATIONS.provider("null")
def providers(device: NullDevice) -> Sequence[EquationsProvider]:
    """Return the providers of the operation."""
    return [NullEquationsProvider(device)]
