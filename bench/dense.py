"""Sweeps over all modes of dense tensors, one process: kernels, memory and CP-ALS, against einsum and two products."""

from __future__ import annotations

import argparse
import math
import os
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import threadpoolctl

from amped.backend.exchange import Machine
from amped.methods import driver
from amped.operators.base import in_turn
from amped.operators.dense.operator import DenseOperator
from amped.operators.sources.dense import DenseSource
from amped.options import DTYPES, Options
from amped.parallel.mpi import SingleComm
from amped.runs.assembly import bring_up, decomposition, open_tensor, place
from partitioner.host.threads import usable_cores
from partitioner.tensors.dense import DenseTensor

from . import record
from .dense_peers import Sweep, peers_of
from .pictures import draw

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
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--shapes", nargs="+", metavar="IxJxK", help="of tensors of random numbers")
    parser.add_argument("--ranks", nargs="+", type=int, help="columns of the factor matrices")
    parser.add_argument("--precision", nargs="+", choices=tuple(DTYPES), default=["fp64", "fp32"])
    parser.add_argument("--kernels", nargs="+", default=["split", "gemm"], help="and others (split gemm)")
    parser.add_argument("--slow-rank", type=int, default=32, help="the largest rank for elem, slice and tile (32)")
    parser.add_argument("--peers", nargs="*", default=["einsum", "products", "copy"], help="to compare with (all)")
    parser.add_argument("--threads", type=int, help="host threads (all cores)")
    parser.add_argument("--in-place", action="store_true", help="use a GPU's array where it is; else a copy of amped's")
    parser.add_argument("--workspace", type=int, help="bytes (350 MB, or what saves a pass)")
    parser.add_argument("--repeats", type=int, default=5, help="sweeps of each, in turn (5)")
    parser.add_argument("--output", type=Path, default=record.RESULTS, help="folder of the result")
    parser.add_argument("--name", help="of the result (dense-DEVICE)")


def run_case(
    args: argparse.Namespace, shape: tuple[int, ...], precision: str, ranks: Sequence[int], gigaflops: float
) -> list[Any]:
    """Time all ways to compute all modes of a tensor, in turn, by rank; products reach so many `gigaflops`."""
    array = random_tensor(args.device, shape, precision)
    found = []
    for rank in ranks:
        factors = [np.random.default_rng(1 + m).random((n, rank)).astype(array.dtype) for m, n in enumerate(shape)]
        ways, known = dict[str, Sweep](), dict[str, Amped]()
        facts: dict[str, Any] = {"shape": shape, "precision": precision, "rank": rank, "scratch_bytes": {}}
        for name in args.kernels:
            if name not in SLOW or rank <= args.slow_rank:
                known[name] = _amped(args, array, factors, precision, name)
                ways[name], facts["scratch_bytes"][name] = known[name].sweep, known[name].scratch_bytes
        peers = peers_of(args.device, args.threads, array, factors)
        ways |= {
            name: peers[name] for name in args.peers if name in peers and (name != "einsum" or rank <= MOST_EINSUM)
        }
        each = _timed(ways, args.repeats)
        each |= {name: [taken / SWEEPS for taken in each[name]] for name in known if name in each}
        if "copy" in each:
            operations = 4 * math.prod(shape) * rank
            facts["floor_milliseconds"] = max(float(np.median(each["copy"])), operations / gigaflops / 1e6)
        facts["milliseconds"] = {name: record.summary(times) for name, times in each.items()}
        facts["each"] = each
        if args.device == "cpu":
            held = facts["scratch_bytes"]  # allocated before
            facts["peak_bytes"] = {name: _peak(way) + held.get(name, 0) for name, way in ways.items()}
        facts["modes_milliseconds"] = {name: _by_mode(amped.alone, args.repeats) for name, amped in known.items()}
        ways.clear()
        known.clear()
        facts["cp_als_milliseconds"] = _iteration(args, array, rank, precision)
        found.append(facts)
        _say(facts)
    return found


def random_tensor(device: str, shape: tuple[int, ...], precision: str) -> Any:
    """Return an array of random numbers from 0 to 1, in the device's memory."""
    if device == "cpu":
        return np.random.default_rng(0).random(shape).astype(DTYPES[precision])
    import cupy

    return cupy.random.default_rng(0).random(shape, dtype=DTYPES[precision])


def _say(facts: dict[str, Any]) -> None:
    times = {name: found["median"] for name, found in facts["milliseconds"].items()}
    told = ", ".join(f"{name} {t:.3g}" for name, t in times.items())
    shape = "x".join(map(str, facts["shape"]))
    gain = f"; {times['einsum'] / times['split']:.2f} x einsum" if {"split", "einsum"} <= set(times) else ""
    if "floor_milliseconds" in facts and "split" in times:
        gain += f"; {times['split'] / facts['floor_milliseconds']:.2f} x the floor"
    iteration = facts["cp_als_milliseconds"]
    if "split" in times:
        gain = f", {iteration / times['split']:.2f} x the sweep{gain}"
    print(f"{shape} {facts['precision']} rank {facts['rank']}, ms: {told}; CP-ALS {iteration:.3g}{gain}", flush=True)


