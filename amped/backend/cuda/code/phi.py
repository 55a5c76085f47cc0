"""Compile-time parameters of `phi.cu`; needs no GPU or CuPy, so tests can compile it anywhere."""

from __future__ import annotations

import numpy as np

from partitioner.cuda.cubins import CudaSource

from ...losses import Maps
from ..layout import WAVES, Limits, PackedLayout, most_jobs
from ..source import REALS, Macros, compile_options, unit, with_formulas

WARP = 32
MOST_BATCH, MOST_INPUTS = 4, 4  # found by timing on an H200
SUMS = unit("phi_sums", {"SKIPS": 1})


def suits(layout: PackedLayout) -> bool:
    """Return whether `phi.cu` supports such records: staged or fibre layouts must process whole rows."""
    return layout.share.gather == "full" and (layout.panels == 1 or not (layout.tiled or layout.fibre))


def team(layout: PackedLayout) -> int:
    """Return the threads of a group: a power of two, as in `phi.cu`."""
    return 1 << (layout.lanes - 1).bit_length()


def threads(layout: PackedLayout, most: int) -> int:
    """Return the threads per block: whole warps, at most `most`, for rounds with equal numbers of groups."""
    whole = max(WARP, team(layout))
    at_once = max(most // whole, 1) * whole // team(layout)
    rounds = -(-layout.groups // at_once)
    return -(-layout.groups * team(layout) // (rounds * whole)) * whole


def macros(layout: PackedLayout, logs: bool = False) -> Macros:
    """Return the macros of `phi.cu`.

    Registers hold two rows of B in addition to those of an MTTKRP, so there are fewer thread blocks per multiprocessor.
    """
    schedule, double, staged = layout.schedule, layout.share.dtype == np.float64, any(layout.staged)
    count = threads(layout, schedule.threads if staged else 2 * schedule.threads)
    inputs = len(layout.blocks)
    fewer = 1 if double or inputs > 2 else 2
    blocks = 1 if staged else max(1, (schedule.blocks - fewer) * schedule.threads // count)
    few = inputs == 2 and (double or not staged)
    batch = schedule.batch if few or inputs > MOST_INPUTS else MOST_BATCH  # hides the latency of the division
    batch = 1 if layout.panels > 1 or (staged and logs) else batch
    kind = {"LOGS": int(logs), "MAPPED": 0, "SUMS": 0}
    return dict(layout.macros) | {"BLOCKS": blocks, "BATCH": batch, "THREAD_COUNT": count} | kind


def source(layout: PackedLayout, logs: bool = False) -> CudaSource:
    """Return the code that computes Phi, or log-likelihoods, for shards of a layout."""
    return unit("phi", macros(layout, logs))


def mapped_source(layout: PackedLayout, maps: Maps, sums: bool) -> CudaSource:
    """Return the code of a mapped MTTKRP, which with `sums` also adds up the formula `value`."""
    formulas, kind = maps.formulas, REALS[layout.share.dtype]
    some = {name: formulas[name] for name in ("weight", "value")}
    options = compile_options(macros(layout) | {"MAPPED": 1, "SUMS": int(sums)})
    return CudaSource("mapped", with_formulas("phi", some, kind), options)


def most_blocks(layout: PackedLayout, nnz: int, limits: Limits) -> int:
    """Return an upper bound of the thread blocks for a shard of at most `nnz` nonzeros."""
    return max(most_jobs(layout, nnz, limits), limits.processors * (WAVES + 1))
