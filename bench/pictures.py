"""Draw a picture beside each result; without Matplotlib (extra: bench) only a line is printed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

COLOURS = {"compute": "#4477aa", "copy": "#ccbb44", "exchange": "#ee6677", "solve": "#228833", "other": "#bbbbbb"}
CYCLE = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#000000")
"""Colour-blind safe colours (Paul Tol's)."""

DOTS, SHADES = 120, 256
STAGES = {
    "start": "#000000", "import": "#bbbbbb", "read": "#ccbb44", "sort": "#66ccee", "copy": "#aa3377", "pack": "#ee6677",
    "choose": "#ee99aa", "compile": "#222255", "iterate": "#4477aa", "write": "#228833",
}  # fmt: skip
USUAL = {"precision": "fp32", "kernel": "auto", "gather": "full"}


def plot() -> Any:
    """Return Matplotlib's pyplot, drawing to files; None if it is not installed."""
    try:
        import matplotlib
    except ImportError:
        print("no pictures: Matplotlib is not installed (pip install -e .[bench])", flush=True)
        return None
    matplotlib.use("agg")
    from matplotlib import pyplot

    cycle = matplotlib.cycler(color=CYCLE)
    style = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.prop_cycle": cycle}
    pyplot.rcParams.update(style)
    return pyplot


def save(figure: Any, path: Path) -> None:
    """Write a figure as a PNG with few colours, and close it."""
    from PIL import Image  # Matplotlib needs it too

    drawn = BytesIO()
    figure.savefig(drawn, dpi=DOTS, bbox_inches="tight", format="png")
    plot().close(figure)
    Image.open(drawn).convert("RGB").quantize(SHADES, dither=Image.Dither.NONE).save(path, optimize=True)


def log_scale(axes: Any) -> None:
    """Make the y axis logarithmic, with plain numbers as labels."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")


def draw(path: Path) -> None:
    """Draw the result at `path` as a PNG beside it, if there is a picture for its kind."""
    pyplot, result = plot(), json.loads(path.read_text())
    if pyplot is None:
        return
    if "ceilings" in result:
        figure = _cases(pyplot, [c for c in result["cases"] if "refused" not in c])
    elif "gigabytes_a_second" in result:
        figure = _ceilings(pyplot, result["gigabytes_a_second"])
    elif "seconds_of_the_slowest_rank" in result:
        figure = _iteration(pyplot, result)
    elif "iterations" in result:
        figure = _iterations(pyplot, [case for case in result["iterations"] if "skipped" not in case])
    elif "dense" in result:
        figure = _dense(pyplot, result["dense"])
    elif "answers" in result:
        figure = _answers(pyplot, result["answers"])
    elif "counts" in result:
        figure = _counts(pyplot, result["counts"])
    elif result.get("paths"):
        figure = _paths(pyplot, result["paths"])
    else:
        return
    save(figure, path.with_suffix(".png"))


def label(case: Mapping[str, Any]) -> str:
    """Return a label for a case, without what most cases share."""
    ranks, unit = case["ranks"], "GPU" if case["device"] == "cuda" else "rank"
    parts = [f"{case['shape']}, skew {case['skew']:g}, {case['rank']} columns, {ranks} {unit}{'s' * (ranks > 1)}"]
    if case["values"] != "real":
        parts.append(f"{case['values']}s")
    if case["placement"] == "stream":
        parts.append("streamed")
    parts += [case[k] for k, usual in USUAL.items() if case.get(k, usual) != usual]
    return ", ".join(parts + ["deterministic"] * case["deterministic"])


def _cases(pyplot: Any, cases: Sequence[Mapping[str, Any]]) -> Any:
    """Milliseconds of a sweep, with quartiles, and of the yardstick."""
    figure, axes = pyplot.subplots(figsize=(8, 1 + 0.3 * len(cases)))
    for y, case in enumerate(cases):
        low, middle, high = (case["seconds_a_sweep"][k] * 1e3 for k in ("quartile_1", "median", "quartile_3"))
        axes.barh(y, middle, xerr=[[middle - low], [high - middle]], color=COLOURS["compute"])
        if "yardstick" in case:
            axes.plot(case["yardstick"]["seconds_a_sweep"] * 1e3, y, "k|", markersize=12)
    axes.set_yticks(range(len(cases)), [label(case) for case in cases])
    axes.invert_yaxis()
    axes.set_xlabel("ms a sweep over all modes (median, quartiles; | the yardstick)")
    return figure


def _ceilings(pyplot: Any, speeds: Mapping[str, Any]) -> Any:
    """GB/s of random rows by size of the matrix, and of the copy."""
    figure, axes = pyplot.subplots(figsize=(5, 3.2))
    sizes = sorted(float(size) for size in speeds["gather"])
    axes.semilogx(sizes, [speeds["gather"][f"{size:g}"] for size in sizes], "o-", label="random rows of 128 bytes")
    axes.axhline(min(speeds["copy"]), color="k", linestyle="--", label="copy, read and written")
    axes.set(xlabel="MB of rows", ylabel="GB/s", ylim=(0, None))
    axes.legend(frameon=False)
    return figure


def _iteration(pyplot: Any, result: Mapping[str, Any]) -> Any:
    """Milliseconds of an iteration of CP-ALS by kind of work, of the slowest rank."""
    figure, axes = pyplot.subplots(figsize=(6, 1.8))
    left = 0.0
    for kind, seconds in result["seconds_of_the_slowest_rank"].items():
        axes.barh(0, seconds["all modes"] * 1e3, left=left, label=kind, color=COLOURS[kind])
        left += seconds["all modes"] * 1e3
    axes.axvline(result["seconds_an_iteration"]["median"] * 1e3, color="k", linestyle="--", label="an iteration")
    axes.set(xlabel="ms", yticks=[])
    axes.legend(frameon=False, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1))
    return figure


def _iterations(pyplot: Any, cases: Sequence[Mapping[str, Any]]) -> Any:
    """Milliseconds of an iteration from end to end, with quartiles, and of its kernels."""
    figure, axes = pyplot.subplots(figsize=(7, 1 + 0.45 * len(cases)))
    least = min((case["seconds_of_kernels"] for case in cases), default=1.0) * 1e3 / 2
    for y, case in enumerate(cases):
        low, middle, high = (case["seconds_an_iteration"][k] * 1e3 for k in ("quartile_1", "median", "quartile_3"))
        text = "from end to end" if y == 0 else None
        axes.barh(y - 0.2, middle, 0.4, xerr=[[middle - low], [high - middle]], color=COLOURS["other"], label=text)
        text = "sum of the kernels" if y == 0 else None
        axes.barh(y + 0.2, case["seconds_of_kernels"] * 1e3, 0.4, color=COLOURS["compute"], label=text)
        axes.text(high * 1.05, y - 0.2, f"{middle:.3g}", va="center", fontsize=8)
    axes.set_yticks(range(len(cases)), [_computed(case) for case in cases])
    axes.invert_yaxis()
    axes.set(xscale="log", xlim=(least, None), xlabel="ms an iteration of CP-ALS (median, quartiles)")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.margins(x=0.15)
    axes.legend(frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1))
    return figure


def _counts(pyplot: Any, rows: Sequence[Mapping[str, Any]]) -> Any:
    """How far log-likelihoods are below the best one of all, by seconds, of each start and method."""
    columns = min(3, len(rows))
    lines = -(-len(rows) // columns)
    figure, all_axes = pyplot.subplots(lines, columns, figsize=(3 * columns, 2.6 * lines), squeeze=False)
    for axes, row in zip(all_axes.flat, rows, strict=False):
        methods = list(row["best"])
        best = max(each["loglikelihood"] for each in row["best"].values())
        for colour, method in zip(CYCLE, methods, strict=False):
            for number, start in enumerate(row["starts"]):
                path = start[method]
                lacks = [max(best - value, 1e-6 * abs(best)) / abs(best) for value in path["loglikelihood"]]
                axes.loglog(path["seconds"], lacks, color=colour, lw=0.8, label=None if number else method)
        axes.set(title=f"{row['tensor']}, rank {row['rank']}", xlabel="seconds")
        axes.set_ylabel("below the best, relative")
    all_axes[0][0].legend(frameon=False)
    figure.tight_layout()
    return figure


def _computed(case: Mapping[str, Any]) -> str:
    ranks = case["ranks"]
    where = f"{ranks} GPU{'s' * (ranks > 1)}" if case["device"] == "cuda" else case["description"]
    where += f", {ranks} ranks" * (case["device"] != "cuda" and ranks > 1)
    return f"{case['case']}, {case['rank']} columns, {case['precision']}\n{where}"


def _paths(pyplot: Any, paths: Sequence[Mapping[str, Any]]) -> Any:
    """How far fits are below the best one from the same start, by iterations and by seconds; the first start's."""
    names = list(dict.fromkeys(path["case"] for path in paths))
    figure, all_axes = pyplot.subplots(2, len(names), figsize=(2.6 * len(names), 4.6), squeeze=False, sharey="col")
    for (above, below), name in zip(all_axes.T, names, strict=True):
        first = [path for path in paths if path["case"] == name and path["seed"] == 0]
        best = max(max(path["fits"]) for path in first)
        for path in first:
            gaps = [max(best - fit, 1e-7) for fit in path["fits"]]
            style = {"label": path["way"], "linestyle": "--" if path["way"].startswith("ADMM") else "-", "linewidth": 1}
            above.loglog(range(1, len(gaps) + 1), gaps, **style)
            below.loglog(path["seconds"], gaps, **style)
        above.set(title=f"{name}, {first[0]['rank']} columns", xlabel="iterations")
        below.set_xlabel("seconds")
    for axes in all_axes[:, 0]:
        axes.set_ylabel("best fit less fit")
    handles, texts = all_axes[0, 0].get_legend_handles_labels()
    figure.tight_layout()
    figure.legend(handles, texts, frameon=False, ncols=len(texts), loc="lower center", bbox_to_anchor=(0.5, 1))
    return figure


def _answers(pyplot: Any, rows: Sequence[Mapping[str, Any]]) -> Any:
    """Seconds of programs and calls, by stage, with the quartiles of the whole."""
    figure, all_axes = pyplot.subplots(len(rows), 1, figsize=(7, 0.6 + 0.55 * len(rows)), squeeze=False)
    for axes, row in zip(all_axes[:, 0], rows, strict=True):
        left = 0.0
        for stage, seconds in row["seconds_by_stage"].items():
            axes.barh(0, seconds, left=left, color=STAGES.get(stage, "#dddddd"), label=stage)
            left += seconds
        low, middle, high = (row["seconds"][k] for k in ("quartile_1", "median", "quartile_3"))
        axes.errorbar(middle, 0, xerr=[[middle - low], [high - middle]], color="k", capsize=3)
        axes.text(1.02, 0.5, f"{middle:.3g} s", transform=axes.transAxes, va="center", fontsize=8)
        axes.set_yticks([0], [f"{row['what']}\n{row['device']}, {row['when']}"])
        axes.tick_params(labelsize=7)
    handles = {
        name: each for axes in all_axes[:, 0] for each, name in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(),
        handles.keys(),
        frameon=False,
        fontsize=7,
        ncols=7,
        loc="lower center",
        bbox_to_anchor=(0.5, 1),
    )
    figure.tight_layout(h_pad=0.2)
    return figure


def _dense(pyplot: Any, cases: Sequence[Mapping[str, Any]]) -> Any:
    """Draw times of a sweep over all modes, and memory beside the tensor, by rank; a column for each tensor."""
    kinds = list(dict.fromkeys((tuple(case["shape"]), case["precision"]) for case in cases))
    figure, panels = pyplot.subplots(
        2, len(kinds), figsize=(1.6 + 1.6 * len(kinds), 4.5), squeeze=False, sharex=True, sharey="row"
    )
    names = list(dict.fromkeys(name for case in cases for name in case["milliseconds"]))
    for column, (shape, precision) in enumerate(kinds):
        rows = [case for case in cases if (tuple(case["shape"]), case["precision"]) == (shape, precision)]
        upper, lower = panels[0, column], panels[1, column]
        for number, name in enumerate(names):
            known = [case for case in rows if name in case["milliseconds"]]
            ranks, colour = [case["rank"] for case in known], CYCLE[number % len(CYCLE)]
            style = {"marker": "o", "ms": 3, "color": colour}
            upper.plot(ranks, [case["milliseconds"][name]["median"] for case in known], label=name, **style)
            taken = [case.get("peak_bytes", case["scratch_bytes"]).get(name, 0) / 2**20 for case in known]
            if name != "copy" and any(taken):
                lower.plot(ranks, taken, **style)
        if all("floor_milliseconds" in case for case in rows):
            floors = [case["floor_milliseconds"] for case in rows]
            upper.plot([case["rank"] for case in rows], floors, "--", color="#555555", lw=1, label="floor")
        upper.set_title(f"{'×'.join(map(str, shape))}\n{precision}", fontsize=8)
        lower.set_xlabel("rank")
        lower.set_xscale("log")
        lower.set_xticks(sorted({case["rank"] for case in rows}), minor=False)
        lower.xaxis.set_major_formatter("{x:g}")
        lower.xaxis.set_minor_formatter("")
        for axes in (upper, lower):
            axes.set_yscale("log")
    panels[0, 0].set_ylabel("ms, all modes")
    panels[1, 0].set_ylabel("MiB beside the tensor")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="lower center", ncols=len(names) + 1, frameon=False)
    figure.subplots_adjust(bottom=0.18)
    return figure
