"""Full gradients of losses, all modes at once, beside the MTTKRPs of all modes of the same tensor."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import amped
from amped.backend.known_losses import loss_of
from amped.operators.base import Gradient
from amped.options import Options
from amped.parallel.mpi import world
from amped.runs.assembly import bring_up, open_tensor, place
from amped.runs.loss_elements import LossRun, LossWork, loss_elements
from partitioner.tensors.dense import DenseTensor

from .dense import shape_of
from .harness import Facts, Result, Work, common_flags, in_turn, medians, seconds_of, summaries
from .spread import ratio
from .stored import tensor as drawn
from .synthetic import SHAPES, recipe

SWEEP = "MTTKRPs"
EVALUATIONS = 1000  # of a run, for which code is worth compiling


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = common_flags(parser, "gradients-DEVICE, then -RANKS if there are several", device="cpu", repeats=9)
    names = f"files, IxJxK of random counts, or synthetic sparse ones: {', '.join(SHAPES)}"
    add("tensors", nargs="+", metavar="TENSOR", help=names)
    add("--losses", nargs="+", default=["poisson"], metavar="LOSS", help="(poisson)")
    add("--rank", nargs="+", type=int, default=[16], metavar="R", help="(16)")
    add("--nonzeros", type=int, metavar="N", help="of synthetic tensors")
    add("--precision", nargs="+", choices=("fp32", "fp64"), default=["fp32"], help="(fp32)")


def run(args: argparse.Namespace) -> None:
    """Measure; rewrite the results file after each case. Collective."""
    comm, result = world(), None
    name = f"gradients-{args.device}{f'-{comm.size}' if comm.size > 1 else ''}"
    for tensor in args.tensors:
        elements = elements_of(tensor, args.nonzeros)
        for rank in args.rank:
            for precision in args.precision:
                options = Options(device=args.device, precision=precision)
                devices, times = measured(elements, args.losses, rank, options, args.repeats)
                result = result or Result(args, name, devices, comm)
                ratios = {loss: ratio(times[loss], times[SWEEP]) for loss in args.losses}
                case: Facts = {"tensor": Path(tensor).name.split(".")[0], "shape": elements.shape, "rank": rank}
                case |= {"precision": precision, "seconds": summaries(times), "ratios": ratios}
                result.add(case, f"{tensor}, rank {rank}, {precision}: {medians(case['seconds'], 1e3)} ms")


def elements_of(name: str, nonzeros: int | None) -> Any:
    """Return a tensor in memory."""
    if name in SHAPES:
        return drawn(recipe(name, nonzeros))
    if Path(name).exists():
        return amped.read(name)
    return DenseTensor(np.random.default_rng(0).poisson(1.0, shape_of(name)).astype(np.float32))


def waiting(gradient: Gradient) -> None:
    """Evaluate a loss at matrices that count as new ones, and wait until the device has done it."""
    for mode in range(gradient.operator.order):
        gradient.operator.changed(mode)
    gradient.evaluate()
    gradient.operator.synchronize()


def measured(
    elements: Any, losses: list[str], rank: int, options: Options, repeats: int
) -> tuple[list[str], dict[str, list[float]]]:
    """Return the ranks' devices, and the seconds of each turn by name."""
    comm = world()
    machine = bring_up(options, comm)
    source, rng = open_tensor(elements if comm.rank == 0 else None, machine, options), np.random.default_rng(0)
    operator = place(source, rank, machine, options)
    start = [rng.random((length, rank)) for length in operator.shape]

    def sweep() -> None:
        operator.forget()
        for mode in range(operator.order):
            operator.mttkrp(mode)
        operator.synchronize()

    ways: dict[str, Work] = {SWEEP: sweep}
    for name in losses:
        work = LossWork(loss_of(name), rank, EVALUATIONS)
        placed = loss_elements(LossRun(source, None, machine, options, work)).gradient()
        for mode, factor in enumerate(start):
            placed.operator.set_factor(mode, factor)
        ways[name] = partial(waiting, placed)
    for mode, factor in enumerate(start):
        operator.set_factor(mode, factor)
    timed = {name: partial(seconds_of, way) for name, way in ways.items()}
    return comm.allgather(machine.device.description), in_turn(timed, repeats)
