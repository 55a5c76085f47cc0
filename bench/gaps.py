"""Missing elements beside TensorLy and pyttb: processor time to the optimum over the observed elements."""

from __future__ import annotations

import argparse
import contextlib
import math
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import amped

from .harness import Facts, Result, common_flags, versions_of
from .spread import summary

Matrix = NDArray[np.float64]
Factors = Sequence[Matrix]
PEERS = "tensorly", "pyttb"
CLOSE = 1e-6  # relative distance from the optimum at which it counts as reached
ITERATIONS = 3000  # of amped at most, by default


class Problem:
    """A tensor with missing elements, and starts.

    Parameters
    ----------
    tensor : array
    missing : float
        The fraction of elements that are missing, at random.
    rank, starts, iterations : int
        `iterations`: of amped at most.
    nonnegative : bool
    """

    def __init__(
        self, tensor: Matrix, missing: float, rank: int, starts: int, iterations: int, nonnegative: bool
    ) -> None:
        rng = np.random.default_rng(int(1000 * missing))
        self.tensor, self.rank, self.iterations, self.nonnegative = tensor, rank, iterations, nonnegative
        self.observed = rng.random(tensor.shape) >= missing
        self.starts = [[rng.random((length, rank)) for length in tensor.shape] for _ in range(starts)]

    def objective(self, factors: Factors) -> float:
        """Return the sum of squares over observed elements."""
        model = np.einsum("ir,jr,kr->ijk", *factors, optimize=True)
        return float(((self.tensor - model)[self.observed] ** 2).sum())

    def optimum(self) -> float:
        """Return the lowest objective that amped finds from all starts."""
        return min(min(with_amped(self, start, math.inf, tol=1e-13).objectives) for start in self.starts)


class Course:
    """The objective of a run after each iteration, and the processor time until then without that of this record."""

    def __init__(self, problem: Problem, limit: float) -> None:
        self.objectives: list[float] = []
        self.seconds: list[float] = []
        self._problem, self._limit = problem, limit
        self.begin()

    def begin(self) -> None:
        """Start the clock; again for each separate run."""
        self._others, self._began = 0.0, time.process_time()

    def note(self, factors: Callable[[], Factors]) -> bool:
        """Record an iteration; return whether the time is over."""
        now = time.process_time()
        self.seconds.append(now - self._began - self._others)
        self.objectives.append(self._problem.objective(factors()))
        self._others += time.process_time() - now
        return self.seconds[-1] > self._limit

    def seconds_to(self, objective: float) -> float | None:
        """Return the seconds until an objective is reached; None if it is not."""
        pairs = zip(self.seconds, self.objectives, strict=True)
        return next((seconds for seconds, each in pairs if each <= objective), None)


def factors_of(vector: Matrix, shape: Sequence[int], rank: int) -> Factors:
    """Return the factor matrices of pyttb's vector of variables."""
    ends = np.cumsum([length * rank for length in shape])[:-1]
    return [each.reshape(-1, rank, order="F") for each in np.split(vector, ends)]


def scaled(model: Any) -> Factors:
    """Return the factor matrices of a model, the first one with its weights."""
    return [model.factors[0] * model.weights, *model.factors[1:]]


Way = Callable[[Problem, Factors, float], Course]


def with_amped(problem: Problem, start: Factors, limit: float, tol: float = 0.0) -> Course:
    """Run amped in double precision on one thread."""
    course = Course(problem, limit)
    amped.cp_als(
        np.where(problem.observed, problem.tensor, np.nan), problem.rank, mask="nan", init=start, tol=tol,
        max_iters=problem.iterations, nonnegative=problem.nonnegative, precision="fp64", device="cpu", threads=1,
        callback=lambda iteration, fit, view: course.note(lambda: scaled(view.model())),
    )  # fmt: skip
    return course


def with_tensorly(problem: Problem, start: Factors, limit: float) -> Course:
    """Run TensorLy's imputation; the non-negative one has no callback, so that longer and longer runs are measured."""
    from tensorly.cp_tensor import CPTensor
    from tensorly.decomposition import non_negative_parafac, parafac

    tensor, course = np.where(problem.observed, problem.tensor, 0), Course(problem, limit)

    def call(function: Callable[..., Any], iterations: int, **more: Any) -> Any:
        init = CPTensor((np.ones(problem.rank), [each.copy() for each in start]))
        how = {"n_iter_max": iterations, "init": init, "mask": problem.observed, "return_errors": True, "tol": 0}
        return function(tensor, problem.rank, **how, **more)[0]

    if not problem.nonnegative:
        call(parafac, 10**6, callback=lambda found, error: course.note(lambda: scaled(found)))
        return course
    iterations, over = 25, False
    while not over:
        course.begin()
        found = call(non_negative_parafac, iterations)
        over, iterations = course.note(lambda found=found: scaled(found)), 2 * iterations
    return course


