"""Ways to solve the rows of non-negative CP-ALS: HALS and ADMM by their fits, and what constraints cost.

On a CPU also TensorLy's non-negative CP (HALS) from the same start, if it is installed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import amped
from amped.backend.exchange import Machine
from amped.errors import InputError
from amped.methods import als
from amped.methods.als import CpAls
from amped.methods.constraints import ConstraintParams
from amped.operators.sources.sparse import SparseSource
from amped.operators.sparse.operator import SparseOperator
from amped.options import Options
from amped.parallel.mpi import world
from amped.runs import assembly
from amped.runs.assembly import bring_up

from . import latency, pictures, record
from .alternating import Admm, Hals, Inner, follow
from .latency import Case
from .measure import fill_factors, with_room
from .synthetic import BUNDLED, SHAPES, SyntheticSource

CASES = {
    "uber393k": Case(BUNDLED, 16, "fp64"),
    "nycflights": Case("nycflights_5d.tns.gz", 16, "fp64"),
    "kdd99_6d": Case("kdd99_6d.tns.gz", 16, "fp64"),
    "kinships": Case("kinships_3d.tns.gz", 10, "fp64"),
    "nations": Case("nations_3d.tns.gz", 16, "fp64"),
    "aminoacid": Case("aminoacid_3d.tns.gz", 3, "fp64"),
    "matmul": Case("matmul_2-2-2.tns.gz", 7, "fp64"),
    "nell2": Case("nell2", 32),
}
MOST_DENSE = 2_000_000  # numbers of a dense tensor that TensorLy gets
DROPPED = {"nycflights": 3}  # a mode over which TensorLy's and its own are summed: days
COSTS = {
    "plain": ConstraintParams(),
    "non-negative": ConstraintParams(nonnegative=True),
    "ridge": ConstraintParams(ridge=1e-3),
    "first mode fixed": ConstraintParams(fixed_modes=(0,)),
}
NEAR = 0.99  # of the best fit of any way from the same start


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    parser.add_argument("--case", nargs="+", choices=CASES, help="(all files; of a GPU nell2 too)")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="where files are that are not amped's own")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--iterations", type=int, default=100, help="(100)")
    parser.add_argument("--starts", type=int, default=5, help="of each case (5)")
    parser.add_argument("--name", help="of the result (nonnegative-DEVICE)")
    parser.add_argument("--output", type=Path, default=record.RESULTS, metavar="FOLDER")


def run(args: argparse.Namespace) -> None:
    """Measure; rewrite the results file after each case. On one process."""
    machine = bring_up(Options(args.device), world())
    device, found = machine.device, dict[str, list[dict[str, Any]]](paths=[], peer=[], costs=[])
    names = args.case or [name for name in CASES if name != "nell2" or not device.on_host]
    for name in names:
        try:
            source = latency.opened(CASES[name], machine, args.data)
        except InputError as error:
            print(f"{name}: skipped: {error}", flush=True)
            continue
        for kind, facts in _of(name, source, machine, args):
            found[kind].append({"case": name, "lengths": source.shape, "nonzeros": source.nnz, **facts})
            print(line(kind, found[kind][-1]), flush=True)
            path = record.write(args.name or f"nonnegative-{device.name}", [device.description], found, args.output)
    if any(found.values()):
        pictures.draw(path)


def _of(
    name: str, source: SparseSource, machine: Machine, args: argparse.Namespace
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what is measured of a case, and its kind."""
    case = CASES[name]
    operator = _placed(source, case, machine, args.device)
    if machine.device.on_host:
        for seed in range(args.starts):
            yield from (("paths", facts) for facts in paths(operator, seed, args.iterations))
    for constraint, wanted in COSTS.items():
        fill_factors(operator)
        method = CpAls(operator, wanted.of(operator.order))
        seconds, kinds = latency.timed(method, args.iterations)
        facts = {"constraint": constraint, "seconds_an_iteration": record.summary(seconds), "seconds_by_kind": kinds}
        yield "costs", {"rank": case.rank, "precision": case.precision, **facts}
    if machine.device.on_host and (facts := peer(name, args.data, args.iterations)):
        yield "peer", facts


def _placed(source: SparseSource, case: Case, machine: Machine, device: Any) -> SparseOperator:
    options = Options(device, case.precision)
    if isinstance(source, SyntheticSource):
        options = with_room(source, options, machine.comm)
    constraints = COSTS["non-negative"].of(len(source.shape))
    solving = als.solving_bytes(machine, options.dtype, len(source.shape), constraints)
    return assembly.place(source, case.rank, machine, options, solving)


