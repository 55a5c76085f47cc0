"""A picture beside each result; without Matplotlib (extra: bench) there is none, and a line says so."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COLOURS = {"compute": "#4477aa", "copy": "#ccbb44", "exchange": "#ee6677", "solve": "#228833", "other": "#bbbbbb"}


def plot() -> Any:
    """Return Matplotlib's pyplot, drawing to files; None if it is not installed."""
    try:
        import matplotlib
    except ImportError:
        print("no pictures: Matplotlib is not installed (pip install -e .[bench])", flush=True)
        return None
    matplotlib.use("agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    return pyplot


def save(figure: Any, path: Path) -> None:
    """Write a figure and forget it."""
    pyplot = plot()
    figure.savefig(path, dpi=130, bbox_inches="tight")
    pyplot.close(figure)


def draw(path: Path) -> None:
    """Draw the result at `path` as a PNG beside it."""
    pyplot, result = plot(), json.loads(path.read_text())
    if pyplot is None:
        return
    if "cases" in result:
        figure = _cases(pyplot, [c for c in result["cases"] if "refused" not in c])
    elif "gigabytes_a_second" in result:
        figure = _ceilings(pyplot, result["gigabytes_a_second"])
    else:
        figure = _iteration(pyplot, result)
    save(figure, path.with_suffix(".png"))


def label(case: Mapping[str, Any]) -> str:
    """Return what tells a case from the others."""
    return (
        f"{case['shape']} s{case['skew']:g} R{case['rank']} ×{case['ranks']} "
        f"{case['precision']} {case['placement']} {case['kernel']}"
    )


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
    """GB/s of random rows by what they are out of, with the copy."""
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
