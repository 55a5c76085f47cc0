"""Where nonzeros are sorted: on the CPU, or on one GPU per rank. CuPy is imported only when a GPU is asked for."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any, Literal, Protocol, get_args

import numpy as np

from ..errors import InputError
from ..host.cache import is_private
from ..host.ranks import Ranks, together
from ..host.threads import fair_threads
from ..sorting.sort import Sort, sort_nonzeros

SETTING = "CUPY_CACHE_DIR"
DeviceName = Literal["auto", "cpu", "cuda"]
DEVICES = get_args(DeviceName)


class Sorter(Protocol):
    """Sorts nonzeros; CPU and GPU give the same bits."""

    @property
    def sort(self) -> Sort:
        """The sort; its interface is that of `sort_nonzeros`."""

    def most(self, order: int, dtype: np.dtype[Any]) -> int:
        """Return the most nonzeros to sort together, for tensors of this order and value type."""


class HostSorter:
    """The CPU's `Sorter`: takes as many nonzeros as fit host memory."""

    sort: Sort = staticmethod(sort_nonzeros)

    def most(self, order: int, dtype: np.dtype[Any]) -> int:
        """See `Sorter`."""
        return sys.maxsize


def wake(device: DeviceName, local_rank: int) -> None:
    """Begin to bring up the GPU of a rank, its number on its node, in a thread: that takes a quarter of a second.

    The driver does it without Python, which loads libraries meanwhile. What fails is told by `pick`.
    """
    if device != "cpu" and find_spec("cupy") is not None:
        Thread(target=_wake, args=(local_rank,), daemon=True).start()


def _wake(local_rank: int) -> None:
    with suppress(OSError):  # there is no driver
        driver = ctypes.CDLL("libcuda.so.1")
        count, number, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
        if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
            return
        driver.cuDeviceGet(ctypes.byref(number), local_rank % count.value)
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), number)


def probe() -> str:
    """Return why no GPU is usable, or an empty string if one is."""
    try:
        import cupy
    except ImportError as error:
        return f"CuPy is not installed ({error}); install amped[cuda12] or amped[cuda13]"
    try:
        return "" if cupy.cuda.runtime.getDeviceCount() else "no GPU found"
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no GPU found ({error})"


def pick(device: DeviceName, ranks: Ranks) -> str:
    """Return "cpu" or "cuda", the same on all ranks: "auto" is "cuda" if every rank finds a GPU. Collective.

    Raises `InputError` on every rank if "cuda" is asked for and a rank has no usable GPU or no CuPy.
    """
    if device not in DEVICES:
        raise InputError(f"device {device!r}: expected {', '.join(DEVICES)}")
    missing = probe() if device != "cpu" else "not asked for"
    lacking = {rank: why for rank, why in enumerate(ranks.allgather(missing)) if why}
    if device == "cuda" and lacking:
        rank, why = next(iter(lacking.items()))
        raise InputError(f"--device cuda: {why}" + (f" (rank {rank})" if ranks.size > 1 else ""))
    if lacking:
        return "cpu"
    _check_cache()
    return "cuda"


def _check_cache() -> None:
    """Have CuPy keep compiled kernels in memory if others could write into the folder that it has for them."""
    folder = os.environ.get(SETTING, os.path.expanduser("~/.cupy/kernel_cache"))
    if not is_private(Path(folder), SETTING, ours=False):
        os.environ["CUPY_CACHE_IN_MEMORY"] = "1"


def make_sorter(device: DeviceName, ranks: Ranks) -> Sorter:
    """Return the sorter of a device, one of `DEVICES`; a node's ranks take its GPUs in turn. Collective.

    Raises `InputError` as `pick` does; also, on every rank, if the GPU of one has no memory left.
    """
    if pick(device, ranks) == "cpu":
        return HostSorter()
    from ..cuda.sort import CudaSorter

    node = os.uname().nodename
    local_rank = ranks.allgather(node)[: ranks.rank].count(node)
    threads = fair_threads(ranks)
    sorter = together(ranks, lambda: CudaSorter(local_rank, threads))
    # By now every rank has its context and buffers, and none sorts before the next collective call.
    mine = node, sorter.identity
    sorter.share_memory(ranks.allgather(mine).count(mine))
    return sorter
