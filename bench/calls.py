"""Calls of `amped.cp_als` on arrays in memory, one after another in one process; started by `bench.time_to_result`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import amped
from amped.parallel.mpi import world
from partitioner.host.stages import STAGES

from .harness import seconds_of

SEED, RANK, ITERATIONS = 1, 32, 10


def main(arguments: Sequence[str]) -> int:
    """Time each call, from arrays to the model; rank 0 writes their seconds, in all and by stage."""
    flags = argparse.ArgumentParser(description=__doc__)
    for name in ("nonzeros", "calls"):
        flags.add_argument(f"--{name}", type=int, required=True)
    flags.add_argument("--lengths", nargs="+", type=int, required=True)
    flags.add_argument("--device", required=True)
    flags.add_argument("--output", type=Path, required=True)
    args, comm = flags.parse_args(arguments), world()
    indices, values = uniform(args.lengths, args.nonzeros) if comm.rank == 0 else (None, None)
    fits = list[float]()

    def call() -> None:
        with STAGES.of("read"):
            X = None if indices is None or values is None else amped.SparseTensor(indices, values, args.lengths)
        options: dict[str, Any] = {"max_iters": ITERATIONS, "tol": 0, "device": args.device}
        fits.append(amped.cp_als(X, RANK, **options).fits[-1])

    found = list[dict[str, Any]]()
    for _ in range(args.calls):
        comm.allgather(None)
        STAGES.collect()
        seconds = seconds_of(call)
        found.append({"seconds": seconds, "stages": STAGES.collect(), "fit": fits[-1]})
    if comm.rank == 0:
        args.output.write_text(json.dumps(found))
    return 0


def uniform(lengths: Sequence[int], nonzeros: int) -> tuple[Any, Any]:
    """Return indices, (nnz, order), and values, all uniform."""
    rng = np.random.default_rng(SEED)
    indices = np.empty((nonzeros, len(lengths)), np.int32)
    for mode, length in enumerate(lengths):
        indices[:, mode] = rng.integers(0, length, nonzeros, np.int32)
    return indices, rng.random(nonzeros, np.float32)
