"""What benchmarks share: flags, work that takes turns, and results that are written case by case.

A benchmark is a module with ``add_arguments(parser)`` and ``run(args)``; its first line says what it measures.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import multiprocessing
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from amped.parallel.mpi import Comm

from . import pictures, record
from .spread import summary

Facts = dict[str, Any]
Work = Callable[[], object]


def common_flags(
    parser: argparse.ArgumentParser, name: str, device: str | None = "auto", repeats: int | None = None
) -> Callable[..., Any]:
    """Add the flags that most benchmarks have; return the parser's ``add_argument``."""
    add = parser.add_argument
    if device is not None:
        add("--device", default=device, help=f"({device})")
    if repeats is not None:
        add("--repeats", type=int, default=repeats, metavar="K", help=f"of each, in turn ({repeats})")
    add("--name", help=f"of the result ({name})")
    add("--output", type=Path, default=record.RESULTS, metavar="FOLDER", help="of the result")
    return add


class Result:
    """A result on disk that grows by cases. Of several ranks the first one writes it.

    Parameters
    ----------
    args : Namespace
        With ``name`` and ``output``; see `common_flags`.
    name : str
        The result's, if `args` has none.
    devices : sequence of str
        The ranks' devices.
    comm : Comm, optional
        The ranks.
    **facts
        What holds for all cases.
    """

    def __init__(
        self, args: argparse.Namespace, name: str, devices: Sequence[str], comm: Comm | None = None, **facts: object
    ) -> None:
        self.name, self._folder, self._devices = args.name or name, args.output, devices
        self._writes = comm is None or comm.rank == 0
        self.facts: Facts = facts

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self._folder) / f"{self.name}.json"

    def add(self, case: Facts, line: str = "", key: str = "cases") -> None:
        """Append a case, write the file and print a line."""
        self.facts.setdefault(key, []).append(case)
        self.write()
        if self._writes and line:
            print(line, flush=True)

    def write(self) -> None:
        """Write what is known so far."""
        if self._writes:
            record.write(self.name, self._devices, self.facts, self._folder)

    def draw(self, function: pictures.Draw) -> None:
        """Draw a picture beside the file, if there is one."""
        if self._writes and self.path.exists():
            pictures.draw(self.path, function)


def in_turn(ways: Mapping[str, Callable[[], float]], repeats: int, warm: int = 1) -> dict[str, list[float]]:
    """Return what each way returns when it is called, such as seconds; the first `warm` turns do not count."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(warm + repeats):
        for name, way in ways.items():
            value = way()
            if turn >= warm:
                found[name].append(value)
    return found


def seconds_of(work: Work) -> float:
    """Return the seconds of some work, by the host's clock."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def summaries(each: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """Return medians and spread by name."""
    return {name: summary(values) for name, values in each.items()}


def medians(summed: Mapping[str, Mapping[str, float]], factor: float = 1.0, digits: int = 3) -> str:
    """Return named medians as text."""
    return ", ".join(f"{name} {found['median'] * factor:.{digits}g}" for name, found in summed.items())


def in_a_process(function: Callable[..., object], *arguments: object) -> Any:
    """Return what a function returns in a separate process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def environment_with(places: Mapping[str, Path], without: Collection[str]) -> dict[str, str]:
    """Return the environment of a process that imports this tree, with some folders and without some variables."""
    paths = filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")])
    kept = {name: value for name, value in os.environ.items() if name not in without}
    return kept | {name: str(place) for name, place in places.items()} | {"PYTHONPATH": os.pathsep.join(paths)}


def versions_of(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of other packages."""
    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