def _timed(ways: dict[str, Sweep], repeats: int) -> dict[str, list[float]]:
    """Return milliseconds of each way; the first turn, which compiles, does not count.

    What does not fit into memory is left out.
    """
    each: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(1 + repeats):
        for name in list(each):
            time.sleep(PAUSE)
            try:
                ways[name]()  # in a decomposition the sweep before was one, too
                began = time.perf_counter()
                ways[name]()
            except (MemoryError, RuntimeError) as error:
                print(f"{name}: left out, {str(error).splitlines()[0][:100]}", flush=True)
                del each[name]
                continue
            each[name] += [(time.perf_counter() - began) * 1e3][:turn]
    return each


def _by_mode(alone: Sequence[Sweep], repeats: int) -> list[float]:
    """Return the median milliseconds of each mode alone."""
    each = _timed({str(mode): way for mode, way in enumerate(alone)}, repeats)
    return [float(np.median(times)) for times in each.values()]


def _peak(way: Sweep) -> int:
    """Return the bytes of arrays that a sweep allocates, at most at once; NumPy tells them."""
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

    sweep: Sweep  # several over all modes, as CP-ALS makes them: rows count as new when they are solved, as they are
    alone: list[Sweep]  # each mode alone
    scratch_bytes: int


def _amped(args: argparse.Namespace, array: Any, factors: Sequence[np.ndarray], precision: str, kernel: str) -> Amped:
    options = _options(args, precision, kernel)
    machine = bring_up(options, SingleComm())
    operator = place(_source(args, array, machine, options), factors[0].shape[1], machine, options)
    assert isinstance(operator, DenseOperator)
    for mode, factor in enumerate(factors):
        operator.set_factor(mode, factor)

    def compute(modes: Sequence[int], sweeps: int) -> Sweep:
        def queue() -> None:
            operator.forget()
            for mode in [*modes] * sweeps:
                operator.mttkrp(mode, _as_it_is, in_turn(mode, operator.order) if sweeps > 1 else ())

        def run() -> None:
            if not again:
                queue()  # compiles
                operator.synchronize()
                replay = machine.device.capture(queue, operator.matrices[:8], operator.clock)
                again.append(queue if replay is None else lambda: (replay.launch(), replay.wait()))
            again[0]()
            operator.synchronize()

        again = list[Sweep]()  # of what a device can note down: launched as CP-ALS does
        return run

    alone = [compute([mode], 1) for mode in range(operator.order)]
    return Amped(compute(range(operator.order), SWEEPS), alone, operator.plan.kernel.bytes(operator.plan.form))


def _source(args: argparse.Namespace, array: Any, machine: Machine, options: Options) -> DenseSource:
    source = open_tensor(DenseTensor(array), machine, options)
    assert isinstance(source, DenseSource)
    source.lends = args.in_place or args.device == "cpu"
    return source


def _as_it_is(source: Any, target: Any) -> None:
    """Solve nothing."""


def _iteration(args: argparse.Namespace, array: np.ndarray, rank: int, precision: str) -> float:
    """Return the median milliseconds of an iteration of CP-ALS."""
    options = _options(args, precision, "auto")
    machine = bring_up(options, SingleComm())
    return float(np.median(iterations(_source(args, array, machine, options), rank, machine, options)))


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
    seconds = []
    with threadpoolctl.threadpool_limits(args.threads or usable_cores()):
        for _ in range(4):
            began = time.perf_counter()
            (a @ b)[-1, -1].item()  # waits for a GPU
            seconds.append(time.perf_counter() - began)
    return 2 * rows**3 / min(seconds) / 1e9


def run(args: argparse.Namespace) -> None:
    """Measure all shapes, precisions and ranks; write what is known after each, and draw it in the end."""
    machine = bring_up(_options(args, "fp64", "auto"), SingleComm())
    cases, speeds = list[Any](), {precision: most_flops(args, precision) for precision in args.precision}
    for text in args.shapes or SHAPES[args.device]:
        shape = tuple(int(n) for n in text.split("x"))
        for precision in args.precision:
            cases += run_case(args, shape, precision, args.ranks or RANKS[args.device], speeds[precision])
            facts = {"dense": cases, "products_gigaflops": speeds, "load": os.getloadavg()[0]}
            path = record.write(args.name or f"dense-{args.device}", [machine.device.description], facts, args.output)
    draw(path)
