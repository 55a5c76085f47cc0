"""As on a CPU."""

from __future__ import annotations

from ...cpu.ops.rowproblems import providers as providers
