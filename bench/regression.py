"""Whether a tree of sources is slower than an older one: both take turns, and each case gets a ratio old/new.

Each side is a separate process that runs amped's command line, and is started again for each part of the repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from amped.errors import InputError

from . import record
from .spread import ratio, summary
from .stored import archive, array, once
from .synthetic import recipe

REPOSITORY = Path(__file__).parent.parent
UBER393K = Path("amped", "data", "uber393k_4d.tns.gz")  # in each tree
WARM_ITERATIONS = 3  # that do not count: kernels are compiled, and what can be prepared is
LEAST = 0.98  # ratio old/new
DEADLINE = 900  # seconds for a step, which may compile on a busy machine
CACHES = "NUMBA_CACHE_DIR", "CUPY_CACHE_DIR"
Events = list[dict[str, Any]]


class Tensor(NamedTuple):
    """A tensor in a file: a shape of `synthetic.SHAPES`, or a dense one of random numbers, or uber393k."""

    shape: str | tuple[int, ...] | None = None
    nonzeros: int | None = None
    integers: bool = False

    def path(self, folder: Path, partition: Callable[[Path, Path], None]) -> Path:
        """Return where it is; it is made if it is not there. A sparse one is a store, made by `partition`."""
        if self.shape is None:
            return REPOSITORY / UBER393K
        if isinstance(self.shape, tuple):
            shape = self.shape
            return once(folder / f"dense-{'x'.join(map(str, shape))}.npy", lambda path: array(path, shape))
        made = recipe(self.shape, self.nonzeros, integers=self.integers)
        name = f"{self.shape}-{made.nonzeros}{'-counts' if self.integers else ''}"

        def store(path: Path) -> None:
            nonzeros = once(folder / f"{name}.npz", lambda path: archive(path, made))
            partition(nonzeros, path)
            nonzeros.unlink()

        return once(folder / name, store)


class Case(NamedTuple):
    """A command whose times are compared.

    `steady`: whether its iterations do equal work. Their median counts then, else their mean.
    """

    tensor: Tensor
    command: str
    steady: bool = True


DENSE = Tensor((401, 201, 12, 501))
SWEEP = "mttkrp --mode all --rank 32 --repeat"
CP_APR = "cpd --loss poisson --rank 16 --tol 0"
CASES = {
    "cuda": {
        "nell2-sweep": Case(Tensor("nell2"), f"{SWEEP} 60"),
        "enron-sweep": Case(Tensor("enron"), f"{SWEEP} 60"),
        "nell2-cp-als": Case(Tensor("nell2"), "cpd --rank 32 --tol 0 --max-iters 150"),
        "uber393k-cp-als": Case(Tensor(), "cpd --rank 16 --tol 0 --max-iters 1000"),
        "nell2-phi": Case(Tensor("nell2", integers=True), f"{CP_APR} --max-iters 12"),
        "uber393k-pdnr": Case(
            Tensor(), "cpd --loss poisson --method pdnr --rank 16 --precision fp64 --max-iters 60", steady=False
        ),
        "nell2-hooi": Case(Tensor("nell2"), "tucker --rank 16,16,16 --tol 0 --max-iters 50"),
        "dense-32": Case(DENSE, "cpd --precision fp64 --rank 32 --tol 0 --max-iters 100"),
        "dense-500": Case(DENSE, "cpd --precision fp64 --rank 500 --tol 0 --max-iters 25"),
    },
    "cpu": {
        "nell2-5m-sweep": Case(Tensor("nell2", 5_000_000), f"{SWEEP} 15"),
        "uber-sweep": Case(Tensor("uber"), f"{SWEEP} 15"),
        "uber393k-cp-apr": Case(Tensor(), f"{CP_APR} --max-iters 12"),
        "uber393k-scan": Case(Tensor(), "scan --rank 1-6 --starts 3 --max-iters 30 --tol 0"),
    },
}
ALL = CASES["cuda"] | CASES["cpu"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = parser.add_argument
    add("--old", type=Path, required=True, metavar="TREE", help="such as what git archive writes")
    add("--new", type=Path, default=REPOSITORY, metavar="TREE", help="(this one)")
    add("--device", choices=tuple(CASES), default="cpu")
    add("--cases", nargs="+", choices=ALL, metavar="NAME", help=f"(those of the device) {', '.join(ALL)}")
    add("--repeats", type=int, default=10, metavar="K", help="of each case and side (10)")
    add("--processes", type=int, default=2, metavar="K", help="that share the repeats of a case and side (2)")
    add("--least", type=float, default=LEAST, metavar="X", help=f"smaller ratios fail ({LEAST})")
    add("--nonzeros", type=int, help="of synthetic tensors, instead of the number of their shape")
    add("--folder", type=Path, metavar="DIR", help="keeps tensors and compiled code (a temporary one)")
    add("--output", type=Path, metavar="FILE.json", help="(bench/results/regression-DEVICE.json)")


def run(args: argparse.Namespace) -> None:
    """Compare; rewrite the results file after each case. Fail if the new tree is slower."""
    output = args.output or record.RESULTS / f"regression-{args.device}.json"
    sides = {"old": args.old.resolve(), "new": args.new.resolve()}
    for tree in sides.values():
        if not (tree / "amped" / "run.py").is_file():
            raise InputError("is no tree of amped's sources", path=tree)
    found, revisions = dict[str, Any](), {side: revision(tree) for side, tree in sides.items()}
    with tempfile.TemporaryDirectory() as scratch:
        folder = (args.folder or Path(scratch)).resolve()
        for name in args.cases or CASES[args.device]:
            found[name] = compare(args, sides, with_nonzeros(ALL[name], args.nonzeros), folder)
            print(line(name, found[name]), flush=True)
            facts = {"least": args.least, "revisions": revisions, "cases": found}
            record.write(output.stem, _devices(args.device), facts, output.parent)
    if slower := [name for name, case in found.items() if case["old_over_new"]["ratio"] < args.least]:
        raise InputError(f"slower than before: {', '.join(slower)}")


def with_nonzeros(case: Case, nonzeros: int | None) -> Case:
    """Return a case with another number of nonzeros, if its tensor is sparse and synthetic."""
    if nonzeros is None or not isinstance(case.tensor.shape, str):
        return case
    return case._replace(tensor=case.tensor._replace(nonzeros=nonzeros))


def compare(args: argparse.Namespace, sides: dict[str, Path], case: Case, folder: Path) -> dict[str, Any]:
    """Return the seconds of both sides, which take turns, and their ratio."""
    path = case.tensor.path(folder, lambda source, target: partition(sides["old"], source, target, folder))
    times: dict[str, list[float]] = {side: [] for side in sides}
    kernels: dict[str, list[list[str]]] = {side: [] for side in sides}
    for part in range(min(args.processes, args.repeats)):
        with ExitStack() as stack:
            workers = {
                side: stack.enter_context(worker(tree, environment(tree, folder / f"cache-{side}"), folder))
                for side, tree in sides.items()
            }
            for turn in range(-1, len(range(part, args.repeats, args.processes))):  # the first one compiles
                order = ("old", "new") if turn % 2 else ("new", "old")
                for side in order:
                    seconds, chosen = measured(workers[side], case, path, args.device)
                    if turn >= 0:
                        times[side].append(seconds)
                        kernels[side] += [chosen] * (chosen not in kernels[side])
    return {
        "command": case.command,
        "nonzeros": case.tensor.nonzeros,
        **{side: summary(seconds) for side, seconds in times.items()},
        "kernels": kernels,
        "old_over_new": ratio(times["old"], times["new"]),
    }


def environment(tree: Path, caches: Path) -> dict[str, str]:
    """Return the environment of a side: its tree comes first, and its compiled code has a separate folder."""
    paths = [str(tree), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, **{name: str(caches / name) for name in CACHES}, "PYTHONPATH": os.pathsep.join(paths)}


def partition(tree: Path, source: Path, target: Path, folder: Path) -> None:
    """Make a store of a file with a tree's partitioner."""
    command = [sys.executable, "-P", "-m", "partitioner", str(source), "--output", str(target)]
    environ = environment(tree, folder / "cache-old")
    done = subprocess.run(command, env=environ, cwd=tree, capture_output=True, text=True)
    if done.returncode:
        raise InputError(f"cannot be partitioned: {done.stderr.strip()}", path=source)


