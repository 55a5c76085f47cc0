"""MTTKRPs of all modes on the CPU, one process, against a plain kernel, SciPy, and random reads of rows."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amped.backend.choose import choose
from amped.operators.sparse.operator import SparseOperator
from amped.parallel.mpi import SingleComm

from .harness import Facts, Result, Work, common_flags, in_turn, medians, seconds_of, summaries, versions_of
from .host_problem import Problem, operator_of, problem_of, reads_of
from .synthetic import SHAPES
from .workers import Worker, workers

Matrix = NDArray[np.float32]

PACKAGES = ("numba", "scipy")
NONZEROS = {"nell2": 5_000_000}  # reduced numbers for shapes that are too large here
BLOCK = 1 << 18  # nonzeros that SciPy multiplies at once: their row products are held in memory
SCIPY_COLUMNS = 16
COMPARED = ("amped", "permuted", "plain", "gather")
PAUSE = 0.02  # seconds after which idle threads of a library are asleep


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = common_flags(parser, "host-mttkrp", device=None, repeats=7)
    add("--shapes", nargs="+", choices=SHAPES, default=["nell2", "uber", "lbnl"], help="of tensors")
    add("--columns", nargs="+", type=int, default=[16, 32, 64], help="of factor matrices (16 32 64)")
    add("--nonzeros", type=int, help="of each tensor (its own, at most 5,000,000)")
    add("--cores", nargs="+", type=int, default=[1, 2], help="of each tool (1 2)")


def run(args: argparse.Namespace) -> None:
    """Time all kernels in turn, on each number of cores, for each tensor and number of columns."""
    result = Result(args, "host-mttkrp", ["CPU"], others=versions_of(PACKAGES))
    with workers(args.cores) as started:
        for shape in args.shapes:
            nonzeros = args.nonzeros or NONZEROS.get(shape)
            for columns in args.columns:
                for case in _compare(started, shape, nonzeros, columns, args.repeats):
                    result.add(case, line(case))
            case = _scipy_beside(started[0], shape, nonzeros, args.repeats)
            result.add(case, f"{shape}: {case}", "tools")


def _compare(
    started: Sequence[Worker], shape: str, nonzeros: int | None, columns: int, repeats: int
) -> Iterator[Facts]:
    kernels = {w.cores: w(prepare, shape, nonzeros, columns, COMPARED, w.cores) for w in started}
    ways = {f"{w.cores} {name}": partial(w, milliseconds, name) for w in started for name in COMPARED}
    each = in_turn(ways, repeats)
    for worker in started:
        times = {name: each[f"{worker.cores} {name}"] for name in COMPARED}
        one = {name: each[f"{started[0].cores} {name}"] for name in COMPARED}
        yield {
            "shape": shape,
            "nonzeros": worker(nonzeros_of),
            "columns": columns,
            "cores": worker.cores,
            "kernels": kernels[worker.cores],
            "milliseconds": summaries(times),
            "times_as_fast_as_plain": statistics.median(np.divide(times["plain"], times["amped"])),
            "of_gather": statistics.median(np.divide(times["gather"], times["amped"])),
            "gain": {name: statistics.median(np.divide(one[name], times[name])) for name in COMPARED},
        }


def line(case: Facts) -> str:
    """Return a case as one line of text."""
    head = f"{case['shape']}, {case['columns']} columns, {case['cores']} cores, ms: {medians(case['milliseconds'])}"
    return f"{head}; {case['times_as_fast_as_plain']:.2f} x plain, {case['of_gather']:.0%} of random reads"


def _scipy_beside(worker: Worker, shape: str, nonzeros: int | None, repeats: int) -> Facts:
    """Return SciPy's speed beside amped's."""
    worker(prepare, shape, nonzeros, SCIPY_COLUMNS, ("amped", "scipy"), worker.cores)
    work = worker(nonzeros_of) * len(SHAPES[shape][0]) * SCIPY_COLUMNS
    times = in_turn({each: partial(worker, milliseconds, each) for each in ("amped", "scipy")}, repeats)
    speeds = summaries({each: [work / t / 1e3 for t in runs] for each, runs in times.items()})
    facts = {"shape": shape, "tool": "scipy", "nonzeros": worker(nonzeros_of), "columns": SCIPY_COLUMNS}
    return {**facts, "million_nonzeros_by_columns_a_second": speeds}


# State of a worker: the current problem, and its sweeps by name.

_problem: Problem
_sweeps: dict[str, Work] = {}


def prepare(shape: str, nonzeros: int | None, columns: int, names: Sequence[str], cores: int) -> list[str]:
    """Make a tensor and the named sweeps over it; return the kernels that amped chose."""
    global _problem
    _sweeps.clear()
    _problem = problem_of(shape, nonzeros, columns)
    operator = operator_of(_problem, cores)
    for name in names:
        _sweeps[name] = _modes(operator) if name == "amped" else SWEEPS[name](_problem, cores)
    return list(operator.kernels)


def milliseconds(name: str) -> float:
    """Return the milliseconds of a sweep, after other work, as in a decomposition."""
    time.sleep(PAUSE)
    if name in COMPARED:
        _sweeps[name]()
    return seconds_of(_sweeps[name]) * 1e3


def nonzeros_of() -> int:
    """Return the number of nonzeros of the tensor, duplicates counted once."""
    return _problem.tensor.nnz


def _permuted(problem: Problem, cores: int) -> Work:
    """amped's `permuted`: all modes from one copy of the nonzeros."""
    return _modes(operator_of(problem, cores, "permuted"))


