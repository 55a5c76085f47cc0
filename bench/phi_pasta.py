"""PASTA's plain MTTKRP, with an atomic addition for each nonzero and column, beside amped's MTTKRP and Phi."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from typing import Any

from amped.backend.device import Device

from . import coordinates, pictures
from .groups import free_memory
from .phi_problem import Nonzeros, best_kernel, cases_of, seconds, summaries

PACKAGES = ("numba",)
SERIES = ("amped: mttkrp", "amped: phi", "coordinates: mttkrp", "coordinates: phi")


def add_arguments(group: argparse._ArgumentGroup) -> None:
    """Add this part's flags: none."""


def measure(args: argparse.Namespace, device: Device) -> dict[str, Any]:
    """Time all of them in turn, for each tensor, number of columns, precision and mode."""
    cases = cases_of(args, device, lambda nonzeros: of_mode(nonzeros, args.repeats), line)
    ratios = {name: [case["times_as_fast"][name] for case in cases] for name in cases[0]["times_as_fast"]}
    overall = {name: {"geometric_mean": statistics.geometric_mean(r), "least": min(r)} for name, r in ratios.items()}
    return {"cases": cases, "times_as_fast": overall}


def of_mode(nonzeros: Nonzeros, repeats: int) -> dict[str, Any]:
    """Return the seconds of a mode's MTTKRP and Phi, amped's with the kernels that are the fastest for each."""
    device = nonzeros.device
    best, known = best_kernel(nonzeros)
    other = nonzeros.kernel(min(known, key=lambda name: known[name]["mttkrp"]))
    free_memory(device.xp)
    actions = {"amped: mttkrp": nonzeros.actions(other)["mttkrp"], "amped: phi": nonzeros.actions(best)["phi"]}
    actions |= {f"coordinates: {name}": action for name, action in coordinates.actions(nonzeros).items()}
    times = summaries(seconds(device, actions, repeats), False)
    gains = {
        name: times[f"coordinates: {name}"]["median"] / times[f"amped: {name}"]["median"]
        for name in ("mttkrp", "phi")
        if f"coordinates: {name}" in times
    }
    return {"kernels": {"mttkrp": other.name, "phi": best.name}, "seconds": times, "times_as_fast": gains}


def line(case: Mapping[str, Any]) -> str:
    """Return a case as one line of text."""
    head = f"{case['shape']} rank {case['rank']} {case['precision']} mode {case['mode']}"
    times = ", ".join(f"{name} {s['median'] * 1e3:.3f}" for name, s in case["seconds"].items())
    return f"{head}, ms: {times}; {', '.join(f'{n} x{g:.1f}' for n, g in case['times_as_fast'].items())}"


def draw(pyplot: Any, facts: dict[str, Any]) -> Any:
    """Milliseconds of each mode, a panel for each tensor."""
    cases = facts["cases"]
    panels: dict[tuple[Any, ...], list[Any]] = {}
    for case in cases:
        panels.setdefault((case["shape"], case["rank"], case["precision"]), []).append(case)
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    size = 1.5 + 2.2 * columns, 0.6 + 1.9 * rows
    figure, grid = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axes, ((shape, rank, precision), some) in zip(grid.flat, panels.items(), strict=False):
        there = [name for name in SERIES if name in some[0]["seconds"]]
        for k, name in enumerate(there):
            at = [case["mode"] + (k - (len(there) - 1) / 2) * 0.8 / len(there) for case in some]
            axes.bar(at, [c["seconds"][name]["median"] * 1e3 for c in some], 0.75 / len(there), label=name)
        pictures.log_scale(axes)
        axes.set_xticks([case["mode"] for case in some])
        axes.set_title(f"{shape}, {rank} columns, {precision}", fontsize=8)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    figure.supylabel("ms", fontsize=9)
    figure.supxlabel(f"mode\n{facts['machine']['devices'][0]}", fontsize=9)
    figure.legend(*grid[0][0].get_legend_handles_labels(), frameon=False, fontsize=7, loc="outside right upper")
    return figure
