"""Calls of `amped.cp_als` on arrays in memory, one after the other in one process; started by `bench.answer`."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import amped
from amped.parallel.mpi import world
from partitioner.host.stages import STAGES

SEED = 1


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--lengths", nargs="+", type=int, required=True)
    flags.add_argument("--nonzeros", type=int, required=True)
    flags.add_argument("--rank", type=int, required=True)
    flags.add_argument("--iterations", type=int, required=True)
    flags.add_argument("--calls", type=int, required=True)
    flags.add_argument("--device", required=True)
    flags.add_argument("--output", type=Path, required=True)
    return flags


def main(arguments: Sequence[str]) -> int:
    """Time each call, from arrays to the model; rank 0 writes their seconds, in all and by stage."""
    args, comm = parser().parse_args(arguments), world()
    indices, values = drawn(args.lengths, args.nonzeros) if comm.rank == 0 else (None, None)
    found = list[dict[str, Any]]()
    for _ in range(args.calls):
        comm.allgather(None)
        STAGES.collect()
        began = time.perf_counter()
        with STAGES.of("read"):
            X = None if indices is None or values is None else amped.SparseTensor(indices, values, args.lengths)
        how: dict[str, Any] = {"max_iters": args.iterations, "tol": 0, "device": args.device}
        model = amped.cp_als(X, args.rank, **how)
        found.append({"seconds": time.perf_counter() - began, "stages": STAGES.collect(), "fit": model.fits[-1]})
        del X, model
    if comm.rank == 0:
        args.output.write_text(json.dumps(found))
    return 0


def drawn(lengths: Sequence[int], nonzeros: int) -> tuple[Any, Any]:
    """Return indices, (nnz, order), and values, all uniform."""
    rng = np.random.default_rng(SEED)
    indices = np.empty((nonzeros, len(lengths)), np.int32)
    for mode, length in enumerate(lengths):
        indices[:, mode] = rng.integers(0, length, nonzeros, np.int32)
    return indices, rng.random(nonzeros, np.float32)
