"""The tables of docs/design/phi.md, from the results on disk."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Facts = Mapping[str, Any]
Row = Sequence[str]

DIGITS = 3


def tables(folder: Path, part: str) -> str:
    """Return the tables of a part's results in a folder: one for each result, but all of STREAM's in one."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob(f"phi-{part}*.json"))]
    if not found:
        return ""
    if part == "stream":
        return _stream(found)
    return "\n".join(f"{_where(facts)}\n\n{TABLES[part](facts)}" for facts in found)


def number(value: float) -> str:
    """Return a number with three digits, or all of those before its point."""
    digits = max(0, DIGITS - 1 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{digits}f}"


def table(head: Row, rows: Iterable[Row]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _where(facts: Facts) -> str:
    """Return device, date and load of a result."""
    device = facts["machine"]["devices"][0].split(" (")[0]
    told = [facts["date"], *([_numbers(facts["cases"][0])] if _alike(facts["cases"]) else [])]
    if facts["device"] == "cuda":
        return f"One {device}, {', '.join(told)}:"
    loads = [x[0] for x in (facts["load_before"], facts["load_after"])]
    return f"{device}, {', '.join(told)}; load before {loads[0]:g}, after {loads[1]:g}:"


def _numbers(case: Facts) -> str:
    return f"{case['rank']} columns, `{case['precision']}`"


def _alike(cases: Sequence[Facts]) -> bool:
    """Return whether all cases have the same columns and precision: then they are told once."""
    return len({_numbers(case) for case in cases}) == 1


def _ms(seconds: Facts) -> str:
    return number(seconds["median"] * 1e3)


def _named(case: Facts, cases: Sequence[Facts]) -> str:
    return str(case["shape"]) if _alike(cases) else f"{case['shape']}, {_numbers(case)}"


def _tensors(cases: Sequence[Facts]) -> dict[str, list[Facts]]:
    found: dict[str, list[Facts]] = {}
    for case in cases:
        found.setdefault(_named(case, cases), []).append(case)
    return found


def _span(values: Sequence[float]) -> str:
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"


def _stream(found: Sequence[Facts]) -> str:
    names = list(found[0]["gigabytes_a_second_by_operation"])
    rows = [
        [
            f["machine"]["devices"][0].split(" (")[0],
            *(number(s["median"]) for s in f["gigabytes_a_second_by_operation"].values()),
        ]
        for f in found
    ]
    intensity = ["flops a byte", *(f"{found[0]['flops_a_byte'][name]:.3g}" for name in names)]
    return table(["GB/s", *names], [*rows, intensity])


def _intensity(facts: Facts) -> str:
    head = ["tensor", *(f"{kind}: {what}" for kind in ("Phi", "MTTKRP") for what in ("paper", "amped", "GFLOP/s"))]
    rows = []
    for name, cases in _tensors(facts["cases"]).items():
        row = [name]
        for kind in ("phi", "mttkrp"):
            row += [_span([case[kind][model]["flops_a_byte"] for case in cases]) for model in ("paper", "amped")]
            row.append(_span([case[kind]["amped"]["gigaflops_a_second"] for case in cases]))
        rows.append(row)
    roofs = facts["roofs"]
    peak = ", ".join(f"{number(speed)} in `{name}`" for name, speed in roofs["flops"].items())
    told = f"Roofs: triad {number(roofs['triad'])} GB/s; products of matrices, GFLOP/s: {peak}.\n"
    return f"{table(head, rows)}\n{told}"


def _pressure(facts: Facts) -> str:
    tensors = _tensors(facts["cases"])
    parts = [table(["without", *tensors, "mean"], _gains(facts["gains"]["seconds"], tensors, "seconds"))]
    if facts["gains"].get("coordinates"):
        rows = _gains(facts["gains"]["coordinates"], tensors, "coordinates")
        parts.append(f"SparTen's algorithm, over coordinates:\n\n{table(['without', *tensors, 'mean'], rows)}")
    return "\n".join(parts)


def _gains(overall: Facts, tensors: Mapping[str, Sequence[Facts]], key: str) -> list[Row]:
    """Return a row for each variant: how many times as fast it is, mean over the modes that have it."""
    rows = []
    for name, gain in overall.items():
        row = [name]
        for cases in tensors.values():
            each = [c[key]["Phi"]["median"] / c[key][name]["median"] for c in cases if name in c[key]]
            row.append(f"{statistics.geometric_mean(each):.2f}" if each else "")
        rows.append([*row, f"{gain['geometric_mean']:.2f}"])
    return rows


def _policy(facts: Facts) -> str:
    rows = [
        [
            _named(case, facts["cases"]), str(case["mode"]), case["default"], case["best"], str(len(case["gains"])),
            *(_ms(case["seconds"][name]) for name in ("default", "best")), f"{case['gain']:.2f}",
        ]
        for case in facts["cases"]
    ]  # fmt: skip
    return table(["tensor", "mode", "default", "best", "tried", "default, ms", "best, ms", "gain"], rows)


def _pasta(facts: Facts) -> str:
    tensors, names = _tensors(facts["cases"]), list(facts["cases"][0]["seconds"])
    rows = []
    for name, cases in tensors.items():
        sweeps = [sum(case["seconds"][n]["median"] for case in cases) for n in names]
        gains = [
            sum(c["seconds"][f"coordinates: {kind}"]["median"] for c in cases)
            / sum(c["seconds"][f"amped: {kind}"]["median"] for c in cases)
            for kind in facts["times_as_fast"]
        ]
        rows.append([name, *(number(s * 1e3) for s in sweeps), *(f"{gain:.1f}" for gain in gains)])
    faster = [f"× as fast: {kind}" for kind in facts["times_as_fast"]]
    return table(["tensor", *(f"{name}, ms" for name in names), *faster], rows)


def _apr(facts: Facts) -> str:
    whole = ("update of all modes", "Phi sweep", "MTTKRP sweep")
    rows = []
    for case in facts["cases"]:
        tools = list(dict.fromkeys(name.split(": ")[0] for name in case["seconds"]))
        for tool in tools:
            times = [case["seconds"].get(f"{tool}: {name}") for name in whole]
            over = case["ratios"]["update over MTTKRP sweep" if tool == "amped" else f"update over {tool}'s"]
            rows.append([_named(case, facts["cases"]), tool, *(_ms(t) if t else "" for t in times), _ratio(over)])
    return table(["tensor", "tool", *(f"{name}, ms" for name in whole), "ratio"], rows)


def _ratio(found: Facts) -> str:
    return f"{number(found['median'])} ({number(found['quartile_1'])} to {number(found['quartile_3'])})"


TABLES: dict[str, Callable[[Facts], str]] = {
    "intensity": _intensity,
    "pressure": _pressure,
    "policy": _policy,
    "pasta": _pasta,
    "apr": _apr,
}
