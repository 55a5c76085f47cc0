"""The host's cores as a device that compiles nothing."""

from __future__ import annotations

from ..cpu.device import CpuDevice


class PlainDevice(CpuDevice):
    """See `Device`. It computes in double precision, with NumPy and SciPy, whatever the precision of factors is."""

    folder = "plain"
    host_bytes = 8 << 20  # SciPy's sparse matrices
    code_bytes = 0

    def __init__(self, cores: CpuDevice) -> None:
        """Take the cores of another device."""
        self.__dict__.update(cores.__dict__)
        self.description += ", without compiled code"

    def stride(self, rank: int, itemsize: int) -> int:
        """See `Device`: rows have no gaps."""
        return rank
