"""What is said of dense tensors: what they are, what a run of them takes, and whether a sparse one should be dense."""

from __future__ import annotations

import math
from collections.abc import Sequence

from partitioner.errors import one_line

from ..backend.device import Device
from ..operators.dense.core import CorePlan
from ..operators.dense.plan import DensePlan
from ..operators.sources.dense import DenseSource
from ..operators.sources.protocols import DescribedSource
from .text import human, table

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


def plan_text(plans: Sequence[DensePlan], device: Device) -> str:
    """Return the plans of all ranks as text."""
    rows = []
    for part, plan in enumerate(plans):
        where = f"streamed, {plan.form.slab:,} indices at a time" if plan.streamed else "resident"
        size = human(plan.form.elements * plan.dtype.itemsize)
        rows.append((part, _shape(plan.form.lengths), size, where if plan.form.elements else "-"))
    counts = [plan.form.elements for plan in plans]
    balance = max(counts) * len(counts) / sum(counts) - 1
    uses = list(plans[0].device_bytes)
    cells = [
        (part, *(human(p.device_bytes[u]) for u in uses), human(sum(p.device_bytes.values())), human(p.host_bytes))
        for part, p in enumerate(plans)
    ]
    return "\n".join([
        table(("rank", "block, modes in memory order", "bytes", "placement"), rows),
        f"balance: the largest block has {balance:.2%} more elements than the mean",
        f"memory by rank on the device ({device.description}), and the peak in the host's memory:",
        table(("rank", *uses, "device", "host"), cells),
    ])  # fmt: skip


def core_plan_text(plans: Sequence[CorePlan], device: Device) -> str:
    """Return the plans of all ranks for a Tucker decomposition as text."""
    uses = list(plans[0].device_bytes)
    cells = [
        (part, human(p.piece * p.dtype.itemsize), "streamed" if p.slot else "resident",
         *(human(p.device_bytes[u]) for u in uses), human(sum(p.device_bytes.values())), human(p.host_bytes))
        for part, p in enumerate(plans)
    ]  # fmt: skip
    told = f"memory by rank on the device ({device.description}), and the peak in the host's memory:"
    return "\n".join([told, table(("rank", "block", "placement", *uses, "device", "host"), cells)])


def _shape(lengths: Sequence[int]) -> str:
    return " x ".join(map(str, lengths))
