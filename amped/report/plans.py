"""The plans of all ranks as text: the share of each rank, and its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ..backend.device import Device
from ..operators.dense.core import CorePlan
from ..operators.dense.plan import DensePlan
from ..operators.placement import Plan
from ..operators.sparse.sampled import SampledPlan
from ..operators.ttm.plan import TtmPlan, result_bytes
from .text import human, table


class MemoryPlan(Protocol):
    """The plan of a rank."""

    @property
    def device_bytes(self) -> Mapping[str, int]:
        """Bytes on the device, by use."""

    @property
    def host_bytes(self) -> int:
        """Peak bytes of host memory."""


def sparse_plans(plans: Sequence[Plan], device: Device) -> str:
    """Return the shards, balance and memory of plans for a sparse tensor."""
    rows = []
    for part, plan in enumerate(plans):
        for m in plan.modes:
            partial = f"{m.resident / m.nnz:.0%} resident" if m.resident else "streamed"
            placement = "-" if not m.nnz else partial if m.streamed else "resident"
            owned, size = f"{m.owned.stop - m.owned.start:,}", human(m.shard_bytes(m.nnz))
            rows.append((part, m.mode, owned, f"{m.nnz:,}", size, placement))
    shards = table(("rank", "mode", "rows owned", "nonzeros", "bytes", "placement"), rows)
    balance = max(m.cut.imbalance for m in plans[0].modes)
    return (
        f"{shards}\nbalance: the fullest rank has {balance:.2%} more nonzeros than the mean\n{_memory(plans, device)}"
    )


def sampled_plans(plans: Sequence[SampledPlan], device: Device) -> str:
    """Return the nonzeros and memory of plans for stochastic gradients."""
    return _memory(plans, device, ("nonzeros at most",), [(f"{plan.nnz:,}",) for plan in plans])


def dense_plans(plans: Sequence[DensePlan], device: Device) -> str:
    """Return the blocks, balance and memory of plans for a dense tensor."""
    rows = []
    for part, plan in enumerate(plans):
        placement = f"streamed, {plan.form.slab:,} indices at a time" if plan.streamed else "resident"
        block, size = " x ".join(map(str, plan.form.lengths)), human(plan.form.elements * plan.dtype.itemsize)
        rows.append((part, block, size, placement if plan.form.elements else "-"))
    blocks = table(("rank", "block, modes in memory order", "bytes", "placement"), rows)
    counts = [plan.form.elements for plan in plans]
    balance = max(counts) * len(counts) / sum(counts) - 1
    return (
        f"{blocks}\nbalance: the largest block has {balance:.2%} more elements than the mean\n{_memory(plans, device)}"
    )


def core_plans(plans: Sequence[CorePlan], device: Device) -> str:
    """Return the blocks and memory of plans for a Tucker decomposition of a dense tensor."""
    blocks = [(human(p.piece * p.dtype.itemsize), "streamed" if p.slot else "resident") for p in plans]
    return _memory(plans, device, ("block", "placement"), blocks)


def ttm_plans(plans: Sequence[TtmPlan], device: Device) -> str:
    """Return the shards, result and memory of plans for a product of a sparse tensor and a matrix."""
    setting, rows = plans[0].setting, []
    for part, plan in enumerate(plans):
        placement = "resident" if plan.resident >= plan.pieces else f"{plan.resident} of {plan.pieces} shards resident"
        result = "on the device" if plan.whole else "in pieces"
        rows.append((part, f"{plan.nnz:,}", f"{plan.fibres:,}", placement if plan.nnz else "-", result))
    fibres = sum(plan.fibres for plan in plans)
    size = f"{fibres:,} fibres of {setting.width * setting.rank} numbers, {human(result_bytes(setting, fibres))}"
    shards = table(("rank", "nonzeros", "fibres at most", "placement", "result"), rows)
    return f"{shards}\nresult: at most {size}\n{_memory(plans, device, suffix=' without the result')}"


def _memory(
    plans: Sequence[MemoryPlan],
    device: Device,
    head: Sequence[str] = (),
    columns: Sequence[Sequence[str]] | None = None,
    suffix: str = "",
) -> str:
    """Return a table of the memory of each rank, after the given columns with their `head`."""
    uses, rows = list(plans[0].device_bytes), []
    for part, plan in enumerate(plans):
        sizes = [*(plan.device_bytes[use] for use in uses), sum(plan.device_bytes.values()), plan.host_bytes]
        rows.append((part, *(columns[part] if columns else ()), *map(human, sizes)))
    line = f"memory by rank on the device ({device.description}), and peak host memory{suffix}:"
    return f"{line}\n{table(('rank', *head, *uses, 'device', 'host'), rows)}"
