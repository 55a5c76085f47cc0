"""Iterations and whole calls on hypersparse tensors, whose modes are mostly empty, beside a tensor with short modes.

An older tree takes turns, if given; each tree has a process for each tensor.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from .counter_rng import Recipe
from .harness import Result, common_flags, summaries
from .regression import REPOSITORY, environment, revision, tree_process
from .stored import archive, once

CALL = 2  # iterations of a whole call


class Case(NamedTuple):
    """A function with its rank, the iterations of which the median counts, and options; constraints are a list."""

    function: str
    rank: Any
    iterations: int
    options: Mapping[str, Any] = MappingProxyType({})


METHODS = {
    "als": Case("cp_als", 32, 10),
    "mu": Case("cp_apr", 16, 4),
    "hooi": Case("tucker", (8, 8, 8), 6),
    "admm": Case("cp_als", 16, 6, {"constraints": [["nonnegative", "l1:0.1"]] * 3}),
    "lbfgs": Case("cp", 16, 6, {"loss": "poisson", "method": "lbfgs"}),
    "masked-lbfgs": Case("cp", 16, 6, {"loss": "huber:1", "method": "lbfgs", "mask": "stored"}),
    "masked": Case("cp_als", 16, 6, {"mask": "stored", "ridge": 0.1}),
}
SHAPES = {"short": (12_092, 9_184, 28_818), "long": (300_000, 200_000, 500_000)}
NONZEROS = 500_000
LARGE = (300_000, 200_000, 1_000_000)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = common_flags(parser, "hypersparse-cpu", device=None, repeats=5)
    add("--old", type=Path, metavar="TREE", help="of an older version, such as what git archive writes")
    add("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    add("--skews", nargs="+", type=float, default=[1.0, 0.0], metavar="S", help="Zipf exponents of the indices (1 0)")
    add(
        "--nonzeros",
        type=int,
        default=NONZEROS,
        help=f"of the pair; the large tensor has four times as many ({NONZEROS})",
    )
    add("--folder", type=Path, metavar="DIR", help="keeps tensors and compiled code (a temporary one)")


class Sides(NamedTuple):
    """The trees that take turns, by name, and where their tensors and compiled code are."""

    trees: dict[str, Path]
    folder: Path
    repeats: int


class Trial(NamedTuple):
    """A method and a tensor."""

    method: str
    name: str
    shape: tuple[int, ...]
    nonzeros: int
    skew: float

    def path(self, folder: Path) -> Path:
        """Return where the tensor is; it is made if it is not there."""
        recipe = Recipe(self.shape, self.nonzeros, self.skew, integers=True)
        return once(folder / f"{self.name}-{self.nonzeros}-{self.skew:g}.npz", lambda path: archive(path, recipe))


def run(args: argparse.Namespace) -> None:
    """Measure; rewrite the result after each case."""
    from amped.backend.choose import choose
    from amped.parallel.mpi import SingleComm

    trees = {**({"old": args.old.resolve()} if args.old else {}), "new": REPOSITORY}
    revisions = {side: revision(tree) for side, tree in trees.items()}
    device = choose("cpu", SingleComm()).description
    result = Result(args, "hypersparse-cpu", [device], revisions=revisions, load=os.getloadavg())
    with tempfile.TemporaryDirectory() as scratch:
        sides = Sides(trees, (args.folder or Path(scratch)).resolve(), args.repeats)
        for skew, method in product(args.skews, args.methods):
            trials = [Trial(method, name, shape, args.nonzeros, skew) for name, shape in SHAPES.items()]
            if method == "als":
                trials.append(Trial(method, "large", LARGE, 4 * args.nonzeros, skew))
            case = {"method": method, "skew": skew, **{each.name: measured(each, sides) for each in trials}}
            case["long_over_short"] = {side: _ratios(case, side) for side in trees}
            result.add(case, _line(case))


def _ratios(case: dict[str, Any], side: str) -> dict[str, float]:
    """Return how many times longer an iteration takes with long modes, by the clock and of the processor."""
    times = ("iteration", "iteration_processor")
    return {each: case["long"][side][each]["median"] / case["short"][side][each]["median"] for each in times}


def _line(case: dict[str, Any]) -> str:
    """Return what is printed of a case."""
    parts = []
    for side, ratios in case["long_over_short"].items():
        times = [
            f"{name} {case[name][side]['iteration']['median'] * 1e3:.4g}" for name in (*SHAPES, "large") if name in case
        ]
        call = case["long"][side]["call"]["median"]
        shown = " and ".join(f"{ratio:.2f}" for ratio in ratios.values())
        parts.append(f"{side}: {', '.join(times)} ms, long/short {shown} (processor), call {call:.3g} s")
    return f"{case['method']}, skew {case['skew']:g}: " + "; ".join(parts)


def measured(trial: Trial, sides: Sides) -> dict[str, Any]:
    """Return the used indices of a tensor, and the times of each tree."""
    path = trial.path(sides.folder)
    with np.load(path) as arrays:
        used = [int(np.unique(column).size) for column in arrays["indices"].T]
    case = METHODS[trial.method]
    request = {**case._asdict(), "options": dict(case.options), "tensor": str(path), "call": CALL}
    times: dict[str, dict[str, list[float]]] = {side: {} for side in sides.trees}
    with ExitStack() as stack:
        asks = {}
        for side, tree in sides.trees.items():
            environ = environment(tree, sides.folder / f"cache-{side}") | {"AMPED_COMPILE": "always"}
            asks[side], _ = stack.enter_context(tree_process("call_worker.py", tree, environ, sides.folder))
        for turn, side in product(range(-1, sides.repeats), sides.trees):  # the first turn compiles
            for which, seconds in asks[side](request).items():
                times[side].setdefault(which, []).extend([seconds] * (turn >= 0))
    facts = {"shape": trial.shape, "nonzeros": trial.nonzeros, "used": used}
    return facts | {side: summaries(each) for side, each in times.items()}
