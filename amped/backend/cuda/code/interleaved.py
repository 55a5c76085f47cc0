"""Compile-time parameters of ``interleaved.cu``; needs no GPU or CuPy, so tests can compile it anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import FloatDType
from partitioner.cuda.cubins import CudaSource

from ...ops.mttkrp import Share
from ..layout import VECTOR, Limits, PackedLayout, gains
from ..source import REALS, unit

MOST_LANES = 16  # threads per model: 256 bytes of each row
LEAST_LANES = 8  # threads per unit, which may have several small models
MOST_INPUTS = 4  # input modes up to which a thread loads rows of several nonzeros together


class BlockThreads(NamedTuple):
    """Threads per block, blocks per multiprocessor, and nonzeros whose rows are loaded together."""

    threads: int
    blocks: int
    batch: int


def width(dtype: FloatDType) -> int:
    """Return the columns of a group of models."""
    return MOST_LANES * VECTOR // dtype.itemsize


def lanes_of(rank: int, dtype: FloatDType) -> int:
    """Return the threads for a row of a model with `rank` columns, a power of two; 0 if it has too many columns."""
    vectors = -(-rank * dtype.itemsize // VECTOR)
    return 1 << (vectors - 1).bit_length() if vectors <= MOST_LANES else 0


class Arranged(NamedTuple):
    """The columns that are processed together.

    Attributes
    ----------
    models : (models, 2) int32 array
        First column and number of columns of each model.
    units : dict
        For each number of lanes, the units, (units, 3) int32; see ``interleaved.cu``.
    parts : dict
        For each number of lanes, the range of models in its units.
    """

    models: NDArray[np.int32]
    units: dict[int, NDArray[np.int32]]
    parts: dict[int, slice]


def arranged(groups: Mapping[int, NDArray[np.int64]], dtype: FloatDType) -> Arranged:
    """Arrange groups of models in units; units with the same number of lanes are consecutive.

    `groups` maps the number of models of a group to the first columns of the groups.
    """
    models, units, parts, number = list[Any](), dict[int, list[Any]](), dict[int, slice](), 0
    for count, begins in sorted(groups.items()):  # most lanes first
        columns = width(dtype) // count
        own = columns * dtype.itemsize // VECTOR
        lanes = max(LEAST_LANES, own)
        firsts = (begins[:, None] + columns * np.arange(count)).reshape(-1)
        numbers = number + np.arange(0, firsts.size, lanes // own)
        each = np.stack([firsts[:: lanes // own], np.full_like(numbers, own), numbers], axis=1)
        units.setdefault(lanes, []).append(each)
        models.append(np.stack([firsts, np.full_like(firsts, columns)], axis=1))
        begin = parts[lanes].start if lanes in parts else number
        number += firsts.size
        parts[lanes] = slice(begin, number)
    joined = {lanes: np.concatenate(some).astype(np.int32) for lanes, some in units.items()}
    return Arranged(np.concatenate(models).astype(np.int32), joined, parts)


def chosen(share: Share, limits: Limits) -> str:
    """Return the kernel whose shards are used."""
    return "fibre" if len(share.lengths) > 1 and gains("fibre", share, limits) else "segmented"


def threads(layout: PackedLayout) -> BlockThreads:
    """Return the thread configuration; found by timing on an H200."""
    double, inputs = layout.share.dtype == np.float64, len(layout.blocks)
    batch = 1 if inputs > MOST_INPUTS else 2 if double or inputs == MOST_INPUTS else 4
    return BlockThreads(128, 3 if double or inputs >= MOST_INPUTS else 4, batch)


def macros(
    layout: PackedLayout, lanes: int, logs: bool = False, block_threads: BlockThreads | None = None
) -> dict[str, Any]:
    """Return the macros of ``interleaved.cu`` for units of `lanes` lanes."""
    block_threads = block_threads or threads(layout)
    own = {"LANES": lanes, "WIDTH": lanes, "ROWS_OF_MORE": 1, "THREAD_COUNT": block_threads.threads}
    return dict(layout.macros) | own | {"BLOCKS": block_threads.blocks, "BATCH": block_threads.batch, "LOGS": int(logs)}


def source(layout: PackedLayout, lanes: int, logs: bool = False) -> CudaSource:
    """Return the code that computes Phi, or log-likelihoods, of units of `lanes` lanes."""
    return unit("interleaved", macros(layout, lanes, logs))


def sums(dtype: FloatDType) -> CudaSource:
    """Return the code of the auxiliary kernels."""
    return unit("interleaved_sums", {"REAL": REALS[dtype]})
