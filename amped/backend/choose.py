"""The choice of a device. CUDA is imported only if a GPU is requested and present."""

from __future__ import annotations

from partitioner.shards.sorters import DeviceName, pick

from ..parallel.mpi import Comm
from .device import Device


def choose(device: DeviceName, comm: Comm, threads: int | None = None) -> Device:
    """Return this rank's device. Collective.

    Parameters
    ----------
    device : {"auto", "cpu", "cuda"}
        "auto" uses a GPU if there is one; "cuda" raises `InputError` without a usable GPU or CuPy. The ranks of a node
        share its GPUs in turn.
    comm : Comm
    threads : int, optional
        Host threads; by default this rank's share of the node's available cores.
    """
    if pick(device, comm) == "cuda":
        from .cuda.device import CudaDevice

        return CudaDevice(comm.local_rank)
    from .cpu.device import CpuDevice

    return CpuDevice(comm, threads)