def _modes(operator: SparseOperator) -> Work:
    return lambda: [operator.mttkrp(mode) for mode in range(operator.order)]


def _plain(problem: Problem, cores: int) -> Work:
    """The plain Numba kernel: a loop over the nonzeros of a row and a compile-time number of columns."""
    import numba

    numba.set_num_threads(cores)
    inputs, columns = range(len(problem.factors) - 1), problem.factors[0].shape[1]
    named, product = "; ".join(f"a{m} = i{m}[p]" for m in inputs), " * ".join(f"f{m}[a{m}, r]" for m in inputs)
    names = ", ".join([f"i{m}" for m in inputs] + [f"f{m}" for m in inputs])
    source = f"""
def kernel(cuts, rows, values, out, {names}):
    for t in prange(cuts.size - 1):
        total, p = np.zeros({columns}, out.dtype), cuts[t]
        while p < cuts[t + 1]:
            row = rows[p]
            total[:] = 0
            while p < cuts[t + 1] and rows[p] == row:
                v = values[p]
                {named}
                for r in range({columns}):
                    total[r] += v * {product}
                p += 1
            for r in range({columns}):
                out[row, r] = total[r]
"""
    scope: dict[str, Any] = {"np": np, "prange": numba.prange}
    exec(source, scope)
    kernel = numba.njit(parallel=True, fastmath=True)(scope["kernel"])
    arguments = []
    for mode, factors in problem.inputs():
        parts, nnz = 8 * cores, mode.values.size
        cuts = mode.offsets[np.searchsorted(mode.offsets, nnz * np.arange(parts + 1) // parts)]
        out = np.zeros((mode.offsets.size - 1, columns), np.float32)
        arguments.append((np.unique(cuts), mode.rows, mode.values, out, *mode.indices, *factors))
    return lambda: [kernel(*each) for each in arguments]


def _gather(problem: Problem, cores: int) -> Work:
    """Read as many random rows, one matrix after the other: the time if only reads of rows counted."""
    device, rng = choose("cpu", SingleComm(), cores), np.random.default_rng(1)
    steps = [reads_of(device, rng, mode.values, factor) for mode, factors in problem.inputs() for factor in factors]
    return lambda: [step() for step in steps]


def _scipy(problem: Problem, cores: int) -> Work:
    """SciPy: a CSR matrix (rows by nonzeros) times the row products of a block of nonzeros."""
    from scipy.sparse import csr_array

    def sweep() -> None:
        for mode, factors in problem.inputs():
            out = np.zeros((mode.offsets.size - 1, factors[0].shape[1]), np.float32)
            for begin in range(0, mode.values.size, BLOCK):
                part = slice(begin, min(begin + BLOCK, mode.values.size))
                products = np.ones((part.stop - begin, out.shape[1]), np.float32)
                for indices, factor in zip(mode.indices, factors, strict=True):
                    products *= factor[indices[part]]
                first, last = int(mode.rows[begin]), int(mode.rows[part.stop - 1])
                offsets = np.clip(mode.offsets[first : last + 2], begin, part.stop) - begin
                shape = last + 1 - first, len(products)
                rows = csr_array((mode.values[part], np.arange(len(products)), offsets), shape)
                out[first : last + 1] += rows @ products

    return sweep


SWEEPS: dict[str, Callable[[Problem, int], Work]] = {
    "permuted": _permuted,
    "plain": _plain,
    "gather": _gather,
    "scipy": _scipy,
}
