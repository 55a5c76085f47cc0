"""Draws the figures of AMPED's and GenTen's papers for this machine, and a roofline, from the results on disk."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import pictures, record, roofs
from .cases import TABLE_3, Case, by_kind, grouped, most_ranks, read_cases, select, sweep, tensor

Draw = Callable[[Any, Sequence[Case]], Any]

OURS = ("auto", "resident")  # placements: the best that fits
SERIES: dict[str, dict[str, Any]] = {
    "amped": {"kernel": "auto", "placement": OURS},
    "amped, streamed": {"kernel": "auto", "placement": "stream"},
    "an atomic for each nonzero": {"kernel": "atomic", "placement": OURS},
    "COO with atomics, streamed": {"kernel": "atomic", "placement": "stream"},
    "equal nonzeros and merge": {"kernel": "permuted", "placement": OURS},
}
STEPS = ("count", "draw", "sort", "pack, tune and place")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    parser.add_argument("--input", type=Path, default=record.RESULTS, metavar="FOLDER", help="where the results are")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="where the pictures go (beside the results)")


def run(args: argparse.Namespace) -> None:
    """Draw a picture beside each result, and each figure whose results are there."""
    output, pyplot = args.output or args.input, pictures.plot()
    if pyplot is None:
        return
    output.mkdir(parents=True, exist_ok=True)
    for path in sorted(args.input.glob("*.json")):
        if output == args.input and "cases" in json.loads(path.read_text()):
            pictures.draw(path)
    cases = read_cases(args.input)
    for name, draw in FIGURES.items():
        figure = draw(pyplot, cases)
        if figure is None:
            print(f"{name}: skipped, no results for it in {args.input}", flush=True)
        else:
            pictures.save(figure, output / f"{name}.png")
            print(f"{name}.png: {(draw.__doc__ or '').splitlines()[0]}", flush=True)


def total(pyplot: Any, cases: Sequence[Case]) -> Any:
    """Seconds of a sweep against the baselines that the project carries; speed-up of amped above each bar."""
    chosen = most_ranks([c for c in cases if c["precision"] == "fp32"])
    series = {name: select(chosen, **wanted) for name, wanted in SERIES.items()}
    tensors = _tensors(series["amped"])
    if not tensors or not any(series[name] for name in list(series)[1:]):
        return None
    figure, axes = pyplot.subplots(figsize=(1.5 + 1.8 * len(tensors), 3.5))
    for k, (name, some) in enumerate(series.items()):
        for x, where in enumerate(tensors):
            here, ours = _at(some, where), _at(series["amped"], where)
            if here and ours:
                at = x + (k - 2) * 0.16
                axes.bar(at, sweep(here), 0.15, color=f"C{k}", label=name)
                axes.text(at, sweep(here), f"{sweep(here) / sweep(ours):.1f}×", ha="center", va="bottom", fontsize=6)
    _name_tensors(axes, tensors, chosen)
    axes.set(yscale="log", ylabel="seconds a sweep over all modes")
    _legend_once(axes)
    return figure


def partitioning(pyplot: Any, cases: Sequence[Case]) -> Any:
    """Equal distribution of nonzeros with a merge, against cuts by output index: how many times the time."""
    chosen = most_ranks([c for c in cases if c["precision"] == "fp32"])
    merge, ours = (select(chosen, **SERIES[name]) for name in ("equal nonzeros and merge", "amped"))
    tensors = [t for t in _tensors(ours) if _at(merge, t)]
    if not tensors:
        return None
    figure, axes = pyplot.subplots(figsize=(1.5 + len(tensors), 3))
    ratios = [sweep(_at(merge, t)) / sweep(_at(ours, t)) for t in tensors]
    axes.bar_label(axes.bar(range(len(tensors)), ratios, 0.5), fmt="%.1f×")
    _name_tensors(axes, tensors, chosen)
    axes.set_ylabel("times as long as amped")
    return figure


def breakdown(pyplot: Any, cases: Sequence[Case]) -> Any:
    """Shares of computing, copying from the host and exchanging in the time of a sweep, one after another."""
    chosen = select(most_ranks([c for c in cases if c["precision"] == "fp32"]), kernel="auto")
    if not chosen:
        return None
    figure, axes = pyplot.subplots(figsize=(6, 1 + 0.35 * len(chosen)))
    for y, case in enumerate(chosen):
        kinds, left = by_kind(case), 0.0
        for kind, seconds in kinds.items():
            share = 100 * seconds / (sum(kinds.values()) or 1)
            axes.barh(y, share, left=left, color=pictures.COLOURS[kind], label=kind)
            left += share
    axes.set_yticks(range(len(chosen)), [pictures.label(case) for case in chosen])
    axes.invert_yaxis()
    axes.set_xlabel("% of the work of the slowest rank (copies run beside computing)")
    _legend_once(axes)
    return figure


def load(pyplot: Any, cases: Sequence[Case]) -> Any:
    """Each GPU's time of computing against their mean; the difference of the ends, of all GPUs' time, as a number."""
    chosen = [c for c in select(most_ranks(cases), kernel="auto") if c["ranks"] > 1]
    if not chosen:
        return None
    figure, axes = pyplot.subplots(figsize=(1.5 + 1.3 * len(chosen), 3))
    for x, case in enumerate(chosen):
        seconds = np.array(case["seconds_by_kind"]["compute"]["all modes"])
        each = np.arange(seconds.size) - (seconds.size - 1) / 2
        axes.bar(x + each * 0.8 / seconds.size, 100 * seconds / seconds.mean(), 0.7 / seconds.size, color="C0")
        overhead = (seconds.max() - seconds.min()) / seconds.sum()
        axes.text(x, 101 * seconds.max() / seconds.mean(), f"{overhead:.2%}", ha="center", fontsize=7)
    names = [f"{case['shape']}\n{case['placement']}\n{case['precision']}" for case in chosen]
    axes.set_xticks(range(len(chosen)), names)
    axes.set_ylabel("computing, % of the GPUs' mean")
    return figure


def scaling(pyplot: Any, cases: Sequence[Case]) -> Any:
    """Speed-up of a sweep by the number of GPUs, exchange included."""
    lines = {}
    ours = [c for c in cases if c["kernel"] == "auto" and c["precision"] == "fp32"]
    for name, some in grouped(
        ours, lambda c: (c["device"], tensor(c), c["nonzeros"], c["rank"], c["placement"])
    ).items():
        alone = _one(select(some, ranks=1))
        if alone and len(some) > 1:
            some.sort(key=lambda c: int(c["ranks"]))
            lines[name] = [(c["ranks"], sweep(alone) / sweep(c)) for c in some]
    if not lines:
        return None
    figure, axes = pyplot.subplots(figsize=(5, 3.5))
    for (_, where, _, rank, placement), points in lines.items():
        axes.plot(*zip(*points, strict=True), "o-", label=f"{where}, rank {rank}, {placement}")
    ranks = sorted({p for points in lines.values() for p, _ in points})
    axes.plot(ranks, ranks, "k:", label="as many times as ranks")
    axes.set(xlabel="GPUs" if ours[0]["device"] == "cuda" else "ranks", ylabel="speed-up", xticks=ranks)
    axes.legend(frameon=False, fontsize=7)
    return figure


def preprocessing(pyplot: Any, cases: Sequence[Case]) -> Any:
    """Seconds from nothing to the first sweep: rows counted, nonzeros drawn, sorted, packed and put in place."""
    chosen = select(most_ranks([c for c in cases if c["precision"] == "fp32"]), kernel="auto")
    if not chosen:
        return None
    figure, axes = pyplot.subplots(figsize=(6, 1 + 0.35 * len(chosen)))
    for y, case in enumerate(chosen):
        left = 0.0
        for k, step in enumerate(STEPS):
            axes.barh(y, case["seconds_to_load"][step], left=left, color=f"C{k}", label=step)
            left += case["seconds_to_load"][step]
    axes.set_yticks(range(len(chosen)), [pictures.label(case) for case in chosen])
    axes.invert_yaxis()
    axes.set_xlabel("seconds, all modes (nonzeros are drawn on the device, not read)")
    _legend_once(axes)
    return figure


FIGURES: dict[str, Draw] = {
    "amped-5-total": total,
    "amped-6-partitioning": partitioning,
    "amped-7-breakdown": breakdown,
    "amped-8-load": load,
    "amped-9-scaling": scaling,
    "amped-10-preprocessing": preprocessing,
    "genten-7-bandwidth": roofs.bandwidth,
    "genten-8b-kernels": roofs.kernels,
    "roofline": roofs.roofline,
}


def _tensors(cases: Sequence[Case]) -> list[str]:
    return list(dict.fromkeys(tensor(case) for case in cases))


def _at(cases: Sequence[Case], where: str) -> Any:
    return _one([case for case in cases if tensor(case) == where])


def _one(cases: Sequence[Case]) -> Case | None:
    """Return the fastest of some cases."""
    return min(cases, key=sweep) if cases else None


def _name_tensors(axes: Any, tensors: Sequence[str], cases: Sequence[Case]) -> None:
    plain = [name.split(",")[0] if name.split(",")[0] in TABLE_3 else name.replace(", ", "\n") for name in tensors]
    axes.set_xticks(range(len(tensors)), plain)
    axes.set_title(f"{max(c['ranks'] for c in cases)} × {cases[0]['device']}, rank {cases[0]['rank']}", fontsize=8)


def _legend_once(axes: Any) -> None:
    handles, names = axes.get_legend_handles_labels()
    once = dict(zip(names, handles, strict=True))
    axes.legend(once.values(), once.keys(), frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
