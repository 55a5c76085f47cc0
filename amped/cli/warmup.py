"""The verb ``warmup``: compile the code of typical runs, which later runs load from disk."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from partitioner.flags import Parser
from partitioner.host.cache import cache_folder
from partitioner.host.threads import usable_cores
from partitioner.host.worth import ALWAYS, SETTING

NONZEROS = 1 << 15  # enough for several threads
LONG = 1 << 17  # indices of a mode that are not stored in 16 bits
RANKS = 8, 16, 32  # all ranks up to each of these share compiled code


def main(argv: Sequence[str], program: str = "amped warmup") -> int:
    """Run the verb; return the exit code."""
    parser = Parser(
        prog=program,
        description="Compile the CPU code of typical runs in parallel, so that first runs start at once. The code is "
        "stored in the cache folder (NUMBA_CACHE_DIR, or ~/.cache).",
        epilog="example: amped warmup",
    )
    parser.parse_args(argv)
    began, count = time.perf_counter(), 0
    workers = min(usable_cores(), len(TASKS))
    print(f"compiling for {len(TASKS)} kinds of runs, {workers} at a time, into {cache_folder()}", flush=True)
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        waiting = {pool.submit(_timed, name): name for name in TASKS}
        for done in as_completed(waiting):
            count += 1
            print(f"{count:2d} of {len(TASKS)}  {waiting[done]}: {done.result():.1f} s", flush=True)
    print(f"compiled in {time.perf_counter() - began:.1f} s")
    return 0


def _timed(name: str) -> float:
    """Run a task, which compiles its code; return the seconds."""
    began = time.perf_counter()
    os.environ[SETTING] = ALWAYS
    TASKS[name]()
    return time.perf_counter() - began


def _nonzeros(order: int, longest: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices and values of unsorted counts."""
    rng = np.random.default_rng(order)
    indices = np.stack([rng.integers(0, longest if m == 0 else 16, NONZEROS) for m in range(order)], 1)
    return indices, rng.integers(1, 9, NONZEROS).astype(np.float64)


def _sparse(order: int, rank: int, longest: int = 64, nonnegative: bool = False) -> None:
    """Decompose a sparse tensor by least squares."""
    from amped import SparseTensor, cp_als

    cp_als(SparseTensor(*_nonzeros(order, longest)), rank, max_iters=2, tol=0, device="cpu", nonnegative=nonnegative)


def _counts(order: int, rank: int) -> None:
    """Decompose a sparse tensor of counts."""
    from amped import SparseTensor, cp_apr

    cp_apr(SparseTensor(*_nonzeros(order)), rank, max_iters=2, tol=0, inner_iters=2, device="cpu")


def _dense(precision: str) -> None:
    """Decompose a dense tensor."""
    from amped import cp_als

    grid = np.random.default_rng(0).random((12, 40, 30))
    for nonnegative in (False, True):
        cp_als(grid, 3, max_iters=2, tol=0, device="cpu", nonnegative=nonnegative, precision=precision)  # type: ignore[arg-type]


def _text() -> None:
    """Read a text file."""
    from amped import read

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.tns"
        path.write_text("2 1 1 0.5\n1 1 1 1.25e-3\n2 1 1 3\n")
        read(path)


TASKS: dict[str, Callable[[], None]] = {
    "text files": _text,
    **{
        f"sparse, {order} modes, up to {rank} components": partial(_sparse, order, rank)
        for order in (3, 4)
        for rank in RANKS
    },
    "sparse, 3 long modes, up to 16 components": partial(_sparse, 3, 16, LONG),
    "sparse, non-negative": partial(_sparse, 3, 8, nonnegative=True),
    "counts, 3 modes, up to 8 components": partial(_counts, 3, 8),
    "dense, single precision": partial(_dense, "fp32"),
    "dense, double precision": partial(_dense, "fp64"),
}
"""Runs that compile the code of typical runs, by description."""
