"""Where the time of a run went, and how evenly its ranks were at work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .components import as_text
from .facts import Run, duration

STAGES = {  # in words
    "import": "starting Python", "compile": "compiling kernels", "read": "reading", "sort": "sorting", "cut": "dealing",
    "copy": "copying", "pack": "placing on the device", "choose": "choosing kernels", "iterate": "iterations",
    "write": "writing",
}  # fmt: skip
KINDS = {"compute": "MTTKRP", "copy": "copies", "exchange": "exchange", "solve": "solving rows"}
LEAST = 0.0005  # seconds of what is told


class Span(NamedTuple):
    """What took so long."""

    name: str
    told: str
    length: float  # per cent of the longest
    within: bool  # of the one before that is not


class Rank(NamedTuple):
    """A process: what it did in the iterations, and its part of the nonzeros of each mode."""

    number: int
    cells: Sequence[str]


class Balance(NamedTuple):
    """How evenly ranks were at work."""

    kinds: Sequence[str]
    modes: int
    ranks: Sequence[Rank]
    summary: str


def stages(run: Run) -> list[Span]:
    """Return how long each stage took, in the order in which they were done; iterations by kind of work."""
    by_kind = {kind: s for kind, s in run.get("seconds_by_kind", {}).items() if s > 0 and kind != "tune"}
    kinds = {KINDS.get(kind) or as_text(kind): s for kind, s in by_kind.items()}
    parts = run.get("stages") or ({"iterate": run["seconds"]} if run.get("seconds") else {})
    longest = max(parts.values(), default=0.0) or 1.0
    found = list[Span]()
    for stage, seconds in parts.items():
        if seconds >= LEAST:
            found.append(Span(STAGES.get(stage) or as_text(stage), duration(seconds), 100 * seconds / longest, False))
        if stage == "iterate":
            found += [Span(name, duration(s), 100 * s / longest, True) for name, s in kinds.items()]
    return found


def balance(run: Run, modes: int) -> Balance | None:
    """Return how evenly ranks were at work, if there were several and that is known."""
    seconds = run.get("seconds_by_rank") or []
    if len(seconds) < 2:
        return None
    kinds = [kind for kind in KINDS if any(each.get(kind) for each in seconds)]
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
    summary = f"the slowest rank computed {over:.1%} longer than the mean; ranks wait for it in each exchange"
    return Balance([KINDS[kind] for kind in kinds], len(nonzeros[0]), ranks, summary)
