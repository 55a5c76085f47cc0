"""The results of `mttkrp` on disk, and how figures and tables choose among them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Case = dict[str, Any]
KEYS = (
    "device", "shape", "nonzeros", "skew", "values",
    "rank", "ranks", "precision", "placement", "kernel", "deterministic",
)  # fmt: skip
TABLE_3 = ("amazon", "patents", "reddit", "twitch")  # of AMPED's paper, in its order
RANK = 32  # its factor matrices' columns


def read_cases(folder: Path) -> list[Case]:
    """Return all cases that were measured, with their ceilings; of equal ones the last."""
    found: dict[tuple[Any, ...], Case] = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        for case in result.get("cases", []):
            if "refused" in case:
                continue
            case["ceilings"] = result["ceilings"].get(str(case["ranks"]), {})
            key = tuple(case.get(k) for k in KEYS)
            if key not in found or found[key]["finished"] <= case["finished"]:
                found[key] = case
    return sorted(found.values(), key=_place)


def _place(case: Case) -> tuple[Any, ...]:
    at = TABLE_3.index(case["shape"]) if case["shape"] in TABLE_3 else len(TABLE_3)
    return at, case["shape"], case["skew"], case["rank"], case["ranks"], case["placement"], case["kernel"]


def select(cases: Iterable[Case], **wanted: Any) -> list[Case]:
    """Return the cases whose facts are those wanted; a tuple offers several."""

    def fits(case: Case) -> bool:
        return all(case[k] in w if isinstance(w, tuple) else case[k] == w for k, w in wanted.items())

    return [case for case in cases if fits(case)]


def grouped(cases: Iterable[Case], name: Callable[[Case], Any]) -> dict[Any, list[Case]]:
    """Return the cases by a name."""
    groups: dict[Any, list[Case]] = {}
    for case in cases:
        groups.setdefault(name(case), []).append(case)
    return groups


def tensor(case: Mapping[str, Any]) -> str:
    """Return the name of a case's tensor."""
    text = f"{case['shape']}, skew {case['skew']:g}"
    return text + ", integers" if case["values"] == "integer" else text


def most_ranks(cases: Sequence[Case]) -> list[Case]:
    """Return for each tensor the cases on as many ranks as any, on a GPU where there are any, at the paper's rank."""
    some = [c for c in cases if c["device"] == "cuda"] or list(cases)
    some = [c for c in some if c["rank"] == RANK] or some
    some = [c for c in some if c["shape"] in TABLE_3] or some
    return [c for same in grouped(some, tensor).values() for c in same if c["ranks"] == max(o["ranks"] for o in same)]


def sweep(case: Mapping[str, Any], exchange: bool = True) -> float:
    """Return the median seconds of a sweep."""
    seconds: float = case["seconds_a_sweep" if exchange else "seconds_a_sweep_without_exchange"]["median"]
    return seconds


def by_kind(case: Mapping[str, Any]) -> dict[str, float]:
    """Return the slowest rank's seconds of each kind of work."""
    return {kind: max(seconds["all modes"]) for kind, seconds in case["seconds_by_kind"].items()}


def in_place(case: Mapping[str, Any], mode: int, key: str) -> float:
    """Return the `nonzeros` or `bytes` of one mode over all ranks, resident or streamed."""
    return float(sum(part[key] for modes in case["nonzeros_in_place"] for part in modes[mode].values()))


def bytes_a_nonzero(case: Mapping[str, Any]) -> list[float]:
    """Return the bytes of a nonzero of each mode."""
    modes = range(len(case["lengths"]))
    return [in_place(case, mode, "bytes") / max(1.0, in_place(case, mode, "nonzeros")) for mode in modes]
