"""The CPU as a device without compiled code."""

from __future__ import annotations

from ..cpu.device import CpuDevice


class PlainDevice(CpuDevice):
    """See `Device`. NumPy and SciPy compute in double precision, also for factor matrices in single precision."""

    folder = "plain"
    host_bytes = 8 << 20  # SciPy's sparse matrices
    code_bytes = 0

    def __init__(
        self, compiled: CpuDevice, ranks: int = 1, one_copy: bool = True, tree_rows: int | None = None
    ) -> None:
        """Use the cores of a device with compiled code.

        `ranks` is the number of process ranks; with `one_copy` all modes share a copy of the nonzeros, whose trees
        have `tree_rows` rows, if they have been counted (see `splits.tree_rows`).
        """
        self.__dict__.update(compiled.__dict__)
        self.ranks, self.one_copy, self.tree_rows = ranks, one_copy, tree_rows
        self.description += ", without compiled code"

    def stride(self, rank: int, itemsize: int) -> int:
        """See `Device`: without padding."""
        return rank
