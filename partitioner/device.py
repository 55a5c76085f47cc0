"""Where nonzeros are sorted: by the CPU, or on a GPU for each rank. CuPy is imported only when a GPU is asked for."""

from __future__ import annotations

import os
import sys
from typing import Any, Literal, Protocol, get_args

import numpy as np

from .errors import InputError
from .ranks import Ranks, together
from .sort import Sort, sort_nonzeros
from .threads import fair_threads

DeviceName = Literal["auto", "cpu", "cuda"]
DEVICES = get_args(DeviceName)


class Sorter(Protocol):
    """Sorts nonzeros, to the same bits wherever it does so."""

    @property
    def sort(self) -> Sort:
        """What `sort_nonzeros` does."""

    def most(self, order: int, dtype: np.dtype[Any]) -> int:
        """Return how many nonzeros with so many indices, and such values, are best sorted together."""


class HostSorter:
    """See `Sorter`: the CPU's, which takes as many as are in memory."""

    sort: Sort = staticmethod(sort_nonzeros)

    def most(self, order: int, dtype: np.dtype[Any]) -> int:
        """See `Sorter`."""
        return sys.maxsize


def probe() -> str:
    """Return why no GPU can be used, or an empty string if one can."""
    try:
        import cupy
    except ImportError as error:
        return f"CuPy is not installed ({error}); install amped[cuda12] or amped[cuda13]"
    try:
        return "" if cupy.cuda.runtime.getDeviceCount() else "no GPU found"
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no GPU found ({error})"


def pick(device: DeviceName, ranks: Ranks) -> str:
    """Return "cpu" or "cuda", the same on all ranks: "auto" takes GPUs if every rank finds one. Collective.

    Raises
    ------
    InputError
        On every rank, if "cuda" is asked for and one has no usable GPU or no CuPy.
    """
    if device not in DEVICES:
        raise InputError(f"device {device!r}: expected {', '.join(DEVICES)}")
    missing = probe() if device != "cpu" else "not asked for"
    lacking = {rank: why for rank, why in enumerate(ranks.allgather(missing)) if why}
    if device == "cuda" and lacking:
        rank, why = next(iter(lacking.items()))
        raise InputError(f"--device cuda: {why}" + (f" (rank {rank})" if ranks.size > 1 else ""))
    return "cpu" if lacking else "cuda"


def make_sorter(device: DeviceName, ranks: Ranks) -> Sorter:
    """Return what sorts on a device, one of `DEVICES`: on GPUs, ranks of a node take them in turn. Collective.

    Raises
    ------
    InputError
        See `pick`; also, on every rank, if one's GPU has no memory left.
    """
    if pick(device, ranks) == "cpu":
        return HostSorter()
    from .cuda_sort import CudaSorter

    node = os.uname().nodename
    local_rank = ranks.allgather(node)[: ranks.rank].count(node)
    threads = fair_threads(ranks)
    sorter = together(ranks, lambda: CudaSorter(local_rank, threads))
    # Every rank has its context and buffers by then, and sorts nothing before the next collective call.
    mine = node, sorter.identity
    sorter.share_memory(ranks.allgather(mine).count(mine))
    return sorter
