"""Text about dense tensors, and the advice to store a sparse tensor as a dense one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from partitioner.errors import one_line
from partitioner.wording import readable, setting

from ..operators.sources.dense import DenseSource
from ..operators.sources.protocols import DescribedSource
from .text import human

USUAL_RANK = 16  # assumed without a rank
INDEX_BYTES = 4


def source_line(name: str, source: DescribedSource) -> str:
    """Return one line about a tensor of any kind."""
    return f"{one_line(name)}: {source.describe()}"


def description(name: str, source: DenseSource) -> str:
    """Return the text of ``info`` about a dense tensor."""
    low, high, _ = source.value_range
    nonzeros = source.statistics.nonzeros
    density = nonzeros / source.nnz
    lines = [
        source_line(name, source),
        f"values from {readable(low)} to {readable(high)}; "
        f"{nonzeros:,} of {source.nnz:,} elements are not zero ({density:.1%})",
        f"{human(source.nnz * source.value_dtype.itemsize)}; modes in memory order, the slowest first: "
        + ", ".join(map(str, source.modes)),
    ]
    if density < (least := dense_density(source.shape, USUAL_RANK, 4)):
        lines.append(f"below a density of {least:.0%} a sparse tensor is faster")
    return "\n".join(lines)


def dense_density(shape: Sequence[int], rank: int, itemsize: int) -> float:
    """Return the density above which a dense sweep over all modes takes fewer bytes and operations than a sparse one.

    A dense sweep reads each element twice, with one multiplication and addition per column each time. A sparse sweep
    reads, in each mode and for each nonzero, the indices, the value and a row of each other mode's factor matrix, and
    multiplies them.
    """
    order = len(shape)
    nonzero_bytes = order * (INDEX_BYTES * order + itemsize + (order - 1) * rank * itemsize)
    return max(2 * itemsize / nonzero_bytes, 4 / order**2)


def advice(source: DescribedSource, rank: int | None, itemsize: int = 4) -> str | None:
    """Return a line that recommends ``--dense`` for a sparse tensor of high density; None for other tensors."""
    density, least = source.density, dense_density(source.shape, rank or USUAL_RANK, itemsize)
    if density is None or density <= least:
        return None
    size = human(math.prod(source.shape) * itemsize)
    return (
        f"density {density:.0%}: above {least:.0%} a dense tensor ({size}) takes fewer bytes and operations per sweep "
        f"at this order; use {setting('dense')}"
    )
