"""The time of a run by stage, and the balance of work between its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .components import as_text
from .facts import Run, duration

STAGES = {  # names of stages in reports
    "import": "starting Python", "compile": "compiling kernels", "read": "reading", "sort": "sorting",
    "cut": "distributing",
    "copy": "copying", "pack": "placing on the device", "choose": "choosing kernels", "iterate": "iterations",
    "write": "writing",
}  # fmt: skip
WORK_NAMES = {"compute": "MTTKRP", "copy": "copies", "exchange": "exchange", "solve": "solving rows"}
LEAST = 0.0005  # seconds: shorter stages are left out


class Span(NamedTuple):
    """The bar of a stage, or of a kind of work within the iterations."""

    name: str
    duration: str
    length: float  # in per cent of the longest
    within: bool  # whether it is part of the preceding stage


class Rank(NamedTuple):
    """A row of the balance table: a rank's times over all iterations, and its number of nonzeros in each mode."""

    number: int
    cells: Sequence[str]


class Balance(NamedTuple):
    """The balance table: the kinds of work, the number of modes, the ranks, and a summary."""

    kinds: Sequence[str]
    modes: int
    ranks: Sequence[Rank]
    summary: str


def stages(run: Run) -> list[Span]:
    """Return the duration of each stage, in their order; that of the iterations also by kind of work."""
    by_kind = {kind: s for kind, s in run.get("seconds_by_kind", {}).items() if s > 0 and kind != "tune"}
    kinds = {WORK_NAMES.get(kind) or as_text(kind): s for kind, s in by_kind.items()}
    parts = run.get("stages") or ({"iterate": run["seconds"]} if run.get("seconds") else {})
    longest = max(parts.values(), default=0.0) or 1.0
    spans = list[Span]()
    for stage, seconds in parts.items():
        if seconds >= LEAST:
            spans.append(Span(STAGES.get(stage) or as_text(stage), duration(seconds), 100 * seconds / longest, False))
        if stage == "iterate":
            spans += [Span(name, duration(s), 100 * s / longest, True) for name, s in kinds.items()]
    return spans


def balance(run: Run, modes: int) -> Balance | None:
    """Return the balance of work between ranks; None for one rank, or if unknown."""
    seconds = run.get("seconds_by_rank") or []
    if len(seconds) < 2:
        return None
    kinds = [kind for kind in WORK_NAMES if any(each.get(kind) for each in seconds)]
    nonzeros = run.get("nonzeros_by_rank") or []
    if {len(each) for each in nonzeros} != {modes} or len(nonzeros) != len(seconds):
        nonzeros = [[] for _ in seconds]
    ranks = [
        Rank(number, [*(duration(each.get(kind, 0.0)) for kind in kinds), *(f"{count:,}" for count in counts)])
        for number, (each, counts) in enumerate(zip(seconds, nonzeros, strict=True))
    ]
    computing = [each.get("compute", 0.0) for each in seconds]
    mean = sum(computing) / len(computing)
    over = max(computing) / mean - 1 if mean else 0.0
    summary = f"the slowest rank computed {over:.1%} longer than the mean; the other ranks wait for it in each exchange"
    return Balance([WORK_NAMES[kind] for kind in kinds], len(nonzeros[0]), ranks, summary)