Worker = Callable[[Sequence[str]], None]


@contextmanager
def worker(tree: Path, environ: dict[str, str], folder: Path) -> Iterator[Worker]:
    """Start a process that uses a tree; yield what runs commands in it."""
    with tree_process("command_worker.py", tree, environ, folder) as (ask, log):

        def call(command: Sequence[str]) -> None:
            if code := ask(command):
                raise InputError(f"{' '.join(command)}: exit code {code}: {log()}", path=tree)

        yield call


@contextmanager
def tree_process(
    script: str, tree: Path, environ: dict[str, str], folder: Path
) -> Iterator[tuple[Callable[[Any], Any], Callable[[], str]]]:
    """Start a script of this folder with a tree on its path.

    Yield a function that sends it a request and returns its reply, and one that returns the end of its messages.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile("w+", dir=folder) as log:
        process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name(script))], env=environ, cwd=tree, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
        )  # fmt: skip
        requests, replies = process.stdin, process.stdout
        assert requests is not None
        assert replies is not None

        def messages() -> str:
            log.seek(0)
            return log.read()[-2000:]

        def reply() -> Any:
            text = replies.readline()
            if not text:
                raise InputError(f"its process has ended: {messages()}", path=tree)
            return json.loads(text)

        def ask(request: Any) -> Any:
            print(json.dumps(request), file=requests, flush=True)
            return reply()

        try:
            used = Path(reply())
            if not used.is_relative_to(tree):
                raise InputError(f"not used: {used} is found first", path=tree)
            yield ask, messages
        finally:
            requests.close()
            process.wait()


def measured(call: Worker, case: Case, tensor: Path, device: str) -> tuple[float, list[str]]:
    """Run a case's command once in a process; return its seconds, see `seconds_of`, and the kernels that it chose."""
    verb, *flags = case.command.split()
    with tempfile.TemporaryDirectory() as scratch:
        metrics = Path(scratch) / "metrics.jsonl"
        target = {"mttkrp": "result.npz", "scan": "scan.json"}.get(verb, "model")
        call([
            verb, str(tensor), *flags, "--device", device, "--metrics", str(metrics), "--output",
            str(Path(scratch) / target), "--quiet", "--no-verify", "--deadline", str(DEADLINE),
        ])  # fmt: skip
        events = [json.loads(text) for text in metrics.read_text().splitlines()]
    chosen = next((event["kernels"][0] for event in events if event.get("kernels")), [])
    return seconds_of(events, verb, case.steady), chosen


