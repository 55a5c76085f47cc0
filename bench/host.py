"""The host side against other tools: reading, partitioning, MTTKRP on a CPU, and start-up."""

from __future__ import annotations

import argparse
import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from . import host_mttkrp, host_partition, host_reading, host_start, host_threads, pictures, record

PARTS: dict[str, ModuleType] = {
    "reading": host_reading,
    "partition": host_partition,
    "mttkrp": host_mttkrp,
    "threads": host_threads,
    "start": host_start,
}
"""The parts: modules with ``add_arguments``, ``measure``, ``draw``, and ``PACKAGES`` whose versions are recorded."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags, and those of its parts."""
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), help="what is measured (all)")
    parser.add_argument("--repeats", type=int, default=7, metavar="K", help="measurements of each (7)")
    parser.add_argument("--name", help="of the result (host-PART, with a GPU host-PART-cuda)")
    parser.add_argument("--output", type=Path, default=record.RESULTS, metavar="FOLDER")
    for name, module in PARTS.items():
        module.add_arguments(parser.add_argument_group(name, module.__doc__))


def run(args: argparse.Namespace) -> None:
    """Measure the parts in turn; write each result and its picture as soon as it is done."""
    for name in args.part:
        part = PARTS[name]
        facts: dict[str, Any] = {"others": _versions(part.PACKAGES), **part.measure(args)}
        devices = facts.pop("devices", ["CPU"])
        default = f"host-{name}" if len(devices) == 1 else f"host-{name}-cuda"
        path = record.write(args.name or default, devices, facts, args.output)
        pyplot = pictures.plot()
        if pyplot is not None:
            pictures.save(part.draw(pyplot, facts), path.with_suffix(".png"))
        print(path, flush=True)


def _versions(packages: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
