"""As on a CPU."""

from __future__ import annotations

from ...cpu.kernels.narrow import providers as providers
