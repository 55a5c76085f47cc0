"""The CPU as a device without compiled code."""

from __future__ import annotations

from ..cpu.device import CpuDevice


class PlainDevice(CpuDevice):
    """See `Device`. NumPy and SciPy compute in double precision, also for factor matrices in single precision."""

    folder = "plain"
    host_bytes = 8 << 20  # SciPy's sparse matrices
    code_bytes = 0

    def __init__(self, compiled: CpuDevice, ranks: int = 1, one_copy: bool = True) -> None:
        """Use the cores of a device with compiled code.

        `ranks` is the number of process ranks; with `one_copy` all modes share a copy of the nonzeros.
        """
        self.__dict__.update(compiled.__dict__)
        self.ranks, self.one_copy = ranks, one_copy
        self.description += ", without compiled code"

    def stride(self, rank: int, itemsize: int) -> int:
        """See `Device`: without padding."""
        return rank
