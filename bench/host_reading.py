"""MB/s of reading text, against the readers of other tools on the same cores and files."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from partitioner.readers.pieces import collect
from partitioner.readers.text.tns import TextPart

from . import record
from .draws import HostDraws
from .synthetic import SHAPES, recipe
from .workers import Worker, touch_memory, workers

Columns = Sequence[Any]  # converted to arrays later, untimed

PACKAGES = ("numba", "pandas", "polars", "pyarrow")
SHORTER = 10  # numpy.loadtxt reads a file this many times shorter
AT_HAND = 1 << 28, 4  # memory touched before each reader: fixed bytes, and bytes per byte of the file
VALUES: dict[str, Callable[[float], str]] = {
    "counts": lambda value: str(1 + int(value * 20)),
    "decimals": lambda value: f"{value * 100:.3f}",
    "doubles": repr,
}
"""Formats of values in (0, 1]: one or two digits; four or five; up to seventeen."""


def add_arguments(group: argparse._ArgumentGroup) -> None:
    """Add this part's flags."""
    group.add_argument("--lines", type=int, default=3_000_000, help="nonzeros of a file (3,000,000)")
    group.add_argument("--lines-of", choices=sorted(SHAPES), default="nell2", help="tensor of the indices (nell2)")
    group.add_argument("--values", nargs="+", choices=VALUES, default=list(VALUES), help="how they are written (all)")
    group.add_argument("--cores", nargs="+", type=int, default=[1, 2], help="that the readers may use (1 2)")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Write a file per kind of values; time the readers in turn, on each number of cores."""
    files = {}
    with tempfile.TemporaryDirectory() as folder, workers(args.cores) as started:
        for kind in args.values:
            files[kind] = _compare(_write(Path(folder), args, VALUES[kind]), started, args.repeats)
            for cores, found in files[kind]["megabytes_a_second"].items():
                speeds = ", ".join(f"{name} {speed['median']:.0f}" for name, speed in found.items())
                print(f"{kind}, cores: {cores}, MB/s: {speeds}", flush=True)
    return {"shape": args.lines_of, "nonzeros": args.lines, "files": files}


def _write(folder: Path, args: argparse.Namespace, write: Callable[[float], str]) -> Path:
    """Write nonzeros sorted by index, as published tensors are, and the expected values."""
    made, numbers = recipe(args.lines_of, args.lines), range(args.lines)
    draws, path = HostDraws(made), folder / "whole.tns"
    columns = [draws.indices(mode, numbers) for mode in range(len(made.lengths))]
    order = np.lexsort(columns[::-1])
    texts = [write(value) for value in draws.values(numbers, np.dtype(np.float64)).tolist()]
    rows = zip(*((column[order] + 1).tolist() for column in columns), texts, strict=True)
    lines = [" ".join(map(str, row)) + "\n" for row in rows]
    path.write_text("".join(lines))
    path.with_name("short.tns").write_text("".join(lines[: len(lines) // SHORTER]))
    np.save(path.with_suffix(".npy"), np.array(texts, np.float64))
    return path


def _compare(path: Path, started: Sequence[Worker], repeats: int) -> dict[str, Any]:
    """Time all readers of the file, a round at a time."""
    names = [name for name in READERS if find_spec(PACKAGE_OF.get(name, name))]
    off = {name: started[0](values_off, name, path) for name in names}
    speeds: dict[str, Any] = {}
    for _ in range(1 + repeats):
        for worker in started:
            each = speeds.setdefault(str(worker.cores), {name: [] for name in names})
            for name in names:
                each[name].append(worker(megabytes_a_second, name, path, worker.cores))
    for each in speeds.values():
        for name in names:
            del each[name][0]  # the warm-up, which loads and compiles
    return {
        "bytes": path.stat().st_size,
        "values_off": off,
        "megabytes_a_second": {c: {n: record.summary(e[n]) for n in names} for c, e in speeds.items()},
        "amped_times_as_fast": {
            cores: {name: statistics.median(np.divide(each["amped"], each[name])) for name in names}
            for cores, each in speeds.items()
        },
        "each": speeds,
    }


def megabytes_a_second(name: str, path: Path, cores: int) -> float:
    """Return a reader's MB/s on the file, or on the shorter one."""
    path = _file(name, path)
    size = path.stat().st_size
    touch_memory(AT_HAND[0] + AT_HAND[1] * size)
    started = time.perf_counter()
    READERS[name](path, cores)
    return float(f"{size / (time.perf_counter() - started) / 1e6:.3g}")  # of short files, too


