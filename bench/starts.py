"""Starts of CP-ALS: how many of 240 small tensors reach their optimum, by default and with plain iterations."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import amped

from .harness import Facts, Result, common_flags
from .spread import summary

Matrix = NDArray[np.float64]
EXACT, ARRIVED, NEAR = 0.99, 0.999, 1e-3  # fits of exact tensors; distance from the fit of planted components
NOISE = 0.3  # norm of the noise, relative to that of the planted tensor
WAYS: dict[str, dict[str, Any]] = {
    "plain": {"max_iters": 50, "tol": 1e-5},
    "plain, 500": {"max_iters": 500, "tol": 0},
    "default, random start": {},
    "default": {},
}


class Problem(NamedTuple):
    """A tensor with planted components."""

    tensor: Any
    rank: int
    goal: float  # fit of the optimum, at least


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = common_flags(parser, "starts-cpu", "cpu", repeats=3)
    add("--tensors", type=int, default=40, metavar="K", help="of each family (40)")
    add("--precision", choices=("fp32", "fp64"), default="fp32", help="of the factor matrices (fp32)")
    add("--ways", nargs="*", choices=tuple(WAYS), default=tuple(WAYS), help="(all)")


def run(args: argparse.Namespace) -> None:
    """Measure; rewrite the results file after each family."""
    options = {"device": args.device, "precision": args.precision}
    device = amped.cp_als(np.eye(3), 1, max_iters=1, **options).run["device_description"].split(",")
    result = Result(args, "starts-cpu", [",".join(device[:2])], tensors=args.tensors, **options)
    for name, problem in FAMILIES.items():
        problems = [problem(seed) for seed in range(args.tensors)]
        ways = {way: measured(way, problems, options, args.repeats) for way in args.ways}
        result.add({"family": name, "rank": problems[0].rank, "ways": ways}, f"{name}: {_line(ways)}")


def measured(way: str, problems: list[Problem], options: Facts, repeats: int) -> Facts:
    """Return how many problems miss their optimum, and iterations and processor time by problem."""
    seconds, fits = [], list[list[float]]()
    for _ in range(repeats):
        began = time.process_time()
        fits = [_fits(way, seed, problem, options) for seed, problem in enumerate(problems)]
        seconds.append((time.process_time() - began) / len(problems))
    misses = sum(each[-1] < problem.goal for each, problem in zip(fits, problems, strict=True))
    arrived = [next((i + 1 for i, fit in enumerate(each) if fit > ARRIVED), None) for each in fits]
    median = float(np.median([len(each) + 1 if i is None else i for i, each in zip(arrived, fits, strict=True)]))
    mean = float(np.mean([len(each) for each in fits]))
    return {"missed": misses, "iterations": mean, f"iterations to {ARRIVED}": median, "seconds": summary(seconds)}


def _fits(way: str, seed: int, problem: Problem, options: Facts) -> list[float]:
    start = {} if way == "default" else {"seed": seed + 9}
    return amped.cp_als(problem.tensor, problem.rank, **WAYS[way], **start, **options).fits


def _line(ways: Facts) -> str:
    parts = []
    for way, facts in ways.items():
        milliseconds = facts["seconds"]["median"] * 1e3
        parts.append(f"{way}: {facts['missed']} missed, {facts['iterations']:.0f} iterations, {milliseconds:.1f} ms")
    return "; ".join(parts)


def _exact(shape: tuple[int, ...], rank: int, seed: int) -> Problem:
    """Return a tensor of normally distributed components."""
    rng = np.random.default_rng(seed)
    return Problem(_tensor([rng.normal(size=(length, rank)) for length in shape]), rank, EXACT)


def _collinear(length: int, rank: int, cosine: float, seed: int) -> Problem:
    """Return a tensor whose components have this cosine in each mode."""
    rng = np.random.default_rng(seed)
    mixed = np.linalg.cholesky(np.full((rank, rank), cosine) + (1 - cosine) * np.eye(rank)).T
    factors = [np.linalg.qr(rng.normal(size=(length, rank)))[0] @ mixed for _ in range(3)]
    return Problem(_tensor(factors), rank, EXACT)


def _half_zero(shape: tuple[int, ...], rank: int, seed: int) -> Problem:
    """Return a tensor of components half of whose entries are zero."""
    rng = np.random.default_rng(seed)
    factors = [rng.random((length, rank)) * (rng.random((length, rank)) < 0.5) for length in shape]
    return Problem(_tensor(factors), rank, EXACT)


def _noisy(shape: tuple[int, ...], rank: int, seed: int) -> Problem:
    """Return an exact tensor plus noise."""
    rng = np.random.default_rng(seed)
    planted, noise = _exact(shape, rank, seed).tensor, rng.normal(size=shape)
    noise *= NOISE * np.linalg.norm(planted) / np.linalg.norm(noise)
    fit = 1 - np.linalg.norm(noise) / np.linalg.norm(planted + noise)
    return Problem(planted + noise, rank, float(fit) - NEAR)


def _blocks(shape: tuple[int, ...], rank: int, seed: int) -> Problem:
    """Return a sparse tensor of components with few entries: overlapping blocks, as of groups in event data."""
    rng = np.random.default_rng(seed)
    factors = [np.zeros((length, rank)) for length in shape]
    for factor in factors:
        for column in factor.T:
            column[rng.choice(len(column), len(column) // 5, replace=False)] = 0.5 + rng.random(len(column) // 5)
    whole = _tensor(factors)
    places = np.argwhere(whole)
    return Problem(amped.SparseTensor(places, whole[tuple(places.T)], shape), rank, EXACT)


def _tensor(factors: list[Matrix]) -> Matrix:
    """Return the sum of the components."""
    result = factors[0]
    for factor in factors[1:]:
        result = result[..., None, :] * factor
    return result.sum(axis=-1)


FAMILIES: dict[str, Callable[[int], Problem]] = {
    "5 x 6 x 7, rank 2": partial(_exact, (5, 6, 7), 2),
    "10 x 10 x 10, rank 4": partial(_exact, (10, 10, 10), 4),
    "collinear 0.9, rank 4": partial(_collinear, 12, 4, 0.9),
    "order 4, half zero, rank 3": partial(_half_zero, (8, 7, 6, 5), 3),
    "sparse blocks, rank 5": partial(_blocks, (40, 30, 20), 5),
    "noise 0.3, rank 4": partial(_noisy, (20, 18, 16), 4),
}
