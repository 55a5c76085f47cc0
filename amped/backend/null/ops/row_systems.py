"""As on a CPU."""

from __future__ import annotations

from ...cpu.ops.row_systems import providers as providers
