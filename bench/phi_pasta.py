"""PASTA's plain MTTKRP, with an atomic addition for each nonzero and column, beside amped's MTTKRP and Phi."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from typing import Any

from . import coordinates
from .groups import free_memory
from .harness import Facts, medians, summaries
from .phi_problem import Nonzeros, best_kernel, seconds, study, study_flags


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    study_flags(parser, "phi-pasta")


def run(args: argparse.Namespace) -> None:
    """Time all of them in turn, for each tensor, number of columns, precision and mode."""
    study(args, "phi-pasta", partial(of_mode, repeats=args.repeats), line)


def of_mode(nonzeros: Nonzeros, repeats: int) -> Facts:
    """Return the seconds of a mode's MTTKRP and Phi, amped's with the kernels that are the fastest for each."""
    device = nonzeros.device
    best, known = best_kernel(nonzeros)
    other = nonzeros.kernel(min(known, key=lambda name: known[name]["mttkrp"]))
    free_memory(device.xp)
    actions = {"amped: mttkrp": nonzeros.actions(other)["mttkrp"], "amped: phi": nonzeros.actions(best)["phi"]}
    actions |= {f"coordinates: {name}": action for name, action in coordinates.actions(nonzeros).items()}
    times = summaries(seconds(device, actions, repeats))
    gains = {
        name: times[f"coordinates: {name}"]["median"] / times[f"amped: {name}"]["median"]
        for name in ("mttkrp", "phi")
        if f"coordinates: {name}" in times
    }
    return {"kernels": {"mttkrp": other.name, "phi": best.name}, "seconds": times, "times_as_fast": gains}


def line(case: Mapping[str, Any]) -> str:
    """Return a case as text."""
    gains = ", ".join(f"{name} x{gain:.1f}" for name, gain in case["times_as_fast"].items())
    return f"ms: {medians(case['seconds'], 1e3)}; {gains}"
