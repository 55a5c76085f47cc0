"""Cases: the results of `mttkrp` on disk, and their selection for figures and tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

Case = dict[str, Any]
KEYS = (
    "device", "shape", "nonzeros", "skew", "values",
    "rank", "ranks", "precision", "placement", "kernel", "gather", "deterministic",
)  # fmt: skip
ORDER = (
    "genten", "uber", "lbnl", "nell2", "enron", "delicious", "patents4", "amazon4", "reddit4", "twitch4",
    "twitch", "amazon", "patents", "reddit", "heavy-row", "one-row",
)  # fmt: skip
"""Order of shapes in tables and figures: those that fit one GPU, the whole ones of AMPED's Table 3, the adversarial."""
ADVERSARIAL = ("heavy-row", "one-row")
RANK = 32  # columns of the paper's factor matrices
RESIDENT = ("auto", "resident")  # placements of resident cases


def read_cases(folder: Path) -> list[Case]:
    """Return all measured cases; of equal ones the last, preferring those with a comparison.

    Each gets its device's `model` and `ceilings`: those of its result, or of another on as many devices of that model.
    """
    found: dict[tuple[object, ...], Case] = {}
    ceilings: dict[tuple[str, int], dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        if "ceilings" not in result:  # a result of another benchmark
            continue
        model = str(result["machine"]["devices"][0]).split(" (")[0]
        ceilings |= {(model, int(ranks)): speeds for ranks, speeds in result["ceilings"].items()}
        for case in result["cases"]:
            if "refused" in case:
                continue
            case["model"], case["ceilings"] = model, result["ceilings"].get(str(case["ranks"]), {})
            key = tuple(case[k] for k in KEYS)
            if key not in found or _precedence(found[key]) <= _precedence(case):
                found[key] = case
    for case in found.values():
        case["ceilings"] = case["ceilings"] or ceilings.get((case["model"], case["ranks"]), {})
    return sorted(found.values(), key=_place)


def _precedence(case: Case) -> tuple[bool, str]:
    return "yardstick" in case or "fraction_of_link" in (case["link"] or {}), case["finished"]


def _place(case: Case) -> tuple[object, ...]:
    at = ORDER.index(case["shape"]) if case["shape"] in ORDER else len(ORDER)
    return at, case["shape"], case["skew"], case["rank"], case["ranks"], case["placement"], case["kernel"]


def select(cases: Iterable[Case], **wanted: object) -> list[Case]:
    """Return the cases whose facts equal those wanted; a tuple lists alternatives."""

    def fits(case: Case) -> bool:
        return all(case[k] in w if isinstance(w, tuple) else case[k] == w for k, w in wanted.items())

    return [case for case in cases if fits(case)]


def ordinary(cases: Iterable[Case]) -> list[Case]:
    """Return the cases with full-precision gathers whose kernels were chosen by timing."""
    return select(cases, gather="full", deterministic=False, kernel="auto")


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


def sweep(case: Mapping[str, Any]) -> float:
    """Return the median seconds of a sweep."""
    seconds: float = case["seconds_a_sweep"]["median"]
    return seconds


def fastest(cases: Iterable[Case]) -> Case | None:
    """Return the fastest of some cases."""
    return min(cases, key=sweep, default=None)


def against_yardstick(cases: Iterable[Case]) -> dict[str, dict[int, Case]]:
    """Return the resident cases with a measured yardstick, by tensor and columns."""
    some = [c for c in cases if "yardstick" in c and c["placement"] in RESIDENT]
    return {name: {c["rank"]: c for c in same} for name, same in grouped(some, tensor).items()}


def ratio(case: Case) -> float:
    """Return the yardstick's time over that of a sweep."""
    return float(case["yardstick"]["seconds_a_sweep"] / sweep(case))


def bytes_a_nonzero(case: Mapping[str, Any]) -> list[float]:
    """Return the bytes per nonzero of each mode."""
    return [mode["bytes"] / max(1, mode["nonzeros"]) for mode in case["in_place"]]
