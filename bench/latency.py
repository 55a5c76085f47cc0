"""Milliseconds of an iteration of CP-ALS from end to end: by the host's clock, beside the sums of the kernels' times.

On as many ranks as it is started with. On CPUs with each number of threads.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from amped.backend.exchange import Machine
from amped.errors import InputError
from amped.methods.als import CpAls
from amped.methods.constrained_als import ConstrainedAls
from amped.methods.constraints import ConstraintParams, Constraints
from amped.methods.driver import Method, Spans, StopRule
from amped.methods.driver import run as iterate
from amped.methods.prediction import foretell, hopeless
from amped.methods.proximal.terms import from_texts
from amped.operators.base import Operator
from amped.operators.placement import Setting, make_plan, nonzero_bytes
from amped.operators.sources.protocols import DescribedSource
from amped.operators.sources.sparse import open_source
from amped.options import DTYPES, Options, PrecisionName
from amped.parallel.mpi import world
from amped.report.metrics import WORK_KINDS
from amped.runs import assembly
from amped.runs.assembly import bring_up, setting_for

from .bundled import UBER, bundled
from .cooldown import BURST, Cooldown
from .groups import free_memory
from .harness import Facts, Result, common_flags
from .measure import fill_factors, with_room
from .spread import summary
from .synthetic import SHAPES, SyntheticSource, recipe

WARM = 5  # iterations before those that count: kernels are compiled, and what can be prepared is
FIRST = 2  # iterations of a burst that do not count, as the device has nothing queued before them
SHORTEST = 8  # iterations of a burst, beside these
MOST_ON_A_CPU = 10_000_000  # nonzeros of a case that is measured there unless `--case` names it


class Case(NamedTuple):
    """A tensor, and what is computed with it."""

    tensor: str  # a shape of `synthetic.SHAPES`, or the name of a file
    rank: int
    precision: PrecisionName = "fp32"
    nonzeros: int | None = None  # instead of the number of the shape


CASES = {
    "uber393k": Case(UBER, 16),
    "nycflights": Case("nycflights_5d.tns.gz", 16),
    "kdd99_6d": Case("kdd99_6d.tns.gz", 16),
    "uber": Case("uber", 32),
    "lbnl": Case("lbnl", 32),
    "uber-128": Case("uber", 128),
    "lbnl-128": Case("lbnl", 128),
    "nell2-8m": Case("nell2", 32, nonzeros=8_000_000),
    "nell2": Case("nell2", 32),
    "nell2-fp64": Case("nell2", 32, "fp64"),
    "nell2-5m-256": Case("nell2", 256, nonzeros=5_000_000),
    "nell2-5m-500": Case("nell2", 500, nonzeros=5_000_000),
    "amazon": Case("amazon", 32),
    "amazon4": Case("amazon4", 32),
    "nell1": Case("nell1", 32),
    "delicious": Case("delicious", 32),
    "twitch": Case("twitch", 32),
}
CONSTRAINTS = {
    "none": ConstraintParams(),
    "nonnegative": ConstraintParams(nonnegative=True),
    "ridge": ConstraintParams(ridge=1e-3),
    "fixed": ConstraintParams(fixed_modes=(0,)),
    "admm-nonnegative": ConstraintParams(terms=from_texts([f"{mode}:nonnegative" for mode in range(3)])),
    "admm-simplex-rows": ConstraintParams(terms=from_texts(["0:simplex:rows", "1:nonnegative"])),
    "admm-l1": ConstraintParams(terms=from_texts([f"{mode}:l1:0.01" for mode in range(3)])),
    "admm-smooth": ConstraintParams(terms=from_texts(["1:smooth:0.1"])),
    "admm-monotone": ConstraintParams(terms=from_texts(["1:monotone"])),
    "admm-unimodal": ConstraintParams(terms=from_texts(["1:unimodal"])),
    "admm-orthonormal": ConstraintParams(terms=from_texts(["1:orthonormal"])),
    "admm-sparse": ConstraintParams(terms=from_texts(["1:sparse:100"])),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = common_flags(parser, "latency-DEVICE-RANKS")
    few = f"on a CPU those of at most {MOST_ON_A_CPU // 10**6} million nonzeros"
    add("--case", nargs="+", choices=CASES, help=f"(all; {few})")
    add("--data", type=Path, metavar="FOLDER", help="where files are that are not amped's own")
    add("--threads", nargs="+", type=int, metavar="T", help="of a rank, on a CPU (its share of the cores)")
    add("--grid", nargs="+", default=["auto"], metavar="Q1xQ2..", help="how ranks share the tensor (auto)")
    add("--iterations", type=int, default=100, help="at least (100)")
    add("--constraint", choices=CONSTRAINTS, default="none", help="of the matrices of all modes, or of one of them")


def run(args: argparse.Namespace) -> None:
    """Measure; rewrite the results file after each case. Collective."""
    comm = world()
    machine = bring_up(Options(args.device), comm)
    device = machine.device
    result = Result(args, f"latency-{device.name}-{comm.size}", comm.allgather(device.description), comm)
    for case in _all(args, machine):
        result.add(case, line(case))


def _all(args: argparse.Namespace, machine: Machine) -> Iterator[Facts]:
    """Measure each case with each number of threads."""
    comm, device = machine.comm, machine.device
    threads = args.threads if device.on_host and args.threads else [None]
    for name in args.case or [n for n, case in CASES.items() if not device.on_host or _small(case)]:
        case = CASES[name]
        head = {"case": name, "rank": case.rank, "precision": case.precision, "ranks": comm.size}
        try:
            source = opened(case, machine, args.data)
        except InputError as error:
            yield head | {"skipped": str(error)}
            continue
        for count, grid in product(threads, args.grid):
            options = Options(args.device, case.precision, threads=count, grid=grid)
            try:
                facts = measured(args, source, case.rank, bring_up(options, comm), options)
            except InputError as error:
                facts = {"skipped": str(error)}
            yield head | {"grid": grid} | facts
            free_memory(device.xp)


def _small(case: Case) -> bool:
    return case.tensor not in SHAPES or (case.nonzeros or SHAPES[case.tensor][1]) <= MOST_ON_A_CPU


def opened(case: Case, machine: Machine, folder: Path | None) -> Any:
    """Return the `SparseSource` of a case's tensor. Collective.

    Raises
    ------
    InputError
        If it is not there, or memory has no room for it.
    """
    if case.tensor not in SHAPES:
        return open_source(located(case, folder), machine.comm)
    made = recipe(case.tensor, case.nonzeros)
    needed = made.nonzeros * len(made.lengths) * nonzero_bytes(len(made.lengths), DTYPES[case.precision])
    room = min(machine.comm.allgather(machine.device.memory(machine.comm.local_size))) * machine.comm.size
    if needed > room:
        raise InputError(f"{needed:,} bytes are needed, {room:,} are there")
    return SyntheticSource(made, machine.comm, machine.device.xp)


def located(case: Case, folder: Path | None) -> Path:
    """Return where a case's file is: it is amped's own, or in the folder. Raises `InputError` if none was given."""
    own = bundled(case.tensor)
    if not own.exists() and folder is None:
        raise InputError("--data FOLDER says where it is", path=case.tensor)
    return own if folder is None or own.exists() else folder / case.tensor


def measured(args: argparse.Namespace, source: DescribedSource, rank: int, machine: Machine, options: Options) -> Facts:
    """Place a tensor and time iterations. Collective."""
    comm, constraints = machine.comm, CONSTRAINTS[args.constraint].of(len(source.shape))
    room = with_room(source, options, comm) if isinstance(source, SyntheticSource) else options
    solving = assembly.als_bytes(source, rank, machine, room, constraints)
    foreseen = _foreseen(source, machine, setting_for(source, rank, machine, room, solving))
    free_memory(machine.device.xp)
    begin = time.perf_counter()
    operator = assembly.place(source, rank, machine, room, solving)
    operator.synchronize()
    loading = time.perf_counter() - begin
    fill_factors(operator)
    seconds, kinds = timed(_method(operator, constraints), args.iterations)
    return {
        "device": machine.device.name,
        "constraint": args.constraint,
        "description": machine.device.description,
        "lengths": source.shape,
        "nonzeros": source.nnz,
        "exchange": machine.exchange.name,
        "kernels": comm.allgather(operator.kernels),
        "streamed": any(comm.allgather(bool(operator.plan.slot))),
        "seconds_to_load": loading,
        "seconds_an_iteration": summary(seconds),
        "seconds_by_kind": kinds,
        "seconds_of_kernels": sum(kinds.values()),
        "foreseen": foreseen,
    }


def _method(operator: Operator, constraints: Constraints) -> CpAls | ConstrainedAls:
    """Return the method, with a start that meets the constraints. Collective."""
    if not constraints.terms:
        return CpAls(operator, constraints)
    method = ConstrainedAls(operator, constraints)
    factors = [operator.factor(mode) for mode in range(operator.order)]
    for mode, factor in enumerate(method.started(factors, "")):
        operator.set_factor(mode, factor)
    return method


def _foreseen(source: DescribedSource, machine: Machine, setting: Setting) -> Facts:
    """Return what `plan` would say of an iteration, before anything is placed; or why not. Collective."""
    comm, device = machine.comm, machine.device
    cuts = [source.cut(mode, comm.size) for mode in range(len(source.shape))]
    loading = source.loading(comm.size, setting.options.dtype, device.on_host)
    plan = make_plan(cuts, comm.rank, setting, loading)
    if doubt := hopeless(plan, machine):
        return {"doubt": doubt}
    found = foretell(source, plan, machine, setting)
    return {**asdict(found), "seconds": found.seconds, "doubt": found.doubt}


class _Watch:
    """Records when iterations end, and their spans."""

    def __init__(self) -> None:
        self.ends, self.spans = list[float](), list[Spans]()

    def __call__(self, method: Method, spans: Spans, seconds: float) -> None:
        self.ends.append(time.perf_counter())
        self.spans.append(spans)


def timed(method: CpAls | ConstrainedAls, least: int) -> tuple[list[float], dict[str, float]]:
    """Return the seconds of at least `least` iterations, and those of each kind of work; of the slowest rank.

    Nothing is read between iterations: they follow one another as in a run. There are pauses between bursts of them.
    """
    comm, cooldown = method.operator.machine.comm, Cooldown()
    whole = _burst(method, WARM).ends
    usual = max(comm.allgather(min(np.diff(whole))))
    length = int(max(SHORTEST, min(least, BURST / usual)))
    seconds, spans = list[float](), list[Spans]()
    while len(seconds) < least:
        watch = _burst(method, FIRST + length)
        each = np.diff(watch.ends)[FIRST - 1 :].tolist()
        seconds += [max(of_ranks) for of_ranks in zip(*comm.allgather(each), strict=True)]
        spans += watch.spans[FIRST:]
        cooldown.after(sum(seconds[-length:]))
        comm.allgather(None)
    mine = {kind: [sum(s for (k, _), s in of.items() if k == kind) for of in spans] for kind in WORK_KINDS}
    by_rank = comm.allgather({kind: statistics.median(of) for kind, of in mine.items()})
    return seconds, {kind: max(each[kind] for each in by_rank) for kind in WORK_KINDS}


def _burst(method: CpAls | ConstrainedAls, count: int) -> _Watch:
    watch = _Watch()
    iterate(method, StopRule(method.state.iterations + count, tol=0), [watch])
    return watch


def line(facts: Facts) -> str:
    """Return a result as one line of text."""
    shared = f" {facts['grid']}" if facts["ranks"] > 1 else ""
    head = f"{facts['case']} rank {facts['rank']} {facts['precision']}{shared}"
    if "skipped" in facts:
        return f"{head}: skipped: {facts['skipped']}"
    low, middle, high = (facts["seconds_an_iteration"][key] * 1e3 for key in ("quartile_1", "median", "quartile_3"))
    foreseen = facts["foreseen"]
    forecast = f"foreseen {foreseen['seconds'] * 1e3:.3f}" if "seconds" in foreseen else "no forecast"
    forecast += f" ({foreseen['doubt']})" if foreseen["doubt"] else ""
    parts = ", ".join(f"{kind} {seconds * 1e3:.3f}" for kind, seconds in facts["seconds_by_kind"].items() if seconds)
    return (
        f"{head} x{facts['ranks']} {facts['description']}: {middle:.3f} ms ({low:.3f}-{high:.3f}), "
        f"kernels {facts['seconds_of_kernels'] * 1e3:.3f} ({parts}); {forecast}"
    )
