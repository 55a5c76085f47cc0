"""Seconds of a CP-ALS iteration, by kind of work, on a synthetic tensor and any number of ranks."""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from amped.backend.choose import choose
from amped.methods.als import CpAls
from amped.methods.driver import StopRule, iterate
from amped.operators.sparse.operator import SparseOperator
from amped.options import Options
from amped.parallel.mpi import Comm, world
from amped.report.metrics import KINDS, Spans

from . import pictures, record
from .measure import place, tensor_facts
from .synthetic import SHAPES, SyntheticSource, recipe

RANK = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    parser.add_argument("--shape", choices=sorted(SHAPES), default="nell2")
    parser.add_argument("--nonzeros", type=int, help="instead of the shape's own number")
    parser.add_argument("--skew", type=float, default=0.6)
    parser.add_argument("--rank", type=int, default=RANK)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--placement", default="auto")
    parser.add_argument("--output", type=Path, default=record.RESULTS, metavar="FOLDER")


def run(args: argparse.Namespace) -> None:
    """Measure and write the result. Collective."""
    comm = world()
    backend = choose(args.device, comm)
    source = SyntheticSource(recipe(args.shape, args.nonzeros, args.skew), comm, backend.xp)
    operator, loading = place(source, args.rank, Options(args.device, args.precision, args.placement), comm)
    seconds, spans, fits = _iterations(operator, comm, args.iterations)
    devices = comm.allgather(operator.machine.device.description)
    kernels = comm.allgather(operator.kernels)
    if comm.rank:
        return
    split = _split(spans, operator.order)
    busy: float = max(split[kind]["all modes"] for kind in ("compute", "copy"))  # with shards, or waiting for them
    facts: dict[str, Any] = {
        "shape": args.shape,
        **tensor_facts(source),
        "rank": args.rank,
        "ranks": comm.size,
        "precision": args.precision,
        "placement": args.placement,
        "exchange": operator.machine.exchange.name,
        "kernels": kernels,
        "seconds_to_load": loading,
        "seconds_an_iteration": record.summary(seconds),
        "seconds_each_iteration": seconds,
        "seconds_of_the_slowest_rank": split,
        "share_outside_mttkrp": 1 - busy / statistics.median(seconds),
        "fits": fits,
    }
    name = f"cp_als-{args.shape}-{operator.machine.device.name}-{comm.size}-{args.precision}-{args.placement}"
    name += "" if args.rank == RANK else f"-rank{args.rank}"
    path = record.write(name, devices, facts, args.output)
    pictures.draw(path)
    text = f"{statistics.median(seconds) * 1e3:.2f} ms an iteration, {facts['share_outside_mttkrp']:.1%} outside MTTKRP"
    print(f"{path.name}: {text}; {split}", flush=True)


def _iterations(operator: SparseOperator, comm: Comm, count: int) -> tuple[list[float], list[list[Spans]], list[float]]:
    """Return each iteration's seconds and the ranks' spans, and the fits."""
    method = CpAls(operator)
    seconds, spans = [], []
    operator.synchronize()
    operator.clock.collect()
    comm.allgather(None)
    last = time.perf_counter()
    for _ in iterate(method, StopRule(count, tol=0)):
        mine = operator.clock.collect()
        seconds.append(max(comm.allgather(time.perf_counter() - last)))
        spans.append(comm.allgather(mine))
        last = time.perf_counter()
    return seconds, spans, method.state.series["fit"]


def _split(spans: list[list[Spans]], order: int) -> dict[str, Any]:
    """Return the slowest rank's seconds by kind of work, in all and per mode; medians over iterations."""

    def slowest(kind: str, modes: range) -> float:
        each = [max(sum(s.get((kind, m), 0.0) for m in modes) for s in by_rank) for by_rank in spans]
        return round(statistics.median(each), 7)

    return {
        kind: {
            "all modes": slowest(kind, range(order)),
            "by mode": [slowest(kind, range(m, m + 1)) for m in range(order)],
        }
        for kind in KINDS
    }
