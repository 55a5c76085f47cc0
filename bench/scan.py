"""What a scan takes: runs side by side against the largest single one, for each loss, and the diagnostics beside."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import amped
from amped.api.scan import scan
from amped.backend.device import Device
from amped.options import OptionNames, Options
from amped.parallel.mpi import world
from amped.runs.assembly import bring_up
from amped.runs.scanning import Scan, ranks_of
from partitioner.tensors.sparse import SparseTensor

from . import record
from .synthetic import BUNDLED

EXAMPLE = Path(str(files("amped").joinpath("data", BUNDLED)))
TOL = 1e-6
KINDS: dict[str, dict[str, Any]] = {
    "gaussian": {},
    "nonnegative": {"nonnegative": True},
    "poisson": {"loss": "poisson"},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    parser.add_argument("--tensor", type=Path, default=EXAMPLE, help="(the bundled one)")
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=list(KINDS), help="(all)")
    parser.add_argument("--ranks", default="1-16", help="(1-16)")
    parser.add_argument("--starts", type=int, default=5, help="(5)")
    parser.add_argument("--max-iters", type=int, default=200, help="(200)")
    parser.add_argument("--repeat", type=int, default=3, help="scans of each kind (3)")
    parser.add_argument("--no-halves", action="store_true", help="no runs of halves")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="(all cores)")
    parser.add_argument("--name", help="of the result (scan-DEVICE)")
    parser.add_argument("--output", type=Path, default=record.RESULTS, metavar="FOLDER")


def run(args: argparse.Namespace) -> None:
    """Measure; rewrite the results file after each kind. On one process."""
    tensor, device = amped.read(args.tensor), bring_up(Options(args.device, threads=args.threads), world()).device
    found = list[dict[str, Any]]()
    for kind in args.kind:
        found.append({"kind": kind, **measured(tensor, device, KINDS[kind], args)})
        print(line(found[-1]), flush=True)
        facts = {"tensor": args.tensor.name, "ranks": args.ranks, "starts": args.starts, "tol": TOL}
        facts |= {"max_iters": args.max_iters, "scans": found}
        record.write(args.name or f"scan-{device.name}", [device.description], facts, args.output)


def measured(tensor: SparseTensor, device: Device, kind: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of scans, and of single runs of most components between them: calls, with all that they do.

    The single runs are those of all starts; the largest one takes longest. Fits are compared with theirs.
    """
    how: OptionNames = {"device": args.device, "threads": args.threads}
    most = max(ranks_of("--ranks", args.ranks))
    asked = {"starts": args.starts, "max_iters": args.max_iters, "tol": TOL, "halves": not args.no_halves}
    scans, singles = list[Scan](), list[list[float]]()
    for again in range(args.repeat + 1):  # the first ones compile
        found = scan(tensor, args.ranks, **asked, **kind, **how)
        timed = [_single(tensor, kind, most, seed, args, how) for seed in range(args.starts)]
        if again:
            scans.append(found)
            singles.append([seconds for seconds, _ in timed])
    largest = min(max(each) for each in singles)
    return {
        "largest_single_seconds": record.summary([max(each) for each in singles]),
        "single_seconds": singles,
        **{f"{what}_seconds": record.summary([each.seconds[what] for each in scans]) for what in found.seconds},
        "runs_as_times_the_largest": min(each.seconds["runs"] for each in scans) / largest,
        "all_as_times_the_largest": min(sum(each.seconds.values()) for each in scans) / largest,
        "iterations": sum(each.iterations for each in found.tried),
        "largest_difference": _difference(found, [reached for _, reached in timed]),
    }


def _difference(found: Scan, reached: Sequence[float]) -> float:
    """Return how far runs side by side are from separate ones: in fits of all starts, or the best log-likelihood."""
    best = max(found.tried, key=lambda each: each.rank), max(found.models, key=lambda each: each.rank)
    if logs := best[1].series.get("loglikelihood"):
        return abs(logs[-1] / max(reached) - 1)
    fits = [1 - (1 - explained) ** 0.5 for explained in best[0].explained]
    return max(abs(one - other) for one, other in zip(fits, reached, strict=True))


def _single(
    tensor: SparseTensor, kind: dict[str, Any], rank: int, seed: int, args: argparse.Namespace, how: OptionNames
) -> tuple[float, float]:
    """Return the seconds of a run by itself, and what it has reached: a fit, or a log-likelihood."""
    began = time.perf_counter()
    if "loss" in kind:
        model = amped.cp_apr(tensor, rank, seed=seed, max_iters=args.max_iters, tol=TOL, **how)
        return time.perf_counter() - began, model.series["loglikelihood"][-1]
    model = amped.cp_als(tensor, rank, seed=seed, max_iters=args.max_iters, tol=TOL, **kind, **how)
    return time.perf_counter() - began, model.fits[-1]


def line(facts: dict[str, Any]) -> str:
    """Return what is said of a scan."""
    seconds = {what: facts[f"{what}_seconds"]["median"] for what in ("largest_single", "runs", "halves", "diagnostics")}
    told = "  ".join(f"{what} {each:.3f} s" for what, each in seconds.items())
    times = f"runs {facts['runs_as_times_the_largest']:.1f} times the largest single one"
    return f"{facts['kind']:12}{told}; {times}; fits {facts['largest_difference']:.1e} apart"
