"""Tasks of users, as whole programs of amped, TensorLy with TensorLy-Viz, and pyttb: lines, seconds, pictures.

The programs are in the folder ``programs``. Spectra: how many components has a dense tensor, and which? Gaps: the same
with missing elements. Pickups: four habits in a sparse tensor of counts, with their labels. Events: the same from a
table. pyttb has no diagnostics of the number of components.
"""

from __future__ import annotations

import argparse
import gzip
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from .bundled import UBER, bundled
from .harness import Facts, Result, common_flags, environment_with, seconds_of, versions_of
from .spread import summary

PROGRAMS = Path(__file__).parent / "programs"
PACKAGES = "amped", "tensorly", "pyttb"
TASKS = {"spectra": PACKAGES[:2], "gaps": PACKAGES[:2], "pickups": PACKAGES, "events": PACKAGES}
PEERS = "numpy", "tensorly", "tlviz", "pyttb"
COLOURS = 48  # of a picture


class Turn(NamedTuple):
    """A run of a program: seconds of the wall clock, processor seconds, and what it printed."""

    seconds: float
    processor: float
    text: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = common_flags(parser, "tasks-cpu", device=None, repeats=3)
    add("--task", nargs="+", choices=tuple(TASKS), default=list(TASKS), help="(all)")
    add("--package", nargs="+", choices=PACKAGES, default=list(PACKAGES), help="(all)")


def run(args: argparse.Namespace) -> None:
    """Run the programs in turn, each once without being measured; write the results file after each task."""
    result = Result(args, "tasks-cpu", ["CPU"], packages=versions_of(PEERS))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder)
        for task in args.task:
            packages = [each for each in TASKS[task] if each in args.package]
            turns: dict[str, list[Turn]] = {package: [] for package in packages}
            for turn in range(1 + args.repeats):
                for package in packages:
                    found = turn_of(folder, task, package)
                    turns[package] += [found] * bool(turn)
            for package, each in turns.items():
                picture = f"{result.path.stem}-{task}-{package}.png"
                save(folder / f"{task}_{package}.png", result.path.parent / picture)
                case = case_of(task, package, each)
                result.add({**case, "picture": picture}, line(case))


def write_data(folder: Path) -> None:
    """Write the inputs of all programs.

    Three emission and excitation spectra in 30 samples; ten samples without the elements that scattered light would
    hide; the bundled tensor; and the pickups of another one as a table.
    """
    rng = np.random.default_rng(2)
    axes = {"emission": np.arange(300, 500, 2.0), "excitation": np.arange(240, 320, 2.0)}
    centres = {"emission": ([340, 380, 430], 25), "excitation": ([255, 275, 295], 10)}
    peaks = [np.exp(-0.5 * ((axis[:, None] - centres[name][0]) / centres[name][1]) ** 2) for name, axis in axes.items()]
    spectra = np.einsum("ir,jr,kr->ijk", rng.random((30, 3)) + 0.1, *peaks)
    spectra += 0.02 * rng.standard_normal(spectra.shape)
    np.save(folder / "spectra.npy", spectra)
    hidden = axes["emission"][:, None] < axes["excitation"] + 15
    np.save(folder / "gaps.npy", np.where(hidden, np.nan, spectra[:10]))
    for name, axis in axes.items():
        np.save(folder / f"{name}.npy", axis)
    shutil.copy(bundled(), folder / "pickups.npz")
    write_events(folder / "events.csv")


def write_events(path: Path) -> None:
    """Write a row for each pickup: its time, and the row and column of its place in a grid."""
    with gzip.open(bundled(UBER), "rt") as file:
        day, hour, row, column, count = np.loadtxt(file, dtype=int).T - np.array([[1], [1], [1], [1], [0]])
    times = np.datetime64("2014-04-01T00:00:00") + 3600 * (24 * day + hour)
    repeated = np.repeat(np.stack([times.astype(str), row.astype(str), column.astype(str)], axis=1), count, axis=0)
    path.write_text("\n".join(["time,row,column", *map(",".join, repeated.tolist())]) + "\n")


def turn_of(folder: Path, task: str, package: str) -> Turn:
    """Run a program in a process."""
    texts, before = list[str](), processor_seconds()
    line = [sys.executable, str(PROGRAMS / f"{task}_{package}.py"), f"{task}_{package}.png"]
    how = {"cwd": folder, "env": environment_with({}, ()) | {"MPLBACKEND": "agg"}, "text": True, "check": True}
    seconds = seconds_of(lambda: texts.append(subprocess.run(line, stdout=subprocess.PIPE, **how).stdout))  # type: ignore[call-overload]
    return Turn(seconds, processor_seconds() - before, texts[0])


def processor_seconds() -> float:
    """Return the processor time of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def case_of(task: str, package: str, turns: list[Turn]) -> Facts:
    """Return the facts of a program."""
    lines = (PROGRAMS / f"{task}_{package}.py").read_text().splitlines()
    seconds = {
        "wall": summary([turn.seconds for turn in turns]),
        "processor": summary([turn.processor for turn in turns]),
    }
    code = sum(bool(each.strip()) for each in lines)
    return {"task": task, "package": package, "lines": code, "seconds": seconds, "output": turns[-1].text}


def line(case: Facts) -> str:
    """Return a line about a case."""
    seconds = case["seconds"]
    times = f"{seconds['wall']['median']:.1f} s, {seconds['processor']['median']:.1f} s of processors"
    return f"{case['task']}, {case['package']}: {case['lines']} lines, {times}"


def save(source: Path, target: Path) -> None:
    """Copy a picture with few colours."""
    Image.open(source).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(target, optimize=True)
