"""Seconds until there is a result, by stage: whole processes, calls on arrays in memory, and the partitioner.

It is started by itself; the programs that it starts run on `--ranks` ranks.
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
from pathlib import Path

from partitioner.host.ranks import SingleRank
from partitioner.shards.sorters import make_sorter, probe

from .bundled import UBER, bundled
from .calls import PROBLEMS
from .harness import Facts, Result, common_flags, environment_with, in_a_process, seconds_of
from .spread import summary
from .stored import archive
from .synthetic import SHAPES, recipe

FIRST, LATER = "first", "later"
BLOCK = bytes(1 << 24)  # written at a time, to see the disk's speed
CACHES = {"XDG_CACHE_HOME": "", "CUPY_CACHE_DIR": "cupy", "CUDA_CACHE_PATH": "cuda"}
"""Variables that say where compiled code is kept, and the folder for each."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = common_flags(parser, "time_to_result-DEVICE-RANKS", device=None)
    add("--part", nargs="+", choices=PARTS, default=list(PARTS), help="what is measured (all)")
    add("--device", nargs="+", choices=("cpu", "cuda"), help="(all there are)")
    add("--ranks", type=int, default=1, help="of each program that is started (1)")
    add("--first", type=int, default=2, metavar="K", help="processes with empty caches (2)")
    add("--later", type=int, default=5, metavar="K", help="processes, or calls, after these (5)")
    add("--shape", choices=sorted(SHAPES), default="nell2", help="of the tensor to partition (nell2)")
    add("--problems", nargs="+", choices=PROBLEMS, default=["cp_als"], help="of calls (cp_als)")
    add("--partitioned", type=int, default=60_000_000, metavar="N", help="nonzeros (60 million)")
    add("--folder", type=Path, help="where files are written (the one of temporary files)")


def run(args: argparse.Namespace) -> None:
    """Measure; rewrite the results file after each row."""
    missing = probe()
    devices = args.device or (["cpu"] if missing else ["cpu", "cuda"])
    described = ["CPU"] if missing else ["CPU", in_a_process(gpu_name)]
    result = Result(args, f"time_to_result-{devices[-1]}-{args.ranks}", described)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for part in args.part:
            for device in devices:
                for row in PARTS[part](args, device, Path(folder)):
                    row = {"part": part, "device": device, "ranks": args.ranks, **row}
                    result.add(row, line(row))


def gpu_name() -> str:
    """Return the name of the first GPU."""
    make_sorter("cuda", SingleRank())  # raises if there is no GPU
    import cupy

    name: bytes = cupy.cuda.runtime.getDeviceProperties(0)["name"]
    return name.decode()


def processes(args: argparse.Namespace, device: str, folder: Path) -> Iterator[Facts]:
    """Decompose the bundled tensor in separate processes."""
    tensor = str(bundled(UBER))
    metrics, model = folder / "metrics.jsonl", folder / "model"
    command = ["cpd", tensor, "--rank", "16", "--max-iters", "20", "--tol", "0", "--device", device]
    command += ["--output", str(model), "--metrics", str(metrics), "--force", "--quiet"]

    def start(cache: Path) -> Facts:
        found = started(["amped.run", *command], cache, args.ranks)
        events = [json.loads(text) for text in metrics.read_text().splitlines()]
        for event in events:
            if event["event"] == "stages":
                add(found["stages"], event["seconds"])
        return found

    caches = [folder / f"{device}{k}" for k in range(args.first)]
    first = [start(cache) for cache in caches]
    yield summed(f"cpd {UBER}", FIRST, first)
    yield summed(f"cpd {UBER}", LATER, [start(caches[-1]) for _ in range(args.later)])


def calls(args: argparse.Namespace, device: str, folder: Path) -> Iterator[Facts]:
    """Call amped several times in one process, with empty caches and again: the first calls include the import."""
    seconds = folder / "calls.json"
    for problem in args.problems:
        by_caches: dict[str, list[Facts]] = {"empty": [], "filled": []}
        later = list[Facts]()
        for number in range(args.first):
            cache = folder / f"calls-{device}-{problem}-{number}"
            for caches, count in (("empty", 1 + args.later), ("filled", 1)):
                flags = ["--calls", str(count), "--device", device, "--output", str(seconds)]
                importing = started(["bench.calls", problem, *flags], cache, args.ranks)["stages"]["import"]
                first, *others = json.loads(seconds.read_text())
                later += others
                first["seconds"] += importing
                add(first["stages"], {"import": importing})
                by_caches[caches].append(first)
        what = PROBLEMS[problem].what
        for caches, each in by_caches.items():
            yield summed(what, f"first call, {caches} caches", each)
        yield summed(what, LATER, later)


