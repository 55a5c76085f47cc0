"""CP under constraints beside TensorLy: objectives from the same start, and processor time to the same objective."""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import amped

from .harness import Facts, Result, common_flags, summaries, versions_of

Matrix = NDArray[np.float64]
SHAPES = (20, 40, 15), (30, 25, 20), (12, 50, 30)
RANK, ITERATIONS, INNER = 3, 200, 10
MORE = 5  # times as many iterations of amped: they still take less time
CLOSE = 1e-4  # relative distance from the lowest objective of TensorLy at which it counts as reached


class Constraint(NamedTuple):
    """A constraint as both packages take it."""

    amped: dict[str, Any]
    tensorly: dict[str, Any]


KINDS = {
    "non-negative": Constraint({"nonnegative": True}, {"non_negative": True}),
    "non-negative (ADMM)": Constraint(
        {"constraints": dict.fromkeys(range(3), "nonnegative")}, {"non_negative": True}
    ),
    "simplex": Constraint({"constraints": {1: "simplex"}}, {"simplex": {1: 1.0}}),
    "monotone": Constraint({"constraints": {1: "monotone"}}, {"monotonicity": {1: True}}),
    "unimodal": Constraint({"constraints": {1: ["unimodal", "nonnegative"]}}, {"unimodality": {1: True}}),
    "sparse": Constraint({"constraints": {1: "sparse:10"}}, {"hard_sparsity": {1: 10}}),
}  # fmt: skip


class Course(NamedTuple):
    """A run: the objective after each iteration, and its processor seconds."""

    objectives: Matrix
    seconds: float

    def seconds_to(self, objective: float) -> float | None:
        """Return the seconds until an objective is reached; None if it is not. All iterations take equal time."""
        below = np.flatnonzero(self.objectives <= objective)
        return float(self.seconds * (below[0] + 1) / self.objectives.size) if below.size else None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = common_flags(parser, "constraints-cpu", device=None, repeats=3)
    add("--constraint", nargs="+", choices=KINDS, default=list(KINDS), help="(all)")
    add(
        "--iterations",
        type=int,
        default=ITERATIONS,
        help=f"of TensorLy, and {MORE} times as many of amped ({ITERATIONS})",
    )


def run(args: argparse.Namespace) -> None:
    """Measure; rewrite the results file after each case."""
    result = Result(args, "constraints-cpu", ["CPU"], packages=versions_of(["numpy", "tensorly"]))
    for number, shape in enumerate(SHAPES):
        tensor, start = problem(number, shape)
        for name in args.constraint:
            case = measured(tensor, start, KINDS[name], args.iterations, args.repeats)
            case = {"shape": shape, "rank": RANK, "constraint": name, **case}
            result.add(case, line(case))


def problem(seed: int, shape: tuple[int, int, int]) -> tuple[Matrix, list[Matrix]]:
    """Return a tensor whose columns of mode 1 have one peak, with as much noise, and a random start."""
    rng, places = np.random.default_rng(seed), np.linspace(0, 1, shape[1])
    peaks = np.stack([np.exp(-((places - centre) ** 2) / 0.02) for centre in (0.25, 0.5, 0.7)], axis=1)
    clean = np.einsum("ir,jr,kr->ijk", rng.random((shape[0], RANK)), peaks, rng.random((shape[2], RANK)))
    noisy = clean + clean.std() * rng.standard_normal(shape)
    return noisy, [rng.random((length, RANK)) for length in shape]


def measured(tensor: Matrix, start: list[Matrix], constraint: Constraint, iterations: int, repeats: int) -> Facts:
    """Run both packages in turn, each once without being measured."""
    ways: dict[str, Callable[[], Course]] = {
        "amped": lambda: with_amped(tensor, start, constraint.amped, MORE * iterations),
        "TensorLy": lambda: with_tensorly(tensor, start, constraint.tensorly, iterations),
    }
    courses: dict[str, list[Course]] = {name: [] for name in ways}
    for turn in range(1 + repeats):
        for name, way in ways.items():
            course = way()
            courses[name] += [course] * bool(turn)
    lowest = {name: float(each[0].objectives.min()) for name, each in courses.items()}
    goal = lowest["TensorLy"] * (1 + CLOSE)
    times = {name: [each.seconds_to(goal) for each in found] for name, found in courses.items()}
    reached = {name: [each for each in found if each is not None] for name, found in times.items()}
    return {
        "objective": lowest,
        "seconds": summaries({name: [each.seconds for each in found] for name, found in courses.items()}),
        "seconds_to_objective": summaries({name: found for name, found in reached.items() if found}),
    }


def with_amped(tensor: Matrix, start: list[Matrix], constraint: dict[str, Any], iterations: int) -> Course:
    """Return the course of amped."""
    how = {"max_iters": iterations, "tol": 0, "precision": "fp64", "device": "cpu", "threads": 1}
    began = time.process_time()
    model = amped.cp_als(tensor, RANK, init=start, **how, **constraint)
    seconds = time.process_time() - began
    distances = (1 - np.array(model.fits)) * np.linalg.norm(tensor)
    return Course(distances**2 / 2, seconds)


def with_tensorly(tensor: Matrix, start: list[Matrix], constraint: dict[str, Any], iterations: int) -> Course:
    """Return the course of TensorLy."""
    from tensorly.cp_tensor import CPTensor
    from tensorly.decomposition import constrained_parafac

    init = CPTensor((np.ones(RANK), [factor.copy() for factor in start]))
    how = {"n_iter_max": iterations, "n_iter_max_inner": INNER, "tol_outer": 0, "return_errors": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = time.process_time()
        _, errors = constrained_parafac(tensor, RANK, init=init, **how, **constraint)
        seconds = time.process_time() - began
    return Course((np.array(errors, float) * np.linalg.norm(tensor)) ** 2 / 2, seconds)


def line(case: Facts) -> str:
    """Return a line about a case."""
    objective, times = case["objective"], case["seconds_to_objective"]
    head = f"{case['shape']} {case['constraint']}: " + ", ".join(f"{n} {v:.6g}" for n, v in objective.items())
    if "amped" not in times:
        return f"{head}; amped does not reach it"
    ratio = times["TensorLy"]["median"] / times["amped"]["median"]
    return f"{head}; {1000 * times['amped']['median']:.1f} ms to it, TensorLy {ratio:.1f} times as long"
