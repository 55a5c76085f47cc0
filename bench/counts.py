"""CP-APR's methods from the same starts, on tensors of counts: log-likelihood, KKT violation and seconds."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import amped
from amped.methods.apr import CpApr
from amped.methods.driver import StopRule
from amped.methods.driver import run as iterate
from amped.methods.poisson import Poisson
from amped.operators.sparse.tuning import Budget
from amped.options import Options
from amped.parallel.mpi import world
from amped.runs.assembly import begin, bring_up, counts, open_tensor

from . import pictures, record

METHODS = "mu", "pdnr", "pqnr"
CLOSE = 1e-5  # relative: log-likelihoods that count as equal
SHOWN = 1.05  # of iterations whose numbers are written, each is the last one times that, or the next

Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    parser.add_argument("tensors", nargs="+", metavar="TENSOR:RANK", help="files of counts, and how many components")
    parser.add_argument("--method", nargs="+", choices=METHODS, default=list(METHODS), help="(all)")
    parser.add_argument("--starts", type=int, default=5, metavar="K", help="seeds 0, 1, ... (5)")
    parser.add_argument("--mu-iterations", type=int, default=200, metavar="N", help="of MU (200)")
    parser.add_argument(
        "--iterations", type=int, default=2000, metavar="N", help="of the other methods, at most (2000)"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of a run of the other methods, at most (60)")
    parser.add_argument("--repeats", type=int, default=1, metavar="K", help="runs: each iteration's fastest counts (1)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, help="(all cores)")
    parser.add_argument("--precision", choices=("fp32", "fp64"), default="fp64")
    parser.add_argument("--name", help="of the result (counts-DEVICE)")
    parser.add_argument("--output", type=Path, default=record.RESULTS, metavar="FOLDER")


def run(args: argparse.Namespace) -> None:
    """Measure; rewrite the results file after each tensor."""
    options = Options(args.device, args.precision, threads=args.threads)
    machine = bring_up(options, world())
    rows = list[Row]()
    for each in args.tensors:
        file, _, rank = each.rpartition(":")
        tensor, title = amped.read(file), Path(file).name.split(".")[0]
        source, starts = open_tensor(tensor, machine, options), list[Row]()
        found = {
            method: counts(source, int(rank), machine, options, Poisson(method=method), Budget(1000))
            for method in args.method
        }
        for method in found.values():  # compile
            begin(method, source)
            iterate(method, StopRule(method.asked.mu_iters + 2, 0))
        for seed in range(args.starts):  # methods in turn, as the machine may be slower at times
            starts.append({"seed": seed})
            for name_of, method in found.items():
                most, seconds = (args.mu_iterations, np.inf) if name_of == "mu" else (args.iterations, args.seconds)
                starts[-1][name_of] = measured(
                    method, source, seed, StopRule(most, method.asked.tol), seconds, args.repeats
                )
        row = {"tensor": title, "shape": tensor.shape, "nonzeros": tensor.nnz, "rank": int(rank)}
        rows.append({**row, "best": compared(starts, args.method), "starts": starts})
        facts = {"precision": args.precision, "threads": machine.device.description, "counts": rows}
        path = record.write(args.name or f"counts-{args.device}", [machine.device.description], facts, args.output)
        print(table(rows[-1:]), flush=True)
    pictures.draw(path)


def timed(method: CpApr, source: Any, seed: int, rule: StopRule, seconds: float) -> NDArray[np.float64]:
    """Compute the path of a method from a start; return the seconds of each iteration, and those of processors."""
    method.restart()
    begin(method, source, seed)
    method.operator.synchronize()
    told = [(time.perf_counter(), time.process_time())]

    def tell(*_: object) -> None:
        told.append((time.perf_counter(), time.process_time()))

    iterate(method, rule, [tell], lambda: time.perf_counter() - told[0][0] > seconds)
    return np.diff(told, axis=0)


def measured(method: CpApr, source: Any, seed: int, rule: StopRule, seconds: float, repeats: int) -> Row:
    """Return the path of a method from a start, with the least seconds of each iteration; it has computed before."""
    each = [timed(method, source, seed, rule, seconds) for _ in range(repeats)]
    known = min(map(len, each))
    told = np.cumsum(np.min([seconds[:known] for seconds in each], axis=0), axis=0)
    series, last = method.state.series, known - 1
    which, k = list[int](), 0
    while k < last:
        which.append(k)
        k = max(k + 1, int(k * SHOWN))
    which.append(last)
    return {
        "iterations": len(told),
        "converged": method.state.converged,
        "at": [k + 1 for k in which],
        "seconds": [round(float(told[k, 0]), 4) for k in which],
        "processor_seconds": [round(float(told[k, 1]), 4) for k in which],
        "loglikelihood": [round(series["loglikelihood"][k], 4) for k in which],
        "kkt": [float(f"{series['kkt'][k]:.3g}") for k in which],
    }


def until(path: Row, value: float, clock: str = "seconds") -> float | None:
    """Return the seconds after which a path has a value, if it has."""
    reached = np.array(path["loglikelihood"]) >= value
    return float(path[clock][int(np.argmax(reached))]) if reached.any() else None


def compared(starts: Sequence[Row], methods: Sequence[str]) -> Row:
    """Return the best of all starts, by method; and how long each start takes to within `CLOSE` of MU's value."""
    found: Row = {}
    for method in methods:
        paths = [start[method] for start in starts]
        found[method] = {
            "loglikelihood": max(path["loglikelihood"][-1] for path in paths),
            "largest_kkt": max(path["kkt"][-1] for path in paths),
            "converged": sum(path["converged"] for path in paths),
        }
        if "mu" in methods:
            ends = [start["mu"]["loglikelihood"][-1] for start in starts]
            best = int(np.argmax(ends))
            goals = [end - CLOSE * abs(end) for end in ends]
            for clock in ("seconds", "processor_seconds"):
                found[method][f"{clock}_to_mu"] = [until(*goal, clock) for goal in zip(paths, goals, strict=True)]
            found[method]["seconds_to_the_best_of_mu"] = found[method]["seconds_to_mu"][best]
    return found


def table(rows: Sequence[Row]) -> str:
    """Return a table of the best of all starts."""
    lines = []
    for row in rows:
        for method, best in row["best"].items():
            times = ", ".join("-" if s is None else f"{s:.2f}" for s in best.get("processor_seconds_to_mu", []))
            lines.append(
                f"| {row['tensor']}, {row['rank']} | {method} | {best['loglikelihood']:.2f} | {best['largest_kkt']:.0e}"
                f" | {best['converged']} of {len(row['starts'])} | {times} |"
            )
    return "\n".join(lines)
