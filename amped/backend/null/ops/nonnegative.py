"""As on a CPU."""

from __future__ import annotations

from ...cpu.ops.nonnegative import providers as providers
