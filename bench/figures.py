"""Draw figures from the results on disk, among them those of AMPED's and GenTen's papers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import pictures, record, roofs
from .cases import (
    RANK,
    RESIDENT,
    TABLE_3,
    Case,
    against_yardstick,
    by_kind,
    fastest,
    grouped,
    most_ranks,
    ordinary,
    ratio,
    read_cases,
    select,
    sweep,
    tensor,
)

Draw = Callable[[Any, Sequence[Case]], Any]

SERIES: dict[str, dict[str, Any]] = {
    "amped": {"kernel": "auto", "placement": RESIDENT},
    "amped, streamed": {"kernel": "auto", "placement": "stream"},
    "an atomic for each nonzero": {"kernel": "atomic", "placement": RESIDENT},
    "COO with atomics, streamed": {"kernel": "atomic", "placement": "stream"},
    "equal nonzeros and merge": {"kernel": "permuted", "placement": RESIDENT},
}
STEPS = ("count", "draw", "sort", "pack, tune and place")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    parser.add_argument("--input", type=Path, default=record.RESULTS, metavar="FOLDER", help="where the results are")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="where the pictures go (beside the results)")


def run(args: argparse.Namespace) -> None:
    """Draw a picture beside each result, and each figure that has results."""
    output, pyplot = args.output or args.input, pictures.plot()
    if pyplot is None:
        return
    output.mkdir(parents=True, exist_ok=True)
    for path in sorted(args.input.glob("*.json")):
        if output == args.input:
            pictures.draw(path)
    cases = ordinary(read_cases(args.input))
    for name, draw in FIGURES.items():
        figure = draw(pyplot, cases)
        if figure is None:
            print(f"{name}: skipped, no results for it in {args.input}", flush=True)
        else:
            pictures.save(figure, output / f"{name}.png")
            print(f"{name}.png: {(draw.__doc__ or '').splitlines()[0]}", flush=True)


def total(pyplot: Any, cases: Sequence[Case]) -> Any:
    """Milliseconds of a sweep against the baselines that the project carries; above each bar how many times amped's."""
    chosen = most_ranks(select(cases, precision="fp32"))
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
                axes.bar(at, sweep(here) * 1e3, 0.15, color=f"C{k}", label=name)
                text = f"{sweep(here) / sweep(ours):.1f}×"
                axes.text(at, sweep(here) * 1e3, text, ha="center", va="bottom", fontsize=7)
    _name_tensors(axes, tensors, chosen)
    pictures.log_scale(axes)
    axes.set_ylabel("ms a sweep over all modes")
    _legend_once(axes)
    return figure


def partitioning(pyplot: Any, cases: Sequence[Case]) -> Any:
    """Equal distribution of nonzeros with a merge, against cuts by output index: how many times the time."""
    chosen = most_ranks(select(cases, precision="fp32"))
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

    def shares(case: Case) -> dict[str, float]:
        kinds = by_kind(case)
        return {kind: 100 * seconds / (sum(kinds.values()) or 1) for kind, seconds in kinds.items()}

    text = "% of the work of the slowest rank (copies run beside computing)"
    return _one_after_another(pyplot, cases, shares, pictures.COLOURS, text)


def load(pyplot: Any, cases: Sequence[Case]) -> Any:
    """How far each GPU's time of computing is from their mean; above them the balance, (max - mean) / mean."""
    some = select(cases, precision="fp32", kernel="auto", rank=RANK) or select(cases, precision="fp32", kernel="auto")
    chosen = [c for c in some if c["ranks"] > 1]
    if not chosen:
        return None
    figure, axes = pyplot.subplots(figsize=(1.5 + 1.2 * len(chosen), 3))
    axes.axhspan(-1, 1, color="0.92")
    axes.axhline(0, color="k", linewidth=0.8)
    for x, case in enumerate(chosen):
        seconds = np.array(case["seconds_by_kind"]["compute"]["all modes"])
        off = 100 * (seconds / seconds.mean() - 1)
        each = np.arange(seconds.size) - (seconds.size - 1) / 2
        axes.bar(x + each * 0.8 / seconds.size, off, 0.7 / seconds.size, color=pictures.COLOURS["compute"])
        axes.text(x, max(1, off.max()) + 0.15, f"{case['balance']['all modes']:.2%}", ha="center", fontsize=8)
    names = [f"{c['shape']}\n{'streamed' if c['placement'] == 'stream' else 'resident'}" for c in chosen]
    axes.set_xticks(range(len(chosen)), names)
    axes.set_ylabel("computing, % off the GPUs' mean\n(grey: 1 % either way)")
    axes.margins(y=0.1)
    return figure


