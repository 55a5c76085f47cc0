"""Plans of all ranks as text: what each computes, and the memory that it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ..backend.device import Device
from ..operators.dense.core import CorePlan
from ..operators.dense.plan import DensePlan
from ..operators.placement import Plan
from ..operators.ttm.plan import TtmPlan, result_bytes
from .text import human, table


class MemoryPlan(Protocol):
    """The plan of a rank."""

    @property
    def device_bytes(self) -> Mapping[str, int]:
        """Bytes on the device, by use."""

    @property
    def host_bytes(self) -> int:
        """The peak in the host's memory."""


def sparse_plans(plans: Sequence[Plan], device: Device) -> str:
    rows = []
    for part, plan in enumerate(plans):
        for m in plan.modes:
            some = f"{m.resident / m.nnz:.0%} resident" if m.resident else "streamed"
            where = "-" if not m.nnz else some if m.streamed else "resident"
            owned, size = f"{m.owned.stop - m.owned.start:,}", human(m.shard_bytes(m.nnz))
            rows.append((part, m.mode, owned, f"{m.nnz:,}", size, where))
    shards = table(("rank", "mode", "rows owned", "nonzeros", "bytes", "placement"), rows)
    balance = max(m.cut.imbalance for m in plans[0].modes)
    return (
        f"{shards}\nbalance: the fullest rank has {balance:.2%} more nonzeros than the mean\n{_memory(plans, device)}"
    )


def dense_plans(plans: Sequence[DensePlan], device: Device) -> str:
    rows = []
    for part, plan in enumerate(plans):
        where = f"streamed, {plan.form.slab:,} indices at a time" if plan.streamed else "resident"
        block, size = " x ".join(map(str, plan.form.lengths)), human(plan.form.elements * plan.dtype.itemsize)
        rows.append((part, block, size, where if plan.form.elements else "-"))
    blocks = table(("rank", "block, modes in memory order", "bytes", "placement"), rows)
    counts = [plan.form.elements for plan in plans]
    balance = max(counts) * len(counts) / sum(counts) - 1
    return (
        f"{blocks}\nbalance: the largest block has {balance:.2%} more elements than the mean\n{_memory(plans, device)}"
    )


def core_plans(plans: Sequence[CorePlan], device: Device) -> str:
    blocks = [(human(p.piece * p.dtype.itemsize), "streamed" if p.slot else "resident") for p in plans]
    return _memory(plans, device, ("block", "placement"), blocks)


def ttm_plans(plans: Sequence[TtmPlan], device: Device) -> str:
    setting, rows = plans[0].setting, []
    for part, plan in enumerate(plans):
        kept = "resident" if plan.resident >= plan.pieces else f"{plan.resident} of {plan.pieces} shards resident"
        result = "on the device" if plan.whole else "in pieces"
        rows.append((part, f"{plan.nnz:,}", f"{plan.fibres:,}", kept if plan.nnz else "-", result))
    fibres = sum(plan.fibres for plan in plans)
    size = f"{fibres:,} fibres of {setting.width * setting.rank} numbers, {human(result_bytes(setting, fibres))}"
    shards = table(("rank", "nonzeros", "fibres at most", "placement", "result"), rows)
    return f"{shards}\nresult: at most {size}\n{_memory(plans, device, besides=' without the result')}"


def _memory(
    plans: Sequence[MemoryPlan],
    device: Device,
    head: Sequence[str] = (),
    columns: Sequence[Sequence[str]] | None = None,
    besides: str = "",
) -> str:
    """Return the memory of each rank, with further columns before it."""
    uses, rows = list(plans[0].device_bytes), []
    for part, plan in enumerate(plans):
        sizes = [*(plan.device_bytes[use] for use in uses), sum(plan.device_bytes.values()), plan.host_bytes]
        rows.append((part, *(columns[part] if columns else ()), *map(human, sizes)))
    line = f"memory by rank on the device ({device.description}), and the peak in the host's memory{besides}:"
    return f"{line}\n{table(('rank', *head, *uses, 'device', 'host'), rows)}"
