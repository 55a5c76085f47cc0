"""Ceilings of the machine: copies, gathers of random rows, links, all-gathers. Other benchmarks quote fractions."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from amped.backend.choose import choose
from amped.backend.device import Array, Device
from amped.backend.exchange import connect
from amped.parallel.mpi import Comm, world

from .cooldown import Cooldown
from .harness import Result, common_flags

ROW = 32  # floats: 128 bytes
FOOTPRINTS = {"cuda": (10_000, 100_000, 300_000, 1_000_000, 10_000_000), "cpu": (1_000, 10_000, 100_000, 1_000_000)}
GATHERED = {"cuda": 1 << 26, "cpu": 1 << 18}  # rows
COPIED = {"cuda": 1 << 31, "cpu": 1 << 27}  # bytes
LINKED = 1 << 30
MESSAGES = {"cuda": (1, 8, 64, 512), "cpu": (1, 8)}  # MiB a rank
RUNS, WARM = 5, 2
THREADS = 256


def measure(backend: Device, comm: Comm) -> dict[str, object]:
    """Return GB/s: `copy` (read + write), `gather` by size of the matrix in MB, per rank; `link`, `all_gather`."""
    found = {"copy": comm.allgather(copied(backend)), "gather": _medians(comm.allgather(gather(backend)))}
    if backend.name == "cuda":
        alone = _link(backend) if comm.rank == 0 else None
        comm.allgather(None)
        found["link"] = {"one rank": comm.bcast(alone), "at once": comm.allgather(_link(backend))}
    if comm.size > 1:
        found["all_gather"] = _medians(comm.allgather(_all_gather(backend, comm)))
    return found


def seconds(backend: Device, action: Callable[[], object], runs: int = RUNS) -> list[float]:
    """Return the device's seconds of each run of `action`, after warm-up runs."""
    clock, cooldown = backend.clock(), Cooldown()
    for _ in range(WARM):
        action()
    times = []
    for _ in range(runs):
        with clock.span("run", 0):
            action()
        times.append(clock.collect()["run", 0])
        cooldown.after(times[-1])
    return times


def _speed(backend: Device, nbytes: float, action: Callable[[], object]) -> float:
    return round(nbytes / statistics.median(seconds(backend, action)) / 1e9, 2)


def _medians(by_rank: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(found[name] for found in by_rank) for name in by_rank[0]}


def copied(backend: Device) -> float:
    """Return GB/s of a copy, read and written."""
    nbytes = COPIED[backend.name]
    source, target = (backend.zeros((nbytes // 4,), np.float32) for _ in range(2))
    return _speed(backend, 2 * nbytes, lambda: backend.xp.copyto(target, source))


def gather(backend: Device) -> dict[str, float]:
    """Return GB/s of random rows, by the size of the matrix in MB."""
    xp, count = backend.xp, GATHERED[backend.name]
    out = backend.empty((count if xp is np else 1, ROW), np.float32)
    speeds = {}
    for length in FOOTPRINTS[backend.name]:
        table = backend.zeros((length, ROW), np.float32)
        rows = xp.random.default_rng(0).integers(0, length, count, dtype=np.int32)
        action = _device_gather(xp, table, rows, out) if xp is not np else _host_gather(table, rows, out)
        speeds[f"{table.nbytes / 1e6:g}"] = _speed(backend, count * ROW * 4, action)
    return speeds


def _host_gather(table: Array, rows: Array, out: Array) -> Callable[[], object]:
    return lambda: np.take(table, rows, axis=0, out=out, mode="clip")


def _device_gather(xp: ModuleType, table: Array, rows: Array, out: Array) -> Callable[[], object]:
    blocks = 16 * xp.cuda.Device().attributes["MultiProcessorCount"]
    function = _kernel(xp.cuda.Device().id)
    return lambda: function((blocks,), (THREADS,), (table, rows, np.int64(rows.size), out))


@cache
def _kernel(device: int) -> Any:
    import cupy

    return cupy.RawModule(code=text(), options=("-std=c++17",)).get_function("gather")


def text() -> str:
    """Return the CUDA source of the gather."""
    return Path(__file__).with_suffix(".cu").read_text()


def _link(backend: Device) -> float:
    """From page-locked host memory to the device."""
    from partitioner.cuda.pinned import pinned_empty

    host, device = pinned_empty(LINKED), backend.empty((LINKED,), np.uint8)
    host[:] = 1
    return _speed(backend, LINKED, lambda: device.set(host))


def _all_gather(backend: Device, comm: Comm) -> dict[str, float]:
    """GB/s received by each rank, with equal blocks of rows."""
    exchange, speeds = connect(backend, comm).exchange, {}
    for megabytes in MESSAGES[backend.name]:
        rows = (megabytes << 20) // (4 * ROW)
        matrix = backend.zeros((rows * comm.size, ROW), np.float32)
        begin = np.arange(comm.size, dtype=np.int64) * rows
        comm.allgather(None)
        received = (comm.size - 1) * (megabytes << 20)
        speeds[str(megabytes)] = _speed(backend, received, partial(exchange.gather_rows, matrix, begin, begin + rows))
    return speeds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    common_flags(parser, "ceilings-DEVICE-RANKS")


def run(args: argparse.Namespace) -> None:
    """Measure and write the result. Collective."""
    comm = world()
    backend = choose(args.device, comm)
    found = {"ranks": comm.size, "gigabytes_a_second": measure(backend, comm)}
    result = Result(args, f"ceilings-{backend.name}-{comm.size}", comm.allgather(backend.description), comm)
    result.add(found, f"GB/s: {found['gigabytes_a_second']}")
