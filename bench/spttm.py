"""Sparse tensors times matrices (SpTTM), by mode and columns: the figures of ParTI's paper, against CSR times dense."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from amped.backend.device import Device
from amped.backend.exchange import Machine
from amped.operators.ttm.operator import TtmOperator
from amped.options import DTYPES, Options
from amped.parallel.mpi import SingleComm
from amped.runs.assembly import bring_up
from amped.runs.products import product_setting

from . import ceilings, record
from .fibres import DrawnSource, Fibres, Work, peers
from .pictures import draw
from .synthetic import SHAPES, recipe

PAPER = ("brainq", "nell2", "nell1", "deli")  # Table II of the paper
DENSE = {"brainq": 0.0}  # skew of a shape of which nearly a third is there
SEQUENTIAL_RANK = 16  # columns in the paper's figure 5
CHECKED = 300  # fibres that are computed anew
ALONE = 3  # times that one thread computes
PAUSE = 0.02  # seconds after which idle threads are asleep


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--shapes", nargs="+", choices=sorted(SHAPES), metavar="NAME", help=f"({' '.join(PAPER)} enron)"
    )
    parser.add_argument("--nonzeros", type=int, help="of each tensor (a CPU: 5 million; a GPU: its own)")
    parser.add_argument("--ranks", nargs="+", type=int, default=[8, 16, 32, 64], help="columns (8 16 32 64)")
    parser.add_argument("--modes", nargs="+", type=int, help="(all)")
    parser.add_argument("--precision", nargs="+", choices=tuple(DTYPES), default=["fp32"])
    parser.add_argument("--threads", type=int, help="host threads (all cores)")
    parser.add_argument("--repeats", type=int, default=9, help="of each, in turn (9)")
    parser.add_argument("--no-peers", action="store_true", help="measure amped alone")
    parser.add_argument("--sequential", action="store_true", help="measure one host thread, too, at 16 columns")
    parser.add_argument("--ceilings", action="store_true", help="measure copies and gathers, for the rooflines")
    parser.add_argument("--output", type=Path, default=record.RESULTS, help="folder of the result")
    parser.add_argument("--name", help="of the result (spttm-DEVICE)")


def moved_bytes(case: dict[str, Any]) -> tuple[float, float]:
    """Return the bytes of nonzeros and fibres, each read or written once, and of the rows that are gathered."""
    item = 4 if case["precision"] == "fp32" else 8
    row = case["rank"] * item
    return case["nonzeros"] * (4 + item) + case["fibres"] * row, case["nonzeros"] * row


def floor(case: dict[str, Any], speeds: dict[str, Any]) -> float:
    """Return the least seconds: nonzeros read, fibres written, rows gathered, one after the other at full speed."""
    moved, gathered = moved_bytes(case)
    matrix = case["length"] * gathered / case["nonzeros"]
    sizes = {float(size) * 1e6: rate for size, rate in speeds["gather"].items()}
    fitting = [rate for size, rate in sorted(sizes.items()) if size >= matrix]
    rate = fitting[0] if fitting else sizes[max(sizes)]
    return float(moved / speeds["copy"][0] / 1e9 + gathered / rate / 1e9)


def roofline(case: dict[str, Any]) -> dict[str, float]:
    """Return billions of operations a second, and operations for each byte that is moved or gathered."""
    operations = 2 * case["nonzeros"] * case["rank"]
    seconds = case["milliseconds"]["amped"]["median"] / 1e3
    return {"gigaflops": operations / seconds / 1e9, "flops_a_byte": operations / sum(moved_bytes(case))}


def run_mode(args: argparse.Namespace, source: DrawnSource, mode: int, machine: Machine, precision: str) -> list[Any]:
    """Time a mode's products, by columns."""
    device, found = machine.device, list[Any]()
    options = Options(device=args.device, precision=precision, threads=args.threads)  # type: ignore[arg-type]
    for rank in args.ranks:
        began = time.perf_counter()
        operator = TtmOperator(source, machine, product_setting(source, mode, rank, machine, options))
        operator.synchronize()
        placing = time.perf_counter() - began
        matrix = np.random.default_rng(rank).random((source.shape[mode], rank)).astype(options.dtype)
        operator.set_matrix(matrix)
        longest, error = _checked(operator, source, matrix)
        works: dict[str, Work] = {"amped": operator.compute}
        if not args.no_peers:
            fibres = Fibres.of(source, mode, options.dtype, device.xp)
            works |= peers(fibres, device.xp.asarray(matrix), device)
        alone = list[float]()
        if args.sequential and rank == SEQUENTIAL_RANK and mode == source.sparse[-1]:  # as the paper does
            alone = _timed_alone(_alone(source, mode, matrix, options))
        each = _timed(works, device, mode, args.repeats) | ({"one thread": alone} if alone else {})
        facts = {
            "mode": mode, "length": source.shape[mode], "rank": rank, "precision": precision, "nonzeros": source.nnz,
            "fibres": operator.fibres, "longest_fibre": longest, "whole": operator.plan.whole, "error": error,
            "placing_seconds": placing,
            "milliseconds": {name: record.summary(times) for name, times in each.items()},
        }  # fmt: skip
        found.append(facts)
        del works, operator
    return found


