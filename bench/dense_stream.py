"""Dense tensors that pass through a device: from host memory against plain copies, from a file against plain reads."""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from amped.assembly import bring_up, open_tensor, place
from amped.operators.dense import DenseOperator
from amped.operators.dense_load import begin_copy, known_of
from amped.options import DTYPES, Options
from amped.parallel.mpi import SingleComm
from partitioner.dense import DenseTensor
from partitioner.filed import READERS
from partitioner.readers.npy import read_dense
from partitioner.threads import usable_cores

from . import record

SIDE = 1000  # of all modes but the first
PIECE = 1 << 24  # bytes that are read at once
BASE = 1 << 27  # bytes of random numbers, again and again


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
    parser.add_argument("--name", help="of the result (dense-stream-DEVICE)")


def random_into(flat: np.ndarray) -> None:
    """Fill an array with random numbers that repeat."""
    base = np.random.default_rng(0).random(BASE // flat.itemsize, dtype=flat.dtype)
    parts = [flat[at : at + base.size] for at in range(0, flat.size, base.size)]
    with ThreadPoolExecutor(usable_cores()) as pool:
        list(pool.map(lambda part: np.copyto(part, base[: part.size]), parts))


def shape_of(gigabytes: float, itemsize: int) -> tuple[int, int, int]:
    """Return the shape of a tensor of about that size."""
    return max(1, round(gigabytes * 1e9 / itemsize / SIDE**2)), SIDE, SIDE


def from_memory(args: argparse.Namespace) -> dict[str, Any]:
    """Time sweeps over a tensor in host memory, and copies of its slabs without any computing."""
    array = np.empty(shape_of(args.gigabytes, DTYPES[args.precision].itemsize), DTYPES[args.precision])
    random_into(array.reshape(-1))
    operator, seconds = placed(args, DenseTensor(array), "stream")
    sweeps, copies = [], []
    for _ in range(1 + args.repeats):
        copies.append(_copied(operator, array))
        sent, taken = swept(operator)
        sweeps.append(sent * array.nbytes / taken / 1e9)
    found = {
        "bytes": array.nbytes, "placing_seconds": seconds, "passes": sent,
        "sweep_gigabytes_per_second": record.summary(sweeps[1:]),
        "copy_gigabytes_per_second": record.summary(copies[1:]),
    }  # fmt: skip
    found["share_of_copies"] = float(np.median(sweeps[1:]) / np.median(copies[1:]))
    rates = f"{np.median(sweeps[1:]):.1f} GB/s, plain copies {np.median(copies[1:]):.1f}"
    print(f"{array.nbytes / 1e9:.0f} GB in host memory: {rates}, placed in {seconds:.1f} s", flush=True)
    return found


def placed(args: argparse.Namespace, tensor: Any, placement: Any) -> tuple[DenseOperator, float]:
    """Return an operator that holds random factor matrices, and the seconds that making it took."""
    options = Options(device=args.device, precision=args.precision, placement=placement)
    machine, began = bring_up(options, SingleComm()), time.perf_counter()
    operator = place(open_tensor(tensor, machine, options), args.rank, machine, options, late=True)
    assert isinstance(operator, DenseOperator)
    operator.synchronize()
    seconds = time.perf_counter() - began
    for mode, length in enumerate(operator.shape):
        operator.set_factor(mode, np.random.default_rng(mode).random((length, args.rank)))
    return operator, seconds


def swept(operator: DenseOperator) -> tuple[int, float]:
    """Sweep over all modes, as CP-ALS does; return how often the elements were read, and the seconds."""
    operator.synchronize()
    began, passes = time.perf_counter(), 0
    for mode in range(operator.order):
        passes += operator.reads(mode)
        operator.mttkrp(mode)
        operator.changed(mode)
    operator.synchronize()
    return passes, time.perf_counter() - began


def _copied(operator: DenseOperator, array: np.ndarray) -> float:
    """Return the gigabytes a second of copies of the array's slabs to the device, in turn to two places."""
    device, slab = operator.machine.device, operator.plan.form.slab
    targets = [device.empty(array[:slab].shape, array.dtype) for _ in range(2)]
    device.synchronize()
    began = time.perf_counter()
    for number, start in enumerate(range(0, len(array), slab)):
        part = array[start : start + slab]
        target = targets[number % 2][: len(part)]
        if device.on_host:
            np.copyto(target, part)
        else:
            target.set(part)  # page-locked while the operator lives
    device.synchronize()
    return array.nbytes / (time.perf_counter() - began) / 1e9


def from_file(args: argparse.Namespace) -> dict[str, Any]:
    """Time reading a file alone, and loading it until the first MTTKRP is done, each in turn.

    The system's copy in memory is dropped before; once more it is kept. A small file comes first: what is done once in
    a process, and compiled, is told apart.
    """
    dtype = DTYPES[args.precision]
    shape, ways = shape_of(args.file_gigabytes, dtype.itemsize), ("read", "looked at", "resident", "stream")
    with _file(args.folder / "dense-small.npy", (8, *shape[1:]), dtype) as path:
        first = {way: _loaded(args, path, way) for way in ways[2:]}
    device = bring_up(Options(device=args.device), SingleComm()).device
    room = device.zeros(shape, dtype)
    with _file(args.folder / "dense-stream.npy", shape, dtype) as path:
        size, seconds = math.prod(shape) * dtype.itemsize, list[dict[str, float]]()
        for _ in range(args.repeats):
            seconds.append({})
            for way in ways:
                _drop(path)
                seconds[-1][way] = _loaded(args, path, way, room)
        kept = {way: [_loaded(args, path, way, room) for _ in range(args.repeats)] for way in ways}
    found: dict[str, Any] = {"bytes": size, "first_seconds": first}
    for name, taken in (("disk", {way: [each[way] for each in seconds] for way in ways}), ("memory", kept)):
        rates = {way: record.summary([size / each / 1e9 for each in those]) for way, those in taken.items()}
        shares = {way: float(np.median(taken["read"]) / np.median(taken[way])) for way in ways[1:]}
        found[name] = {"gigabytes_per_second": rates, "share_of_reads": shares}
        told = ", ".join(f"{way} {size / np.median(those) / 1e9:.2f} GB/s" for way, those in taken.items())
        print(f"{size / 1e9:.1f} GB in a file, from {name}: {told}", flush=True)
    return found


def _loaded(args: argparse.Namespace, path: Path, way: str, room: Any = None) -> float:
    """Return the seconds until a file was read, or looked at in memory that was there, or its first MTTKRP was done."""
    device, began = bring_up(Options(device=args.device), SingleComm()).device, time.perf_counter()
    if way == "read":
        _read(path)
    elif way == "looked at":
        elements = read_dense(path).memory
        begin_copy(room, elements, device, lambda part: known_of(part, elements.shape))()
        device.synchronize()
    else:
        operator, _ = placed(args, path, way)
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
    """Measure and write the result."""
    machine = bring_up(Options(device=args.device), SingleComm())
    facts: dict[str, Any] = {"rank": args.rank, "precision": args.precision}
    if args.gigabytes:
        facts["memory"] = from_memory(args)
    if args.file_gigabytes:
        facts["file"] = from_file(args)
    record.write(args.name or f"dense-stream-{args.device}", [machine.device.description], facts, args.output)
