"""Stochastic gradients (GCP): seconds per step of Adam, beside pyttb and GenTen on CPUs, and of synthetic tensors."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import amped
from amped.backend.counter_rng import key_of
from amped.backend.exchange import Machine
from amped.backend.known_losses import loss_of
from amped.backend.ops.sampled import MOMENTS, StepRule
from amped.methods.stochastic import BETWEEN_STOPS
from amped.operators.sources.protocols import SparseSource
from amped.operators.sparse.sampled import SampledOperator, SampledUse
from amped.options import Options
from amped.parallel.mpi import world
from amped.runs.assembly import bring_up, open_tensor, setting_for

from .harness import Facts, Result, common_flags, in_turn, medians, summaries, versions_of
from .spread import ratio, summary
from .synthetic import SHAPES, SyntheticSource, recipe

PEERS = "pyttb", "pygenten"
SAMPLES = 212_000  # nonzeros, and zeros, per step
FEW = 1000  # samples of the peers' estimates of the objective, which are not timed
EPOCHS = 3  # of which the first is not timed, as it includes the start


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = common_flags(parser, "stochastic-DEVICE", device="cpu", repeats=5)
    add("tensor", type=Path, nargs="?", metavar="TENSOR", help="file of counts")
    add("--shape", nargs="+", choices=sorted(SHAPES), default=[], metavar="NAME", help="synthetic tensors, too")
    add("--deterministic", action="store_true", help="of a GPU")
    add("--rank", type=int, default=16, metavar="R", help="number of components (16)")
    add("--samples", type=int, default=SAMPLES, metavar="K", help=f"nonzeros, and zeros, per step ({SAMPLES:,})")
    add("--steps", type=int, default=20, metavar="N", help="of an epoch of amped (20); pyttb takes 3")


def run(args: argparse.Namespace) -> None:
    """Measure; write the results file."""
    if args.device != "cpu":
        on_gpus(args)
        return
    tensor = amped.read(args.tensor)
    rng = np.random.default_rng(0)
    start = [rng.random((length, args.rank)) * 0.1 for length in tensor.shape]
    processor: dict[str, list[float]] = {}
    ways = {"pyttb": of_pyttb(tensor, start, args), "pygenten": of_pygenten(tensor, start, args)}
    ways |= {f"amped {precision}": of_amped(tensor, start, args, precision) for precision in ("fp64", "fp32")}
    ways["amped fp32, one thread"] = of_amped(tensor, start, args, "fp32", 1)
    device = amped.cp(np.eye(3), 1, max_iters=1, device="cpu").run["device_description"].split(",")
    result = Result(args, "stochastic-cpu", [",".join(device[:2])])
    seconds = in_turn({name: noting(way, processor.setdefault(name, [])) for name, way in ways.items()}, args.repeats)
    processor = {name: each[-args.repeats :] for name, each in processor.items()}
    case: Facts = {
        "tensor": args.tensor.name.split(".")[0], "shape": tensor.shape, "nonzeros": tensor.nnz, "rank": args.rank,
        "samples": args.samples, "loss": "poisson", "sampling": "stratified", **versions_of(PEERS),
        "seconds_per_step": summaries(seconds), "processor_seconds_per_step": summaries(processor),
        "ratio": {
            peer: {name: ratio(seconds[peer], each) for name, each in seconds.items() if name not in PEERS}
            for peer in PEERS
        },
    }  # fmt: skip
    ratios = "; ".join(
        f"{peer} / {name} {found['ratio']:.1f}" for peer, each in case["ratio"].items() for name, found in each.items()
    )
    processor_times = medians(case["processor_seconds_per_step"], 1e3)
    line = f"ms per step: {medians(case['seconds_per_step'], 1e3)}; of processors: {processor_times}; {ratios}"
    result.add(case, line)


def on_gpus(args: argparse.Namespace) -> None:
    """Measure steps of all tensors. Collective."""
    options = Options(args.device, deterministic=args.deterministic)
    comm = world()
    machine = bring_up(options, comm)
    name = f"stochastic-{machine.device.name}-{comm.size}"
    result = Result(args, name, comm.allgather(machine.device.description), comm)
    sources: dict[str, Callable[[], SparseSource]] = {
        shape: lambda shape=shape: SyntheticSource(recipe(shape, integers=True), comm, machine.device.xp)
        for shape in args.shape
    }  # type: ignore[misc]
    if args.tensor:
        sources = {args.tensor.name.split(".")[0]: lambda: open_tensor(args.tensor, machine, options)} | sources
    for name, source in sources.items():
        case = {"tensor": name, **steps_of(source(), machine, options, args), "deterministic": args.deterministic}
        found = case["seconds_per_step"]
        span = f"{found['quartile_1'] * 1e6:.1f}-{found['quartile_3'] * 1e6:.1f}"
        result.add(case, f"{name}: {found['median'] * 1e6:.1f} us per step ({span}), loss {case['objectives']}")


def steps_of(source: SparseSource, machine: Machine, options: Options, args: argparse.Namespace) -> Facts:
    """Return the seconds of a step, and estimates of the loss before and after all steps. Collective."""
    order, device = len(source.shape), machine.device
    setting = setting_for(source, args.rank, machine, options)
    operator = SampledOperator(source, machine, setting, SampledUse(loss_of("poisson"), True, MOMENTS["adam"]))
    operator.prepare([0.0] * order, [0.0] * order, [True] * order)
    rng = np.random.default_rng(0)
    for mode, length in enumerate(source.shape):
        operator.set_factor(mode, rng.random((length, args.rank), np.float32) * 0.1)
    strata, moments, taken = operator.strata("stratified", args.samples), operator.moments(), [0]

    def objective() -> float:
        return operator.value(operator.estimate_strata(), 0)[0]

    def timed() -> float:
        device.synchronize()
        began = time.perf_counter()
        for first in range(0, args.steps, BETWEEN_STOPS):
            numbers = range(taken[0] + first, taken[0] + min(first + BETWEEN_STOPS, args.steps))
            operator.steps(strata, [key_of(k) for k in numbers], moments, StepRule("adam", 1e-3, numbers.start + 1))
        device.synchronize()
        taken[0] += args.steps
        return (time.perf_counter() - began) / args.steps

    before, seconds = objective(), in_turn({"steps": timed}, args.repeats)["steps"]
    return {
        "shape": source.shape, "nonzeros": source.nnz, "rank": args.rank, "samples": args.samples, "loss": "poisson",
        "sampling": "stratified", "seconds_per_step": summary(seconds), "objectives": [before, objective()],
    }  # fmt: skip


Times = tuple[float, float]
"""Seconds by the host's clock, and of all processors."""


