"""CP-APR's elementwise work on the null device: the host's."""

from ...cpu.kernels.multiply import providers

__all__ = ["providers"]
