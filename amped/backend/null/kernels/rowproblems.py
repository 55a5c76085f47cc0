"""As on a CPU."""

from __future__ import annotations

from ...cpu.kernels.rowproblems import providers as providers
