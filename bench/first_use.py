"""Time to the first answer on a CPU: whole processes with empty and with filled caches, and warm calls on small arrays.

TensorLy and pyttb run beside amped, in turn, if they are installed.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from .bundled import UBER, bundled
from .first_calls import NATIONS, PROGRAMS
from .harness import Facts, Result, common_flags, environment_with, in_turn, seconds_of, summaries, versions_of
from .spread import summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PEERS = ("numpy", "scipy", "numba", "tensorly", "pyttb")
VARIABLES = ("NUMBA_CACHE_DIR", "CUPY_CACHE_DIR", "CUDA_CACHE_PATH", "MPLCONFIGDIR", "PYTHONDONTWRITEBYTECODE")
"""Not passed on, so that caches are in the new home; Python's bytecode is compiled before, as by an installation."""
TARGETS = {
    "import amped": (0.25, 0.25), "amped --help": (0.4, 0.4),
    "dense 5 x 201 x 61, three non-negative components": (1.0, None),
    "cp_als of the bundled tensor, rank 6": (1.0, None),
    "cp_apr of nations, rank 5": (1.5, None), "scan 1-6 x 3 of the bundled tensor": (4.0, None),
    "amped cpd of the bundled tensor": (1.5, 0.9), "amped cpd uber393k --rank 16": (4.0, 0.9),
}  # fmt: skip
"""Seconds with empty and with filled caches that are the goal; see docs/design/first_use.md."""
COMPILED = """
import os, sys
os.environ["AMPED_COMPILE"] = "always"
from amped.run import main
sys.exit(main(sys.argv[1:]))
"""
SHAPES = (((16, 105, 20), 10), ((5, 201, 61), 3))
EXACT = 1e-300  # a tolerance of TensorLy with which it runs all iterations


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = common_flags(parser, "first-use-cpu", device=None, repeats=5)
    add("--part", nargs="+", choices=PARTS, default=list(PARTS), help="what is measured (all)")
    add("--data", type=Path, default=Path("shared/data"), help="folder of nations_3d.tns.gz (shared/data)")
    add("--iterations", type=int, nargs="+", default=[10, 20, 50, 100, 200], help="of warm calls (10 20 50 100 200)")
    add("--only", metavar="TEXT", default="", help="only cases whose name contains it")


def run(args: argparse.Namespace) -> None:
    """Measure; rewrite the results file after each case."""
    result = Result(args, "first-use-cpu", ["CPU"], packages=versions_of(PEERS))
    for part in args.part:
        for case in PARTS[part](args):
            case = {"part": part, **case}
            result.add(case, line(case))
    result.draw(picture)


def processes(args: argparse.Namespace) -> Iterator[Facts]:
    """Start processes with a new home and empty caches, and again."""
    commands: dict[str, dict[str, list[str]]] = {
        "import amped": {"amped": ["-c", "import amped"]},
        "amped --help": {"amped": ["-m", "amped.run", "--help"]},
        "amped cpd of the bundled tensor": {"amped": _cpd(bundled(), 6)},
        "amped cpd uber393k --rank 16": {"amped": _cpd(bundled(UBER), 16)},
        "amped cpd uber393k --rank 32": {
            "amped": _cpd(bundled(UBER), 32), "amped (compiled)": ["-c", COMPILED, *_cpd(bundled(UBER), 32)[2:]]
        },
    }  # fmt: skip
    data = args.data.resolve()
    for problem, programs in PROGRAMS.items():
        if NATIONS.split("_")[0] in problem and not (data / NATIONS).exists():
            continue
        commands[problem] = {
            package: ["-m", "bench.first_calls", problem, package, str(data), "CALLS"]
            for package in programs
            if _is_installed(package)
        }
    for problem, words in commands.items():
        if args.only in problem:
            with tempfile.TemporaryDirectory() as bytecode:
                yield from _cases(problem, words, args.repeats, Path(bytecode))


