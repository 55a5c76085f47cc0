"""Sparse tensors times matrices (SpTTM), by mode and columns: the figures of ParTI's paper, against CSR times dense."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from amped.backend.device import Clock
from amped.backend.exchange import Machine
from amped.operators.ttm.operator import TtmOperator
from amped.options import DTYPES, Options
from amped.parallel.mpi import SingleComm
from amped.runs.assembly import bring_up
from amped.runs.products import product_setting

from . import ceilings
from .fibres import DrawnSource, Fibres, peers
from .harness import Facts, Result, Work, common_flags, in_turn, medians, summaries
from .synthetic import SHAPES, recipe

PAPER = ("brainq", "nell2", "nell1", "deli")  # Table II of the paper
DENSE = {"brainq": 0.0}  # skew of a shape of which nearly a third is there
CHECKED = 300  # fibres that are computed in double precision, too
PAUSE = 0.02  # seconds after which idle threads are asleep


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = common_flags(parser, "spttm-DEVICE", device="cpu", repeats=9)
    add("--shapes", nargs="+", choices=sorted(SHAPES), metavar="NAME", help=f"({' '.join(PAPER)} enron)")
    add("--nonzeros", type=int, help="of each tensor (a CPU: 5 million; a GPU: its own)")
    add("--ranks", nargs="+", type=int, default=[8, 16, 32, 64], help="columns (8 16 32 64)")
    add("--modes", nargs="+", type=int, help="(all)")
    add("--precision", nargs="+", choices=tuple(DTYPES), default=["fp32"])
    add("--threads", type=int, help="host threads (all cores)")
    add("--no-peers", action="store_true", help="measure amped only")
    add("--ceilings", action="store_true", help="measure copies and gathers, for the floor")


def run(args: argparse.Namespace) -> None:
    """Measure all shapes, modes and columns; rewrite the results file after each."""
    machine = bring_up(Options(device=args.device, threads=args.threads), SingleComm())
    speeds = ceilings.measure(machine.device, machine.comm) if args.ceilings else None
    facts = {"gigabytes_a_second_measured": speeds, "load": os.getloadavg()[0]}
    result = Result(args, f"spttm-{args.device}", [machine.device.description], **facts)
    nonzeros = args.nonzeros or (None if args.device == "cuda" else 5_000_000)
    for shape in args.shapes or (*PAPER, "enron"):
        source = DrawnSource(recipe(shape, nonzeros, skew=DENSE.get(shape, 0.6)), machine.device)
        for mode in args.modes or source.sparse:
            for case in run_mode(args, source, mode, machine):
                case = {"shape": shape, **case, **intensity(case)}
                if speeds:
                    case["floor_milliseconds"] = floor(case, speeds) * 1e3
                result.add(case, line(case))
        del source
        machine.device.rest()


def run_mode(args: argparse.Namespace, source: DrawnSource, mode: int, machine: Machine) -> Iterator[Facts]:
    """Time a mode's products, by precision and columns."""
    device = machine.device
    for precision, rank in ((p, r) for p in args.precision for r in args.ranks):
        options = Options(device=args.device, precision=precision, threads=args.threads)
        began = time.perf_counter()
        operator = TtmOperator(source, machine, product_setting(source, mode, rank, machine, options))
        operator.synchronize()
        placing = time.perf_counter() - began
        matrix = np.random.default_rng(rank).random((source.shape[mode], rank)).astype(options.dtype)
        operator.set_matrix(matrix)
        fibres = Fibres.of(source, mode, options.dtype, device.xp)
        longest, error = _checked(operator, fibres, matrix)
        works: dict[str, Work] = {"amped": operator.compute}
        works |= {} if args.no_peers else peers(fibres, device.xp.asarray(matrix), device)
        yield {
            "mode": mode, "length": source.shape[mode], "rank": rank, "precision": precision, "nonzeros": source.nnz,
            "fibres": operator.fibres, "longest_fibre": longest, "whole": operator.plan.whole, "error": error,
            "placing_seconds": placing, "milliseconds": summaries(in_turn(_timed(works, machine), args.repeats)),
        }  # fmt: skip
        del works, operator, fibres


def _timed(works: dict[str, Work], machine: Machine) -> dict[str, Callable[[], float]]:
    """Return functions that do some work and return its milliseconds."""
    clock: Clock = machine.device.clock()

    def milliseconds(work: Work) -> float:
        if machine.device.on_host:
            time.sleep(PAUSE)
        with clock.span("run", 0):
            work()
        return clock.collect()["run", 0] * 1e3

    return {name: partial(milliseconds, work) for name, work in works.items()}


def _checked(operator: TtmOperator, fibres: Fibres, matrix: np.ndarray) -> tuple[int, float]:
    """Return the longest fibre, and how far the rows of some are from double precision, norm-wise."""
    device = operator.machine.device
    operator.result.fill(np.nan)
    operator.compute()
    picked = np.random.default_rng(0).integers(0, operator.fibres, CHECKED)
    picked = np.unique(np.append(picked, [0, operator.fibres - 1]))
    starts, got = device.to_host(fibres.starts), device.to_host(operator.result[device.xp.asarray(picked)])[:, 0]
    want = np.empty(got.shape)
    for row, fibre in enumerate(picked):
        part = slice(int(starts[fibre]), int(starts[fibre + 1]))
        values, rows = device.to_host(fibres.values[part]), device.to_host(fibres.indices[part])
        want[row] = values.astype(np.float64) @ matrix[rows].astype(np.float64)
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    return int(np.diff(starts).max()), float(error)


def moved_bytes(case: Facts) -> tuple[float, float]:
    """Return the bytes of nonzeros and fibres, each read or written once, and of the rows that are gathered."""
    item = DTYPES[case["precision"]].itemsize
    row = case["rank"] * item
    return case["nonzeros"] * (4 + item) + case["fibres"] * row, case["nonzeros"] * row


def floor(case: Facts, speeds: Facts) -> float:
    """Return the least seconds: nonzeros read, fibres written, rows gathered, one after the other at full speed."""
    moved, gathered = moved_bytes(case)
    matrix = case["length"] * gathered / case["nonzeros"]
    sizes = {float(size) * 1e6: rate for size, rate in speeds["gather"].items()}
    fitting = [rate for size, rate in sorted(sizes.items()) if size >= matrix]
    rate = fitting[0] if fitting else sizes[max(sizes)]
    return float(moved / speeds["copy"][0] / 1e9 + gathered / rate / 1e9)


def intensity(case: Facts) -> dict[str, float]:
    """Return billions of operations a second, and operations for each byte that is moved or gathered."""
    operations = 2 * case["nonzeros"] * case["rank"]
    seconds = case["milliseconds"]["amped"]["median"] / 1e3
    return {"gigaflops": operations / seconds / 1e9, "flops_a_byte": operations / sum(moved_bytes(case))}


def _others(case: Facts) -> list[float]:
    return [found["median"] for name, found in case["milliseconds"].items() if name != "amped"]


def line(case: Facts) -> str:
    """Return a case as one line of text."""
    ours, others = case["milliseconds"]["amped"]["median"], _others(case)
    gain = f"; {others[0] / ours:.2f} and {min(others) / ours:.2f} x others" if others else ""
    least = f"; {ours / case['floor_milliseconds']:.2f} x floor" if "floor_milliseconds" in case else ""
    return (
        f"{case['shape']} mode {case['mode']} rank {case['rank']} {case['precision']} ({case['nonzeros']:,} nonzeros, "
        f"{case['fibres']:,} fibres; error {case['error']:.1e}), ms: {medians(case['milliseconds'])}{gain}{least}"
    )
