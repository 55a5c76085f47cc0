"""As on a CPU."""

from __future__ import annotations

from ...cpu.ops.solve import providers as providers