def _cpd(tensor: Path, rank: int) -> list[str]:
    return ["-m", "amped.run", "cpd", str(tensor), "--rank", str(rank), "--device", "cpu", "--output", "out", "--force"]


def _is_installed(package: str) -> bool:
    name = package.split(" ")[0].lower()
    return name == "amped" or versions_of([name])[name] != "not installed"


def _cases(problem: str, programs: dict[str, list[str]], repeats: int, bytecode: Path) -> Iterator[Facts]:
    """Measure the programs in turn, each with empty caches and then with filled ones."""
    measured: dict[str, dict[str, list[Facts]]] = {package: {"cold": [], "warm": []} for package in programs}
    for repeat in range(repeats + 1):
        for package, command in programs.items():
            with tempfile.TemporaryDirectory() as home:
                cold, warm = (_times_of(command, Path(home), bytecode, calls) for calls in (2, 1))
            if repeat:  # the first ones compile Python's bytecode
                measured[package]["cold"].append(cold)
                measured[package]["warm"].append(warm)
    for package, each in measured.items():
        for when, facts in each.items():
            names = [name for name in facts[0] if name != "later"] if when == "warm" else list(facts[0])
            seconds = {name: summary([fact[name] for fact in facts]) for name in names}
            yield {"problem": problem, "package": package, "when": when, "seconds": seconds}


def _times_of(command: Sequence[str], home: Path, bytecode: Path, calls: int) -> Facts:
    """Return the wall and CPU seconds of a process and, if it makes Python calls, of its first and its later calls.

    The later calls are subtracted from the seconds of the process.
    """
    places = {"HOME": home, "XDG_CACHE_HOME": home / "cache", "PYTHONPYCACHEPREFIX": bytecode}
    environment = environment_with(places, VARIABLES)
    words = [str(calls) if word == "CALLS" else word for word in command]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *words], env=environment, cwd=home, check=True, capture_output=True, text=True
    )
    whole = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    facts = {"process": whole, "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}
    if command[-1] == "CALLS":
        (first, _), *later = json.loads(done.stdout.splitlines()[-1])
        seconds, used = (sum(numbers) for numbers in zip(*later, strict=True)) if later else (0.0, 0.0)
        facts = {"process": whole - seconds, "cpu": facts["cpu"] - used, "first": first}
        facts |= {"later": seconds} if later else {}
    return facts


def arrays(args: argparse.Namespace) -> Iterator[Facts]:
    """Decompose small arrays in one process, from the same start, in double precision."""
    for shape, rank in SHAPES:
        for nonnegative in (False, True):
            for iterations in args.iterations:
                name = f"{' x '.join(map(str, shape))}, rank {rank}{', non-negative' if nonnegative else ''}"
                if args.only in name:
                    facts = _small(shape, rank, nonnegative, iterations, args.repeats)
                    yield {"problem": name, "iterations": iterations, **facts}


def _small(shape: tuple[int, ...], rank: int, nonnegative: bool, iterations: int, repeats: int) -> Facts:
    rng = np.random.default_rng(0)
    X, start = rng.random(shape), [rng.random((n, rank)) for n in shape]
    ways = dict(_ways(X, start, nonnegative, iterations))
    models = {name: way() for name, way in ways.items()}
    fits = {name: _fit(X, model) for name, model in models.items()}
    seconds = summaries(in_turn({name: partial(seconds_of, way) for name, way in ways.items()}, 4 * repeats))
    reported = models["amped"].fits[-1]
    facts = {"seconds": seconds, "fits": fits, "reported_minus_computed_fit": reported - fits["amped"]}
    if "TensorLy" in fits:
        facts["amped_minus_tensorly_fit"] = fits["amped"] - fits["TensorLy"]
    return facts


def _ways(
    X: np.ndarray, start: Sequence[np.ndarray], nonnegative: bool, iterations: int
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield each package's decomposition, which runs all iterations."""
    import amped

    rank = start[0].shape[1]
    yield (
        "amped",
        lambda: amped.cp_als(
            X, rank, init=start, max_iters=iterations, tol=0, precision="fp64", nonnegative=nonnegative, device="cpu"
        ),
    )
    if not _is_installed("tensorly"):
        return
    warnings.simplefilter("ignore")
    from tensorly import cp_tensor, decomposition

    def begin() -> Any:
        return cp_tensor.CPTensor((np.ones(rank), [factor.copy() for factor in start]))

    how = {"n_iter_max": iterations, "tol": EXACT}
    if nonnegative:
        yield "TensorLy", lambda: decomposition.non_negative_parafac_hals(X, rank, init=begin(), **how)
        yield "TensorLy (multiplicative)", lambda: decomposition.non_negative_parafac(X, rank, init=begin(), **how)
    else:
        yield "TensorLy", lambda: decomposition.parafac(X, rank, init=begin(), **how)


def _fit(X: np.ndarray, model: Any) -> float:
    """Return the fit of a model, from all its elements."""
    weights, factors = model
    rest = np.einsum("r,ir,jr,kr->ijk", weights, *factors, optimize=True)
    return float(1 - np.linalg.norm(X - rest) / np.linalg.norm(X))


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Facts]]] = {"processes": processes, "arrays": arrays}


