"""Draw the figures of docs/design from the results of `mttkrp` on disk: speed-ups and a roofline.

The roofline's model of the bytes that a mode's MTTKRP moves: each nonzero's packed record, a row of each input factor
matrix, and the output in double precision once per row. It has no caches, shared memory or registers: a kernel that
reuses rows there lies above its roofs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from . import pictures, record
from .cases import RANK, Case, fastest, grouped, ordinary, read_cases, select, sweep, tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ITEM = {"fp32": 4, "fp64": 8}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    parser.add_argument("--input", type=Path, default=record.RESULTS, metavar="FOLDER", help="where the results are")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="where the pictures go (beside the results)")


def run(args: argparse.Namespace) -> None:
    """Draw each figure that has results."""
    pyplot = pictures.plot()
    if pyplot is None:
        return
    cases = select(ordinary(read_cases(args.input)), precision="fp32")
    for name, draw in FIGURES.items():
        figure = draw(pyplot, cases)
        if figure is None:
            print(f"{name}: skipped, no results for it in {args.input}", flush=True)
        else:
            pictures.save(figure, (args.output or args.input) / f"{name}.png")
            print(f"{name}.png: {(draw.__doc__ or '').splitlines()[0]}", flush=True)


def scaling(pyplot: ModuleType, cases: Sequence[Case]) -> Figure:
    """Speed-up of a sweep by the number of GPUs, exchange included."""
    lines = []
    for some in grouped(cases, lambda c: (c["device"], tensor(c), c["nonzeros"], c["rank"], c["placement"])).values():
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
    axes.set(xlabel="GPUs" if cases[0]["device"] == "cuda" else "ranks", ylabel="speed-up of a sweep over all modes")
    axes.set(xticks=ranks, yticks=range(1, max(ranks) + 1))
    axes.legend(frameon=False, fontsize=8)
    return figure


def roofline(pyplot: ModuleType, cases: Sequence[Case]) -> Figure:
    """Each mode's flop/s by flop/byte of the model, with the measured copy and gathers as roofs; one GPU."""
    chosen = [c for c in select(cases, values="real", ranks=1) if c["placement"] != "stream" and c["ceilings"]]
    if not chosen:
        return None
    points = [(case, mode) for case in chosen for mode in range(len(case["lengths"]))]
    x = np.array([flops(case) / model_bytes(case, mode) for case, mode in points])
    y = [flops(case) / case["seconds_by_kind"]["compute by mode"][mode][0] / 1e12 for case, mode in points]
    shapes = list(dict.fromkeys(case["shape"] for case in chosen))
    figure, axes = pyplot.subplots(figsize=(6, 3.5))
    for k, shape in enumerate(shapes):
        mine = [case["shape"] == shape for case, _ in points]
        axes.plot(x[mine], np.array(y)[mine], "o", color=f"C{k}", markerfacecolor="none", label=shape)
    speeds, ends = chosen[-1]["ceilings"], np.array([0.95 * x.min(), 1.05 * x.max()])
    sizes = sorted(speeds["gather"], key=float)
    roofs = {"copy": max(speeds["copy"])}
    roofs |= {
        f"rows out of {float(s):,.4g} MB": speeds["gather"][s] for s in (sizes[-1], sizes[len(sizes) // 2], sizes[0])
    }
    for (name, speed), style in zip(roofs.items(), ("-", "--", "-.", ":"), strict=False):
        axes.loglog(ends, ends * speed / 1e3, style, color="0.4", linewidth=1, label=f"{name}: {speed / 1e3:.1f} TB/s")
    axes.set(xlabel="flops a byte of the model (records, gathered rows, output)", ylabel="Tflop/s of one mode's MTTKRP")
    axes.set_title(f"one {chosen[-1]['model']}; columns: {', '.join(map(str, sorted({c['rank'] for c in chosen})))}")
    axes.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def model_bytes(case: Case, mode: int) -> float:
    """Return the bytes of a mode's MTTKRP by the roofline's model."""
    gathered = (len(case["lengths"]) - 1) * case["rank"] * ITEM[case["precision"]] * case["nonzeros"]
    return float(case["in_place"][mode]["bytes"] + gathered + 8 * case["rank"] * case["lengths"][mode])


def flops(case: Case) -> int:
    """Return the floating-point operations of a mode's MTTKRP."""
    return int(len(case["lengths"]) * case["rank"] * case["nonzeros"])


FIGURES: dict[str, Callable[[Any, Sequence[Case]], Any]] = {
    "amped-9-scaling": scaling,
    "roofline": roofline,
}
