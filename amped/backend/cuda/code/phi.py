"""How `phi.cu` is compiled for a layout; needs no GPU or CuPy, so that tests can compile it anywhere."""

from __future__ import annotations

from typing import Any

import numpy as np

from partitioner.cuda.cubins import CudaSource

from ..layout import WAVES, Limits, PackedLayout, most_jobs
from ..source import unit

WARP = 32
MOST_BATCH, MOST_INPUTS = 4, 4  # found by timing on an H200
SUMS = unit("phi_sums", {"SKIPS": 1})


def suits(layout: PackedLayout) -> bool:
    """Return whether `phi.cu` reads such records: no row is in shared memory part by part."""
    return layout.share.gather == "full" and (layout.panels == 1 or not (layout.tiled or layout.fibre))


def team(layout: PackedLayout) -> int:
    """Return the threads of a group: a power of two, as in `phi.cu`."""
    return 1 << (layout.lanes - 1).bit_length()


def threads(layout: PackedLayout, most: int) -> int:
    """Return the threads of a block, in whole warps: at most so many, for rounds of equally many groups."""
    whole = max(WARP, team(layout))
    at_once = max(most // whole, 1) * whole // team(layout)
    rounds = -(-layout.groups // at_once)
    return -(-layout.groups * team(layout) // (rounds * whole)) * whole


def macros(layout: PackedLayout, logs: bool = False) -> dict[str, Any]:
    """Return the macros with which `phi.cu` is compiled.

    Registers hold two rows of B beside what an MTTKRP needs: so there are fewer blocks of threads on a multiprocessor.
    """
    schedule, double, staged = layout.schedule, layout.share.dtype == np.float64, any(layout.staged)
    count = threads(layout, schedule.threads if staged else 2 * schedule.threads)
    inputs = len(layout.blocks)
    fewer = 1 if double or inputs > 2 else 2
    blocks = 1 if staged else max(1, (schedule.blocks - fewer) * schedule.threads // count)
    few = inputs == 2 and (double or not staged)
    batch = schedule.batch if few or inputs > MOST_INPUTS else MOST_BATCH  # a division is waited for
    batch = 1 if layout.panels > 1 or (staged and logs) else batch
    return dict(layout.macros) | {"BLOCKS": blocks, "BATCH": batch, "THREAD_COUNT": count, "LOGS": int(logs)}


def source(layout: PackedLayout, logs: bool = False) -> CudaSource:
    """Return the code that computes Phi, or log-likelihoods, of shards of a layout."""
    return unit("phi", macros(layout, logs))


def most_blocks(layout: PackedLayout, nnz: int, limits: Limits) -> int:
    """Return the most blocks of threads that compute a shard of at most so many nonzeros."""
    return max(most_jobs(layout, nnz, limits), limits.processors * (WAVES + 1))
