"""As on a CPU."""

from __future__ import annotations

from ...cpu.ops.ttmc import providers as providers