def line(case: Facts) -> str:
    """Return a case as one line of text."""
    seconds = case["seconds"]
    if case["part"] == "processes":
        each = ", ".join(f"{name} {summed['median']:.2f}" for name, summed in seconds.items())
        return f"{case['problem']}: {case['package']}, {case['when']}: {each} s{_target(case)}"
    each = ", ".join(f"{name} {1e3 * summed['median']:.2f}" for name, summed in seconds.items())
    apart = case.get("amped_minus_tensorly_fit")
    fits = "" if apart is None else f"; fits {apart:+.1e} apart"
    return f"{case['problem']}, {case['iterations']} iterations: {each} ms{fits}"


def _target(case: Facts) -> str:
    goal = TARGETS.get(case["problem"], (None, None))[case["when"] == "warm"]
    return f" (goal {goal} s)" if goal is not None and case["package"] == "amped" else ""


def picture(pyplot: ModuleType, result: Facts) -> Figure:
    """Draw the seconds of processes, and the time of warm calls relative to TensorLy's."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.5), width_ratios=(3, 2))
    cases = [case for case in result["cases"] if case["part"] == "processes"]
    bars = list(dict.fromkeys((case["problem"], case["package"]) for case in cases))
    for when, height, colour in (("cold", 0.8, "#66ccee"), ("warm", 0.4, "#4477aa")):
        seconds = {(c["problem"], c["package"]): c["seconds"]["process"]["median"] for c in cases if c["when"] == when}
        left.barh(range(len(bars)), [seconds[bar] for bar in bars], height, color=colour, label=f"{when} caches")
    labels = [problem if package == "amped" else f"{package}  " for problem, package in bars]
    left.set_yticks(range(len(bars)), labels)
    left.invert_yaxis()
    left.set_xlabel("seconds of a process")
    left.legend()
    rows = [case for case in result["cases"] if case["part"] == "arrays" and "TensorLy" in case["seconds"]]
    for problem in dict.fromkeys(case["problem"] for case in rows):
        mine = [case for case in rows if case["problem"] == problem]
        ratios = [c["seconds"]["amped"]["median"] / c["seconds"]["TensorLy"]["median"] for c in mine]
        right.plot([case["iterations"] for case in mine], ratios, "o-", label=problem)
    right.axhline(1, color="#bbbbbb", linewidth=1)
    right.set(xscale="log", xlabel="iterations", ylabel="time of a warm call over TensorLy's", ylim=(0, 1.4))
    if rows:
        right.legend(fontsize=7, loc="upper right")
    figure.tight_layout()
    return figure
