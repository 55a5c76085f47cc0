"""What is computed without compiled code, a module for each operation."""

from __future__ import annotations

from ...ops.mu_update import MU_UPDATE

MU_UPDATE.reuse("plain", of="cpu")
