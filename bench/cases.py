"""Cases: the results of `mttkrp` on disk, and their selection for figures and tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Case = dict[str, Any]
KEYS = (
    "device", "shape", "nonzeros", "skew", "values",
    "rank", "ranks", "precision", "placement", "kernel", "gather", "deterministic",
)  # fmt: skip
TABLE_3 = ("amazon", "patents", "reddit", "twitch")  # the tensors of Table 3 of AMPED's paper, in its order
ORDER = (
    "genten", "uber", "lbnl", "nell2", "enron", "delicious", "patents4", "amazon4", "reddit4", "twitch4",
    "twitch", "amazon", "patents", "reddit", "heavy-row", "one-row",
)  # fmt: skip
"""Order of shapes in tables and figures: those that fit one GPU, the whole ones of Table 3, the adversarial ones."""
ADVERSARIAL = ("heavy-row", "one-row")
RANK = 32  # columns of the paper's factor matrices
RESIDENT = ("auto", "resident")  # placements of resident cases


def read_cases(folder: Path) -> list[Case]:
    """Return all measured cases; of equal ones the last, preferring those with a comparison.

    Each gets its device's `model`, and `ceilings`: those of its own result, or, with `own_ceilings` false, those of
    another result on as many devices of the same model.
    """
    found: dict[tuple[Any, ...], Case] = {}
    ceilings: dict[tuple[str, int], dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        if "ceilings" not in result:  # a result of another benchmark
            continue
        model = model_of(result)
        ceilings |= {(model, int(ranks)): speeds for ranks, speeds in result["ceilings"].items()}
        for case in result["cases"]:
            if "refused" in case:
                continue
            case.setdefault("gather", "full")
            case["model"], case["ceilings"] = model, result["ceilings"].get(str(case["ranks"]), {})
            key = tuple(case.get(k) for k in KEYS)
            if key not in found or _counts(found[key]) <= _counts(case):
                found[key] = case
    for case in found.values():
        case["own_ceilings"] = bool(case["ceilings"])
        case["ceilings"] = case["ceilings"] or ceilings.get((case["model"], case["ranks"]), {})
    return sorted(found.values(), key=_place)


def _counts(case: Case) -> tuple[bool, str]:
    return "yardstick" in case or "fraction_of_link" in (case["link"] or {}), case["finished"]


def model_of(result: Mapping[str, Any]) -> str:
    """Return the model of a result's device."""
    return str(result["machine"]["devices"][0]).split(" (")[0]


def _place(case: Case) -> tuple[Any, ...]:
    at = ORDER.index(case["shape"]) if case["shape"] in ORDER else len(ORDER)
    return at, case["shape"], case["skew"], case["rank"], case["ranks"], case["placement"], case["kernel"]


def select(cases: Iterable[Case], **wanted: Any) -> list[Case]:
    """Return the cases whose facts equal those wanted; a tuple lists alternatives."""

    def fits(case: Case) -> bool:
        return all(case[k] in w if isinstance(w, tuple) else case[k] == w for k, w in wanted.items())

    return [case for case in cases if fits(case)]


def ordinary(cases: Iterable[Case]) -> list[Case]:
    """Return the cases with full-precision gathers whose kernels were chosen by timing."""
    return select(cases, gather="full", deterministic=False)


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
    """Return each tensor's cases on the most ranks, at the paper's rank, on GPUs if there are any."""
    some = [c for c in cases if c["device"] == "cuda"] or list(cases)
    some = [c for c in some if c["rank"] == RANK] or some
    some = [c for c in some if c["shape"] in TABLE_3] or some
    return [c for same in grouped(some, tensor).values() for c in same if c["ranks"] == max(o["ranks"] for o in same)]


def sweep(case: Mapping[str, Any], exchange: bool = True) -> float:
    """Return the median seconds of a sweep."""
    seconds: float = case["seconds_a_sweep" if exchange else "seconds_a_sweep_without_exchange"]["median"]
    return seconds


def fastest(cases: Sequence[Case]) -> Case | None:
    """Return the fastest of some cases."""
    return min(cases, key=sweep) if cases else None


def against_yardstick(cases: Iterable[Case]) -> dict[str, dict[int, Case]]:
    """Return the resident cases with a measured yardstick, by tensor and columns."""
    some = [c for c in cases if "yardstick" in c and c["placement"] in RESIDENT and c["kernel"] == "auto"]
    return {name: {c["rank"]: c for c in same} for name, same in grouped(some, tensor).items()}


def ratio(case: Case) -> float:
    """Return the yardstick's time over that of a sweep."""
    return float(case["yardstick"]["seconds_a_sweep"] / sweep(case))


def by_kind(case: Mapping[str, Any]) -> dict[str, float]:
    """Return the slowest rank's seconds of each kind of work."""
    return {kind: max(seconds["all modes"]) for kind, seconds in case["seconds_by_kind"].items()}


def in_place(case: Mapping[str, Any], mode: int, key: str) -> float:
    """Return the `nonzeros` or `bytes` of one mode, summed over all ranks, resident and streamed."""
    return float(sum(part[key] for modes in case["nonzeros_in_place"] for part in modes[mode].values()))


def bytes_a_nonzero(case: Mapping[str, Any]) -> list[float]:
    """Return the bytes per nonzero of each mode."""
    modes = range(len(case["lengths"]))
    return [in_place(case, mode, "bytes") / max(1.0, in_place(case, mode, "nonzeros")) for mode in modes]
