"""CP-ALS from one start in amped, pyttb, TensorLy and pygenten (GenTen): seconds and fits, a process per package."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import amped
from partitioner.host.threads import usable_cores

from .bundled import UBER, bundled
from .harness import Facts, Result, common_flags, in_a_process, medians, seconds_of, versions_of
from .spread import summary

MOST_ELEMENTS = 1 << 27  # of the array that TensorLy decomposes
THREADS = "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"
Matrices = Sequence[np.ndarray]
Model = tuple[np.ndarray, Matrices]
Call = Callable[[], Model]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = common_flags(parser, "peers-cpu", device=None, repeats=3)
    add(
        "tensors", nargs="*", type=Path, default=[bundled(), bundled(UBER)], metavar="TENSOR", help="(the bundled ones)"
    )
    add("--rank", type=int, default=16, metavar="R", help="(16)")
    add("--iterations", type=int, default=10, metavar="K", help="(10)")
    add("--threads", type=int, default=usable_cores(), metavar="T", help="of each process (all cores)")
    add("--package", nargs="+", choices=tuple(PACKAGES), default=list(PACKAGES), help="(all)")


def run(args: argparse.Namespace) -> None:
    """Measure each package on each tensor; write the results file after each case."""
    known = {"rank": args.rank, "iterations": args.iterations, "threads": args.threads}
    result = Result(args, "peers-cpu", ["CPU"], **known, packages=versions_of(PACKAGES))
    os.environ |= {name: str(args.threads) for name in THREADS}  # of the processes
    for path in args.tensors:
        X = amped.read(path)
        for package in args.package:
            case = {"tensor": path.name, "shape": X.shape, "nonzeros": X.nnz, "package": package}
            reason = missing(package, X)
            if reason is None:
                found = in_a_process(measured, package, path, (args.rank, args.iterations, args.threads), args.repeats)
                times = medians({"seconds": found["seconds"], "of the processor": found["processor"]})
                line = f"{times}; first call {found['first']:.3g}; fit {found['fit']:.9f}"
                result.add(case | found, f"{path.name}, {package}: {line}")
            else:
                result.add(case | {"not_measured": reason}, f"{path.name}, {package}: not measured, {reason}")


def missing(package: str, X: amped.SparseTensor) -> str | None:
    """Return why a package is not measured; None if it is."""
    if find_spec(package) is None:
        return f"pip install {package}"
    if package == "tensorly" and (elements := np.prod(X.shape, dtype=float)) > MOST_ELEMENTS:
        return f"an array of {elements:.2g} elements"
    return None


def measured(package: str, path: Path, params: tuple[int, int, int], repeats: int) -> Facts:
    """Return the seconds of calls in one process, and the fit. `params`: rank, iterations and threads."""
    X, models, processor = amped.read(path), list[Model](), list[float]()
    rank, iterations, threads = params
    start = [np.random.default_rng(mode).random((length, rank)) for mode, length in enumerate(X.shape)]
    call = PACKAGES[package](X, start, iterations, threads)

    def once() -> None:
        began = time.process_time()
        models.append(call())
        processor.append(time.process_time() - began)

    first, *later = (seconds_of(once) for _ in range(1 + repeats))
    weights, factors = models[-1]
    fit = amped.KruskalTensor(weights, [np.asarray(factor) for factor in factors]).score(X)
    return {"first": first, "seconds": summary(later), "processor": summary(processor[1:]), "fit": fit}


def _amped(X: amped.SparseTensor, start: Matrices, iterations: int, threads: int) -> Call:
    how: dict[str, Any] = {"max_iters": iterations, "tol": 0, "precision": "fp64", "device": "cpu", "threads": threads}

    def call() -> Model:
        weights, factors = amped.cp_als(X, len(start[0].T), init=start, **how)
        return weights, factors

    return call


def _pyttb(X: amped.SparseTensor, start: Matrices, iterations: int, threads: int) -> Call:
    import pyttb

    tensor = X.to_pyttb()

    def call() -> Model:
        init = pyttb.ktensor([factor.copy() for factor in start])
        model = pyttb.cp_als(tensor, len(start[0].T), init=init, maxiters=iterations, stoptol=0, printitn=0)[0]
        return model.weights, model.factor_matrices

    return call


def _tensorly(X: amped.SparseTensor, start: Matrices, iterations: int, threads: int) -> Call:
    from tensorly.decomposition import parafac

    array, rank = X.todense().astype(np.float64), len(start[0].T)

    def call() -> Model:
        init = np.ones(rank), [factor.copy() for factor in start]
        weights, factors = parafac(array, rank, init=init, n_iter_max=iterations, tol=0, normalize_factors=True)
        return weights, factors

    return call


def _pygenten(X: amped.SparseTensor, start: Matrices, iterations: int, threads: int) -> Call:
    import pygenten

    subs, values = np.ascontiguousarray(X.indices, np.uint64), np.asarray(X.values, np.float64)
    tensor, rank = pygenten.Sptensor(X.shape, subs, values), len(start[0].T)

    def call() -> Model:
        init = pygenten.Ktensor(np.ones(rank), [factor.copy() for factor in start])
        model = pygenten.cp_als(tensor, rank=rank, init=init, maxiters=iterations, tol=0.0, printitn=0)[0]
        return np.array(model.weights), [np.array(factor) for factor in model.factor_matrices]

    return call


PACKAGES = {"amped": _amped, "pyttb": _pyttb, "tensorly": _tensorly, "pygenten": _pygenten}
