"""Seconds and memory of partitioning: in memory, by number of nonzeros, and of a large file within little memory.

With a GPU, both on the CPU and with the GPU, in turn.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from amped.report.metrics import peak_resident_bytes, resident_bytes
from partitioner.build import partition
from partitioner.flags import byte_count
from partitioner.host.jit import load_compiler
from partitioner.host.ranks import SingleRank
from partitioner.host.threads import side_by_side, usable_cores
from partitioner.shards.partition import SortedTensor
from partitioner.shards.sorters import DeviceName, Sorter, make_sorter
from partitioner.sorting.sort import Sort
from partitioner.tensors.sparse import SparseTensor

from .draws import HostDraws
from .record import summary
from .synthetic import SHAPES, recipe
from .workers import touch_memory

PACKAGES = ("numba",)
DRAWN = 1 << 20  # nonzeros drawn together
COPIED = 50_000_000  # nonzeros above which the input is not kept, so that there is only one measurement
WARM = 100_000  # nonzeros partitioned as a warm-up
AT_HAND = 1.8  # memory touched beforehand, relative to the input's bytes: what partitioning takes beside them
REST = 4.0  # seconds after which some virtual machines have returned free memory to their host
TOUCHED = 1 << 29  # bytes of the memory measurement
SINGLE = np.dtype(np.float32)


def add_arguments(group: argparse._ArgumentGroup) -> None:
    """Add this part's flags."""
    sizes = [1, 2, 5, 10, 20, 50, 100]
    group.add_argument("--partitioned", choices=sorted(SHAPES), default="nell2", help="tensor that is (nell2)")
    group.add_argument("--millions", nargs="+", type=int, default=sizes, metavar="N", help=f"of nonzeros ({sizes})")
    group.add_argument("--spilled", type=int, default=100, metavar="N", help="millions partitioned within (100)")
    group.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: with a GPU, too (cpu)")
    group.add_argument("--within", type=byte_count, default=1 << 30, metavar="BYTES", help="this much memory (1G)")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Partition a tensor of each size in its own process, and a file within little memory."""
    devices = ["cpu", "cuda"] if args.device == "cuda" else ["cpu"]
    gpu = alone(gpu_name) if len(devices) > 1 else ""
    sizes = {}
    for millions in args.millions:
        sizes[str(millions)] = found = alone(in_memory, args.partitioned, millions * 10**6, args.repeats, devices)
        seconds = found["seconds"]["median"]
        faster = f", {found['cuda_times_as_fast']:.2f} times as fast with the GPU" if gpu else ""
        print(f"{millions} M nonzeros: {seconds:.3f} s, {found['peak_bytes'] / 2**30:.2f} GiB{faster}", flush=True)
    found = {"devices": ["CPU", gpu] if gpu else ["CPU"], "shape": args.partitioned}
    found |= {"in_memory": sizes, "slope": _slope(sizes), "memory_bytes_a_second": alone(memory, args.repeats)}
    if args.spilled:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "whole.npz"
            alone(write_archive, path, args.partitioned, args.spilled * 10**6)
            for device, key in zip(devices, ("spilled", "spilled_cuda"), strict=False):
                found[key] = alone(spilled, path, args.within, device)
                print(f"{device}, within {args.within} bytes: {found[key]}", flush=True)
    return found


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def _slope(sizes: dict[str, Any]) -> float:
    """Return the exponent p of seconds ~ nonzeros ** p."""
    points = [(math.log(int(n)), math.log(found["seconds"]["median"])) for n, found in sizes.items()]
    return float(np.polyfit(*zip(*points, strict=True), 1)[0]) if len(points) > 1 else math.nan


def gpu_name() -> str:
    """Return the name of the first GPU."""
    make_sorter("cuda", SingleRank())  # raises if there is no GPU
    import cupy

    name: bytes = cupy.cuda.runtime.getDeviceProperties(0)["name"]
    return name.decode()


def memory(repeats: int) -> dict[str, Any]:
    """Return the speed of taking memory that was freed a moment ago, and some seconds ago."""
    at_hand, rested = [], []
    for _ in range(repeats):
        time.sleep(REST)
        rested.append(touch_memory(TOUCHED))
        at_hand.append(touch_memory(TOUCHED))
    return {"at_hand": summary(at_hand), "rested": summary(rested)}


def in_memory(shape: str, nonzeros: int, repeats: int, devices: Sequence[DeviceName]) -> dict[str, Any]:
    """Time the way from nonzeros as read to every mode's sorted copy in single precision."""
    sorters: list[Sorter] = [make_sorter(device, SingleRank()) for device in devices]
    for sorter in sorters:
        _mode_copies(*_drawn(shape, WARM), sorter.sort)
    columns, values, lengths = _drawn(shape, nonzeros)
    copied = nonzeros <= COPIED or len(sorters) > 1
    seconds: list[list[float]] = [[] for _ in sorters]
    for k in range(len(sorters) * (repeats if nonzeros <= COPIED else 1)):
        # The tensor takes ownership of its arrays.
        given = (columns.copy(), values.copy()) if copied else (columns, values)
        touch_memory(int(AT_HAND * (columns.nbytes + values.nbytes)))
        started = time.perf_counter()
        tensor = _mode_copies(*given, lengths, sorters[k % len(sorters)].sort)
        seconds[k % len(sorters)].append(time.perf_counter() - started)
    found = {
        **_times(seconds[0]),
        "duplicates": tensor.duplicates,
        "given_bytes": columns.nbytes + values.nbytes,
        "peak_bytes": peak_resident_bytes(),
    }
    if len(sorters) > 1:
        found["cuda"] = _times(seconds[1])
        found["cuda_times_as_fast"] = found["seconds"]["median"] / found["cuda"]["seconds"]["median"]
    return found


