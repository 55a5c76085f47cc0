"""Seconds of a scan: runs that are computed together against the largest single one, for each loss, and diagnostics."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import amped
from amped.api.scan import scan
from amped.options import OptionNames, Options
from amped.parallel.mpi import world
from amped.runs.assembly import bring_up
from amped.runs.scan_result import Scan, ranks_of
from partitioner.tensors.sparse import SparseTensor

from .bundled import UBER, bundled
from .harness import Facts, Result, common_flags
from .spread import summary

TOL = 1e-6
KINDS: dict[str, dict[str, Any]] = {
    "gaussian": {},
    "nonnegative": {"nonnegative": True},
    "poisson": {"loss": "poisson"},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = common_flags(parser, "scan-DEVICE", device="cpu", repeats=3)
    add("--tensor", type=Path, default=bundled(UBER), help="(the bundled one)")
    add("--kind", nargs="+", choices=KINDS, default=list(KINDS), help="(all)")
    add("--ranks", default="1-16", help="(1-16)")
    add("--starts", type=int, default=5, help="(5)")
    add("--max-iters", type=int, default=200, help="(200)")
    add("--no-halves", action="store_true", help="no runs of halves")
    add("--threads", type=int, help="(all cores)")


def run(args: argparse.Namespace) -> None:
    """Measure; rewrite the results file after each kind. On one process."""
    tensor, device = amped.read(args.tensor), bring_up(Options(args.device, threads=args.threads), world()).device
    params = {"tensor": args.tensor.name, "ranks": args.ranks, "starts": args.starts, "max_iters": args.max_iters}
    result = Result(args, f"scan-{device.name}", [device.description], **params)
    for kind in args.kind:
        case = {"kind": kind, **measured(tensor, KINDS[kind], args)}
        result.add(case, line(case))


def measured(tensor: SparseTensor, kind: dict[str, Any], args: argparse.Namespace) -> Facts:
    """Return the seconds of scans, and of single runs of most components between them: calls, with all that they do.

    The single runs are those of all starts; the largest one takes longest. Fits are compared with theirs.
    """
    options: OptionNames = {"device": args.device, "threads": args.threads}
    most = max(ranks_of("--ranks", args.ranks))
    params = {"starts": args.starts, "max_iters": args.max_iters, "tol": TOL, "halves": not args.no_halves}
    scans, singles = list[Scan](), list[float]()
    for again in range(args.repeats + 1):  # the first ones compile
        found = scan(tensor, args.ranks, **params, **kind, **options)
        timed = [_single(tensor, kind, most, seed, args, options) for seed in range(args.starts)]
        if again:
            scans.append(found)
            singles.append(max(seconds for seconds, _ in timed))
    return {
        "largest_single_seconds": summary(singles),
        **{f"{what}_seconds": summary([each.seconds[what] for each in scans]) for what in found.seconds},
        "runs_as_times_the_largest": min(each.seconds["runs"] for each in scans) / min(singles),
        "all_as_times_the_largest": min(sum(each.seconds.values()) for each in scans) / min(singles),
        "iterations": sum(each.iterations for each in found.tried),
        "largest_difference": _difference(found, [reached for _, reached in timed]),
    }


def _difference(found: Scan, reached: Sequence[float]) -> float:
    """Return how far runs of a scan are from separate ones: in fits of all starts, or the best log-likelihood."""
    tried, model = (max(some, key=lambda each: each.rank) for some in (found.tried, found.models))
    if logs := model.series.get("loglikelihood"):
        return abs(logs[-1] / max(reached) - 1)
    fits = [1 - (1 - explained) ** 0.5 for explained in tried.explained]
    return max(abs(one - other) for one, other in zip(fits, reached, strict=True))


def _single(
    tensor: SparseTensor, kind: dict[str, Any], rank: int, seed: int, args: argparse.Namespace, options: OptionNames
) -> tuple[float, float]:
    """Return the seconds of a run by itself, and what it has reached: a fit, or a log-likelihood."""
    began = time.perf_counter()
    if "loss" in kind:
        model = amped.cp_apr(tensor, rank, seed=seed, max_iters=args.max_iters, tol=TOL, **options)
        return time.perf_counter() - began, model.series["loglikelihood"][-1]
    model = amped.cp_als(tensor, rank, seed=seed, max_iters=args.max_iters, tol=TOL, **kind, **options)
    return time.perf_counter() - began, model.fits[-1]


def line(facts: Facts) -> str:
    """Return a case as one line of text."""
    seconds = {what: facts[f"{what}_seconds"]["median"] for what in ("largest_single", "runs", "halves", "diagnostics")}
    text = "  ".join(f"{what} {each:.3f} s" for what, each in seconds.items())
    times = f"runs {facts['runs_as_times_the_largest']:.1f} times the largest single one"
    return f"{facts['kind']:12}{text}; {times}; fits {facts['largest_difference']:.1e} apart"
