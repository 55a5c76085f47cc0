"""Cost of reliability: an iteration with a checkpoint against one without, and the speed of verification."""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

from amped.backend.choose import choose
from amped.methods.als import CpAls
from amped.methods.driver import StopRule, iterate
from amped.operators.sparse.operator import SparseOperator
from amped.options import Options
from amped.parallel.mpi import world
from amped.runs.checkpoint import Origin
from amped.runs.saver import Saver
from partitioner.host import checksums

from .harness import Result, common_flags, seconds_of, summaries
from .measure import place, tensor_facts
from .spread import summary
from .synthetic import SHAPES, SyntheticSource, recipe

VERIFIED = 1 << 28  # bytes
WARM_UP = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = common_flags(parser, "reliability-DEVICE-RANKS")
    add("--shape", choices=sorted(SHAPES), default="nell2")
    add("--nonzeros", type=int, help="instead of the shape's own number")
    add("--rank", type=int, default=32)
    add("--rounds", type=int, default=10, help="of iterations with and without checkpoints, in turn (10)")
    add("--iterations", type=int, default=4, help="of a round (4)")
    add("--folder", type=Path, help="where checkpoints are written (the one of temporary files)")


def run(args: argparse.Namespace) -> None:
    """Measure and write the result. Collective."""
    comm = world()
    backend = choose(args.device, comm)
    source = SyntheticSource(recipe(args.shape, args.nonzeros), comm, backend.xp)
    operator, _ = place(source, args.rank, Options(args.device), comm)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        seconds = summaries(_iterations(operator, Path(comm.bcast(folder)), args.rounds, args.iterations))
        verified = summary(_verification(Path(folder)))
    overhead = seconds["a checkpoint after each"]["median"] / seconds["none"]["median"] - 1
    facts = {
        "shape": args.shape,
        **tensor_facts(source),
        "rank": args.rank,
        "ranks": comm.size,
        "checkpoint_bytes": sum(operator.factor(mode).nbytes for mode in range(operator.order)),
        "seconds_an_iteration": seconds,
        "overhead": overhead,
        "verified_bytes_a_second": verified,
    }
    text = f"checkpoints cost {overhead:.1%}, verification {verified['median'] / 1e9:.2f} GB/s"
    Result(args, f"reliability-{backend.name}-{comm.size}", [backend.description], comm).add(facts, text)


def _iterations(operator: SparseOperator, folder: Path, rounds: int, count: int) -> dict[str, list[float]]:
    """Return the seconds of iterations with and without checkpoints, in alternating rounds."""
    seconds: dict[str, list[float]] = {"none": [], "a checkpoint after each": []}
    method = CpAls(operator)
    steps = iterate(method, StopRule(WARM_UP + 2 * rounds * count, tol=0))
    for _ in range(WARM_UP):
        next(steps)
    with Saver(folder, method, Origin({}, 0, None, {})) as saver:
        for _ in range(rounds):
            for name, each in seconds.items():
                for _ in range(count):
                    began = time.perf_counter()
                    next(steps)
                    operator.clock.collect()
                    if name != "none":
                        saver.save()
                    each.append(time.perf_counter() - began)
                saver.finish()
    return seconds


def _verification(folder: Path) -> list[float]:
    """Return the bytes per second at which one core verifies a cached file against its checksums."""
    file = folder / "verified.npy"
    entry = checksums.write_array(file, np.random.default_rng(0).integers(0, 255, VERIFIED, np.uint8))
    return [VERIFIED / seconds_of(partial(checksums.verify, file, entry, "file")) for _ in range(7)]
