"""As on a CPU."""

from __future__ import annotations

from ...cpu.kernels.solve import providers as providers
