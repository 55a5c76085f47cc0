"""As on a CPU."""

from __future__ import annotations

from ...cpu.ops.phi import providers as providers
