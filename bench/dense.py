"""Sweeps over all modes of dense tensors, one process: kernels, memory and CP-ALS, against einsum and two products."""

from __future__ import annotations

import argparse
import math
import os
import time
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import threadpoolctl

from amped.backend.device import Array
from amped.backend.exchange import Machine
from amped.methods import driver
from amped.operators.base import in_turn as order_of_modes
from amped.operators.dense.operator import DenseOperator
from amped.operators.sources.dense import DenseSource
from amped.options import DTYPES, Options
from amped.parallel.mpi import SingleComm
from amped.runs.assembly import bring_up, decomposition, open_tensor, place
from partitioner.host.threads import usable_cores
from partitioner.tensors.dense import DenseTensor

from .dense_peers import peers_of
from .harness import Facts, Result, Work, common_flags, in_turn, medians, seconds_of, summaries

SHAPES = {
    "cpu": ("101x51x12x126", "200x200x200", "53x53x53x53", "24x24x24x24x24"),
    "cuda": (
        "401x201x12x501",
        "800x800x800",
        "90x90x90x90x9",
        "150x150x150x150",
        "55x55x55x55x55",
        "28x28x28x28x28x28",
    ),
}
RANKS = {"cpu": (8, 32, 128, 500), "cuda": (8, 32, 128, 500, 2000)}
MOST_EINSUM = 500  # columns: of more it takes seconds, and many times the tensor's memory
SLOW = ("elem", "slice", "tile")  # of work that grows with the rank
PAUSE = 0.03  # seconds after which idle threads of a library are asleep
SWEEPS = 2  # that are timed at once: what the first one keeps may serve the second
ITERATIONS = 3 * SWEEPS
SQUARE = {"cpu": 2048, "cuda": 8192}  # rows of the product whose speed is the most that products reach


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = common_flags(parser, "dense-DEVICE", device="cpu", repeats=5)
    add("--shapes", nargs="+", metavar="IxJxK", help="of tensors of random numbers")
    add("--ranks", nargs="+", type=int, help="columns of the factor matrices")
    add("--precision", nargs="+", choices=tuple(DTYPES), default=["fp64", "fp32"])
    add("--kernels", nargs="+", default=["split", "gemm"], help="and others (split gemm)")
    add("--slow-rank", type=int, default=32, help="the largest rank for elem, slice and tile (32)")
    add("--peers", nargs="*", default=["einsum", "products", "copy"], help="to compare with (all)")
    add("--threads", type=int, help="host threads (all cores)")
    add("--in-place", action="store_true", help="use a GPU's array where it is; else a copy of amped's")
    add("--workspace", type=int, help="bytes (350 MB, or what saves a pass)")


def run(args: argparse.Namespace) -> None:
    """Measure all shapes, precisions and ranks; rewrite the results file after each, and draw it in the end."""
    machine = bring_up(_options(args, "fp64", "auto"), SingleComm())
    speeds = {precision: most_flops(args, precision) for precision in args.precision}
    facts = {"products_gigaflops": speeds, "load": os.getloadavg()[0]}
    result = Result(args, f"dense-{args.device}", [machine.device.description], **facts)
    for text in args.shapes or SHAPES[args.device]:
        for precision in args.precision:
            array = random_tensor(args.device, shape_of(text), precision)
            for rank in args.ranks or RANKS[args.device]:
                case = run_case(args, array, precision, rank, speeds[precision])
                result.add(case, line(case))


def shape_of(text: str) -> tuple[int, ...]:
    """Return the shape that a flag such as 2x3x4 names."""
    return tuple(int(n) for n in text.split("x"))


def random_tensor(device: str, shape: tuple[int, ...], precision: str) -> Array:
    """Return an array of random numbers from 0 to 1, in the device's memory."""
    if device == "cpu":
        return np.random.default_rng(0).random(shape).astype(DTYPES[precision])
    import cupy

    return cupy.random.default_rng(0).random(shape, dtype=DTYPES[precision])


def run_case(args: argparse.Namespace, array: Array, precision: str, rank: int, gigaflops: float) -> Facts:
    """Time all ways to compute all modes of a tensor, in turn; products reach `gigaflops` at most."""
    factors = [np.random.default_rng(1 + m).random((n, rank)).astype(array.dtype) for m, n in enumerate(array.shape)]
    names = [name for name in args.kernels if name not in SLOW or rank <= args.slow_rank]
    known = {name: _amped(args, array, factors, precision, name) for name in names}
    peers = peers_of(args.device, args.threads, array, factors)
    ways: dict[str, Work] = {name: of.sweep for name, of in known.items()}
    ways |= {name: peers[name] for name in args.peers if name in peers and (name != "einsum" or rank <= MOST_EINSUM)}
    each = _timed(ways, args.repeats)
    each |= {name: [taken / SWEEPS for taken in each[name]] for name in known if name in each}
    facts: Facts = {"shape": array.shape, "precision": precision, "rank": rank}
    facts["scratch_bytes"] = {name: of.scratch_bytes for name, of in known.items()}
    if "copy" in each:
        operations = 4 * math.prod(array.shape) * rank
        facts["floor_milliseconds"] = max(float(np.median(each["copy"])), operations / gigaflops / 1e6)
    facts["milliseconds"] = summaries(each)
    if args.device == "cpu":
        held = facts["scratch_bytes"]  # allocated before
        facts["peak_bytes"] = {name: _peak(way) + held.get(name, 0) for name, way in ways.items()}
    facts["modes_milliseconds"] = {name: _by_mode(of.alone, args.repeats) for name, of in known.items()}
    ways.clear()
    known.clear()
    options = _options(args, precision, "auto")
    machine = bring_up(options, SingleComm())
    found = iterations(_source(args, array, machine, options), rank, machine, options)
    facts["cp_als_milliseconds"] = float(np.median(found))
    return facts


