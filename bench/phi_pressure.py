"""The pressure point analysis: Phi without one resource at a time, and how much faster it is.

What is computed then is not Phi. Only nonzeros change, and on a GPU a line of the kernel, in a copy of its code.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from amped.backend.ops.mttkrp import Kernel

from . import coordinates, phi_code
from .groups import free_memory
from .harness import summaries
from .phi_code import NO_ATOMICS, NO_DIVISION, Edit
from .phi_problem import Action, Array, Nonzeros, Timed, best_kernel, seconds, study, study_flags

FEW = 64  # rows that any cache holds
BASE = "Phi"
RESOURCES = {
    "MTTKRP": "the model and its division",
    "no division": "the division",
    "no atomics": "additions in the L2 cache: sums are stored",
    "row 0": "the gather: all input rows are row 0",
    "consecutive rows": "the irregular gather: input rows one after the other",
    "few rows": f"cache misses of the gather: input rows modulo {FEW}",
    "few rows, all modes": f"cache misses of the gather and the output: all rows modulo {FEW}",
    "few rows, no division": "those of the gather, and the division",
    "few rows, no atomics": "those of the gather, and additions in the L2 cache",
}
"""What each variant does without."""
COORDINATES = "coordinates"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    study_flags(parser, "phi-pressure")


def run(args: argparse.Namespace) -> None:
    """Time Phi and its variants in turn, for each tensor, number of columns, precision and mode."""
    result = study(args, "phi-pressure", partial(of_mode, repeats=args.repeats), line)
    result.facts |= {"resources": RESOURCES, "gains": gains(result.facts["cases"])}
    result.write()


def of_mode(nonzeros: Nonzeros, repeats: int) -> dict[str, Any]:
    """Return the seconds of each variant of amped's kernel, and of plain ones over coordinates."""
    kernel, _ = best_kernel(nonzeros)
    free_memory(nonzeros.device.xp)
    edits = _edits(kernel) if not nonzeros.device.on_host else {}
    if edits:
        phi_code.begin(nonzeros.device, [(nonzeros.share, [kernel])], edits.values())
    found: dict[str, Any] = {"kernel": kernel.name}
    found["seconds"] = summaries(seconds(nonzeros.device, _variants(nonzeros, kernel, edits), repeats))
    free_memory(nonzeros.device.xp)
    if not nonzeros.device.on_host:
        found[COORDINATES] = summaries(seconds(nonzeros.device, _of_coordinates(nonzeros), repeats))
    return found


def indices(nonzeros: Nonzeros) -> dict[str, Sequence[Array]]:
    """Return the indices of each variant that changes them, output indices first."""
    rows, *inputs = nonzeros.columns[:-1]
    xp, lengths = nonzeros.device.xp, nonzeros.share.lengths
    numbers = xp.arange(rows.size)
    few = [column % FEW for column in inputs]
    return {
        "row 0": [rows, *(xp.zeros_like(column) for column in inputs)],
        "consecutive rows": [rows, *((numbers % length).astype(np.int32) for length in lengths)],
        "few rows": [rows, *few],
        "few rows, all modes": [rows % FEW, *few],
    }


def _variants(nonzeros: Nonzeros, kernel: Kernel, edits: Mapping[str, Edit]) -> dict[str, Timed]:
    device, own = nonzeros.device, nonzeros.actions(kernel)
    found = {BASE: Timed(device, own["phi"]), "MTTKRP": Timed(device, own["mttkrp"])}
    others = {name: nonzeros.changed(columns) for name, columns in indices(nonzeros).items()}
    few = others["few rows"].actions(kernel)["phi"]
    for name, other in others.items():
        found[name] = Timed(device, few if name == "few rows" else other.actions(kernel)["phi"])
    for name, edit in edits.items():
        with phi_code.changed(edits=[edit]):
            found[name], found[f"few rows, {name}"] = Timed(device, own["phi"]), Timed(device, few)
    return found


def _edits(kernel: Kernel) -> dict[str, Edit]:
    """Return the changes of a GPU's kernel by name; one that stores each sum once has no atomics."""
    return {"no division": NO_DIVISION} | ({} if kernel.repeatable else {"no atomics": NO_ATOMICS})


def _of_coordinates(nonzeros: Nonzeros) -> dict[str, Action]:
    """Return SparTen's algorithm, with and without atomics, and with rows in the caches."""
    few = nonzeros.changed(indices(nonzeros)["few rows, all modes"])
    return {
        BASE: coordinates.actions(nonzeros)["phi"],
        "no atomics": coordinates.actions(nonzeros, stores=True)["phi"],
        "few rows, all modes": coordinates.actions(few)["phi"],
        "few rows, all modes, no atomics": coordinates.actions(few, stores=True)["phi"],
    }


def _speedups(times: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, s in times.items():
        if name != BASE:
            yield name, times[BASE]["median"] / s["median"]


def gains(cases: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return by variant how many times as fast it is as Phi, over all cases."""
    found: dict[str, dict[str, Any]] = {}
    for key in ("seconds", COORDINATES):
        each: dict[str, list[float]] = {}
        for case in cases:
            for name, gain in _speedups(case.get(key, {BASE: {"median": 1.0}})):
                each.setdefault(name, []).append(gain)
        found[key] = {
            name: {"geometric_mean": statistics.geometric_mean(g), "least": min(g), "most": max(g), "cases": len(g)}
            for name, g in each.items()
        }
    return found


def line(case: Mapping[str, Any]) -> str:
    """Return a case as text."""
    parts = [f"{name} x{gain:.2f}" for name, gain in _speedups(case["seconds"])]
    parts += [f"coordinates, {name} x{gain:.2f}" for name, gain in _speedups(case.get(COORDINATES, {BASE: None}))]
    return f"{case['kernel']}, Phi {case['seconds'][BASE]['median'] * 1e3:.3f} ms; {', '.join(parts)}"
