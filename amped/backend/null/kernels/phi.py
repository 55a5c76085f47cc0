"""As on a CPU."""

from __future__ import annotations

from ...cpu.kernels.phi import providers as providers
