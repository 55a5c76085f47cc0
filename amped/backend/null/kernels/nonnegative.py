"""As on a CPU."""

from __future__ import annotations

from ...cpu.kernels.nonnegative import providers as providers
