"""The forecast of CP-ALS on up to 512 GPUs, beside measured points; needs no GPU.

Rows have the expected numbers of nonzeros of a bounded Zipf distribution with exponent 0.6. Measured points come from
``scaling-measured.json``: the time on one GPU, if there, scales the forecast; the others are compared with it. Points
of earlier code are only compared with one another.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from amped.operators.distributions.choice import choose
from amped.operators.distributions.forecast import Candidate, Measured, Workload, forecast
from amped.operators.distributions.machine_model import CARDS, NVLINK, MachineModel
from amped.operators.distributions.traffic import RankDistribution, RowFormat
from partitioner.shards.partition import CountedRows, Cut, cut_mode

from . import pictures, record
from .counter_rng import OFFSET, SCRAMBLE
from .synthetic import SHAPES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Point = Mapping[str, Any]

NAME, POINTS = "scaling", "scaling-measured"
TENSORS = ("amazon", "reddit", "patents", "twitch", "nell2", "nell1", "delicious", "flickr")
GPUS = tuple(1 << k for k in range(10))
RANKS = {"uber393k": 16}  # columns where they are not 32
SKEW = 0.6
CARD = "h200"  # of tensors without measurements


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = parser.add_argument
    add("--tensors", nargs="+", choices=SHAPES, default=list(TENSORS), help="(the paper's and hypersparse ones)")
    add("--gpus", nargs="+", type=int, default=list(GPUS), metavar="P", help="numbers of GPUs (1 2 4 ... 512)")
    add("--network", type=float, metavar="B", help="bytes per second of a GPU's network card, in effect (40e9)")
    add("--points", type=Path, default=record.RESULTS / f"{POINTS}.json", metavar="FILE", help="measured points")
    add("--output", type=Path, default=record.RESULTS, metavar="FOLDER", help="where the result goes")


def run(args: argparse.Namespace) -> None:
    """Forecast each tensor, compare with measured points, write the result and draw it."""
    points: list[Point] = json.loads(args.points.read_text())["points"]
    links = NVLINK if args.network is None else replace(NVLINK, network=args.network)
    cases, deviations = [], []
    for name in dict.fromkeys([*args.tensors, *(point["tensor"] for point in points)]):
        mine = [point for point in points if point["tensor"] == name]
        work = workload(name)
        for gpu, is_earlier in sorted({(point["gpu"], earlier(point)) for point in mine}):
            some = [p for p in mine if (p["gpu"], earlier(p)) == (gpu, is_earlier)]
            deviations += compared(work, some, MachineModel(CARDS[gpu], links))
        if name in args.tensors:
            newest = [point for point in mine if not earlier(point)]
            cases.append({"tensor": name, **curves(work, newest, links_of(newest, links), args.gpus)})
            print(f"{name}: {lines(cases[-1])}", flush=True)
    print("\n".join(map(deviation_line, deviations)), flush=True)
    facts = {"skew": SKEW, "network": links.network, "cases": cases, "deviations": deviations}
    pictures.draw(record.write(NAME, [], facts, args.output), draw)


def workload(name: str, nonzeros: int | None = None) -> Workload:
    """Return the workload of a named shape, whose rows have expected numbers of nonzeros."""
    shape, nnz = SHAPES[name]
    nnz = nonzeros or nnz

    @cache
    def rows(mode: int) -> CountedRows:
        return CountedRows(expected(shape[mode], nnz))

    @cache
    def cut(mode: int, parts: int) -> Cut:
        return cut_mode(rows(mode), shape[mode], parts)

    rank = RANKS.get(name, 32)
    return Workload(shape, nnz, RowFormat(rank, rank, 4), cut)


def expected(length: int, nonzeros: int, skew: float = SKEW) -> np.ndarray:
    """Return the expected numbers of nonzeros of the rows of a mode, rounded, which sum to `nonzeros`."""
    places = np.arange(length, dtype=np.int64)
    share = ((places + 1.0) ** (1 - skew) - 1) / (length ** (1 - skew) - 1)
    counts = np.empty(length, np.int64)
    counts[(places * SCRAMBLE + OFFSET) % length] = np.diff(np.rint(share * nonzeros), append=nonzeros)
    return counts


def earlier(point: Point) -> bool:
    """Return whether a point is from before rows were solved in one pass: only the exchange is as in the model."""
    return bool(point.get("earlier"))


def measured(points: Sequence[Point]) -> Measured | None:
    """Return the time of an iteration, or else of a sweep, on one GPU."""
    alone = {p["what"]: p for p in points if p["gpus"] == 1}
    point = alone.get("iteration") or alone.get("sweep")
    if point is None:
        return None
    kernels = point["kernels_ms"] if point["what"] == "iteration" else point["ms"]
    rest = (point["ms"] - kernels) * 1e-3 if point["what"] == "iteration" else None
    return Measured(kernels * 1e-3, rest)


def links_of(points: Sequence[Point], links: Any) -> MachineModel:
    """Return the machine of a tensor's one-GPU measurement."""
    alone = [point["gpu"] for point in points if point["gpus"] == 1]
    return MachineModel(CARDS[(alone or [CARD])[0]], links)


