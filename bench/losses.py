"""Losses (GCP): a dense binary tensor beside pyttb, and counts by L-BFGS beside CP-APR: time to the best likelihood."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import amped

from .harness import Facts, Result, common_flags, in_turn, medians, summaries
from .spread import ratio

LENGTH, RANK = 100, 5  # of the binary tensor
CLOSE = 1e-4  # relative distance from the best likelihood
METHODS = {"mu": 300, "pdnr": 60, "pqnr": 60, "lbfgs": 2000}  # iterations at most
Seen = list[tuple[float, float]]
"""Seconds since the start of a run, and the objective, after each iteration."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = common_flags(parser, "losses-cpu", device=None, repeats=3)
    add("tensors", nargs="*", metavar="TENSOR:R", help="files of counts, each with a number of components")
    add("--iterations", type=int, default=50, metavar="N", help="of the binary tensor (50)")
    add("--limit", type=float, default=60.0, metavar="S", help="seconds of a run on counts, at most (60)")


def run(args: argparse.Namespace) -> None:
    """Measure; rewrite the results file after each case."""
    device = amped.cp(np.eye(3), 1, max_iters=1, device="cpu").run["device_description"].split(",")
    result = Result(args, "losses-cpu", [",".join(device[:2])])
    case = binary(args)
    result.add(case, f"binary: {medians(case['seconds'])} s; pyttb / amped {case['ratio']['ratio']:.2f}")
    for text in args.tensors:
        name, _, rank = text.rpartition(":")
        for each in of_counts(Path(name), int(rank), args.limit):
            result.add(each, line(each), key="counts")


def binary(args: argparse.Namespace) -> Facts:
    """Return the seconds of pyttb's L-BFGS, and of amped from the same start until its objective is as low."""
    import pyttb
    from pyttb.gcp.handles import Objectives
    from pyttb.gcp.optimizers import LBFGSB

    rng = np.random.default_rng(0)
    planted = [rng.standard_normal((LENGTH, RANK)) for _ in range(3)]
    log_odds = np.einsum("ir,jr,kr->ijk", *planted)
    hits = (rng.random(log_odds.shape) < 1 / (1 + np.exp(-log_odds))).astype(np.float64)
    start = [rng.random((LENGTH, RANK)) for _ in range(3)]
    reached, calls, iterations = [math.inf], list[int](), dict[str, int]()

    def theirs() -> float:
        data, init = pyttb.tensor(hits), pyttb.ktensor([np.asfortranarray(each) for each in start])
        optimizer = LBFGSB(m=5, maxiter=args.iterations)
        began = time.perf_counter()
        model, _, info = pyttb.gcp_opt(data, RANK, Objectives.BERNOULLI_LOGIT, optimizer, init=init, printitn=0)
        seconds = time.perf_counter() - began
        reached[0] = binary_loss(hits, model.full().data)
        calls.append(int(info["funcalls"]))
        return seconds

    def ours(precision: Any) -> Callable[[], float]:
        def timed() -> float:
            began = time.perf_counter()
            model = amped.cp(
                hits, RANK, loss="bernoulli-logit", init=start, max_iters=args.iterations, tol=0, device="cpu",
                precision=precision, callback=lambda _, objective: objective <= reached[0],
            )  # fmt: skip
            iterations[f"amped {precision}"] = int(sum(model.series["evaluations"]))
            return time.perf_counter() - began

        return timed

    seconds = in_turn({"pyttb": theirs, "amped fp64": ours("fp64"), "amped fp32": ours("fp32")}, args.repeats)
    return {
        "tensor": "binary", "shape": hits.shape, "rank": RANK, "pyttb": pyttb.__version__, "objective": reached[0],
        "seconds": summaries(seconds), "evaluations": {"pyttb": calls[-1], **iterations},
        "ratio": ratio(seconds["pyttb"], seconds["amped fp64"]), "fp32": ratio(seconds["pyttb"], seconds["amped fp32"]),
    }  # fmt: skip


def binary_loss(hits: NDArray[np.float64], model: NDArray[np.float64]) -> float:
    """Return the loss of log-odds."""
    return float(np.sum(np.logaddexp(0, model) - hits * model))


def of_counts(path: Path, rank: int, limit: float) -> list[Facts]:
    """Return for each method the best negative log-likelihood, and the seconds to come close to the best of all."""
    tensor, seen = amped.read(path), dict[str, Seen]()
    for method, most in METHODS.items():
        amped.cp(tensor, rank, loss="poisson", method=method, max_iters=1, device="cpu", precision="fp64")  # compiles
        seen[method] = watched(tensor, rank, method, most, limit)
    best = min(objective for each in seen.values() for _, objective in each)
    return [
        {
            "tensor": path.name.split(".")[0], "rank": rank, "method": method, "iterations": len(each),
            "objective": min(objective for _, objective in each), "best": best, "seconds": each[-1][0],
            "seconds_to_best": next((at for at, f in each if f <= best + CLOSE * abs(best)), None),
        }
        for method, each in seen.items()
    ]  # fmt: skip


def watched(tensor: amped.SparseTensor, rank: int, method: Any, most: int, limit: float) -> Seen:
    """Run a method; return the course of its objective."""
    seen, sign = Seen(), 1 if method == "lbfgs" else -1
    began = time.perf_counter()

    def note(iteration: int, number: float) -> bool:
        seen.append((time.perf_counter() - began, sign * number))
        return seen[-1][0] > limit

    amped.cp(
        tensor, rank, loss="poisson", method=method, max_iters=most, callback=note, device="cpu", precision="fp64",
    )  # fmt: skip
    return seen or [(math.inf, math.inf)]


def line(case: Facts) -> str:
    """Return a case as text."""
    to_best = "never" if case["seconds_to_best"] is None else f"{case['seconds_to_best']:.2f} s"
    return (
        f"{case['tensor']} rank {case['rank']} {case['method']}: {case['objective']:.8g} after {case['iterations']} "
        f"iterations, {case['seconds']:.1f} s; close to the best: {to_best}"
    )
