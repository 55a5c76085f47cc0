"""Seconds of whole commands: `info` of a small file, and the bundled example.

Both with an empty and with a full cache of compiled kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from .draws import HostDraws
from .record import summary
from .synthetic import recipe

PACKAGES = ("numba", "llvmlite")
SMALL, FILE = 1000, "small.tns"  # nonzeros, and the file of them
COMMANDS = {"info": ["info", FILE], "example": ["--device", "cpu"]}
COLD, WARM = "cold", "warm"
TIMED = """
import json, runpy, sys
from numba.core.event import TimingListener, install_listener
timer, told = TimingListener(), sys.argv.pop(1)
try:
    with install_listener("numba:compile", timer):
        runpy.run_module("amped.run", run_name="__main__", alter_sys=True)
finally:
    with open(told, "w") as file:
        json.dump(timer.duration if timer.done else 0.0, file)
"""
"""Runs a command and writes Numba's compile seconds to a file."""


def add_arguments(group: argparse._ArgumentGroup) -> None:
    """Add this part's flags."""
    group.add_argument("--cold", type=int, default=3, metavar="K", help="starts without compiled kernels (3)")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Start each command with an empty cache of kernels several times, then with a full one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _draw_small(folder / FILE)
        return {"starts": {name: _compare(folder, name, how, args) for name, how in COMMANDS.items()}}


def _draw_small(path: Path) -> None:
    draws, numbers = HostDraws(recipe("uber", SMALL)), range(SMALL)
    columns = [draws.indices(mode, numbers) + 1 for mode in range(4)]
    np.savetxt(path, np.column_stack([*columns, np.ones(SMALL, int)]), "%d")


def _compare(folder: Path, name: str, how: list[str], args: argparse.Namespace) -> dict[str, Any]:
    each: dict[str, list[tuple[float, float]]] = {COLD: [], WARM: []}
    for k in range(args.cold):
        each[COLD].append(_start(folder / f"{name}{k}", how))
    for _ in range(args.repeats):
        each[WARM].append(_start(folder / f"{name}{args.cold - 1}", how))
    found = {kind: {what: summary(v) for what, v in _columns(times).items()} for kind, times in each.items()}
    print(name, {kind: {what: round(s["median"], 2) for what, s in f.items()} for kind, f in found.items()}, flush=True)
    return {**found, "each": each}


def _columns(times: list[tuple[float, float]]) -> dict[str, list[float]]:
    return {"seconds": [whole for whole, _ in times], "compiling": [compiling for _, compiling in times]}


def _start(cache: Path, how: list[str]) -> tuple[float, float]:
    """Run a command with the cache folder `cache`; return its seconds, and those of compiling."""
    told = cache.with_suffix(".json")
    paths = filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")])
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": os.pathsep.join(paths)}
    for name in ("NUMBA_CACHE_DIR", "PYTHONDONTWRITEBYTECODE"):  # the latter makes Python recompile its modules
        environment.pop(name, None)
    line = [sys.executable, "-c", TIMED, str(told), *how]
    started = time.perf_counter()
    subprocess.run(line, env=environment, cwd=cache.parent, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started, json.loads(told.read_text())


def draw(pyplot: Any, facts: dict[str, Any]) -> Any:
    """Seconds of each command, cold and warm, and of compiling."""
    figure, axes = pyplot.subplots(figsize=(6, 2))
    bars = [(f"{name}, {kind}", found[kind]) for name, found in facts["starts"].items() for kind in (WARM, COLD)]
    whole, compiling = ([found[what]["median"] for _, found in bars] for what in ("seconds", "compiling"))
    axes.barh(range(len(bars)), whole, label="all else")
    axes.barh(range(len(bars)), compiling, label="compiling")
    axes.set_yticks(range(len(bars)), [name for name, _ in bars])
    axes.set_xlabel("seconds")
    axes.legend(frameon=False)
    return figure
