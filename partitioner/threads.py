"""Work side by side on the cores that this process may use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from .ranks import Ranks

T = TypeVar("T")
R = TypeVar("R")


def usable_cores() -> int:
    """Return the number of cores that this process may run on, by its affinity and the limit of its control group."""
    return min(len(_own_cores()), _group_cores())


def fair_threads(ranks: Ranks) -> int:
    """Return how many threads this rank may run: its cores, shared with the node's ranks that have the same ones.

    ``OMP_NUM_THREADS`` may ask for fewer. Collective.
    """
    mine = os.uname().nodename, _own_cores()
    share = max(1, usable_cores() // ranks.allgather(mine).count(mine))
    wish = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return min(share, int(wish)) if wish.isdigit() and int(wish) else share


def _own_cores() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _group_cores() -> int:
    """Return the whole cores that the control group grants, or a large number where it sets no limit."""
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        return max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return 1 << 16


def side_by_side(work: Callable[[T], R], items: Iterable[T], threads: int) -> list[R]:
    """Do `work`, which lets go of the interpreter, on every item; return the results in the order of the items."""
    if threads == 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, items))