def seconds_of(events: Events, verb: str, steady: bool) -> float:
    """Return the seconds that metrics say: of an iteration, a sweep (MTTKRPs of all modes), or a whole scan."""
    if verb == "scan":
        return float(sum(next(e for e in events if e["event"] == "end")["seconds"].values()))
    if verb == "mttkrp":
        by_mode = dict[int, list[float]]()
        for event in (e for e in events if e["event"] == "mttkrp"):
            by_mode.setdefault(event["mode"], []).append(event["seconds"])
        return sum(map(statistics.median, by_mode.values()))
    each = [event["seconds"] for event in events if event["event"] == "iteration"][WARM_ITERATIONS:]
    if not each:
        raise InputError(f"{verb} has ended within {WARM_ITERATIONS} iterations")
    if not steady:
        return statistics.fmean(each)
    # What one iteration computes last may serve the next.
    return statistics.median(map(statistics.fmean, zip(each, each[1:] or each, strict=False)))


def line(name: str, case: dict[str, Any]) -> str:
    """Return what is printed of a case."""
    old, new = (case[side]["median"] * 1e3 for side in ("old", "new"))
    found = case["old_over_new"]
    return (
        f"{name}: old {old:.4g} ms, new {new:.4g} ms, old/new {found['ratio']:.3f} "
        f"({found['low']:.3f} to {found['high']:.3f}, {found['confidence']:.0%}, {found['pairs']} pairs)"
        f"{_choices(case)}"
    )


def _choices(case: dict[str, Any]) -> str:
    """Return which kernels the sides chose, if they differ: that depends on timings that each side remembers."""
    old, new = (sorted(case["kernels"][side]) for side in ("old", "new"))
    return "" if old == new else f"; different kernels: {old}, {new}"


def revision(tree: Path) -> str:
    """Return the commit of a tree that is a checkout, or its folder's name."""
    command = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True) if (tree / ".git").exists() else None
    return done.stdout.strip() if done and not done.returncode else tree.name


def _devices(device: str) -> list[str]:
    from amped.backend.choose import choose
    from amped.parallel.mpi import SingleComm

    return [choose(device, SingleComm()).description]
