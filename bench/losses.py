"""Losses (GCP): a dense binary tensor beside pyttb, and counts by all methods: time to the best likelihood."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import amped

from .harness import Facts, Result, common_flags, in_turn, medians, summaries
from .spread import ratio, summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LENGTH, RANK = 100, 5  # of the binary tensor
CLOSE = 1e-4  # relative distance from the best likelihood
METHODS = {"mu": 300, "pdnr": 60, "pqnr": 60, "lbfgs": 2000, "newton": 500, "adam": 200}  # iterations at most
APR = "mu", "pdnr", "pqnr"  # methods that report log-likelihoods; others report objectives, Adam estimates
POINTS = 60  # of a course, at most
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
        for each in of_counts(Path(name), int(rank), args.limit, args.repeats):
            result.add(each, line(each), key="counts")
    result.draw(picture)


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

    def ours(precision: str) -> Callable[[], float]:
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


def of_counts(path: Path, rank: int, limit: float, repeats: int) -> list[Facts]:
    """Return for each method the best negative log-likelihood, and the seconds to come close to the best of all."""
    tensor, courses = amped.read(path), {method: list[Seen]() for method in METHODS}
    for method in METHODS:
        amped.cp(tensor, rank, loss="poisson", method=method, max_iters=1, device="cpu", precision="fp64")  # compiles
    for _ in range(repeats):
        for method, most in METHODS.items():
            courses[method].append(watched(tensor, rank, method, most, limit))
    best = min(objective for each in courses.values() for course in each for _, objective in course)
    return [
        {
            "tensor": path.name.split(".")[0], "rank": rank, "method": method,
            "iterations": int(np.median([len(each) for each in runs])),
            "objective": float(np.median([min(f for _, f in each) for each in runs])), "best": best,
            "seconds": summary([each[-1][0] for each in runs]), "seconds_to_best": to_best(runs, best),
            "course": thinned(runs[0], best),
        }
        for method, runs in courses.items()
    ]  # fmt: skip


def to_best(runs: Sequence[Seen], best: float) -> dict[str, float] | None:
    """Return the seconds after which runs are close to the best objective; None if any is not."""
    found = [next((at for at, f in each if f <= best + CLOSE * abs(best)), None) for each in runs]
    reached = [each for each in found if each is not None]
    return summary(reached) if len(reached) == len(found) else None


def thinned(seen: Seen, best: float) -> list[tuple[float, float]]:
    """Return seconds and relative distances from the best, at iterations that are evenly spaced in logarithm."""
    places = np.unique(np.geomspace(1, len(seen), POINTS).astype(int)) - 1
    return [(seen[at][0], (seen[at][1] - best) / abs(best)) for at in places]


def picture(pyplot: ModuleType, facts: Facts) -> Figure:
    """Return a figure: the distance from the best log-likelihood over time, a panel per tensor."""
    cases = facts.get("counts", [])
    names = list(dict.fromkeys((case["tensor"], case["rank"]) for case in cases)) or [("", 0)]
    figure, panels = pyplot.subplots(1, len(names), figsize=(2.6 * len(names), 2.6), sharey=True, squeeze=False)
    for (name, rank), axes in zip(names, panels[0], strict=True):
        for case in cases:
            if (case["tensor"], case["rank"]) == (name, rank):
                seconds, gaps = zip(*case["course"], strict=True)
                axes.plot(seconds, np.maximum(gaps, CLOSE / 100), label=case["method"])
        axes.axhline(CLOSE, color="#999999", lw=0.8, ls=":")
        axes.set(xscale="log", yscale="log", title=f"{name}, rank {rank}", xlabel="seconds", ylim=(CLOSE / 100, 3))
    panels[0][0].set_ylabel("relative distance from the best")
    panels[0][-1].legend(frameon=False)
    return figure


def watched(tensor: amped.SparseTensor, rank: int, method: Any, most: int, limit: float) -> Seen:
    """Run a method; return the course of its objective."""
    seen, sign, taken = Seen(), -1 if method in APR else 1, [0.0]
    began = time.perf_counter()

    def note(iteration: int, number: float, view: Any) -> bool:
        now = time.perf_counter()
        if method == "adam":
            model = view.model()
            number = amped.objective(tensor, model, loss="poisson", gradient=False, device="cpu")
            taken[0] += time.perf_counter() - now  # the time of the exact objective does not count
        seen.append((now - taken[0] - began, sign * number))
        return seen[-1][0] > limit

    amped.cp(
        tensor, rank, loss="poisson", method=method, max_iters=most, callback=note, device="cpu", precision="fp64",
    )  # fmt: skip
    return seen or [(math.inf, math.inf)]


def line(case: Facts) -> str:
    """Return a case as text."""
    to_best = "never" if case["seconds_to_best"] is None else f"{case['seconds_to_best']['median']:.2f} s"
    return (
        f"{case['tensor']} rank {case['rank']} {case['method']}: {case['objective']:.8g} after {case['iterations']} "
        f"iterations, {case['seconds']['median']:.1f} s; close to the best: {to_best}"
    )
