"""CP-APR by multiplicative updates: outer iterations, Phi and MTTKRP of each mode, beside ALTO and pyttb.

All take turns, so that a busy machine is equally busy for each of them.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from amped.methods.apr import CpApr, Poisson
from amped.operators.products import Phi
from amped.operators.sources.sparse import SparseSource, TensorSource
from amped.operators.sparse.operator import SparseOperator
from amped.options import Options
from amped.parallel.mpi import SingleComm
from amped.runs.assembly import begin, bring_up, counts, place
from partitioner.tensors.sparse import SparseTensor

from . import phi_others
from .groups import free_memory
from .harness import Facts, Result, seconds_of, summaries, versions_of
from .measure import fill_factors
from .phi_problem import Timed, device_of, load, nonzeros_of, source_of, study_flags
from .stored import tensor
from .synthetic import recipe

PACKAGES = ("numba", "pyttb")
INNER = 10  # updates of a mode in an outer iteration: none ends early, as no violation is below 0
OUTER = 3  # outer iterations from one start
MOST_RUNS = {"pyttb": 3}  # of tools that take seconds for an update
RUNS = 3  # of each mode's Phi and MTTKRP after them: their median counts
WHOLE = ("update of all modes", "Phi sweep", "MTTKRP sweep")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = study_flags(parser, "phi-apr")
    parser.set_defaults(shapes=["uber"], rank=[16, 32], precision=["fp32", "fp64"])
    add("--alto", type=Path, metavar="FOLDER", help="with ALTO's programs cpd64 and cpd128, of fp32")
    add("--pyttb", type=int, default=0, metavar="K", help="updates by pyttb's cp_apr of each mode (none)")


def run(args: argparse.Namespace) -> None:
    """Time all tools in turn, for each tensor, number of columns and precision; rewrite the results file after each."""
    device = device_of(args)
    result = Result(args, f"phi-apr-{device.name}", [device.description], others=versions_of(PACKAGES))
    for shape in args.shapes:
        made = recipe(shape, nonzeros_of(args, shape, device), integers=True)
        drawn = tensor(made) if device.on_host else None
        source = TensorSource(drawn, SingleComm()) if drawn else source_of(args, shape, device)
        for rank, precision in itertools.product(args.rank, args.precision):
            options = Options(args.device, precision, threads=args.threads)
            case = {"shape": shape, "nonzeros": source.nnz, "rank": rank, "precision": precision, "load": load()}
            case |= _measured(args, source, drawn, rank, options)
            result.add(case, line(case))
            free_memory(device.xp)


def _measured(
    args: argparse.Namespace, source: SparseSource, drawn: SparseTensor | None, rank: int, options: Options
) -> Facts:
    runs = _Runs(source, rank, options)
    tools: dict[str, Callable[[], dict[str, float]]] = {"amped": runs.once}
    with tempfile.TemporaryDirectory() as folder:
        if drawn and args.alto and options.precision == "fp32":
            threads = runs.method.operator.machine.device.threads.count  # type: ignore[attr-defined]
            tools["alto"] = phi_others.alto(args.alto, drawn, rank, threads, Path(folder), INNER)
        if drawn and args.pyttb and options.precision == "fp64":
            tools["pyttb"] = phi_others.pyttb(drawn, rank, args.pyttb)
        runs.once()  # which compiles
        each: dict[str, list[dict[str, float]]] = {name: [] for name in tools}
        for turn in range(args.repeats):
            for name, once in tools.items():
                if turn < MOST_RUNS.get(name, args.repeats):
                    each[name].append(once())
    times = {f"{tool}: {what}": [run[what] for run in found] for tool, found in each.items() for what in found[0]}
    kernels = {"phi": runs.method.operator.kernels, "mttkrp": runs.plain.kernels}
    return {"kernels": kernels, "seconds": summaries(times), "ratios": summaries(_ratios(each))}


class _Runs:
    """amped's CP-APR and MTTKRP of a tensor in place."""

    def __init__(self, source: SparseSource, rank: int, options: Options) -> None:
        self._source, comm = source, SingleComm()
        self.method: CpApr = counts(source, rank, bring_up(options, comm), options, Poisson(0.0, INNER))
        self.plain: SparseOperator = place(source, rank, bring_up(options, comm), options)
        fill_factors(self.plain)
        begin(self.method, source)
        order = range(self.method.operator.order)
        phi = partial(self.method.operator.compute, Phi())
        self._phi = [self._timed(self.method.operator, mode, phi) for mode in order]
        self._mttkrp = [self._timed(self.plain, mode, self.plain.mttkrp) for mode in order]

    @staticmethod
    def _timed(operator: SparseOperator, mode: int, compute: Callable[[int], object]) -> Timed:
        return Timed(operator.machine.device, lambda: compute(mode), operator.clock, "compute", mode)

    def once(self) -> dict[str, float]:
        """Return the seconds of an update of all modes, of Phi and of MTTKRP; from the same start every time."""
        method, found = self.method, dict[str, float]()
        method.restart()
        begin(method, self._source)
        outer = [self._step() for _ in range(OUTER)]
        # On a GPU the first one is launched call by call; in fp32 later ones of some tools meet denormal numbers.
        found["update of all modes"] = statistics.mean(outer[1:]) / INNER
        found["first update of all modes"] = outer[0] / INNER
        method.operator.clock.collect()
        for what, modes in (("Phi", self._phi), ("MTTKRP", self._mttkrp)):
            each = [statistics.median(timed.seconds() for _ in range(RUNS)) for timed in modes]
            found |= {f"{what} of mode {mode}": s for mode, s in enumerate(each)} | {f"{what} sweep": sum(each)}
        return found

    def _step(self) -> float:
        operator = self.method.operator

        def step() -> None:
            self.method.step(lambda: False)
            operator.synchronize()

        operator.synchronize()
        return seconds_of(step)


def _ratios(each: dict[str, list[dict[str, float]]]) -> dict[str, list[float]]:
    """Return how an update of all modes compares, run by run: with MTTKRPs, and with other tools' updates."""
    ours = each["amped"]
    found = {
        "update over MTTKRP sweep": [r["update of all modes"] / r["MTTKRP sweep"] for r in ours],
        "Phi sweep over MTTKRP sweep": [r["Phi sweep"] / r["MTTKRP sweep"] for r in ours],
    }
    for tool, runs in each.items():
        for what, name in (("update of all modes", "update"), ("MTTKRP sweep", "MTTKRP sweep")):
            if tool != "amped" and what in runs[0]:
                found[f"{name} over {tool}'s"] = [a[what] / b[what] for a, b in zip(ours, runs, strict=False)]
    return found


def line(case: Facts) -> str:
    """Return a case as one line of text."""
    times = [f"{k} {s['median'] * 1e3:.3f}" for k, s in case["seconds"].items() if k.split(": ")[1] in WHOLE]
    ratios = [f"{name} {r['median']:.2f}" for name, r in case["ratios"].items()]
    head = f"{case['shape']} rank {case['rank']} {case['precision']}, load {case['load'][0]}"
    return f"{head}, ms: {', '.join(times)}; {', '.join(ratios)}"
