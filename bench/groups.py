"""Subgroups of the ranks, so that one launch measures on 1, 2 and 4 of them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType

from amped.errors import InputError
from amped.parallel.mpi import Comm, MpiComm, SingleComm

PATIENCE = 24 * 3600.0  # seconds that idle ranks wait for the others


@cache
def group(world: Comm, size: int) -> Comm | None:
    """Return the group of the first `size` ranks, None on the others. Collective; call it once per size."""
    if size == world.size:
        return world
    from mpi4py import MPI

    part = MPI.COMM_WORLD.Split(0 if world.rank < size else MPI.UNDEFINED, world.rank)
    if world.rank >= size:
        return None
    return SingleComm() if size == 1 else MpiComm(part)


def on_groups(world: Comm, sizes: Sequence[int], action: Callable[[Comm], None]) -> None:
    """Run `action` on the first `size` ranks, for each of `sizes`; the others wait without using their cores."""
    for size in sizes:
        if not 1 <= size <= world.size:
            raise InputError(f"{size} ranks: {world.size} were started")
    for size in sizes:
        comm = group(world, size)
        if comm is not None:
            action(comm)
        world.all_end(PATIENCE)


def free_memory(xp: ModuleType) -> None:
    """Free the memory pools of the last measurement, device and page-locked memory."""
    gc.collect()
    if xp.__name__ == "cupy":
        xp.get_default_memory_pool().free_all_blocks()
        xp.get_default_pinned_memory_pool().free_all_blocks()
