"""Dense tensors that pass through a device: from host memory against plain copies, from a file against plain reads."""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from amped.backend.exchange import Machine
from amped.operators.dense.load import begin_copy, known_of
from amped.operators.dense.operator import DenseOperator
from amped.operators.sources.protocols import DescribedSource
from amped.options import DTYPES, Options
from amped.parallel.mpi import world
from amped.runs.assembly import bring_up, open_path, place
from partitioner.array_types import FloatDType
from partitioner.readers.arrays.npy import read_dense
from partitioner.tensors.npy_file import READERS

from .dense_blocks import BASE, RandomSource
from .harness import Facts, Result, common_flags, in_turn, medians, seconds_of
from .spread import summary

SIDE = 1000  # of all modes but the first
PIECE = 1 << 24  # bytes that are read at once
WAYS = ("read", "checked", "resident", "stream")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = common_flags(parser, "dense-stream-DEVICE, of several ranks ...-RANKS", device="cuda", repeats=3)
    add("--gigabytes", type=float, default=64, help="of a tensor in host memory; 0: none (64)")
    add("--file-gigabytes", type=float, default=20, help="of a tensor in a .npy file; 0: none (20)")
    add("--folder", type=Path, default=Path(), help="where the file is written and removed (.)")
    add("--rank", type=int, default=32, help="columns of the factor matrices (32)")
    add("--precision", choices=tuple(DTYPES), default="fp64")


def run(args: argparse.Namespace) -> None:
    """Measure and write the result: of several ranks what they stream from host memory. Collective."""
    comm = world()
    machine = bring_up(Options(device=args.device), comm)
    name = f"dense-stream-{args.device}" + (f"-{comm.size}" if comm.size > 1 else "")
    facts = {"rank": args.rank, "precision": args.precision}
    result = Result(args, name, comm.allgather(machine.device.description), comm, **facts)
    if args.gigabytes:
        found = from_memory(args, machine)
        rates = ", ".join(f"{name} {found[name]['median']:.1f}" for name in ("sweeps", "copies"))
        result.add(found, f"{found['bytes'] / 1e9:.0f} GB in host memory, GB/s: {rates}", "memory")
    if args.file_gigabytes and comm.size == 1:
        for found in from_file(args, machine):
            text = medians(found["gigabytes_per_second"])
            result.add(found, f"{found['bytes'] / 1e9:.1f} GB in a file, from {found['from']}, GB/s: {text}", "file")


def shape_of(gigabytes: float, itemsize: int) -> tuple[int, int, int]:
    """Return the shape of a tensor of about that size."""
    return max(1, round(gigabytes * 1e9 / itemsize / SIDE**2)), SIDE, SIDE


def from_memory(args: argparse.Namespace, machine: Machine) -> Facts:
    """Time sweeps over a tensor in the ranks' host memory, and plain copies of its slabs. Collective."""
    comm, dtype = machine.comm, DTYPES[args.precision]
    source = RandomSource(shape_of(args.gigabytes, dtype.itemsize), dtype, machine)
    operator, placing = placed(args, machine, source, "stream")
    size, passes = source.nnz * dtype.itemsize, list[int]()

    def on_all(work: Callable[[], object]) -> float:
        comm.allgather(None)
        return max(comm.allgather(seconds_of(work)))

    ways = {
        "copies": lambda: size / on_all(lambda: _copy(operator, source.mine)) / 1e9,
        "sweeps": lambda: size / on_all(lambda: passes.append(swept(operator))) * passes[-1] / 1e9,
    }
    found = {name: summary(rates) for name, rates in in_turn(ways, args.repeats).items()}
    share = found["sweeps"]["median"] / found["copies"]["median"]
    # Of order 3, two sweeps take three passes.
    facts = {"bytes": size, "ranks": comm.size, "placing_seconds": placing, "passes": passes[-1]}
    return {**facts, **found, "share_of_copies": share}


def placed(
    args: argparse.Namespace, machine: Machine, source: DescribedSource, way: Any
) -> tuple[DenseOperator, float]:
    """Return an operator that holds random factor matrices, and the seconds that making it took. Collective."""
    options = Options(device=args.device, precision=args.precision, placement=way)
    began = time.perf_counter()
    operator = place(source, args.rank, machine, options, late=True)
    assert isinstance(operator, DenseOperator)
    operator.synchronize()
    seconds = time.perf_counter() - began
    for mode, length in enumerate(operator.shape):
        operator.set_factor(mode, np.random.default_rng(mode).random((length, args.rank)))
    return operator, seconds


