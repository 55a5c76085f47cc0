"""As on a CPU."""

from __future__ import annotations

from ...cpu.kernels.equations import providers as providers
