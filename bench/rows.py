"""Milliseconds to solve rows of a factor matrix from their MTTKRP, by all solvers, beside a copy of as many bytes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from amped.backend.choose import choose
from amped.backend.device import Device
from amped.backend.ops.nonnegative import NONNEGATIVE, System
from amped.backend.ops.solve import SOLVE, Sums
from amped.parallel.mpi import world

from .groups import free_memory
from .harness import Facts, Result, Work, common_flags, in_turn, medians, seconds_of, summaries

RANKS, ROWS = (16, 32, 64), 10_000_000
SWEEPS = 1  # of non-negative rows
DTYPE = np.dtype(np.float32)
PROBLEMS = "least squares", "non-negative"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = common_flags(parser, "rows-DEVICE", repeats=10)
    add("--ranks", nargs="+", type=int, default=list(RANKS), help=f"({' '.join(map(str, RANKS))})")
    add("--rows", type=int, default=ROWS, help=f"({ROWS:,})")


def run(args: argparse.Namespace) -> None:
    """Measure; rewrite the results file after each case."""
    device = choose(args.device, world())
    result = Result(args, f"rows-{device.name}", [device.description], rows=args.rows, sweeps=SWEEPS)
    for problem, rank in product(PROBLEMS, args.ranks):
        rows = RandomRows(device, args.rows, rank)
        ways = dict(rows.least_squares() if problem == PROBLEMS[0] else rows.nonnegative())
        timed = {name: lambda work=work: seconds_of(work) for name, work in {"copy": rows.copy, **ways}.items()}
        seconds = summaries(in_turn(timed, args.repeats))
        case: Facts = {"problem": problem, "rank": rank, "seconds": seconds}
        result.add(case, f"{problem}, rank {rank}: {medians(seconds, 1e3)} ms")
        del rows, ways, timed
        free_memory(device.xp)


class RandomRows:
    """Random rows on a device, and ways to solve them; each work waits until it is done."""

    def __init__(self, device: Device, rows: int, rank: int) -> None:
        self._device, xp, rng = device, device.xp, np.random.default_rng(0)
        self._source = xp.random.default_rng(1).random((rows, rank))
        self._target = xp.random.default_rng(2).random((rows, rank), dtype=DTYPE)
        self._copy = xp.empty((rows, rank), DTYPE)
        columns = rng.random((rank + 4, rank))
        self._gram = device.to_device(columns.T @ columns)
        self._inverse = device.to_device(np.ascontiguousarray(np.linalg.inv(columns.T @ columns)))
        self._ones = device.to_device(np.ones(rank))
        self._sums = Sums(device.zeros((rank, rank), np.float64), device.zeros((rank,), np.float64))

    def copy(self) -> None:
        """Round all numbers: the same bytes are read and written as by a solution."""
        self._copy[...] = self._source
        self._device.synchronize()

    def least_squares(self) -> Iterator[tuple[str, Work]]:
        """Yield the solvers by name."""
        rows, rank = self._source.shape
        for solver in SOLVE.providers(self._device):
            if solver.suits(rank, DTYPE):
                made = solver.make(rows, rank, DTYPE)
                yield solver.name, self._work(solver, made, self._inverse)

    def nonnegative(self) -> Iterator[tuple[str, Work]]:
        """Yield the solvers by name."""
        rows, rank = self._source.shape
        for solver in NONNEGATIVE.providers(self._device):
            if solver.suits(rank, DTYPE):
                made, system = solver.make(rows, rank, DTYPE), System(self._gram, self._ones, self._ones)
                yield solver.name, self._work(solver, made, system, SWEEPS)

    def _work(self, solver: Any, made: object, *how: object) -> Work:
        def work() -> None:
            solver.run(made, self._source, *how, self._target, self._sums)
            self._device.wait_side()
            self._device.synchronize()

        return work
