"""As on a CPU."""

from __future__ import annotations

from ...cpu.kernels.ttmc import providers as providers
