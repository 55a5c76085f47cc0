"""MB/s of reading text, against the readers of other tools on the same cores and files."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from partitioner.readers.pieces import collect
from partitioner.readers.text.tns import TextPart

from .harness import Facts, Result, common_flags, in_turn, seconds_of, summaries, versions_of
from .stored import drawn
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = common_flags(parser, "host-reading", device=None, repeats=7)
    add("--lines", type=int, default=3_000_000, help="nonzeros of a file (3,000,000)")
    add("--shape", choices=sorted(SHAPES), default="nell2", help="tensor of the indices (nell2)")
    add("--values", nargs="+", choices=VALUES, default=list(VALUES), help="how they are written (all)")
    add("--cores", nargs="+", type=int, default=[1, 2], help="that the readers may use (1 2)")


def run(args: argparse.Namespace) -> None:
    """Write a file per kind of values; time the readers in turn, on each number of cores."""
    facts = {"others": versions_of(PACKAGES), "shape": args.shape, "nonzeros": args.lines}
    result = Result(args, "host-reading", ["CPU"], **facts)
    with tempfile.TemporaryDirectory() as folder, workers(args.cores) as started:
        for kind in args.values:
            path = _write(Path(folder), args, VALUES[kind])
            for case in _compare(path, started, args.repeats):
                result.add({"values": kind, **case}, line(kind, case))


def _write(folder: Path, args: argparse.Namespace, write: Callable[[float], str]) -> Path:
    """Write nonzeros sorted by index, as published tensors are, and the expected values."""
    path = folder / "whole.tns"
    columns, values = drawn(recipe(args.shape, args.lines))
    order, texts = np.lexsort(columns[::-1]), [write(value) for value in values.tolist()]
    rows = zip(*(column + 1 for column in columns[:, order]), texts, strict=True)
    lines = [" ".join(map(str, row)) + "\n" for row in rows]
    path.write_text("".join(lines))
    path.with_name("short.tns").write_text("".join(lines[: len(lines) // SHORTER]))
    np.save(path.with_suffix(".npy"), np.array(texts, np.float64))
    return path


def _compare(path: Path, started: Sequence[Worker], repeats: int) -> list[Facts]:
    """Time all readers of the file, on each number of cores, in turn."""
    names = [name for name in READERS if find_spec(PACKAGE_OF.get(name, name))]
    off = {name: started[0](values_off, name, path) for name in names}
    ways = {
        (worker.cores, name): partial(worker, megabytes_a_second, name, path, worker.cores)
        for worker in started
        for name in names
    }
    speeds = in_turn({f"{cores} {name}": way for (cores, name), way in ways.items()}, repeats)
    cases = []
    for worker in started:
        each = {name: speeds[f"{worker.cores} {name}"] for name in names}
        gains = {name: statistics.median(np.divide(each["amped"], found)) for name, found in each.items()}
        facts = {"cores": worker.cores, "bytes": path.stat().st_size, "values_off": off}
        cases.append({**facts, "megabytes_a_second": summaries(each), "amped_times_as_fast": gains})
    return cases


def line(kind: str, case: Facts) -> str:
    """Return a case as one line of text."""
    speeds = ", ".join(f"{name} {speed['median']:.0f}" for name, speed in case["megabytes_a_second"].items())
    return f"{kind}, cores: {case['cores']}, MB/s: {speeds}"


def megabytes_a_second(name: str, path: Path, cores: int) -> float:
    """Return a reader's MB/s on the file, or on the shorter one."""
    path = _file(name, path)
    size = path.stat().st_size
    touch_memory(AT_HAND[0] + AT_HAND[1] * size)
    return float(f"{size / seconds_of(lambda: READERS[name](path, cores)) / 1e6:.3g}")  # of short files, too


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
    reading = csv.ReadOptions(use_threads=cores > 1, column_names=list(types))
    parsing, converting = csv.ParseOptions(delimiter=" "), csv.ConvertOptions(column_types=types)
    return csv.read_csv(path, reading, parsing, converting).columns


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
    types = [(name, np.float64 if name == "v" else np.int32) for name in _names(path)]
    table = np.loadtxt(path, types)
    return [table[name] for name, _ in types]


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
