"""A CPU reads factor matrices as they are."""

from __future__ import annotations

from collections.abc import Sequence

from ...narrow import Rounding
from ..device import CpuDevice


def providers(device: CpuDevice) -> Sequence[Rounding]:
    """Return no format: 16-bit numbers take a CPU longer to widen than to read."""
    return []