def scaling(pyplot: Any, cases: Sequence[Case]) -> Any:
    """Speed-up of a sweep by the number of GPUs, exchange included."""
    ours = select(cases, kernel="auto", precision="fp32")
    lines = []
    for some in grouped(ours, lambda c: (c["device"], tensor(c), c["nonzeros"], c["rank"], c["placement"])).values():
        alone = fastest(select(some, ranks=1))
        if alone and len(some) > 1:
            lines.append([(c["ranks"], sweep(alone) / sweep(c), c) for c in sorted(some, key=lambda c: c["ranks"])])
    if not lines:
        return None
    lines.sort(key=lambda points: -points[-1][1])
    figure, axes = pyplot.subplots(figsize=(4.5, 3.5))
    ranks = sorted({p for points in lines for p, _, _ in points})
    axes.plot(ranks, ranks, "k:", label="as many times as GPUs")
    for points in lines:
        p, speed_up, case = points[-1]
        name = f"{case['shape']}, {'streamed' if case['placement'] == 'stream' else 'resident'}"
        name += f", {case['rank']} columns" * (case["rank"] != RANK)
        axes.plot([q for q, _, _ in points], [s for _, s, _ in points], "o-", label=name)
        axes.annotate(f"{speed_up:.2f}×", (p, speed_up), (6, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set(xlabel="GPUs" if ours[0]["device"] == "cuda" else "ranks", ylabel="speed-up of a sweep over all modes")
    axes.set(xticks=ranks, yticks=range(1, max(ranks) + 1))
    axes.legend(frameon=False, fontsize=8)
    return figure


def yardstick(pyplot: Any, cases: Sequence[Case]) -> Any:
    """How many times as fast as the yardstick one GPU is, for each tensor and number of columns."""
    tensors = against_yardstick(select(cases, precision="fp32", values="real"))
    if not tensors:
        return None
    ranks = sorted({rank for some in tensors.values() for rank in some})
    figure, axes = pyplot.subplots(figsize=(1 + 1.3 * len(tensors), 3.5))
    for k, rank in enumerate(ranks):
        here = [(x, some[rank]) for x, some in enumerate(tensors.values()) if rank in some]
        at = [x + (k - (len(ranks) - 1) / 2) * 0.84 / len(ranks) for x, _ in here]
        bars = axes.bar(at, [ratio(case) for _, case in here], 0.8 / len(ranks), label=f"{rank} columns")
        for text in axes.bar_label(bars, fmt="%.2f", fontsize=6.5, padding=2):
            text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.4})
    axes.axhline(1, color="k", linestyle="--", linewidth=1, label="the yardstick")
    axes.set_xticks(range(len(tensors)), [name.replace(", ", "\n") for name in tensors])
    axes.set_ylabel("times as fast as the yardstick")
    axes.legend(frameon=False, fontsize=8, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1))
    return figure


def preprocessing(pyplot: Any, cases: Sequence[Case]) -> Any:
    """Seconds from nothing to the first sweep: rows counted, nonzeros drawn, sorted, packed and put in place."""

    def seconds(case: Case) -> dict[str, float]:
        return {step: case["seconds_to_load"][step] for step in STEPS}

    colours = {step: f"C{k}" for k, step in enumerate(STEPS)}
    text = "seconds, all modes (nonzeros are drawn on the device, not read)"
    return _one_after_another(pyplot, cases, seconds, colours, text)


def _one_after_another(
    pyplot: Any, cases: Sequence[Case], parts: Callable[[Case], dict[str, float]], colours: dict[str, str], text: str
) -> Any:
    """A bar for each case, of its parts."""
    chosen = select(most_ranks(select(cases, precision="fp32")), kernel="auto")
    if not chosen:
        return None
    figure, axes = pyplot.subplots(figsize=(6, 1 + 0.35 * len(chosen)))
    for y, case in enumerate(chosen):
        left = 0.0
        for name, length in parts(case).items():
            axes.barh(y, length, left=left, color=colours[name], label=name)
            left += length
    axes.set_yticks(range(len(chosen)), [pictures.label(case) for case in chosen])
    axes.invert_yaxis()
    axes.set_xlabel(text)
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
    "yardstick": yardstick,
}


def _tensors(cases: Sequence[Case]) -> list[str]:
    return list(dict.fromkeys(tensor(case) for case in cases))


def _at(cases: Sequence[Case], where: str) -> Any:
    return fastest([case for case in cases if tensor(case) == where])


def _name_tensors(axes: Any, tensors: Sequence[str], cases: Sequence[Case]) -> None:
    plain = [name.split(",")[0] if name.split(",")[0] in TABLE_3 else name.replace(", ", "\n") for name in tensors]
    axes.set_xticks(range(len(tensors)), plain)
    ranks, case = max(c["ranks"] for c in cases), cases[0]
    axes.set_title(f"{ranks} × {case['model']}, {case['rank']} columns", fontsize=8)


def _legend_once(axes: Any) -> None:
    handles, names = axes.get_legend_handles_labels()
    once = dict(zip(names, handles, strict=True))
    axes.legend(once.values(), once.keys(), frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
