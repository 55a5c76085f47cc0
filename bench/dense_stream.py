"""Dense tensors that pass through a device: from host memory against plain copies, from a file against plain reads."""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from amped.backend.exchange import Machine
from amped.operators.dense.load import begin_copy, known_of
from amped.operators.dense.operator import DenseOperator
from amped.operators.sources.protocols import DescribedSource
from amped.options import DTYPES, Options
from amped.parallel.mpi import Comm, world
from amped.runs.assembly import bring_up, open_path, place
from partitioner.readers.arrays.npy import read_dense
from partitioner.tensors.npy_file import READERS

from . import record
from .dense_blocks import BASE, RandomSource

T = TypeVar("T")
SIDE = 1000  # of all modes but the first
PIECE = 1 << 24  # bytes that are read at once


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--gigabytes", type=float, default=64, help="of a tensor in host memory; 0: none (64)")
    parser.add_argument("--file-gigabytes", type=float, default=20, help="of a tensor in a .npy file; 0: none (20)")
    parser.add_argument("--folder", type=Path, default=Path(), help="where the file is written and removed (.)")
    parser.add_argument("--rank", type=int, default=32, help="columns of the factor matrices (32)")
    parser.add_argument("--precision", choices=tuple(DTYPES), default="fp64")
    parser.add_argument("--repeats", type=int, default=3, help="sweeps over all modes, readings of a file (3)")
    parser.add_argument("--output", type=Path, default=record.RESULTS, help="folder of the result")
    parser.add_argument("--name", help="of the result (dense-stream-DEVICE, of several ranks ...-RANKS)")


def shape_of(gigabytes: float, itemsize: int) -> tuple[int, int, int]:
    """Return the shape of a tensor of about that size."""
    return max(1, round(gigabytes * 1e9 / itemsize / SIDE**2)), SIDE, SIDE


def from_memory(args: argparse.Namespace, machine: Machine) -> dict[str, Any]:
    """Time sweeps over a tensor in the ranks' host memory, and plain copies of its slabs. Collective."""
    comm, dtype = machine.comm, DTYPES[args.precision]
    source = RandomSource(shape_of(args.gigabytes, dtype.itemsize), dtype, machine)
    operator, seconds = placed(args, machine, source, "stream")
    size = source.nnz * dtype.itemsize
    sweeps, copies = [], []
    for _ in range(1 + args.repeats):
        _, taken = timed_on_all(comm, lambda: _copy(operator, source.mine))
        copies.append(size / taken / 1e9)
        passes, taken = timed_on_all(comm, lambda: swept(operator))
        sweeps.append(passes * size / taken / 1e9)
    found = {
        "bytes": size, "ranks": comm.size, "placing_seconds": seconds,
        "passes": passes,  # of the last sweep: of order 3, two sweeps take three
        "sweep_gigabytes_per_second": record.summary(sweeps[1:]),
        "copy_gigabytes_per_second": record.summary(copies[1:]),
    }  # fmt: skip
    found["share_of_copies"] = float(np.median(sweeps[1:]) / np.median(copies[1:]))
    if comm.rank == 0:
        rates = f"{np.median(sweeps[1:]):.1f} GB/s, plain copies {np.median(copies[1:]):.1f}"
        print(f"{size / 1e9:.0f} GB in host memory: {rates}, placed in {seconds:.1f} s", flush=True)
    return found


def timed_on_all(comm: Comm, work: Callable[[], T]) -> tuple[T, float]:
    """Return what comes of work that all ranks begin together, and the seconds of the slowest one. Collective."""
    comm.allgather(None)
    began = time.perf_counter()
    found = work()
    return found, max(comm.allgather(time.perf_counter() - began))


def placed(
    args: argparse.Namespace, machine: Machine, source: DescribedSource, placement: Any
) -> tuple[DenseOperator, float]:
    """Return an operator that holds random factor matrices, and the seconds that making it took. Collective."""
    options = Options(device=args.device, precision=args.precision, placement=placement)
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


