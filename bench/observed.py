"""CP-ALS over observed elements: seconds of an iteration of sparse tensors, and of dense ones with and without gaps.

Seconds are by wall clock, and of processors.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import amped
from amped.models.kruskal import KruskalTensor
from amped.parallel.mpi import world

from .dense import shape_of
from .harness import Facts, Result, common_flags
from .spread import summary
from .stored import tensor as drawn
from .synthetic import SHAPES, recipe

RIDGE = 0.1


class Case(NamedTuple):
    """A tensor, the parameters that say which elements are observed, and facts."""

    tensor: Any
    how: dict[str, Any]
    facts: Facts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = common_flags(parser, "observed-DEVICE, then -RANKS if there are several", device="cpu")
    names = f"files, IxJxK of random numbers, or synthetic sparse ones: {', '.join(SHAPES)}"
    add("tensors", nargs="+", metavar="TENSOR", help=names)
    add("--missing", nargs="+", type=float, default=[0.0, 0.01], metavar="SHARE", help="of random numbers (0 0.01)")
    add("--rank", nargs="+", type=int, default=[10, 32], metavar="R", help="(10 32)")
    add("--nonzeros", type=int, metavar="N", help="of synthetic tensors")
    add("--iterations", type=int, default=10, metavar="N", help="after the first one (10)")
    add("--threads", type=int, help="(all cores)")
    add("--precision", nargs="+", choices=("fp32", "fp64"), default=["fp32"], help="(fp32)")


def run(args: argparse.Namespace) -> None:
    """Measure; rewrite the results file after each case. Collective."""
    comm, result = world(), None
    ranks = f"-{comm.size}" if comm.size > 1 else ""
    for name in args.tensors:
        for case in cases(name, args):
            for rank in args.rank:
                for precision in args.precision:
                    model, each = measured(case, rank, precision, args)
                    devices = comm.allgather(model.run["device_description"])
                    result = result or Result(args, f"observed-{args.device}{ranks}", devices, comm)
                    row = {**case.facts, "ranks": comm.size, "rank": rank, "precision": precision, **case.how, **each}
                    result.add({**row, "fit": model.fits[-1]}, line(row))


def cases(name: str, args: argparse.Namespace) -> Iterator[Case]:
    """Yield a sparse tensor, or a dense one with each share of missing elements."""
    if name in SHAPES or Path(name).exists():
        tensor = drawn(recipe(name, args.nonzeros)) if name in SHAPES else amped.read(name)
        facts = {"tensor": Path(name).name.split(".")[0], "shape": tensor.shape, "nonzeros": tensor.nnz}
        yield Case(tensor, {"mask": "stored", "ridge": RIDGE}, facts)
        return
    for share in args.missing:
        rng = np.random.default_rng(0)
        array = rng.random(shape_of(name), np.float32)
        facts = {"tensor": "random", "shape": array.shape, "missing": share}
        if share:
            array.reshape(-1)[rng.integers(0, array.size, round(share * array.size))] = np.nan
        yield Case(array, {"mask": "nan", "ridge": RIDGE} if share else {"ridge": RIDGE}, facts)


def measured(case: Case, rank: int, precision: str, args: argparse.Namespace) -> tuple[KruskalTensor, Facts]:
    """Return the model, and the seconds of the iterations after the first one, which compiles."""
    clocks: list[tuple[float, float]] = []

    def note(iteration: int, fit: float) -> None:
        clocks.append((time.perf_counter(), time.process_time()))

    model = amped.cp_als(
        case.tensor, rank, **case.how, max_iters=1 + args.iterations, tol=0, callback=note,
        device=args.device, precision=precision, threads=args.threads,
    )  # fmt: skip
    wall, processors = np.diff(np.array(clocks), axis=0).T
    return model, {"seconds": spread(wall), "processor_seconds": spread(processors)}


def spread(seconds: Sequence[float]) -> Facts:
    """Return the least, the median and the quartiles."""
    return {"least": float(min(seconds)), **summary(seconds)}


def line(case: Facts) -> str:
    """Return a case as text."""
    times = (f"{case[name]['median'] * 1e3:.3f}" for name in ("seconds", "processor_seconds"))
    gaps = f", {case['missing']:.1%} missing" if "missing" in case else ""
    head = f"{case['tensor']}{gaps}, rank {case['rank']}, {case['precision']}"
    return f"{head}: {' ms, of processors '.join(times)} ms"