def _times(seconds: list[float]) -> dict[str, Any]:
    return {"seconds": summary(seconds), "fastest": min(seconds), "each": seconds}


def _mode_copies(columns: Any, values: Any, lengths: tuple[int, ...], sort: Sort) -> SparseTensor:
    tensor = SparseTensor.from_columns(columns, values, lengths, sort=sort)
    for mode in range(tensor.order):
        assert SortedTensor(tensor, mode, SINGLE, sort).values.size == tensor.nnz
    return tensor


def _drawn(shape: str, nonzeros: int) -> tuple[Any, Any, tuple[int, ...]]:
    made = recipe(shape, nonzeros)
    draws, order = HostDraws(made), len(made.lengths)
    columns, values = np.empty((order, nonzeros), np.int32), np.empty(nonzeros)

    def draw(begin: int) -> None:
        part = slice(begin, min(begin + DRAWN, nonzeros))
        for mode in range(order):
            columns[mode, part] = draws.indices(mode, range(part.start, part.stop))
        values[part] = draws.values(range(part.start, part.stop), values.dtype)

    side_by_side(draw, range(0, nonzeros, DRAWN), usable_cores())
    return columns, values, made.lengths


def write_archive(path: Path, shape: str, nonzeros: int) -> None:
    """Write a synthetic tensor as an archive."""
    columns, values, lengths = _drawn(shape, nonzeros)
    np.savez(path, indices=np.ascontiguousarray(columns.T), values=values, shape=lengths)


def spilled(path: Path, budget: int, device: DeviceName) -> dict[str, Any]:
    """Partition an archive within a memory budget, into a store beside it."""
    load_compiler()
    resting, started = resident_bytes(), time.perf_counter()
    store = partition(path, path.with_suffix(f".{device}"), memory=budget, device=device)
    return {
        "seconds": time.perf_counter() - started,
        "nonzeros": store.nnz + store.duplicates + store.zeros,
        "input_bytes": path.stat().st_size,
        "budget": budget,
        "peak_bytes": peak_resident_bytes(),
        "resident_before": resting,
        "store_bytes": sum(file.stat().st_size for file in store.path.iterdir()),
    }


def draw(pyplot: Any, facts: dict[str, Any]) -> Any:
    """Seconds, and bytes of memory per nonzero, by number of nonzeros."""
    sizes = {int(n): found for n, found in facts["in_memory"].items()}
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8, 3), layout="constrained")
    left.loglog(list(sizes), [found["seconds"]["median"] for found in sizes.values()], "o-", label="CPU")
    if "cuda" in next(iter(sizes.values())):
        left.loglog(list(sizes), [found["cuda"]["seconds"]["median"] for found in sizes.values()], "o-", label="GPU")
        left.legend()
    title = f"by the CPU they grow as the {facts['slope']:.2f}th power"
    left.set(xlabel="million nonzeros", ylabel="seconds", title=title)
    right.semilogx(list(sizes), [found["peak_bytes"] / (n * 1e6) for n, found in sizes.items()], "o-")
    right.axhline(next(iter(sizes.values()))["given_bytes"] / (min(sizes) * 1e6), color="k", linestyle="--")
    right.set(xlabel="million nonzeros", ylabel="bytes a nonzero at most (- - given)", ylim=(0, None))
    return figure