def from_file(args: argparse.Namespace, machine: Machine) -> dict[str, Any]:
    """Time reading a file alone, and loading it until the first MTTKRP is done, each in turn.

    The system's copy in memory is dropped before; once more it is kept. A small file comes first: what is done once in
    a process, and compiled, is told apart.
    """
    dtype = DTYPES[args.precision]
    shape, ways = shape_of(args.file_gigabytes, dtype.itemsize), ("read", "looked at", "resident", "stream")
    with _file(args.folder / "dense-small.npy", (8, *shape[1:]), dtype) as path:
        first = {way: _loaded(args, machine, path, way) for way in ways[2:]}
    room = machine.device.zeros(shape, dtype)
    with _file(args.folder / "dense-stream.npy", shape, dtype) as path:
        size, seconds = math.prod(shape) * dtype.itemsize, list[dict[str, float]]()
        for _ in range(args.repeats):
            seconds.append({})
            for way in ways:
                _drop(path)
                seconds[-1][way] = _loaded(args, machine, path, way, room)
                print(f"{way}: {seconds[-1][way]:.2f} s", flush=True)
        kept = {way: [_loaded(args, machine, path, way, room) for _ in range(args.repeats)] for way in ways}
    found: dict[str, Any] = {"bytes": size, "first_seconds": first}
    for name, taken in (("disk", {way: [each[way] for each in seconds] for way in ways}), ("memory", kept)):
        rates = {way: record.summary([size / each / 1e9 for each in those]) for way, those in taken.items()}
        shares = {way: float(np.median(taken["read"]) / np.median(taken[way])) for way in ways[1:]}
        found[name] = {"gigabytes_per_second": rates, "share_of_reads": shares}
        told = ", ".join(f"{way} {size / np.median(those) / 1e9:.2f} GB/s" for way, those in taken.items())
        print(f"{size / 1e9:.1f} GB in a file, from {name}: {told}", flush=True)
    return found


def _loaded(args: argparse.Namespace, machine: Machine, path: Path, way: str, room: Any = None) -> float:
    """Return the seconds until a file was read, or looked at in memory that was there, or its first MTTKRP was done."""
    began = time.perf_counter()
    if way == "read":
        _read(path)
    elif way == "looked at":
        elements = read_dense(path).memory
        begin_copy(room, elements, machine.device, lambda part: known_of(part, elements.shape))()
        machine.device.synchronize()
    else:
        operator, _ = placed(args, machine, open_path(path, machine.comm), way)
        operator.mttkrp(0)
        operator.synchronize()
    return time.perf_counter() - began


@contextmanager
def _file(path: Path, shape: Sequence[int], dtype: np.dtype[Any]) -> Iterator[Path]:
    """Write a file of random numbers, and remove it in the end."""
    base, left = np.random.default_rng(0).random(BASE // dtype.itemsize, dtype=dtype), math.prod(shape)
    try:
        with open(path, "wb") as file:
            facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": tuple(shape)}
            np.lib.format.write_array_header_1_0(file, facts)
            while left:
                part = base[: min(left, base.size)]
                file.write(part.data)
                left -= part.size
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

    def part(number: int, count: int) -> None:
        buffer = memoryview(bytearray(PIECE))
        with open(path, "rb", buffering=0) as file:
            for at in range(number * PIECE, size, count * PIECE):
                file.seek(at)
                file.readinto(buffer)

    with ThreadPoolExecutor(READERS) as pool:
        list(pool.map(lambda number: part(number, READERS), range(READERS)))


def run(args: argparse.Namespace) -> None:
    """Measure and write the result: of several ranks what they stream from host memory. Collective."""
    comm = world()
    machine = bring_up(Options(device=args.device), comm)
    facts: dict[str, Any] = {"rank": args.rank, "precision": args.precision}
    if args.gigabytes:
        facts["memory"] = from_memory(args, machine)
    if args.file_gigabytes and comm.size == 1:
        facts["file"] = from_file(args, machine)
    devices = comm.allgather(machine.device.description)
    if comm.rank == 0:
        name = f"dense-stream-{args.device}" + (f"-{comm.size}" if comm.size > 1 else "")
        record.write(args.name or name, devices, facts, args.output)
