"""Dense tensors as text: what they are, and whether a sparse one should be dense."""

from __future__ import annotations

import math
from collections.abc import Sequence

from partitioner.errors import one_line

from ..operators.sources.dense import DenseSource
from ..operators.sources.protocols import DescribedSource
from .text import human

USUAL_RANK = 16  # where none is asked for
INDEX_BYTES = 4


def source_line(name: str, source: DescribedSource) -> str:
    """Return one line about a tensor of any kind."""
    return f"{one_line(name)}: {source.describe()}"


def description(name: str, source: DenseSource) -> str:
    """Return what ``info`` says of a dense tensor."""
    low, high, _ = source.value_range
    nonzeros = source.facts.nonzeros
    density = nonzeros / source.nnz
    lines = [
        source_line(name, source),
        f"values from {low:g} to {high:g}; {nonzeros:,} of {source.nnz:,} elements are not zero ({density:.1%})",
        f"{human(source.nnz * source.value_dtype.itemsize)}; modes in memory order, the slowest first: "
        + ", ".join(map(str, source.modes)),
    ]
    if density < (least := dense_density(source.shape, USUAL_RANK, 4)):
        lines.append(f"a sparse tensor is the better form below a density of {least:.0%}")
    return "\n".join(lines)


def dense_density(shape: Sequence[int], rank: int, itemsize: int) -> float:
    """Return the density from which a sweep over all elements takes fewer bytes and fewer operations than a sparse one.

    A dense sweep reads the elements twice, and each time multiplies and adds once a column. A sparse one reads in each
    mode indices, a value and a row of each other mode's factor matrix for every nonzero, and multiplies these.
    """
    order = len(shape)
    nonzero_bytes = order * (INDEX_BYTES * order + itemsize + (order - 1) * rank * itemsize)
    return max(2 * itemsize / nonzero_bytes, 4 / order**2)


def advice(source: DescribedSource, rank: int | None, itemsize: int = 4) -> str | None:
    """Return a line where a sparse tensor is so full that dense is the better form, if memory has room for it."""
    density, least = source.density, dense_density(source.shape, rank or USUAL_RANK, itemsize)
    if density is None or density <= least:
        return None
    size = human(math.prod(source.shape) * itemsize)
    return (
        f"density {density:.0%}: as a dense tensor ({size}) a sweep takes fewer bytes and operations, "
        f"as above {least:.0%} for this order: --dense"
    )
