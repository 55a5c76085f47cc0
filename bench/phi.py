"""The studies of SparTen's paper: what bounds Phi of CP-APR, what each resource costs, and CP-APR beside other tools.

After "Analyzing the Performance Portability of Tensor Decomposition" (Anderson, Teranishi, Dunlavy, Choi).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from amped.errors import InputError

from . import phi_apr, phi_intensity, phi_pasta, phi_policy, phi_pressure, phi_stream, phi_tables, pictures, record
from .phi_problem import TENSORS, device_of, load

PARTS: dict[str, ModuleType] = {
    "stream": phi_stream,
    "intensity": phi_intensity,
    "pressure": phi_pressure,
    "policy": phi_policy,
    "pasta": phi_pasta,
    "apr": phi_apr,
}
"""The parts: modules with ``add_arguments``, ``measure``, ``draw``, and ``PACKAGES`` whose versions are recorded."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags, and those of its parts."""
    add = parser.add_argument
    add("--part", nargs="+", choices=PARTS, default=list(PARTS), help="what is measured (all)")
    add("--device", default="auto")
    add("--threads", type=int, metavar="T", help="on a CPU (all cores)")
    add("--shapes", nargs="+", choices=TENSORS, default=list(TENSORS), help="of tensors (all of the paper)")
    add("--nonzeros", type=int, metavar="N", help="of each tensor (its own; on a CPU at most 5,000,000)")
    add("--rank", nargs="+", type=int, default=[32], metavar="R", help="columns of the factor matrices (32)")
    add("--precision", nargs="+", choices=("fp32", "fp64"), default=["fp32"])
    add("--repeats", type=int, default=7, metavar="K", help="measurements of each (7)")
    add("--name", help="of the result of one part (phi-PART-DEVICE)")
    add("--output", type=Path, default=record.RESULTS, metavar="FOLDER")
    add("--redraw", nargs="+", type=Path, metavar="JSON", help="measure nothing, draw these results' pictures again")
    add("--tables", type=Path, metavar="FOLDER", help="measure nothing, print the tables of docs/design/phi.md")
    for name, module in PARTS.items():
        module.add_arguments(parser.add_argument_group(name, (module.__doc__ or "").splitlines()[0]))


def run(args: argparse.Namespace) -> None:
    """Measure the parts in turn; write each result and its picture as soon as it is done."""
    for path in args.redraw or ():
        draw(path)
    for name in args.part if args.tables else ():
        print(phi_tables.tables(args.tables, name))
    if args.redraw or args.tables:
        return
    if args.name and len(args.part) > 1:
        raise InputError("--name is of the result of one --part")
    for name in args.part:
        part, device = PARTS[name], device_of(args)
        facts: dict[str, Any] = {"part": name, "others": _versions(part.PACKAGES), "load_before": load()}
        facts |= {"device": device.name, **part.measure(args, device)}
        facts["load_after"] = load()
        path = record.write(args.name or f"phi-{name}-{device.name}", [device.description], facts, args.output)
        draw(path)
        print(path, flush=True)


def draw(path: Path) -> None:
    """Draw the picture of a result beside it."""
    pyplot, facts = pictures.plot(), json.loads(path.read_text())
    if pyplot is not None:
        pictures.save(PARTS[facts["part"]].draw(pyplot, facts), path.with_suffix(".png"))


def _versions(packages: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
