"""CP-APR's methods from the same starts, on tensors of counts: log-likelihood, KKT violation and seconds."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import amped
from amped.methods.apr import CpApr
from amped.methods.driver import StopRule
from amped.methods.driver import run as iterate
from amped.methods.poisson import Poisson
from amped.operators.sources.protocols import DescribedSource
from amped.operators.sparse.tuning import Budget
from amped.options import Options
from amped.parallel.mpi import world
from amped.runs.assembly import begin, bring_up, counts, open_tensor

from .harness import Facts, Result, common_flags
from .spread import summary

METHODS = "mu", "pdnr", "pqnr"
CLOSE = {"seconds_to_mu_within_0": 0.0, "seconds_to_mu_within_1e-06": 1e-6, "seconds_to_mu": 1e-5}
"""Relative distances from MU's last log-likelihood: until the others come so close."""


class Trajectory(NamedTuple):
    """A method's way from a start: numbers after each iteration."""

    seconds: NDArray[np.float64]
    loglikelihood: NDArray[np.float64]
    kkt: float  # the last
    converged: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = common_flags(parser, "counts-DEVICE", device="cpu", repeats=1)
    add("tensors", nargs="+", metavar="TENSOR:RANK", help="files of counts, and how many components")
    add("--method", nargs="+", choices=METHODS, default=list(METHODS), help="(all)")
    add("--starts", type=int, default=5, metavar="K", help="seeds 0, 1, ... (5)")
    add("--mu-iterations", type=int, default=200, metavar="N", help="of MU (200)")
    add("--iterations", type=int, default=2000, metavar="N", help="of the other methods, at most (2000)")
    add("--seconds", type=float, default=60.0, help="of a run of the other methods, at most (60)")
    add("--threads", type=int, help="(all cores)")
    add("--precision", choices=("fp32", "fp64"), default="fp64")


def run(args: argparse.Namespace) -> None:
    """Measure; rewrite the results file after each tensor."""
    options = Options(args.device, args.precision, threads=args.threads)
    machine = bring_up(options, world())
    result = Result(args, f"counts-{args.device}", [machine.device.description], precision=args.precision)
    for each in args.tensors:
        file, _, rank = each.rpartition(":")
        tensor = amped.read(file)
        source = open_tensor(tensor, machine, options)
        found = {
            method: counts(source, int(rank), machine, options, Poisson(method=method), Budget(1000))
            for method in args.method
        }
        for method in found.values():  # compile
            begin(method, source)
            iterate(method, StopRule(method.params.mu_iters + 2, 0))
        starts = list[dict[str, Trajectory]]()
        for seed in range(args.starts):  # methods in turn, as the machine may be slower at times
            starts.append({name: measured(args, method, name, source, seed) for name, method in found.items()})
        head = {"tensor": Path(file).name.split(".")[0], "shape": tensor.shape, "nonzeros": tensor.nnz}
        row = {**head, "rank": int(rank), "best": compared(starts, args.method)}
        result.add(row, table(row, args.starts))


def timed(method: CpApr, source: DescribedSource, seed: int, rule: StopRule, seconds: float) -> NDArray[np.float64]:
    """Compute the path of a method from a start; return the seconds of each iteration."""
    method.restart()
    begin(method, source, seed)
    method.operator.synchronize()
    ends = [time.perf_counter()]
    iterate(
        method, rule, [lambda *_: ends.append(time.perf_counter())], lambda: time.perf_counter() - ends[0] > seconds
    )
    return np.diff(ends)


def measured(args: argparse.Namespace, method: CpApr, name: str, source: DescribedSource, seed: int) -> Trajectory:
    """Return the path of a method from a start, with the least seconds of each iteration; it has computed before."""
    most, seconds = (args.mu_iterations, np.inf) if name == "mu" else (args.iterations, args.seconds)
    rule = StopRule(most, method.params.tol)
    each = [timed(method, source, seed, rule, seconds) for _ in range(args.repeats)]
    known = min(map(len, each))
    least = np.cumsum(np.min([seconds[:known] for seconds in each], axis=0))
    series = method.state.series
    return Trajectory(
        least, np.array(series["loglikelihood"][:known]), series["kkt"][known - 1], method.state.converged
    )


def until(path: Trajectory, value: float) -> float | None:
    """Return the seconds after which a path has a value, if it has."""
    reached = path.loglikelihood >= value
    return float(path.seconds[int(np.argmax(reached))]) if reached.any() else None


def compared(starts: Sequence[dict[str, Trajectory]], methods: Sequence[str]) -> Facts:
    """Return the best of all starts, by method; and how long each start takes until it is close to MU's value."""
    found: Facts = {}
    for method in methods:
        paths = [start[method] for start in starts]
        ends = [float(path.loglikelihood[-1]) for path in paths]
        found[method] = {
            "loglikelihood": max(ends),
            "loglikelihoods": ends,
            "largest_kkt": max(path.kkt for path in paths),
            "converged": sum(path.converged for path in paths),
            "iterations": summary([len(path.seconds) for path in paths]),
            "seconds": [float(path.seconds[-1]) for path in paths],
        }
        if "mu" in methods:
            goals = [float(start["mu"].loglikelihood[-1]) for start in starts]
            for name, close in CLOSE.items():
                found[method][name] = [
                    until(path, goal - close * abs(goal)) for path, goal in zip(paths, goals, strict=True)
                ]
    return found


def table(row: Facts, starts: int) -> str:
    """Return a table of the best of all starts."""
    lines = []
    for method, best in row["best"].items():
        times = ", ".join("-" if s is None else f"{s:.2f}" for s in best.get("seconds_to_mu", []))
        lines.append(
            f"| {row['tensor']}, {row['rank']} | {method} | {best['loglikelihood']:.2f} | {best['largest_kkt']:.0e}"
            f" | {best['converged']} of {starts} | {times} |"
        )
    return "\n".join(lines)
