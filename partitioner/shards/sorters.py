"""Devices that sort nonzeros: the CPU, or one GPU per rank. CuPy is imported only if a GPU is requested."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Literal, Protocol, get_args

from ..array_types import FloatDType
from ..errors import InputError
from ..host.cache import is_private
from ..host.ranks import Ranks, together
from ..host.threads import fair_threads
from ..sorting.sort import Sort, sort_nonzeros
from ..wording import setting

SETTING = "CUPY_CACHE_DIR"
DeviceName = Literal["auto", "cpu", "cuda"]
DEVICES = get_args(DeviceName)


class Sorter(Protocol):
    """Sorts nonzeros. CPU and GPU results are bitwise identical."""

    @property
    def sort(self) -> Sort:
        """The sort function, with the interface of `sort_nonzeros`."""

    def most(self, order: int, dtype: FloatDType) -> int:
        """Return the maximum number of nonzeros per sort for tensors of this order and value type."""


class HostSorter:
    """Sorts on the CPU, limited only by host memory."""

    sort: Sort = staticmethod(sort_nonzeros)

    def most(self, order: int, dtype: FloatDType) -> int:
        """See `Sorter`."""
        return sys.maxsize


def wake(device: DeviceName, local_rank: int) -> None:
    """Start to initialise this rank's GPU in a thread, which takes a quarter of a second. Errors are left to `pick`.

    The driver does this without the GIL, so Python imports libraries in the meantime.
    """
    if device != "cpu" and has_cupy():
        Thread(target=_wake, args=(local_rank,), daemon=True).start()


@cache
def has_cupy() -> bool:
    """Return whether CuPy is installed; a folder of its name in the working directory is not CuPy."""
    found = find_spec("cupy")
    return found is not None and found.origin is not None


def _wake(local_rank: int) -> None:
    with suppress(OSError):  # no driver
        driver = ctypes.CDLL("libcuda.so.1")
        count, number, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
        if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
            return
        driver.cuDeviceGet(ctypes.byref(number), local_rank % count.value)
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), number)


def probe() -> str:
    """Return why no GPU is usable, or an empty string if one is."""
    if not has_cupy():
        return "CuPy is not installed (No module named 'cupy'); install amped[cuda12] or amped[cuda13]"
    try:
        import cupy
    except ImportError as error:
        return f"CuPy is not installed ({error}); install amped[cuda12] or amped[cuda13]"
    try:
        return "" if cupy.cuda.runtime.getDeviceCount() else "no GPU found"
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no GPU found ({error})"


def pick(device: DeviceName, ranks: Ranks) -> str:
    """Return "cpu" or "cuda", the same on all ranks; "auto" means "cuda" if every rank has a GPU. Collective.

    Raises `InputError` on every rank if "cuda" is requested and a rank has no usable GPU or no CuPy.
    """
    if device not in DEVICES:
        raise InputError(f"device {device!r}: expected {', '.join(DEVICES)}")
    missing = probe() if device != "cpu" else "not requested"
    lacking = {rank: reason for rank, reason in enumerate(ranks.allgather(missing)) if reason}
    if device == "cuda" and lacking:
        rank, reason = next(iter(lacking.items()))
        raise InputError(f"{setting('device', 'cuda')}: {reason}" + (f" (rank {rank})" if ranks.size > 1 else ""))
    if lacking:
        return "cpu"
    _check_cache()
    return "cuda"


def _check_cache() -> None:
    """Keep CuPy's compiled kernels in memory if other users could write to its cache folder."""
    folder = os.environ.get(SETTING, os.path.expanduser("~/.cupy/kernel_cache"))
    if not is_private(Path(folder), SETTING, ours=False):
        os.environ["CUPY_CACHE_IN_MEMORY"] = "1"


def make_sorter(device: DeviceName, ranks: Ranks) -> Sorter:
    """Return the sorter for `device`, one of `DEVICES`. A node's ranks use its GPUs in turn. Collective.

    Raises `InputError` like `pick`, and on every rank if a rank's GPU has no free memory.
    """
    if pick(device, ranks) == "cpu":
        return HostSorter()
    from ..cuda.sort import CudaSorter

    node = os.uname().nodename
    local_rank = ranks.allgather(node)[: ranks.rank].count(node)
    threads = fair_threads(ranks)
    sorter = together(ranks, lambda: CudaSorter(local_rank, threads))
    # Now every rank has its context and buffers, and none sorts before the next collective call.
    mine = node, sorter.identity
    sorter.share_memory(ranks.allgather(mine).count(mine))
    return sorter
