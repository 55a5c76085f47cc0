"""The candidates of a plan: distributions over ranks with their bytes and forecast times, as text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..operators.distributions.forecast import Candidate
from .text import human, table

SECONDS = ("kernels", "exchange", "solve", "fixed")


def candidate_columns(candidates: Sequence[Candidate]) -> dict[str, Sequence[object]]:
    """Return a table of candidates: bytes of the busiest rank and on average, and seconds of an iteration."""
    each: dict[str, Sequence[object]] = {name: [getattr(c.seconds, name) for c in candidates] for name in SECONDS}
    return {
        "distribution": [str(c.distribution) for c in candidates],
        "nodes": ["x".join(map(str, c.distribution.nodes)) for c in candidates],
        "exchange_bytes": [max(c.bytes) for c in candidates],
        "mean_bytes": [sum(c.bytes) / len(c.bytes) for c in candidates],
        "factor_bytes": [c.factor_bytes for c in candidates],
        "fullest": [c.fullest for c in candidates],
        **each,
        "seconds": [c.seconds.total for c in candidates],
    }


def candidate_lines(candidates: Sequence[Candidate], on_one_rank: float | None) -> str:
    """Return a table of candidates, with times relative to the fastest one, and absolute ones if one rank's is given.

    `on_one_rank` is the forecast time of an iteration on one rank.
    """
    columns = candidate_columns(candidates)
    shown: dict[str, Sequence[object]] = {"distribution": columns["distribution"]}
    if any(math.prod(c.distribution.nodes) > 1 for c in candidates):
        shown["nodes"] = columns["nodes"]
    shown["sent and received"] = [human(max(c.bytes)) for c in candidates]
    shown["factor matrices"] = [human(c.factor_bytes) for c in candidates]
    shown["nonzeros / mean"] = [f"{c.fullest:.2f}" for c in candidates]
    shown.update(_times(candidates, on_one_rank))
    return table(list(shown), list(zip(*shown.values(), strict=True)))


def _times(candidates: Sequence[Candidate], on_one_rank: float | None) -> dict[str, list[object]]:
    totals = [c.seconds.total for c in candidates]
    if on_one_rank is None:
        return {"estimated time": [f"{total / min(totals):.2f}" for total in totals]}
    result: dict[str, list[object]] = {
        f"{name} ms": [f"{getattr(c.seconds, name) * 1e3:.3g}" for c in candidates] for name in SECONDS
    }
    result["iteration ms"] = [f"{total * 1e3:.3g}" for total in totals]
    result["speed-up"] = [f"{on_one_rank / total:.1f}" for total in totals]
    return result
