"""CP-APR's elementwise work on the null device: the host's."""

from ...cpu.ops.mu_update import providers

__all__ = ["providers"]