def _timed(ways: dict[str, Work], repeats: int) -> dict[str, list[float]]:
    """Return milliseconds of each way, in turn; what does not fit into memory is left out."""

    def milliseconds(way: Work) -> float:
        time.sleep(PAUSE)
        way()  # in a decomposition the sweep before was one, too
        return seconds_of(way) * 1e3

    fitting = {}
    for name, way in ways.items():
        try:
            way()
            fitting[name] = partial(milliseconds, way)
        except (MemoryError, RuntimeError) as error:
            print(f"{name}: left out, {str(error).splitlines()[0][:100]}", flush=True)
    return in_turn(fitting, repeats)


def _by_mode(alone: Sequence[Work], repeats: int) -> list[float]:
    """Return the median milliseconds of each mode by itself."""
    each = _timed({str(mode): way for mode, way in enumerate(alone)}, repeats)
    return [float(np.median(times)) for times in each.values()]


def _peak(way: Work) -> int:
    """Return the bytes of arrays that a sweep allocates, at most at once; NumPy counts them."""
    tracemalloc.start()
    try:
        way()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _options(args: argparse.Namespace, precision: str, kernel: str) -> Options:
    return Options(
        device=args.device, precision=precision, kernel=kernel, threads=args.threads, workspace=args.workspace
    )  # type: ignore[arg-type]


class Amped(NamedTuple):
    """What is timed of an operator."""

    sweep: Work  # several over all modes, as CP-ALS makes them: rows count as new when they are solved, as they are
    alone: list[Work]  # each mode by itself
    scratch_bytes: int


def _amped(args: argparse.Namespace, array: Array, factors: Sequence[np.ndarray], precision: str, kernel: str) -> Amped:
    options = _options(args, precision, kernel)
    machine = bring_up(options, SingleComm())
    operator = place(_source(args, array, machine, options), factors[0].shape[1], machine, options)
    assert isinstance(operator, DenseOperator)
    for mode, factor in enumerate(factors):
        operator.set_factor(mode, factor)

    def compute(modes: Sequence[int], sweeps: int) -> Work:
        def queue() -> None:
            operator.forget()
            for mode in [*modes] * sweeps:
                operator.mttkrp(mode, _as_it_is, order_of_modes(mode, operator.order) if sweeps > 1 else ())

        def run() -> None:
            if not again:
                queue()  # compiles
                operator.synchronize()
                replay = machine.device.capture(queue, operator.matrices[:8], operator.clock)
                again.append(queue if replay is None else lambda: (replay.launch(), replay.wait()))
            again[0]()
            operator.synchronize()

        again = list[Callable[[], object]]()  # what a device has captured: launched as CP-ALS does
        return run

    alone = [compute([mode], 1) for mode in range(operator.order)]
    return Amped(compute(range(operator.order), SWEEPS), alone, operator.plan.kernel.bytes(operator.plan.form))


def _source(args: argparse.Namespace, array: Array, machine: Machine, options: Options) -> DenseSource:
    source = open_tensor(DenseTensor(array), machine, options)
    assert isinstance(source, DenseSource)
    source.lends = args.in_place or args.device == "cpu"
    return source


def _as_it_is(source: Array, target: Array) -> None:
    """Solve nothing."""


def iterations(source: DenseSource, rank: int, machine: Machine, options: Options) -> list[float]:
    """Return milliseconds of iterations of CP-ALS: the mean of each pair of them. Collective."""
    method, seconds = decomposition(source, rank, machine, options), list[float]()
    rng = np.random.default_rng(1)
    for mode, length in enumerate(source.shape):
        method.operator.set_factor(mode, rng.random((length, rank)))
    rule = driver.StopRule(SWEEPS + ITERATIONS, 0)
    driver.run(method, rule, [lambda _method, _spans, taken: seconds.append(taken)])
    slowest = np.max(machine.comm.allgather(seconds), axis=0)
    found: list[float] = (np.mean(np.reshape(slowest[SWEEPS:], (-1, SWEEPS)), axis=1) * 1e3).tolist()
    return found


def most_flops(args: argparse.Namespace, precision: str) -> float:
    """Return the billions of operations a second of a large square matrix product."""
    rows = SQUARE[args.device]
    a, b = (random_tensor(args.device, (rows, rows), precision) for _ in range(2))
    with threadpoolctl.threadpool_limits(args.threads or usable_cores()):
        seconds = [seconds_of(lambda: (a @ b)[-1, -1].item()) for _ in range(4)]  # which waits for a GPU
    return 2 * rows**3 / min(seconds) / 1e9


def line(facts: Facts) -> str:
    """Return a case as one line of text."""
    times = {name: found["median"] for name, found in facts["milliseconds"].items()}
    gain = f"; {times['einsum'] / times['split']:.2f} x einsum" if {"split", "einsum"} <= set(times) else ""
    if "floor_milliseconds" in facts and "split" in times:
        gain += f"; {times['split'] / facts['floor_milliseconds']:.2f} x the floor"
    head = f"{'x'.join(map(str, facts['shape']))} {facts['precision']} rank {facts['rank']}"
    return f"{head}, ms: {medians(facts['milliseconds'])}; CP-ALS {facts['cp_als_milliseconds']:.3g}{gain}"
