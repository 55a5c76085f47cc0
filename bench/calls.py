"""Calls of amped one after another in one process, to time the first and later ones; started by `time_to_result`."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import amped
from amped.parallel.mpi import world
from amped.runs.assembly import Tensor
from partitioner.host.stages import STAGES

from .bundled import UBER, bundled

SEED = 1
NELL2, NELL1, LONG = (12092, 9184, 28818), (2902330, 2143368, 25495389), (3_000_000, 2_000_000, 5_000_000)
Call = Callable[..., object]


class Problem(NamedTuple):
    """A call of amped on a tensor: uniform nonzeros, a dense array without `nonzeros`, or a file without `lengths`."""

    call: Call
    what: str  # in results
    lengths: tuple[int, ...] = ()
    nonzeros: int = 0


def _cp_als(rank: int, iterations: int, **more: Any) -> Call:
    return lambda X, device: amped.cp_als(X, rank, max_iters=iterations, tol=0, device=device, **more)


def _cp_apr(rank: int, iterations: int, **more: Any) -> Call:
    return lambda X, device: amped.cp_apr(X, rank, max_iters=iterations, device=device, **more)


def _lbfgs(X: Tensor, device: str) -> object:
    return amped.cp(X, 16, loss="poisson", method="lbfgs", max_iters=20, tol=0, device=device)


def _tucker(*ranks: int, iterations: int) -> Call:
    return lambda X, device: amped.tucker(X, rank=ranks, max_iters=iterations, device=device)


def _ttm(X: Tensor, device: str) -> object:
    return amped.ttm(X, np.ones((X.shape[2], 16), np.float32), 2, device=device)


def _scan(X: Tensor, device: str) -> object:
    return amped.scan(X, "1-6", starts=3, device=device)


PROBLEMS = {
    "cp_als": Problem(_cp_als(32, 10), "cp_als of 50 million, NELL-2 shape, 10 iterations", NELL2, 50_000_000),
    "ttm": Problem(_ttm, "ttm of 20 million, NELL-2 shape, 16 columns", NELL2, 20_000_000),
    "dense": Problem(_cp_als(16, 10), "cp_als of a dense array, 200 x 200 x 200, 10 iterations", (200, 200, 200)),
    "uber": Problem(_cp_als(16, 20), "cp_als of uber393k, 20 iterations"),
    "scan": Problem(_scan, "scan of uber393k, 1 to 6 components, 3 starts"),
    "cp_apr": Problem(_cp_apr(16, 10), "cp_apr of uber393k, 10 iterations"),
    "pdnr": Problem(_cp_apr(16, 5, method="pdnr"), "cp_apr by PDNR of uber393k, 5 iterations"),
    "lbfgs": Problem(_lbfgs, "cp of uber393k, Poisson by L-BFGS, 20 iterations"),
    "tucker": Problem(_tucker(8, 8, 8, 8, iterations=10), "tucker of uber393k, 8,8,8,8, 10 iterations"),
    "observed": Problem(_cp_als(16, 20, mask="stored"), "cp_als of observed elements of uber393k, 20 iterations"),
    "nell1": Problem(_cp_als(32, 4), "cp_als of the NELL-1 shape, 4 iterations", NELL1, 143_600_000),
    "long": Problem(_cp_als(32, 4), "cp_als of 10 million rows, 4 iterations", LONG, 5_000_000),
    "long-cp_apr": Problem(_cp_apr(32, 4), "cp_apr of 10 million rows, 4 iterations", LONG, 5_000_000),
    "long-tucker": Problem(_tucker(8, 8, 8, iterations=4), "tucker of 10 million rows, 4 iterations", LONG, 5_000_000),
}  # fmt: skip
"""All problems, by name."""


def main(arguments: Sequence[str]) -> int:
    """Time each call, from arrays or a file to the model; rank 0 writes their seconds, in all and by stage."""
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("problem", choices=PROBLEMS)
    flags.add_argument("--calls", type=int, required=True)
    flags.add_argument("--device", required=True)
    flags.add_argument("--output", type=Path, required=True)
    args, comm = flags.parse_args(arguments), world()
    problem = PROBLEMS[args.problem]
    data, found = data_of(problem) if comm.rank == 0 else None, list[dict[str, Any]]()
    for _ in range(args.calls):
        comm.allgather(None)
        STAGES.collect()
        began = time.perf_counter()
        with STAGES.of("read"):
            X = amped.SparseTensor(*data, problem.lengths) if isinstance(data, tuple) else data
        problem.call(X, device=args.device)
        found.append({"seconds": time.perf_counter() - began, "stages": STAGES.collect()})
        del X
    if comm.rank == 0:
        args.output.write_text(json.dumps(found))
    return 0


def data_of(problem: Problem) -> Any:
    """Return indices, (nnz, order), and values, all uniform; a dense array; or the path of a tensor."""
    if not problem.lengths:
        return bundled(UBER)
    rng = np.random.default_rng(SEED)
    if not problem.nonzeros:
        return rng.random(problem.lengths, np.float32)
    indices = np.empty((problem.nonzeros, len(problem.lengths)), np.int32)
    for mode, length in enumerate(problem.lengths):
        indices[:, mode] = rng.integers(0, length, problem.nonzeros, np.int32)
    return indices, rng.random(problem.nonzeros, np.float32)