def paths(operator: SparseOperator, seed: int, iterations: int) -> list[dict[str, Any]]:
    """Return how each way to solve rows fared from one start."""
    start, rank = _start(operator.shape, operator.ranks[0], seed), operator.ranks[0]
    ways: list[Inner] = [*map(Hals, (1, 2, 5, 10)), *map(Admm, (5, 10))]
    follow(operator, start, Hals(1), 1)  # compiles
    follow(operator, start, Admm(1), 1)
    found = [follow(operator, start, way, iterations) for way in ways]
    best = max(max(path.fits) for path in found)
    facts = list[dict[str, Any]]()
    for way, path in zip(ways, found, strict=True):
        near = next((k for k, fit in enumerate(path.fits) if fit >= NEAR * best), None)
        facts.append({
            "rank": rank, "seed": seed, "way": way.name, "fit": path.fits[-1], "below_the_best": best - path.fits[-1],
            "iterations_until_near": None if near is None else near + 1,
            "seconds_until_near": None if near is None else path.seconds[near],
            "seconds_of_rows": path.seconds_of_rows, "largest_fall": max(0.0, -float(np.diff(path.fits).min())),
            "seconds_an_iteration": path.seconds[-1] / iterations,
        })  # fmt: skip
        if seed == 0:  # those that are drawn
            series = {"fits": [round(fit, 7) for fit in path.fits], "seconds": [round(s, 5) for s in path.seconds]}
            facts[-1] |= series
    return facts


def _start(shape: tuple[int, ...], rank: int, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.random((length, rank)) for length in shape]


def peer(name: str, folder: Path | None, iterations: int) -> dict[str, Any] | None:
    """Return fits and seconds of TensorLy's and amped's decompositions of a small tensor from the same start."""
    try:
        from tensorly.cp_tensor import CPTensor, cp_to_tensor
        from tensorly.decomposition import non_negative_parafac_hals
    except ImportError:
        return None
    case = CASES[name]
    dense = None if case.tensor in SHAPES else _dense(amped.read(latency.located(case, folder)), DROPPED.get(name))
    if dense is None:
        return None
    rank, start = case.rank, _start(dense.shape, case.rank, 0)
    tensor = amped.SparseTensor(np.argwhere(dense), dense[dense != 0], dense.shape)
    options: dict[str, Any] = {"init": start, "tol": 0, "nonnegative": True, "precision": "fp64", "device": "cpu"}
    amped.cp_als(tensor, rank, max_iters=1, **options)  # compiles
    began = time.perf_counter()
    model = amped.cp_als(tensor, rank, max_iters=iterations, **options)
    ours, began = time.perf_counter() - began, time.perf_counter()
    init = CPTensor((np.ones(rank), [factor.copy() for factor in start]))
    found = non_negative_parafac_hals(dense, rank, n_iter_max=iterations, init=init, tol=0)
    theirs = time.perf_counter() - began
    fit = 1 - float(np.linalg.norm(dense - cp_to_tensor(found)) / np.linalg.norm(dense))
    return {
        "rank": rank, "lengths": dense.shape, "iterations": iterations, "fit": model.fits[-1], "seconds": ours,
        "fit_of_tensorly": fit, "seconds_of_tensorly": theirs,
    }  # fmt: skip


def _dense(tensor: amped.SparseTensor, dropped: int | None) -> Any:
    """Return a dense copy, summed over a mode if one is to be dropped; None if it would be too large."""
    kept = [mode for mode in range(len(tensor.shape)) if mode != dropped]
    shape = tuple(tensor.shape[mode] for mode in kept)
    if np.prod(shape, dtype=float) > MOST_DENSE:
        return None
    dense = np.zeros(shape)
    np.add.at(dense, tuple(tensor.columns[mode] for mode in kept), tensor.values)
    return dense


def line(kind: str, facts: dict[str, Any]) -> str:
    """Return a result as one line of text."""
    head = f"{facts['case']} rank {facts['rank']}"
    if kind == "costs":
        each = facts["seconds_an_iteration"]["median"] * 1e3
        return f"{head} {facts['precision']}, {facts['constraint']}: {each:.3f} ms an iteration"
    if kind == "peer":
        theirs = f"TensorLy {facts['fit_of_tensorly']:.6f} in {facts['seconds_of_tensorly']:.2f} s"
        return f"{head}, {facts['iterations']} iterations: fit {facts['fit']:.6f} in {facts['seconds']:.2f} s; {theirs}"
    near = facts["iterations_until_near"]
    until = f"{NEAR:.0%} after {near}, {facts['seconds_until_near']:.3f} s" if near else f"never at {NEAR:.0%}"
    return (
        f"{head} seed {facts['seed']}, {facts['way']}: {until}; at last {facts['below_the_best']:.1e} below; "
        f"{facts['seconds_of_rows'] * 1e3:.2f} of {facts['seconds_an_iteration'] * 1e3:.2f} ms for rows"
    )