def noting(way: Callable[[], Times], processor: list[float]) -> Callable[[], float]:
    """Return a function that returns seconds by the host's clock, and appends those of processors to a list."""

    def timed() -> float:
        seconds, of_processors = way()
        processor.append(of_processors)
        return seconds

    return timed


def now() -> NDArray[np.float64]:
    """Return the time by both clocks."""
    return np.array([time.perf_counter(), time.process_time()])


def of_amped(
    tensor: amped.SparseTensor,
    start: list[NDArray[np.float64]],
    args: argparse.Namespace,
    precision: str,
    threads: int | None = None,
) -> Callable[[], Times]:
    """Return a function that returns the seconds of a step, including its share of the estimate of the objective."""

    def timed() -> Times:
        ends = list[NDArray[np.float64]]()
        amped.cp(
            tensor, args.rank, loss="poisson", method="adam", samples=args.samples, steps=args.steps, init=start,
            max_iters=EPOCHS, tol=0, device="cpu", precision=precision, threads=threads,
            callback=lambda _, __: ends.append(now()),
        )  # fmt: skip
        wall, processor = (ends[-1] - ends[0]) / (args.steps * (EPOCHS - 1))
        return float(wall), float(processor)

    return timed


def by_difference(whole: Callable[[int], NDArray[np.float64]]) -> Callable[[], Times]:
    """Return a function that returns the seconds of a step: the difference of runs of four steps and of one."""

    def timed() -> Times:
        wall, processor = (whole(4) - whole(1)) / 3
        return float(wall), float(processor)

    return timed


def of_pygenten(
    tensor: amped.SparseTensor, start: list[NDArray[np.float64]], args: argparse.Namespace
) -> Callable[[], Times]:
    """Return a function that returns the seconds of a step of GenTen with all cores."""
    import pygenten

    data = tensor.to_pyttb()
    samples = {f"num_samples_{kind}_grad": args.samples for kind in ("nonzeros", "zeros")}
    samples |= {f"num_samples_{kind}_value": FEW for kind in ("nonzeros", "zeros")}

    def whole(steps: int) -> NDArray[np.float64]:
        init = pyttb_start(start)
        began = now()
        pygenten.gcp_sgd(
            data, init=init, rank=args.rank, loss_function_type="poisson", sampling_type=pygenten.Stratified,
            step_type=pygenten.ADAM, rate=1e-3, maxiters=1, epoch_iters=steps, printitn=0, **samples,
        )  # fmt: skip
        return now() - began

    return by_difference(whole)


def pyttb_start(start: list[NDArray[np.float64]]) -> Any:
    """Return a start as a model of pyttb."""
    import pyttb

    return pyttb.ktensor([np.asfortranarray(each) for each in start])


def of_pyttb(
    tensor: amped.SparseTensor, start: list[NDArray[np.float64]], args: argparse.Namespace
) -> Callable[[], Times]:
    """Return a function that returns the seconds of a step of pyttb."""
    import pyttb
    from pyttb.gcp.handles import Objectives
    from pyttb.gcp.optimizers import Adam
    from pyttb.gcp.samplers import GCPSampler, Samplers, StratifiedCount

    data, kind = tensor.to_pyttb(), Samplers.STRATIFIED
    few, many = StratifiedCount(FEW, FEW), StratifiedCount(args.samples, args.samples)
    sampler = GCPSampler(
        data, function_sampler=kind, function_samples=few, gradient_sampler=kind, gradient_samples=many
    )

    def whole(steps: int) -> NDArray[np.float64]:
        init, optimizer = pyttb_start(start), Adam(max_iters=1, epoch_iters=steps, printitn=0)
        began = now()
        pyttb.gcp_opt(data, args.rank, Objectives.POISSON, optimizer, init=init, sampler=sampler, printitn=0)
        return now() - began

    return by_difference(whole)
