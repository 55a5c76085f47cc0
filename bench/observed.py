"""CP-ALS over observed elements: seconds of an iteration of sparse tensors, by wall clock and of processors."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import amped
from amped.models.kruskal import KruskalTensor

from .harness import Facts, Result, common_flags
from .spread import summary
from .stored import tensor as drawn
from .synthetic import SHAPES, recipe

RIDGE = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = common_flags(parser, "observed-DEVICE", device="cpu")
    add("tensors", nargs="+", metavar="TENSOR", help=f"files, or synthetic ones: {', '.join(SHAPES)}")
    add("--rank", nargs="+", type=int, default=[10, 32], metavar="R", help="(10 32)")
    add("--nonzeros", type=int, metavar="N", help="of synthetic tensors")
    add("--iterations", type=int, default=10, metavar="N", help="after the first one (10)")
    add("--threads", type=int, help="(all cores)")
    add("--precision", nargs="+", choices=("fp32", "fp64"), default=["fp32"], help="(fp32)")


def run(args: argparse.Namespace) -> None:
    """Measure; rewrite the results file after each case."""
    result = None
    for name in args.tensors:
        tensor = drawn(recipe(name, args.nonzeros)) if name in SHAPES else amped.read(name)
        head: Facts = {"tensor": Path(name).name.split(".")[0], "shape": tensor.shape, "nonzeros": tensor.nnz}
        for rank in args.rank:
            for precision in args.precision:
                model, each = measured(tensor, rank, precision, args)
                result = result or Result(args, f"observed-{args.device}", [model.run["device_description"]])
                case = {**head, "rank": rank, "precision": precision, "ridge": RIDGE, **each}
                result.add({**case, "objective": model.series["objective"][-1]}, line(case))


def measured(
    tensor: amped.SparseTensor, rank: int, precision: str, args: argparse.Namespace
) -> tuple[KruskalTensor, Facts]:
    """Return the model, and the seconds of the iterations after the first one, which compiles."""
    clocks: list[tuple[float, float]] = []

    def note(iteration: int, fit: float) -> None:
        clocks.append((time.perf_counter(), time.process_time()))

    model = amped.cp_als(
        tensor, rank, mask="stored", ridge=RIDGE, max_iters=1 + args.iterations, tol=0, callback=note,
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
    return f"{case['tensor']} rank {case['rank']} {case['precision']}: {' ms, of processors '.join(times)} ms"
