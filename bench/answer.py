"""Seconds until there is an answer, by stage: whole processes, calls on arrays in memory, and the partitioner.

Started alone; the programs that it starts run on as many ranks as are asked for.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from partitioner.shards.sorters import probe

from . import pictures, record
from .host_partition import alone, gpu_name, write_archive
from .synthetic import BUNDLED, SHAPES

SHAPE = "nell2"
FIRST, LATER = "first", "later"
BLOCK = bytes(1 << 24)  # written at a time, to see the disk's speed
CACHES = {"XDG_CACHE_HOME": "", "CUPY_CACHE_DIR": "cupy", "CUDA_CACHE_PATH": "cuda"}
"""Variables that say where compiled code is kept, and the folder for each."""

Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), help="what is measured (all)")
    parser.add_argument("--device", nargs="+", choices=("cpu", "cuda"), help="(all there are)")
    parser.add_argument("--ranks", type=int, default=1, help="of each program that is started (1)")
    parser.add_argument("--first", type=int, default=2, metavar="K", help="processes with empty caches (2)")
    parser.add_argument("--later", type=int, default=5, metavar="K", help="processes, or calls, after these (5)")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="nell2", help="of the arrays in memory (nell2)")
    parser.add_argument("--nonzeros", type=int, default=50_000_000, help="of the arrays in memory (50 million)")
    parser.add_argument("--partitioned", type=int, default=60_000_000, metavar="N", help="nonzeros (60 million)")
    parser.add_argument("--folder", type=Path, help="where files are written (the one of temporary files)")
    parser.add_argument("--name", help="of the result (answer-DEVICE-RANKS)")
    parser.add_argument("--output", type=Path, default=record.RESULTS, metavar="FOLDER")


def run(args: argparse.Namespace) -> None:
    """Measure; rewrite the results file after each row."""
    missing = probe()
    devices = args.device or (["cpu"] if missing else ["cpu", "cuda"])
    described = ["CPU"] if missing else ["CPU", alone(gpu_name)]
    name, rows = args.name or f"answer-{devices[-1]}-{args.ranks}", list[Row]()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for part in args.part:
            for device in devices:
                for row in PARTS[part](args, device, Path(folder)):
                    rows.append({"part": part, "device": device, "ranks": args.ranks, **row})
                    path = record.write(name, described, {"answers": rows}, args.output)
                    print(line(rows[-1]), flush=True)
    pictures.draw(path)


def processes(args: argparse.Namespace, device: str, folder: Path) -> Iterator[Row]:
    """Decompose the bundled tensor in processes of their own."""
    tensor = str(files("amped").joinpath("data", BUNDLED))
    told, model = folder / "metrics.jsonl", folder / "model"
    how = ["cpd", tensor, "--rank", "16", "--max-iters", "20", "--tol", "0", "--device", device]
    how += ["--output", str(model), "--metrics", str(told), "--force", "--quiet"]

    def start(cache: Path) -> Row:
        found = started(["amped.run", *how], cache, args.ranks)
        events = [json.loads(text) for text in told.read_text().splitlines()]
        for event in events:
            if event["event"] == "stages":
                add(found["stages"], event["seconds"])
        return found

    caches = [folder / f"{device}{k}" for k in range(args.first)]
    first = [start(cache) for cache in caches]
    yield summed(f"cpd {BUNDLED}", FIRST, first)
    yield summed(f"cpd {BUNDLED}", LATER, [start(caches[-1]) for _ in range(args.later)])


def calls(args: argparse.Namespace, device: str, folder: Path) -> Iterator[Row]:
    """Decompose arrays in memory by several calls in one process."""
    told, cache = folder / "calls.json", folder / f"calls-{device}"
    how: dict[str, Any] = {"nonzeros": args.nonzeros, "rank": 32, "iterations": 10, "calls": 1 + args.later}
    flags = [x for key, value in {**how, "device": device, "output": told}.items() for x in (f"--{key}", str(value))]
    started(["bench.calls", "--lengths", *map(str, SHAPES[args.shape][0]), *flags], cache, args.ranks)
    first, *later = json.loads(told.read_text())
    name = f"cp_als of {args.nonzeros / 1e6:g} million, shape of {args.shape}, 10 iterations"
    yield summed(name, FIRST, [first])
    yield summed(name, LATER, later)


def partitions(args: argparse.Namespace, device: str, folder: Path) -> Iterator[Row]:
    """Partition an archive into a store, in processes of their own."""
    archive, store, cache = folder / "whole.npz", folder / "store", folder / f"partition-{device}"
    if not archive.exists():
        alone(write_archive, archive, SHAPE, args.partitioned)
    found = list[Row]()
    for _ in range(1 + args.later):
        shutil.rmtree(store, ignore_errors=True)
        how = [str(archive), "--output", str(store), "--device", device, "--quiet"]
        found.append(started(["partitioner.__main__", *how], cache, args.ranks))
    written = sum(file.stat().st_size for file in store.iterdir())
    shutil.rmtree(store)
    plain = [write_plainly(folder / "plain", written) for _ in range(2)]
    name = f"partition {args.partitioned / 1e6:g} million"
    more = {"store_bytes": written, "seconds_of_a_plain_write": plain}
    yield summed(name, FIRST, found[:1]) | more
    yield summed(name, LATER, found[1:]) | more


PARTS: dict[str, Callable[[argparse.Namespace, str, Path], Iterator[Row]]] = {
    "processes": processes,
    "calls": calls,
    "partitions": partitions,
}


def started(program: Sequence[str], cache: Path, ranks: int) -> Row:
    """Run a program with the cache folder `cache`; return its seconds, in all and by stage."""
    cache.mkdir(exist_ok=True)
    told = cache.with_suffix(".json")
    paths = filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")])
    places = {name: str(cache / place) for name, place in CACHES.items()}
    environment = {**os.environ, **places, "PYTHONPATH": os.pathsep.join(paths)}
    for name in ("NUMBA_CACHE_DIR", "PYTHONDONTWRITEBYTECODE"):  # the latter makes Python recompile its modules
        environment.pop(name, None)
    line = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    line += [sys.executable, "-m", "bench.stopwatch", str(told), *program]
    began, clock = time.time(), time.perf_counter()
    subprocess.run(line, env=environment, cwd=cache.parent, check=True, stdout=subprocess.DEVNULL)
    seconds, times = time.perf_counter() - clock, json.loads(told.read_text())
    stages = {"start": times["up"] - began, "import": times["imported"] - times["up"]}
    add(stages, times["stages"])
    add(stages, {"end": began + seconds - times["over"]})
    return {"seconds": seconds, "stages": stages}


def add(stages: dict[str, float], more: dict[str, float]) -> None:
    """Add seconds by stage to others."""
    for stage, seconds in more.items():
        stages[stage] = stages.get(stage, 0.0) + seconds


def write_plainly(path: Path, size: int) -> float:
    """Return the seconds of writing so many bytes, and of having them on the disk."""
    began = time.perf_counter()
    with open(path, "wb") as file:
        for at in range(0, size, len(BLOCK)):
            file.write(BLOCK[: size - at])
        file.flush()
        os.fsync(file.fileno())
    seconds = time.perf_counter() - began
    path.unlink()
    return seconds


def summed(what: str, when: str, found: Sequence[Row]) -> Row:
    """Return the medians of some equal programs, or calls."""
    stages = sorted(dict.fromkeys(stage for each in found for stage in each["stages"]), key="end".__eq__)
    medians = {stage: statistics.median(each["stages"].get(stage, 0.0) for each in found) for stage in stages}
    whole = [each["seconds"] for each in found]
    medians["other"] = max(0.0, statistics.median(whole) - sum(medians.values()))
    return {
        "what": what,
        "when": when,
        "seconds": record.summary(whole),
        "seconds_each": whole,
        "seconds_by_stage": medians,
    }


def line(row: Row) -> str:
    """Return a row as one line of text."""
    stages = ", ".join(f"{stage} {seconds:.3f}" for stage, seconds in row["seconds_by_stage"].items())
    return (
        f"{row['what']} on {row['device']} x{row['ranks']}, {row['when']}: {row['seconds']['median']:.3f} s ({stages})"
    )