def values_off(name: str, path: Path) -> float:
    """Return the share of values that are not correctly rounded."""
    values = np.asarray(READERS[name](_file(name, path), 1)[-1])
    return float(np.mean(values != np.load(path.with_suffix(".npy"))[: values.size]))


def _file(name: str, path: Path) -> Path:
    return path.with_name("short.tns") if name == "numpy" else path


def _amped(path: Path, cores: int) -> Columns:
    indices, values = collect(path, TextPart(path, threads=cores))
    return [*indices, values]


def _pyarrow(path: Path, cores: int) -> Columns:
    import pyarrow
    from pyarrow import csv

    types = {name: pyarrow.float64() if name == "v" else pyarrow.int32() for name in _names(path)}
    pyarrow.set_cpu_count(cores)
    table = csv.read_csv(
        path,
        csv.ReadOptions(use_threads=cores > 1, column_names=list(types)),
        csv.ParseOptions(delimiter=" "),
        csv.ConvertOptions(column_types=types),
    )
    return table.columns


def _polars(path: Path, cores: int) -> Columns:
    import polars

    types = {name: polars.Float64 if name == "v" else polars.Int32 for name in _names(path)}
    return polars.read_csv(path, separator=" ", has_header=False, schema=types).get_columns()


def _pandas(path: Path, cores: int) -> Columns:
    import pandas

    types = {name: np.float64 if name == "v" else np.int32 for name in _names(path)}
    frame = pandas.read_csv(path, sep=" ", header=None, names=list(types), dtype=types)
    return [frame[name] for name in types]


def _numpy(path: Path, cores: int) -> Columns:
    names = _names(path)
    types = [(name, np.float64 if name == "v" else np.int32) for name in names]
    table = np.loadtxt(path, types)
    return [table[name] for name in names]


def _names(path: Path) -> list[str]:
    with open(path) as file:
        order = len(file.readline().split()) - 1
    return [*(f"i{mode}" for mode in range(order)), "v"]


READERS: dict[str, Callable[[Path, int], Columns]] = {
    "amped": _amped,
    "pyarrow": _pyarrow,
    "polars": _polars,
    "pandas": _pandas,
    "numpy": _numpy,
}
PACKAGE_OF = {"amped": "numba"}


def draw(pyplot: Any, facts: dict[str, Any]) -> Any:
    """MB/s of each reader by kind of values, one panel per number of cores."""
    panels = sorted({cores for file in facts["files"].values() for cores in file["megabytes_a_second"]}, key=int)
    figure, rows = pyplot.subplots(1, len(panels), figsize=(4 * len(panels), 3), sharey=True, squeeze=False)
    for axes, cores in zip(rows[0], panels, strict=True):
        for at, (kind, file) in enumerate(facts["files"].items()):
            found = file["megabytes_a_second"][cores]
            width = 0.8 / len(facts["files"])
            places = np.arange(len(found)) + (at - (len(facts["files"]) - 1) / 2) * width
            axes.bar(places, [speed["median"] for speed in found.values()], width, label=kind)
        axes.set_xticks(range(len(found)), list(found))
        axes.set_title(f"{cores} core{'s' * (cores != '1')}")
    rows[0][0].set_ylabel("MB/s of text")
    rows[0][-1].legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return figure
