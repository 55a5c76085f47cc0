"""Non-negative Tucker decompositions beside TensorLy: processor time to the same objective from the same start."""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

import amped

from .constraints import Course
from .harness import Facts, Result, common_flags, summaries, versions_of

Matrix = NDArray[np.float64]
Ranks = tuple[int, ...]
ITERATIONS = 100
CASES: dict[str, tuple[Ranks, Ranks]] = {
    "planted 40 x 30 x 20": ((40, 30, 20), (4, 3, 5)),
    "planted 80 x 60 x 50": ((80, 60, 50), (6, 6, 6)),
    "planted 60 x 50 x 40": ((60, 50, 40), (10, 10, 10)),
}
NOISE = 0.5  # of the noise, relative to the standard deviation of the planted tensor
ALGORITHMS = "fista", "active_set"  # of TensorLy, for the core
CLOSE = 1e-6  # relative distance from TensorLy's last objective at which it counts as reached


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = common_flags(parser, "nonnegative-tucker-cpu", device=None, repeats=3)
    add("--iterations", type=int, default=ITERATIONS, help=f"of both packages ({ITERATIONS})")
    add("--cases", nargs="+", choices=CASES, default=list(CASES), help="(all)")


def run(args: argparse.Namespace) -> None:
    """Measure; rewrite the results file after each case."""
    result = Result(args, "nonnegative-tucker-cpu", ["CPU"], packages=versions_of(["numpy", "tensorly"]))
    for number, name in enumerate(args.cases):
        shape, ranks = CASES[name]
        case = measured(*problem(number, shape, ranks), args.iterations, args.repeats)
        result.add({"tensor": name, "ranks": ranks, **case}, line(name, case))


def problem(seed: int, shape: Ranks, ranks: Ranks) -> tuple[Matrix, list[Matrix], Matrix]:
    """Return a tensor with sparse planted factor matrices and noise, and a random start: factor matrices and core."""
    rng = np.random.default_rng(seed)
    factors = [rng.random((n, r)) * (rng.random((n, r)) < 0.6) for n, r in zip(shape, ranks, strict=True)]
    clean = np.einsum("abc,ia,jb,kc->ijk", rng.random(ranks) ** 2, *factors)
    noisy = clean + NOISE * clean.std() * rng.random(shape)
    return noisy, [rng.random((n, r)) for n, r in zip(shape, ranks, strict=True)], rng.random(ranks)


def measured(tensor: Matrix, start: list[Matrix], core: Matrix, iterations: int, repeats: int) -> Facts:
    """Run all ways in turn, each once without being measured."""
    ways: dict[str, Callable[[], Course]] = {
        "amped": lambda: with_amped(tensor, start, iterations),
        "amped, plain": lambda: with_amped(tensor, start, iterations, accelerate=False),
        **{name: lambda name=name: with_tensorly(tensor, start, core, iterations, name) for name in ALGORITHMS},
    }
    courses: dict[str, list[Course]] = {name: [] for name in ways}
    for turn in range(1 + repeats):
        for name, way in ways.items():
            course = way()
            courses[name] += [course] * bool(turn)
    facts: Facts = {
        "objective": {name: float(each[0].objectives[-1]) for name, each in courses.items()},
        "seconds": summaries({name: [each.seconds for each in found] for name, found in courses.items()}),
    }
    for algorithm in ALGORITHMS:
        goal = facts["objective"][algorithm] * (1 + CLOSE)
        times = {name: [each.seconds_to(goal) for each in found] for name, found in courses.items()}
        reached = {name: [each for each in found if each is not None] for name, found in times.items()}
        facts[f"seconds_to_objective_of_{algorithm}"] = summaries({n: each for n, each in reached.items() if each})
    return facts


def with_amped(tensor: Matrix, start: list[Matrix], iterations: int, accelerate: bool = True) -> Course:
    """Return the course of amped."""
    how = {"max_iters": iterations, "tol": 0, "precision": "fp64", "device": "cpu", "threads": 1}
    ranks = [factor.shape[1] for factor in start]
    began = time.process_time()
    model = amped.tucker(tensor, ranks, nonnegative=True, init=start, accelerate=accelerate, **how)
    seconds = time.process_time() - began
    return Course(((1 - np.array(model.fits)) * np.linalg.norm(tensor)) ** 2 / 2, seconds)


def with_tensorly(tensor: Matrix, start: list[Matrix], core: Matrix, iterations: int, algorithm: str) -> Course:
    """Return the course of TensorLy."""
    from tensorly.decomposition import non_negative_tucker_hals
    from tensorly.tucker_tensor import TuckerTensor

    init = TuckerTensor((core.copy(), [factor.copy() for factor in start]))
    how = {"n_iter_max": iterations, "tol": 0, "return_errors": True, "algorithm": algorithm}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = time.process_time()
        _, errors = non_negative_tucker_hals(tensor, core.shape, init=init, **how)
        seconds = time.process_time() - began
    return Course((np.array(errors, float) * np.linalg.norm(tensor)) ** 2 / 2, seconds)


def line(name: str, case: Facts) -> str:
    """Return a line about a case."""
    parts = [f"{way} {objective:.6g}" for way, objective in case["objective"].items()]
    for algorithm in ALGORITHMS:
        times = case[f"seconds_to_objective_of_{algorithm}"]
        if "amped" not in times:
            parts.append(f"amped does not reach {algorithm}'s")
        else:
            ratio = times[algorithm]["median"] / times["amped"]["median"]
            parts.append(f"to that of {algorithm} {1000 * times['amped']['median']:.0f} ms, TensorLy {ratio:.1f} times")
    return f"{name}: " + "; ".join(parts)