def compared(work: Workload, points: Sequence[Point], machine: MachineModel) -> list[dict[str, object]]:
    """Return the model's deviation from each point: by constants on one GPU, and scaled by its time on several."""
    scaled = replace(work, measured=measured(points))
    result = []
    for point in points:
        gpus, one = point["gpus"], point["gpus"] == 1
        if one and earlier(point):
            continue
        at = distribution_of(point)
        found = forecast(at, work if one else scaled, machine).seconds
        total = found.total if point["what"] == "iteration" else found.kernels + found.exchange
        how = "constants" if one or scaled.measured is None else "scaled"
        result.append({"tensor": point["tensor"], "gpu": point["gpu"], "gpus": gpus, "what": point["what"],
                       "distribution": point["distribution"], "measured_ms": point["ms"], "model_ms": total * 1e3,
                       "deviation": total * 1e3 / point["ms"] - 1, "by": how})  # fmt: skip
    return result


def distribution_of(point: Point) -> RankDistribution:
    """Return the distribution of a point: "all-gather", "replicated", or a grid such as "1x1x2", on one node."""
    name, gpus = point["distribution"], point["gpus"]
    if name in ("all-gather", "replicated"):
        return RankDistribution(name, gpus)
    parts = tuple(map(int, name.split("x")))
    return RankDistribution("grid", gpus, parts, (1,) * len(parts))


def curves(work: Workload, points: Sequence[Point], machine: MachineModel, gpus: Sequence[int]) -> dict[str, Any]:
    """Return milliseconds of an iteration by number of GPUs: today's design, the best one, and both with overlap."""
    card = next(name for name, card in CARDS.items() if card is machine.device)
    work = replace(work, measured=measured([p for p in points if p["gpu"] == card]))
    overlapped = replace(machine, overlap=1.0)
    result: dict[str, Any] = {"gpu": card, "measured": work.measured is not None, "gpus": list(gpus)}
    today: list[Candidate] = [forecast(RankDistribution("all-gather", p), work, machine) for p in gpus]
    best = [choose(work, machine, p)[0] for p in gpus]
    best_overlapped = [choose(work, overlapped, p)[0] for p in gpus]
    result["today_ms"] = _ms(today)
    result["today_overlapped_ms"] = _ms([forecast(c.distribution, work, overlapped) for c in today])
    result["best_ms"], result["best_overlapped_ms"] = _ms(best), _ms(best_overlapped)
    result["kernels_ms"] = [c.seconds.kernels * 1e3 for c in today]
    result["best"] = [str(c.distribution) for c in best]
    result["best_overlapped"] = [str(c.distribution) for c in best_overlapped]
    result["today_megabytes"] = [max(c.bytes) / 1e6 for c in today]
    result["best_megabytes"] = [max(c.bytes) / 1e6 for c in best]
    result["points"] = [[p["gpus"], p["ms"], p["distribution"]] for p in points if p["what"] == "iteration"]
    return result


def _ms(candidates: Sequence[Candidate]) -> list[float]:
    return [candidate.seconds.total * 1e3 for candidate in candidates]


def lines(case: Mapping[str, Any]) -> str:
    """Return a case as text: speed-ups over one GPU, today and with the best distribution."""
    alone = case["today_ms"][0]
    parts = [
        f"{gpus} GPUs {alone / today:.1f} / {alone / best:.1f} / {alone / both:.1f} ({name})"
        for gpus, today, best, both, name in zip(
            *(case[key] for key in ("gpus", "today_ms", "best_ms", "best_overlapped_ms", "best")), strict=True
        )
    ]
    return "; ".join(parts)


def deviation_line(found: Mapping[str, Any]) -> str:
    """Return a comparison as text."""
    return (
        f"{found['tensor']} on {found['gpus']} {found['gpu']}, {found['distribution']}, {found['what']}: measured "
        f"{found['measured_ms']:.4g} ms, model ({found['by']}) {found['model_ms']:.4g}, {found['deviation']:+.1%}"
    )


def draw(pyplot: ModuleType, facts: Mapping[str, Any]) -> Figure:
    """Speed-up over one GPU by number of GPUs, one panel per tensor."""
    cases = facts["cases"]
    figure, panels = pyplot.subplots(
        -(-len(cases) // 4), 4, figsize=(10, 2.6 * -(-len(cases) // 4)), layout="constrained", squeeze=False
    )
    styles = {"today_ms": "-", "best_ms": "-", "best_overlapped_ms": "--"}
    labels = ("all-gather", "best distribution", "best, exchange overlapped")
    for axes, case in zip(panels.flat, cases, strict=False):
        alone = case["today_ms"][0]
        axes.loglog(case["gpus"], case["gpus"], "k:", linewidth=1, label="as many times as GPUs")
        for (key, style), label, colour in zip(styles.items(), labels, ("C1", "C0", "C0"), strict=True):
            axes.plot(case["gpus"], [alone / ms for ms in case[key]], style, color=colour, label=label)
        for gpus, ms, _ in case["points"]:
            axes.plot(gpus, alone / ms, "ko", markersize=4, markerfacecolor="none")
        axes.set(title=f"{case['tensor']}, {case['gpu'].upper()}", xlabel="GPUs")
        axes.set_xticks([1, 8, 64, 512], ["1", "8", "64", "512"])
    for axes in panels[:, 0]:
        axes.set_ylabel("speed-up")
    figure.legend(*panels.flat[0].get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=4)
    return figure
