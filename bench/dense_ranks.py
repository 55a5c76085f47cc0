"""Iterations of CP-ALS of dense tensors that stay on 1, 2 or more ranks' devices: how much faster they become.

Start it on as many ranks as the largest group has.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from amped.options import DTYPES, Options
from amped.parallel.mpi import Comm, world
from amped.runs.assembly import bring_up

from . import record
from .dense import iterations
from .dense_blocks import RandomSource
from .groups import free_memory, on_groups

SHAPES = {"cpu": ("200x200x200",), "cuda": ("1710x1710x1710", "800x800x800", "401x201x12x501", "100x100x100")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--groups", nargs="+", type=int, metavar="P", help="numbers of ranks (1, and all)")
    parser.add_argument("--shapes", nargs="+", metavar="IxJxK", help="of tensors of random numbers")
    parser.add_argument("--ranks", nargs="+", type=int, default=[32, 128], help="columns of the factor matrices")
    parser.add_argument("--precision", nargs="+", choices=tuple(DTYPES), default=["fp64", "fp32"])
    parser.add_argument("--threads", type=int, help="host threads of a rank (its share of the cores)")
    parser.add_argument("--output", type=Path, default=record.RESULTS, help="folder of the result")
    parser.add_argument("--name", help="of the result (dense-ranks-DEVICE-RANKS)")


def run(args: argparse.Namespace) -> None:
    """Measure each tensor on all groups in turn, and write the result. Collective."""
    comm, found = world(), list[dict[str, Any]]()
    groups = args.groups or sorted({1, comm.size})
    for text, precision, rank in product(args.shapes or SHAPES[args.device], args.precision, args.ranks):
        shape = tuple(int(n) for n in text.split("x"))
        options = Options(device=args.device, precision=precision, threads=args.threads)
        times = _times(comm, groups, shape, rank, options)
        if comm.rank == 0:
            gains = {size: times[groups[0]]["median"] / each["median"] for size, each in times.items()}
            case = {"shape": shape, "precision": precision, "rank": rank}
            found.append({**case, "milliseconds": times, "times_as_fast": gains})
            told = ", ".join(f"on {size} {each['median']:.3g} ({gains[size]:.2f} x)" for size, each in times.items())
            print(f"{text} {precision} rank {rank}, ms an iteration: {told}", flush=True)
    devices = comm.allgather(bring_up(Options(device=args.device, threads=args.threads), comm).device.description)
    if comm.rank == 0:
        name = args.name or f"dense-ranks-{args.device}-{comm.size}"
        record.write(name, devices, {"groups": groups, "dense": found}, args.output)


def _times(comm: Comm, groups: Sequence[int], shape: tuple[int, ...], rank: int, options: Options) -> dict[int, Any]:
    """Return a summary of the milliseconds, by the number of ranks; rank 0 has them all. Collective."""
    found = dict[int, Any]()

    def measure(group: Comm) -> None:
        machine = bring_up(options, group)
        source = RandomSource(shape, np.dtype(options.dtype), machine)
        found[group.size] = record.summary(iterations(source, rank, machine, options))
        free_memory(machine.device.xp)

    on_groups(comm, groups, measure)
    return found
