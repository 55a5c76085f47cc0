"""What is said of products of sparse tensors with matrices, and what they take."""

from __future__ import annotations

from collections.abc import Sequence

from ..backend.device import Device
from ..operators.ttm.plan import TtmPlan, result_bytes
from .text import human, table


def plan_text(plans: Sequence[TtmPlan], device: Device) -> str:
    """Return the plans of all ranks as text."""
    setting, rows = plans[0].setting, []
    for part, plan in enumerate(plans):
        kept = "resident" if plan.resident >= plan.pieces else f"{plan.resident} of {plan.pieces} shards resident"
        result = "on the device" if plan.whole else "in pieces"
        rows.append((part, f"{plan.nnz:,}", f"{plan.fibres:,}", kept if plan.nnz else "-", result))
    fibres = sum(plan.fibres for plan in plans)
    lines = [
        table(("rank", "nonzeros", "fibres at most", "placement", "result"), rows),
        f"result: at most {fibres:,} fibres of {setting.width * setting.rank} numbers, "
        f"{human(result_bytes(setting, fibres))}",
        f"memory by rank on the device ({device.description}), and the peak in the host's memory without the result:",
    ]
    uses = list(plans[0].device_bytes)
    cells = [
        (part, *(human(p.device_bytes[u]) for u in uses), human(sum(p.device_bytes.values())), human(p.host_bytes))
        for part, p in enumerate(plans)
    ]
    lines.append(table(("rank", *uses, "device", "host"), cells))
    return "\n".join(lines)
