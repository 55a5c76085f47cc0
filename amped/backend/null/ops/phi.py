"""Phi of one model, as on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

from ...cpu.ops.phi import Divided
from ...ops.phi import PHI, PhiProvider
from ..device import NullDevice


@PHI.provider("null")
def providers(device: NullDevice) -> Sequence[PhiProvider]:
    """Return the providers of the operation."""
    return [Divided(device)]
