"""Extrapolation between iterations: iterations and processor time to the same objective, with and without."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import amped

from .harness import Facts, Result, common_flags
from .spread import summary

Matrix = NDArray[np.float64]
ITERATIONS = 300
CLOSE = 1e-4  # part of the plain run's gain after its first iterations that may be missing
FIRST = 5


class Task(NamedTuple):
    """A decomposition, by a function of the keyword arguments of a run."""

    decompose: Callable[..., Any]
    tensor: Any
    rank: Any
    how: dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = common_flags(parser, "acceleration-cpu", device=None, repeats=3)
    add("tensors", nargs="*", type=Path, metavar="FILE", help="real tensors, in addition to planted ones")
    add("--rank", type=int, default=8, metavar="R", help="of real tensors (8)")
    add("--iterations", type=int, default=ITERATIONS, help=f"of both ({ITERATIONS})")


def run(args: argparse.Namespace) -> None:
    """Measure; rewrite the results file after each case."""
    result = Result(args, "acceleration-cpu", ["CPU"])
    for name, task in tasks(args.tensors, args.rank).items():
        case = measured(task, args.iterations, args.repeats)
        result.add({"task": name, "rank": task.rank, **case}, line(name, case))


def tasks(files: list[Path], rank: int) -> dict[str, Task]:
    """Return the decompositions of planted tensors, and of real ones."""
    found = dict[str, Task]()
    for seed in range(3):
        dense, gaps = planted(seed), with_gaps(seed)
        found |= {
            f"non-negative, planted {seed}": Task(amped.cp_als, dense, 4, {"nonnegative": True}),
            f"masked, planted {seed}": Task(amped.cp_als, gaps, 4, {"mask": "nan"}),
            f"non-negative and masked, planted {seed}": Task(
                amped.cp_als, gaps, 4, {"mask": "nan", "nonnegative": True}
            ),
            f"non-negative Tucker, planted {seed}": Task(amped.tucker, dense, (3, 3, 3), {"nonnegative": True}),
        }
    for file in files:
        name, tensor = file.name.split(".")[0], amped.read(file)
        found |= {
            f"non-negative, {name}": Task(amped.cp_als, tensor, rank, {"nonnegative": True}),
            f"masked, {name}": Task(amped.cp_als, tensor, rank, {"mask": "stored", "ridge": 0.1}),
        }
    return found


def collinear(seed: int) -> list[Matrix]:
    """Return non-negative factor matrices whose columns resemble each other."""
    rng = np.random.default_rng(seed)
    return [rng.random((length, 4)) + rng.random((length, 1)) for length in (20, 18, 16)]


def planted(seed: int) -> Matrix:
    """Return a non-negative tensor with some noise."""
    tensor: Matrix = np.einsum("ir,jr,kr->ijk", *collinear(seed))
    return tensor + 0.05 * tensor.std() * np.random.default_rng(seed).random(tensor.shape)


def with_gaps(seed: int) -> Matrix:
    """Return the same with half of the elements missing."""
    tensor = planted(seed)
    tensor[np.random.default_rng(seed).random(tensor.shape) < 0.5] = np.nan
    return tensor


def measured(task: Task, iterations: int, repeats: int) -> Facts:
    """Run both ways in turn; the goal is what the plain run reaches."""
    ways: dict[str, list[tuple[Matrix, float]]] = {"plain": [], "accelerated": []}
    for turn in range(1 + repeats):
        for name, courses in ways.items():
            course = decomposed(task, iterations, name == "accelerated")
            courses += [course] * bool(turn)
    plain = ways["plain"][0][0]
    goal = plain[-1] - CLOSE * (plain[-1] - plain[FIRST])
    facts: Facts = {"reached": {}, "iterations": {}, "seconds": {}, "largest_fall": {}}
    for name, courses in ways.items():
        numbers = courses[0][0]
        above = np.flatnonzero(numbers >= goal)
        facts["reached"][name] = float(numbers[-1])
        facts["iterations"][name] = int(above[0]) + 1 if above.size else None
        facts["largest_fall"][name] = float(-np.diff(numbers).min() / max(1.0, abs(numbers[-1])))
        if above.size:
            share = (above[0] + 1) / numbers.size
            facts["seconds"][name] = summary([seconds * share for _, seconds in courses])
    return facts


def decomposed(task: Task, iterations: int, accelerate: bool) -> tuple[Matrix, float]:
    """Return what rises, after each iteration, and the processor seconds."""
    how = {"max_iters": iterations, "tol": 0, "precision": "fp64", "device": "cpu", "threads": 1, "seed": 1}
    began = time.process_time()
    model = task.decompose(task.tensor, task.rank, accelerate=accelerate, **how, **task.how)
    seconds = time.process_time() - began
    objectives = model.series.get("objective")
    return np.array(model.fits if objectives is None else [-each for each in objectives]), seconds


def line(name: str, case: Facts) -> str:
    """Return a line about a task."""
    parts = []
    for way, reached in case["reached"].items():
        seconds = case["seconds"].get(way)
        time = "does not reach it" if seconds is None else f"{1000 * seconds['median']:.0f} ms"
        parts.append(f"{way} {case['iterations'][way]} iterations, {time}, ends at {reached:.8g}")
    return f"{name}: {'; '.join(parts)}"
