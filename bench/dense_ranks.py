"""Iterations of CP-ALS of dense tensors that stay on 1, 2 or more ranks' devices: how much faster they become.

Start it on as many ranks as the largest group has.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product

import numpy as np

from amped.options import DTYPES, Options
from amped.parallel.mpi import Comm, world
from amped.runs.assembly import bring_up

from .dense import iterations, shape_of
from .dense_blocks import RandomSource
from .groups import free_memory, on_groups
from .harness import Facts, Result, common_flags
from .spread import summary

SHAPES = {"cpu": ("200x200x200",), "cuda": ("1710x1710x1710", "800x800x800", "401x201x12x501", "100x100x100")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = common_flags(parser, "dense-ranks-DEVICE-RANKS", device="cuda")
    add("--groups", nargs="+", type=int, metavar="P", help="numbers of ranks (1, and all)")
    add("--shapes", nargs="+", metavar="IxJxK", help="of tensors of random numbers")
    add("--ranks", nargs="+", type=int, default=[32, 128], help="columns of the factor matrices")
    add("--precision", nargs="+", choices=tuple(DTYPES), default=["fp64", "fp32"])
    add("--threads", type=int, help="host threads of a rank (its share of the cores)")


def run(args: argparse.Namespace) -> None:
    """Measure each tensor on all groups in turn; rewrite the results file after each. Collective."""
    comm = world()
    groups = args.groups or sorted({1, comm.size})
    devices = comm.allgather(bring_up(Options(device=args.device, threads=args.threads), comm).device.description)
    result = Result(args, f"dense-ranks-{args.device}-{comm.size}", devices, comm, groups=groups)
    for text, precision, rank in product(args.shapes or SHAPES[args.device], args.precision, args.ranks):
        options = Options(device=args.device, precision=precision, threads=args.threads)
        times = _times(comm, groups, shape_of(text), rank, options)
        if comm.rank == 0:
            gains = {size: times[groups[0]]["median"] / each["median"] for size, each in times.items()}
            case = {"shape": shape_of(text), "precision": precision, "rank": rank}
            each = ", ".join(f"on {size} {each['median']:.3g} ({gains[size]:.2f} x)" for size, each in times.items())
            line = f"{text} {precision} rank {rank}, ms an iteration: {each}"
            result.add({**case, "milliseconds": times, "times_as_fast": gains}, line)


def _times(comm: Comm, groups: Sequence[int], shape: tuple[int, ...], rank: int, options: Options) -> Facts:
    """Return a summary of the milliseconds, by the number of ranks; rank 0 has them all. Collective."""
    found: dict[int, dict[str, float]] = {}

    def measure(group: Comm) -> None:
        machine = bring_up(options, group)
        source = RandomSource(shape, np.dtype(options.dtype), machine)
        found[group.size] = summary(iterations(source, rank, machine, options))
        free_memory(machine.device.xp)

    on_groups(comm, groups, measure)
    return found  # type: ignore[return-value]