def _checked(operator: TtmOperator, source: DrawnSource, matrix: np.ndarray) -> tuple[int, float]:
    """Return the longest fibre of some, and how far their rows are from double precision, norm-wise."""
    device, mode = operator.machine.device, operator.plan.setting.mode
    fibres = Fibres.of(source, mode, operator.options.dtype, device.xp)
    operator.result.fill(np.nan)
    operator.compute()
    picked = np.unique(np.random.default_rng(0).integers(0, operator.fibres, CHECKED))
    picked = np.unique(np.append(picked, [0, operator.fibres - 1]))
    starts, got = device.to_host(fibres.starts), device.to_host(operator.result[device.xp.asarray(picked)])[:, 0]
    want = np.empty(got.shape)
    for row, fibre in enumerate(picked):
        part = slice(int(starts[fibre]), int(starts[fibre + 1]))
        values, rows = device.to_host(fibres.values[part]), device.to_host(fibres.indices[part])
        want[row] = values.astype(np.float64) @ matrix[rows].astype(np.float64)
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    return int(np.diff(starts).max()), float(error)


def _alone(source: DrawnSource, mode: int, matrix: np.ndarray, options: Options) -> Work:
    """Return the same product by one host thread: what the paper calls sequential."""
    alone = Options(device="cpu", precision=options.precision, threads=1)
    machine = bring_up(alone, SingleComm())

    class OnHost(DrawnSource):
        """The same tensor in host memory."""

        def __init__(self) -> None:
            self.shape, self.sparse, self.nnz = source.shape, source.sparse, source.nnz
            self.value_range = source.value_range

        def by_fibre(self, mode: int, dtype: np.dtype[Any]) -> list[Any]:
            return [each if isinstance(each, np.ndarray) else each.get() for each in source.by_fibre(mode, dtype)]

    there = OnHost()
    operator = TtmOperator(there, machine, product_setting(there, mode, matrix.shape[1], machine, alone))
    operator.set_matrix(matrix)
    return operator.compute


def _timed(works: dict[str, Work], device: Device, mode: int, repeats: int) -> dict[str, list[float]]:
    """Return milliseconds of each, in turn; the first turn, which compiles, does not count."""
    each: dict[str, list[float]] = {name: [] for name in works}
    clock = device.clock()
    for turn in range(1 + repeats):
        for name, work in works.items():
            if device.on_host:
                time.sleep(PAUSE)
            with clock.span("run", mode):
                work()
            milliseconds = clock.collect()["run", mode] * 1e3
            each[name] += [milliseconds][:turn]
    return each


def _timed_alone(work: Work) -> list[float]:
    """Return milliseconds of one host thread: apart from the others, as a GPU would rest meanwhile."""
    found = []
    for _ in range(1 + ALONE):
        began = time.perf_counter()
        work()
        found.append((time.perf_counter() - began) * 1e3)
    return found[1:]


def _say(shape: str, case: dict[str, Any]) -> None:
    times = {name: found["median"] for name, found in case["milliseconds"].items()}
    told = ", ".join(f"{name} {t:.3g}" for name, t in times.items())
    others = [t for name, t in times.items() if name not in ("amped", "one thread")]
    gain = f"; {others[0] / times['amped']:.2f} and {min(others) / times['amped']:.2f} x others" if others else ""
    least = f"; {times['amped'] / case['floor_milliseconds']:.2f} x floor" if "floor_milliseconds" in case else ""
    size = f"{case['nonzeros']:,} nonzeros, {case['fibres']:,} fibres"
    print(
        f"{shape} mode {case['mode']} rank {case['rank']} {case['precision']} ({size}; error {case['error']:.1e}), ms: "
        f"{told}{gain}{least}",
        flush=True,
    )


def run_all(args: argparse.Namespace, machine: Machine) -> dict[str, Any]:
    """Measure all shapes, modes and columns."""
    cases = []
    speeds = ceilings.measure(machine.device, machine.comm) if args.ceilings else None
    nonzeros = args.nonzeros or (None if args.device == "cuda" else 5_000_000)
    for shape in args.shapes or (*PAPER, "enron"):
        drawn = recipe(shape, nonzeros, skew=DENSE.get(shape, 0.6))
        source = DrawnSource(drawn, machine.device)
        for mode in args.modes or source.sparse:
            for precision in args.precision:
                for case in run_mode(args, source, mode, machine, precision):
                    case = {"shape": shape, **case, **roofline(case)}
                    if speeds:
                        case["floor_milliseconds"] = floor(case, speeds) * 1e3
                    _say(shape, case)
                    cases.append(case)
        del source
        machine.device.rest()
    return {"spttm": cases, "gigabytes_a_second_measured": speeds, "load": os.getloadavg()[0]}


def run(args: argparse.Namespace) -> None:
    """Measure, write the result and draw it."""
    machine = bring_up(Options(device=args.device, threads=args.threads), SingleComm())
    facts = run_all(args, machine)
    draw(record.write(args.name or f"spttm-{args.device}", [machine.device.description], facts, args.output))