def partitions(args: argparse.Namespace, device: str, folder: Path) -> Iterator[Facts]:
    """Partition an archive into a store, in separate processes."""
    source, store, cache = folder / "whole.npz", folder / "store", folder / f"partition-{device}"
    if not source.exists():
        in_a_process(archive, source, recipe(args.shape, args.partitioned))
    found = list[Facts]()
    for _ in range(1 + args.later):
        shutil.rmtree(store, ignore_errors=True)
        command = [str(source), "--output", str(store), "--device", device, "--quiet"]
        found.append(started(["partitioner.__main__", *command], cache, args.ranks))
    written = sum(file.stat().st_size for file in store.iterdir())
    shutil.rmtree(store)
    plain = [write_plainly(folder / "plain", written) for _ in range(2)]
    name = f"partition {args.partitioned / 1e6:g} million"
    more = {"store_bytes": written, "seconds_of_a_plain_write": plain}
    yield summed(name, FIRST, found[:1]) | more
    yield summed(name, LATER, found[1:]) | more


PARTS: dict[str, Callable[[argparse.Namespace, str, Path], Iterator[Facts]]] = {
    "processes": processes,
    "calls": calls,
    "partitions": partitions,
}


def started(program: Sequence[str], cache: Path, ranks: int) -> Facts:
    """Run a program with the cache folder `cache`; return its seconds, in all and by stage."""
    cache.mkdir(exist_ok=True)
    written = cache.with_suffix(".json")
    places = {name: cache / place for name, place in CACHES.items()}
    # Without bytecode, Python would recompile its modules.
    environment = environment_with(places, without=("NUMBA_CACHE_DIR", "PYTHONDONTWRITEBYTECODE"))
    command = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    command += [sys.executable, "-m", "bench.stopwatch", str(written), *program]
    began, clock = time.time(), time.perf_counter()
    subprocess.run(command, env=environment, cwd=cache.parent, check=True, stdout=subprocess.DEVNULL)
    seconds, times = time.perf_counter() - clock, json.loads(written.read_text())
    stages = {"start": times["up"] - began, "import": times["imported"] - times["up"]}
    add(stages, times["stages"])
    add(stages, {"end": began + seconds - times["over"]})
    return {"seconds": seconds, "stages": stages}


def add(stages: dict[str, float], more: dict[str, float]) -> None:
    """Add seconds by stage to others."""
    for stage, seconds in more.items():
        stages[stage] = stages.get(stage, 0.0) + seconds


def write_plainly(path: Path, size: int) -> float:
    """Return the seconds to write a file of this size and to flush it to the disk."""

    def write() -> None:
        with open(path, "wb") as file:
            for at in range(0, size, len(BLOCK)):
                file.write(BLOCK[: size - at])
            file.flush()
            os.fsync(file.fileno())

    seconds = seconds_of(write)
    path.unlink()
    return seconds


def summed(what: str, when: str, found: Sequence[Facts]) -> Facts:
    """Return the medians of some equal programs, or calls."""
    stages = sorted(dict.fromkeys(stage for each in found for stage in each["stages"]), key="end".__eq__)
    by_stage = {stage: statistics.median(each["stages"].get(stage, 0.0) for each in found) for stage in stages}
    seconds = summary([each["seconds"] for each in found])
    by_stage["other"] = max(0.0, seconds["median"] - sum(by_stage.values()))
    return {"what": what, "when": when, "seconds": seconds, "seconds_by_stage": by_stage}


def line(row: Facts) -> str:
    """Return a row as one line of text."""
    stages = ", ".join(f"{stage} {seconds:.3f}" for stage, seconds in row["seconds_by_stage"].items())
    return (
        f"{row['what']} on {row['device']} x{row['ranks']}, {row['when']}: {row['seconds']['median']:.3f} s ({stages})"
    )
