"""CP-APR by multiplicative updates: outer iterations, Phi and MTTKRP of each mode, beside ALTO and pyttb.

All take turns, so that a busy machine is equally busy for each of them.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from amped.backend.device import Device
from amped.methods.apr import CpApr, Poisson
from amped.operators.sources.sparse import SparseSource, TensorSource
from amped.operators.sparse.operator import SparseOperator
from amped.options import Options
from amped.parallel.mpi import SingleComm
from amped.runs.assembly import begin, bring_up, counts, place
from partitioner.tensors.sparse import SparseTensor

from . import phi_others, record
from .draws import HostDraws
from .groups import free_memory
from .measure import fill_factors
from .phi_problem import FLOOR, Timed, load, nonzeros_of, source_of, summaries
from .synthetic import recipe

PACKAGES = ("numba", "pyttb")
INNER = 10  # updates of a mode in an outer iteration: none ends early, as no violation is below 0
OUTER = 3  # outer iterations from one start
MOST_RUNS = {"pyttb": 3}  # of tools that take seconds for an update
RUNS = 3  # of each mode's Phi and MTTKRP after them: their median counts
APR_TENSORS = ("uber",)
PRECISIONS, RANKS = ("fp32", "fp64"), (16, 32)


def add_arguments(group: argparse._ArgumentGroup) -> None:
    """Add this part's flags."""
    group.add_argument("--apr-shapes", nargs="+", default=APR_TENSORS, metavar="NAME", help="of tensors (uber)")
    group.add_argument("--apr-rank", nargs="+", type=int, default=RANKS, metavar="R", help="columns (16 32)")
    group.add_argument("--apr-precision", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    group.add_argument("--alto", type=Path, metavar="FOLDER", help="with ALTO's programs cpd64 and cpd128, of fp32")
    group.add_argument(
        "--pyttb", type=int, default=0, metavar="K", help="updates by pyttb's cp_apr of each mode (none)"
    )


def measure(args: argparse.Namespace, device: Device) -> dict[str, Any]:
    """Time all that is asked for, in turn, for each tensor, number of columns and precision."""
    cases = []
    for shape in args.apr_shapes:
        tensor = drawn(shape, nonzeros_of(args, shape, device)) if device.on_host else None
        source = TensorSource(tensor, SingleComm()) if tensor else source_of(args, shape, device)
        for rank, precision in itertools.product(args.apr_rank, args.apr_precision):
            options = Options(args.device, precision, threads=args.threads)
            case = {"shape": shape, "nonzeros": source.nnz, "rank": rank, "precision": precision, "load": load()}
            case |= _measured(args, source, tensor, rank, options)
            cases.append(case)
            print(line(case), flush=True)
            free_memory(device.xp)
    return {"cases": cases}


def drawn(shape: str, nonzeros: int) -> SparseTensor:
    """Return a tensor of counts in memory, those of equal indices added up."""
    made = recipe(shape, nonzeros, integers=True)
    draws, numbers = HostDraws(made), range(nonzeros)
    columns = np.stack([draws.indices(mode, numbers) for mode in range(len(made.lengths))])
    return SparseTensor.from_columns(columns, draws.values(numbers, np.dtype(np.float64)), made.lengths)


def _measured(
    args: argparse.Namespace, source: SparseSource, tensor: SparseTensor | None, rank: int, options: Options
) -> dict[str, Any]:
    runs = _Runs(source, rank, options)
    tools: dict[str, Callable[[], dict[str, float]]] = {"amped": runs.once}
    with tempfile.TemporaryDirectory() as folder:
        if tensor and args.alto and options.precision == "fp32":
            threads = runs.method.operator.machine.device.threads.count  # type: ignore[attr-defined]
            tools["alto"] = phi_others.alto(args.alto, tensor, rank, threads, Path(folder), INNER)
        if tensor and args.pyttb and options.precision == "fp64":
            tools["pyttb"] = phi_others.pyttb(tensor, rank, args.pyttb)
        each: dict[str, list[dict[str, float]]] = {name: [] for name in tools}
        for turn in range(1 + args.repeats):
            for name, once in tools.items():
                if turn and len(each[name]) < MOST_RUNS.get(name, args.repeats):
                    each[name].append(once())
                elif name == "amped":
                    once()  # which compiles
    times = {f"{tool}: {what}": [run[what] for run in found] for tool, found in each.items() for what in found[0]}
    kernels = {"phi": runs.method.operator.kernels, "mttkrp": runs.plain.kernels}
    return {"kernels": kernels, "seconds": summaries(times), "ratios": _ratios(each)}


class _Runs:
    """amped's CP-APR and MTTKRP of a tensor in place."""

    def __init__(self, source: SparseSource, rank: int, options: Options) -> None:
        self._source, comm = source, SingleComm()
        self.method: CpApr = counts(source, rank, bring_up(options, comm), options, Poisson(0.0, INNER))
        self.plain: SparseOperator = place(source, rank, bring_up(options, comm), options)
        fill_factors(self.plain)
        begin(self.method, source)
        order = range(self.method.operator.order)
        self._phi = [self._timed(self.method.operator, mode, self.method.operator.phi, FLOOR) for mode in order]
        self._mttkrp = [self._timed(self.plain, mode, self.plain.mttkrp) for mode in order]

    @staticmethod
    def _timed(operator: SparseOperator, mode: int, compute: Callable[..., Any], *more: Any) -> Timed:
        return Timed(operator.machine.device, lambda: compute(mode, *more), operator.clock, "compute", mode)

    def once(self) -> dict[str, float]:
        """Return the seconds of an update of all modes, of Phi and of MTTKRP; from the same start every time."""
        method, found = self.method, dict[str, float]()
        method.restart()
        begin(method, self._source)
        outer = [_seconds(method.operator, lambda: method.step(lambda: False)) for _ in range(OUTER)]
        # On a GPU the first one is launched call by call; in fp32 later ones of some tools meet denormal numbers.
        found["update of all modes"] = statistics.mean(outer[1:]) / INNER
        found["first update of all modes"] = outer[0] / INNER
        method.operator.clock.collect()
        phi, plain = (
            [statistics.median(each.seconds() for _ in range(RUNS)) for each in modes]
            for modes in (self._phi, self._mttkrp)
        )
        for what, modes in (("Phi", phi), ("MTTKRP", plain)):
            found |= {f"{what} of mode {mode}": s for mode, s in enumerate(modes)} | {f"{what} sweep": sum(modes)}
        return found


def _seconds(operator: SparseOperator, action: Callable[[], Any]) -> float:
    operator.synchronize()
    started = time.perf_counter()
    action()
    operator.synchronize()
    return time.perf_counter() - started


def _ratios(each: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Return how an update of all modes compares, run by run: with MTTKRPs, and with other tools' updates."""
    ours = each["amped"]
    found = {
        "update over MTTKRP sweep": [r["update of all modes"] / r["MTTKRP sweep"] for r in ours],
        "Phi sweep over MTTKRP sweep": [r["Phi sweep"] / r["MTTKRP sweep"] for r in ours],
    }
    for tool, runs in each.items():
        if tool != "amped":
            pairs = list(zip(ours, runs, strict=False))
            found[f"update over {tool}'s"] = [a["update of all modes"] / b["update of all modes"] for a, b in pairs]
            if "MTTKRP sweep" in runs[0]:
                found[f"MTTKRP sweep over {tool}'s"] = [a["MTTKRP sweep"] / b["MTTKRP sweep"] for a, b in pairs]
    return {name: record.summary(values) for name, values in found.items()}


def line(case: dict[str, Any]) -> str:
    """Return a case as one line of text."""
    whole = ("update of all modes", "Phi sweep", "MTTKRP sweep")
    times = [f"{k} {s['median'] * 1e3:.3f}" for k, s in case["seconds"].items() if k.split(": ")[1] in whole]
    ratios = [f"{name} {r['median']:.2f}" for name, r in case["ratios"].items()]
    head = f"{case['shape']} rank {case['rank']} {case['precision']}, load {case['load'][0]}"
    return f"{head}, ms: {', '.join(times)}; {', '.join(ratios)}"


def draw(pyplot: Any, facts: dict[str, Any]) -> Any:
    """Milliseconds of an update of all modes, and of sweeps of Phi and MTTKRP, a panel for each case."""
    cases = facts["cases"]
    figure, grid = pyplot.subplots(len(cases), 1, figsize=(6, 0.6 + 1.3 * len(cases)), squeeze=False)
    for axes, case in zip(grid[:, 0], cases, strict=True):
        whole = {n: s for n, s in case["seconds"].items() if " mode " not in n and "first" not in n}
        for y, (name, s) in enumerate(whole.items()):
            low, middle, high = (s[k] * 1e3 for k in ("quartile_1", "median", "quartile_3"))
            colour = f"C{('amped', 'alto', 'pyttb').index(name.split(':')[0])}"
            axes.barh(y, middle, xerr=[[middle - low], [high - middle]], color=colour)
            axes.text(high * 1.1, y, f"{middle:.3g}", va="center", fontsize=7)
        axes.set_yticks(range(len(whole)), list(whole), fontsize=7)
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
        axes.margins(x=0.15)
        axes.set_title(f"{case['shape']}, rank {case['rank']}, {case['precision']}", fontsize=8)
    grid[-1][0].set_xlabel(f"ms (median, quartiles); {facts['machine']['devices'][0]}")
    figure.tight_layout()
    return figure