def swept(operator: DenseOperator) -> int:
    """Sweep over all modes, as CP-ALS does; return how often the elements were read."""
    passes = 0
    for mode in range(operator.order):
        passes += operator.reads(mode)
        operator.mttkrp(mode)
        operator.changed(mode)
    operator.synchronize()
    return passes


def _copy(operator: DenseOperator, array: np.ndarray) -> None:
    """Copy the array's slabs to the device, in turn to two places."""
    device, slab = operator.machine.device, operator.plan.form.slab
    targets = [device.empty(array[:slab].shape, array.dtype) for _ in range(2)]
    for number, start in enumerate(range(0, len(array), slab)):
        part = array[start : start + slab]
        target = targets[number % 2][: len(part)]
        if device.on_host:
            np.copyto(target, part)
        else:
            target.set(part)  # page-locked while the operator lives
    device.synchronize()


def from_file(args: argparse.Namespace, machine: Machine) -> Iterator[Facts]:
    """Time reading a file, and loading it until the first MTTKRP is done, each in turn.

    The system's copy in memory is dropped before; once more it is kept. A small file comes first, for what is done once
    in a process, and compiled.
    """
    dtype = DTYPES[args.precision]
    shape = shape_of(args.file_gigabytes, dtype.itemsize)
    with _file(args.folder / "dense-small.npy", (8, *shape[1:]), dtype) as path:
        first = {way: _loaded(args, machine, path, way) for way in WAYS[2:]}
    room = machine.device.zeros(shape, dtype)
    with _file(args.folder / "dense-stream.npy", shape, dtype) as path:
        size = math.prod(shape) * dtype.itemsize

        def rate(way: str, drop: bool) -> float:
            if drop:
                _drop(path)
            return size / _loaded(args, machine, path, way, room) / 1e9

        for name in ("disk", "memory"):
            ways = {way: partial(rate, way, name == "disk") for way in WAYS}
            rates = {way: summary(each) for way, each in in_turn(ways, args.repeats, warm=0).items()}
            shares = {way: rates[way]["median"] / rates["read"]["median"] for way in WAYS[1:]}
            facts = {"from": name, "bytes": size, "first_seconds": first}
            yield {**facts, "gigabytes_per_second": rates, "share_of_reads": shares}


def _loaded(args: argparse.Namespace, machine: Machine, path: Path, way: str, room: Any = None) -> float:
    """Return the seconds until a file was read, or checked in memory that was there, or its first MTTKRP was done."""

    def work() -> None:
        if way == "read":
            _read(path)
        elif way == "checked":
            elements = read_dense(path).memory
            begin_copy(room, elements, machine.device, lambda part: known_of(part, elements.shape))()
            machine.device.synchronize()
        else:
            operator, _ = placed(args, machine, open_path(path, machine.comm), way)
            operator.mttkrp(0)
            operator.synchronize()

    return seconds_of(work)


@contextmanager
def _file(path: Path, shape: Sequence[int], dtype: FloatDType) -> Iterator[Path]:
    """Write a file of random numbers, and remove it in the end."""
    base = np.random.default_rng(0).random(BASE // dtype.itemsize, dtype=dtype)
    try:
        out = np.lib.format.open_memmap(path, "w+", dtype, tuple(shape)).reshape(-1)
        for begin in range(0, out.size, base.size):
            out[begin : begin + base.size] = base[: out.size - begin]
        out.flush()
        del out
        yield path
    finally:
        path.unlink(missing_ok=True)


def _drop(path: Path) -> None:
    """Drop the system's copy of a file in memory."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(path: Path) -> None:
    """Read a file with as many threads as loading has."""
    size = path.stat().st_size

    def part(number: int) -> None:
        buffer = memoryview(bytearray(PIECE))
        with open(path, "rb", buffering=0) as file:
            for at in range(number * PIECE, size, READERS * PIECE):
                file.seek(at)
                file.readinto(buffer)

    with ThreadPoolExecutor(READERS) as pool:
        list(pool.map(part, range(READERS)))
