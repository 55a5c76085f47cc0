"""MTTKRPs of each mode on one to all cores, against random reads of rows on as many, one process."""

from __future__ import annotations

import argparse
import os
import time
from functools import partial
from typing import Any

import numpy as np

from amped.backend.choose import choose
from amped.operators.sparse.operator import SparseOperator
from amped.parallel.mpi import SingleComm

from . import record
from .host_problem import Problem, Sweep, operator_of, problem_of, reads_of

PACKAGES = ("numba",)
CASES = (("nell2", 8_000_000, 32), ("lbnl", 1_698_825, 32), ("uber", 393_000, 16))
"""Shape, nonzeros and columns: large ones, and one whose modes take less than a millisecond."""
RUNS = 5  # of each in a turn: the first finds other data in the caches


def add_arguments(group: argparse._ArgumentGroup) -> None:
    """Add this part's flags; the number of nonzeros is that of `mttkrp`."""
    group.add_argument("--threads", nargs="+", type=int, help="numbers of threads (1, 2, 4, ... and all)")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Time each mode, and the reads that it takes, on each number of threads in turn."""
    numbers, cases = args.threads or _numbers(len(os.sched_getaffinity(0))), []
    for shape, nonzeros, columns in CASES:
        problem = problem_of(shape, args.nonzeros or nonzeros, columns)
        case = {"shape": shape, "nonzeros": problem.tensor.nnz, "columns": columns}
        case["threads"] = _measured(problem, numbers, args.repeats)
        cases.append(case)
        for number, found in case["threads"].items():
            _print(case, number, found)
    return {"cases": cases}


def _numbers(cores: int) -> list[int]:
    return sorted({*(1 << k for k in range(cores.bit_length())), cores})


def _measured(problem: Problem, numbers: list[int], repeats: int) -> dict[str, Any]:
    """Return what was measured by number of threads: times of amped and of the reads, by mode, and their gains."""
    steps, kernels = dict[int, dict[str, list[Sweep]]](), dict[int, list[str]]()
    for number in numbers:
        operator = operator_of(problem, number)
        kernels[number] = list(operator.kernels)
        steps[number] = {"amped": _mttkrps(operator), "gather": _gathers(problem, number)}
    each = {number: {name: [[] for _ in found] for name, found in both.items()} for number, both in steps.items()}
    for turn in range(1 + repeats):
        for number, both in steps.items():
            for name, of_modes in both.items():
                for times, step in zip(each[number][name], of_modes, strict=True):
                    times += [_milliseconds(step)][:turn]  # not those of the first turn
    found = {}
    for number, both in each.items():
        times = {name: [record.summary(t) for t in of_modes] for name, of_modes in both.items()}
        found[str(number)] = {"kernels": kernels[number], "milliseconds": times, "each": both}
    for of_number in found.values():
        of_number["gain"] = _gains(found[str(numbers[0])]["milliseconds"], of_number["milliseconds"])
    return found


def _gains(first: dict[str, Any], times: dict[str, Any]) -> dict[str, list[float]]:
    """Return by mode how many times as fast as on the first number of threads, and amped's part of the reads' gain."""
    gains = {
        name: [a["median"] / b["median"] for a, b in zip(first[name], found, strict=True)]
        for name, found in times.items()
    }
    return {**gains, "amped_of_gather": [a / b for a, b in zip(gains["amped"], gains["gather"], strict=True)]}


def _mttkrps(operator: SparseOperator) -> list[Sweep]:
    return [partial(operator.mttkrp, mode) for mode in range(operator.order)]


def _gathers(problem: Problem, number: int) -> list[Sweep]:
    """Return, for each mode, reads of as many random rows of each of the other modes' matrices."""
    device, rng = choose("cpu", SingleComm(), number), np.random.default_rng(1)
    steps = []
    for mode, factors in problem.inputs():
        reads = [reads_of(device, rng, mode.values, factor) for factor in factors]
        steps.append(partial(_all, reads))
    return steps


def _all(steps: list[Sweep]) -> None:
    for step in steps:
        step()


def _milliseconds(step: Sweep) -> float:
    """Return the median milliseconds of a step that is repeated, as in a decomposition, on threads that are awake."""
    times = []
    for _ in range(RUNS):
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    return float(np.median(times)) * 1e3


def _print(case: dict[str, Any], number: str, found: dict[str, Any]) -> None:
    times, gain = found["milliseconds"], found["gain"]
    ours, reads = (" ".join(f"{t['median']:.3g}" for t in times[name]) for name in ("amped", "gather"))
    gains = " ".join(f"{a:.1f}/{b:.1f}" for a, b in zip(gain["amped"], gain["gather"], strict=True))
    what = f"{case['shape']}, {case['columns']} columns, {number} thread{'s' * (number != '1')}"
    print(f"{what}, ms by mode: {ours}; reads {reads}; gains, amped/reads: {gains}", flush=True)


def draw(pyplot: Any, facts: dict[str, Any]) -> Any:
    """Gains over one thread, by number of threads: each mode of amped, and its reads."""
    cases = facts["cases"]
    figure, grid = pyplot.subplots(1, len(cases), figsize=(3.2 * len(cases), 2.6), squeeze=False)
    for axes, case in zip(grid.flat, cases, strict=True):
        numbers = [*map(int, case["threads"])]
        for mode in range(len(case["threads"][str(numbers[0])]["kernels"])):
            for name, style in (("amped", "o-"), ("gather", "--")):
                gains = [case["threads"][str(n)]["gain"][name][mode] for n in numbers]
                label = f"mode {mode}" if name == "amped" else "reads" if mode == 0 else None
                axes.plot(numbers, gains, style, color=f"C{mode}", label=label, markersize=3)
        axes.set(
            title=f"{case['shape']}, {case['nonzeros'] / 1e6:.1f} M", xlabel="threads", ylim=(0, None), xticks=numbers
        )
    grid[0][0].set_ylabel("times as fast as on one")
    most = max(grid.flat, key=lambda axes: len(axes.get_lines()))
    most.legend(frameon=False, fontsize=7)
    return figure