def with_pyttb(problem: Problem, start: Factors, limit: float) -> Course:
    """Run pyttb's GCP with a mask, by L-BFGS."""
    import pyttb
    from pyttb.gcp.handles import gaussian, gaussian_grad
    from pyttb.gcp.optimizers import LBFGSB

    course, shape = Course(problem, limit), problem.tensor.shape

    def note(vector: Matrix) -> None:
        if course.note(lambda: factors_of(vector, shape, problem.rank)):
            raise TimeoutError

    tensor = np.where(problem.observed, problem.tensor, 0)
    objective = gaussian, gaussian_grad, 0.0 if problem.nonnegative else -math.inf
    solver = LBFGSB(maxiter=10**6, factr=1.0, pgtol=0.0, maxfun=10**7, callback=note)
    init = pyttb.ktensor([np.asfortranarray(each) for each in start])
    mask = pyttb.tensor(problem.observed.astype(float))
    with contextlib.suppress(TimeoutError):
        pyttb.gcp_opt(pyttb.tensor(tensor), problem.rank, objective, solver, init, mask, printitn=0)
    return course


WAYS: dict[str, Way] = {"amped": with_amped, "TensorLy": with_tensorly, "pyttb": with_pyttb}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = common_flags(parser, "gaps-cpu", device=None)
    add("tensor", type=Path, metavar="TENSOR", help="file of a dense tensor of order 3, such as aminoacid_3d.tns.gz")
    add("--rank", type=int, default=3, metavar="R", help="number of components (3)")
    add("--missing", type=float, nargs="+", default=[0.1, 0.35, 0.9], metavar="F", help="fractions (0.1 0.35 0.9)")
    add("--starts", type=int, default=5, metavar="K", help="random starts of each (5)")
    add("--iterations", type=int, default=ITERATIONS, metavar="N", help=f"of amped at most ({ITERATIONS})")
    add("--limit", type=float, default=10.0, metavar="S", help="processor seconds of a run at most (10)")


def run(args: argparse.Namespace) -> None:
    """Measure; rewrite the results file after each case."""
    tensor = amped.read(args.tensor).todense().astype(np.float64)
    result = Result(args, "gaps-cpu", ["CPU"], packages=versions_of(["numpy", *PEERS]), limit=args.limit)
    for missing in args.missing:
        for nonnegative in (False, True):
            problem = Problem(tensor, missing, args.rank, args.starts, args.iterations, nonnegative)
            case = {"tensor": args.tensor.name.split(".")[0], "shape": tensor.shape, "rank": args.rank}
            case |= {"missing": missing, "nonnegative": nonnegative, **measured(problem, args.limit)}
            result.add(case, line(case))


def measured(problem: Problem, limit: float) -> Facts:
    """Run all packages from each start in turn, after a run of each that is not measured."""
    optimum = problem.optimum()
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    lowest = dict.fromkeys(WAYS, math.inf)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for way in WAYS.values():
            way(problem, problem.starts[0], 0.0)
        for start in problem.starts:
            for name, way in WAYS.items():
                course = way(problem, start, limit)
                lowest[name] = min(lowest[name], *course.objectives)
                seconds = course.seconds_to(optimum * (1 + CLOSE))
                found[name] += [] if seconds is None else [seconds]
    return {
        "optimum": optimum,
        "lowest": lowest,
        "starts": len(problem.starts),
        "reached": {name: len(each) for name, each in found.items()},
        "seconds_to_optimum": {name: summary(each) for name, each in found.items() if each},
    }


def line(case: Facts) -> str:
    """Return a case as text."""
    seconds = case["seconds_to_optimum"]
    each = (
        f"{name} {seconds[name]['median'] * 1e3:.0f} ms ({reached} of {case['starts']})" if reached
        else f"{name} not reached ({case['lowest'][name] / case['optimum'] - 1:.1e} above)"
        for name, reached in case["reached"].items()
    )  # fmt: skip
    kind = "non-negative" if case["nonnegative"] else "plain"
    return f"{case['tensor']}, {case['missing']:.0%} missing, {kind}: " + ", ".join(each)
