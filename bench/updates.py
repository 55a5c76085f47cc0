"""Updates of models: uber day by day, streamed slices of NELL-2's shape, and a day for a tensor with long modes."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

import amped

from .bundled import UBER, bundled
from .harness import Facts, Result, common_flags
from .online_cp import Elements, OnlineCP
from .spread import summary
from .synthetic import SHAPES

RANK, DAYS = 16, 183
Clock = Callable[[], float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = common_flags(parser, "updates-cpu", "cpu", repeats=3)
    add("--cases", nargs="*", choices=tuple(CASES), default=tuple(CASES), help="(all)")
    add("--precision", choices=("fp32", "fp64"), default="fp32", help="of the factor matrices (fp32)")
    add("--sweeps", type=int, default=1, metavar="K", help="of nell2 and amazon4 (1)")
    add("--slices", type=int, default=40, metavar="K", help="of nell2 (40)")
    add("--slice-nonzeros", type=int, default=100_000, metavar="K", help="of a slice of nell2 (100,000)")
    add("--rank", type=int, default=32, metavar="R", help="of nell2 (32)")
    add("--long-rank", type=int, default=8, metavar="R", help="of amazon4 (8)")
    add("--nonzeros", type=int, default=2_000_000, metavar="K", help="of amazon4 (2 million)")
    add("--days", type=int, default=50, metavar="K", help="of amazon4 (50)")
    add("--refit-every", type=int, default=8, metavar="K", help="measure every K-th refit of uber (8)")


def run(args: argparse.Namespace) -> None:
    """Measure; rewrite the results file after each case."""
    options = {"device": args.device, "precision": args.precision}
    model = amped.cp_als(np.eye(3), 1, max_iters=1, **options)
    clock = time.process_time if model.run["device"] == "cpu" else time.perf_counter
    description = model.run["device_description"].split(",")
    result = Result(args, "updates-cpu", [",".join(description[:2])], clock=clock.__name__, **options)
    for name in args.cases:
        for case in CASES[name](args, options, clock):
            result.add({"case": name, **case}, f"{name}: {case}")


def _uber(args: argparse.Namespace, options: Facts, clock: Clock) -> Iterator[Facts]:
    """Update a model with one day after the other; compare with OnlineCP, and with a fit to all days so far."""
    tensor = amped.read(str(bundled(UBER)))
    batch = amped.cp_als(tensor, RANK, **options)
    some = range(DAYS, 1, -args.refit_every)
    parts = [_days(tensor, 0, end) for end in some]
    refits = [_timed(clock, lambda part=part: amped.cp_als(part, RANK, **options)) for part in parts]
    refitting = float(np.mean(refits))
    yield {"batch fit": batch.score(tensor), "seconds per refit": refitting, "refits": len(refits)}
    for first, sweeps in ((1, 2), (1, 8), (7, 1), (7, 2), (30, 2)):
        model = amped.cp_als(_days(tensor, 0, first), RANK, **options)
        days = _days(tensor, first, DAYS)
        updated, seconds = model, list[float]()
        for _ in range(args.repeats):
            began = clock()
            updated = model.update(days, 0, step=1, sweeps=sweeps, **options)
            seconds.append(clock() - began)
        total, online = (DAYS - first) * refitting, _online(model, tensor, first, clock)
        facts = {"fit": updated.score(tensor), "seconds": summary(seconds)}
        facts["part of refits"] = facts["seconds"]["median"] / total
        yield {"first days": first, "sweeps": sweeps, **facts, "OnlineCP": online}


def _online(model: amped.KruskalTensor, tensor: amped.SparseTensor, first: int, clock: Clock) -> Facts:
    """Return the fit and the time of OnlineCP from the same model."""
    factors = [factor.astype(np.float64) for factor in model.factors]
    factors = [*factors[1:], factors[0] * model.weights]
    slices = [_elements(_days(tensor, day, day + 1)) for day in range(first, DAYS)]
    began = clock()
    online = OnlineCP(factors, _elements(_days(tensor, 0, first)))
    for each in slices:
        online.add(each, 1)
    seconds = clock() - began
    found = amped.KruskalTensor(np.ones(RANK), [np.vstack(online.rows), *online.factors])
    return {"fit": found.score(tensor), "seconds": seconds}


def _days(tensor: amped.SparseTensor, begin: int, end: int) -> amped.SparseTensor:
    """Return some slices of the first mode."""
    columns = tensor.columns
    some = (columns[0] >= begin) & (columns[0] < end)
    chosen = columns[:, some].copy()
    chosen[0] -= begin
    return amped.SparseTensor.from_columns(chosen, tensor.values[some], (end - begin, *tensor.shape[1:]))


def _elements(tensor: amped.SparseTensor) -> Elements:
    """Return the elements with the first mode as the last one."""
    return np.roll(tensor.columns.astype(np.int64), -1, axis=0), tensor.values.astype(np.float64)


def _nell2(args: argparse.Namespace, options: Facts, clock: Clock) -> Iterator[Facts]:
    """Stream slices of random nonzeros, after some that are not measured."""
    lengths, rng = SHAPES["nell2"][0], np.random.default_rng(0)
    warm = max(3, args.slices // 10)
    slices = [_drawn((*lengths, 1), args.slice_nonzeros, rng) for _ in range(warm + args.slices)]
    model = amped.cp_als(slices[0], args.rank, max_iters=2, **options)
    seconds, processor = list[float](), list[float]()
    for _ in range(args.repeats):
        marks = list[tuple[float, float]]()

        def stream(marks: list[tuple[float, float]] = marks) -> Iterator[amped.SparseTensor]:
            for each in slices:
                marks.append((time.perf_counter(), time.process_time()))
                yield each

        model.update(stream(), 3, sweeps=args.sweeps, **options)
        began, used = marks[warm]
        seconds.append((time.perf_counter() - began) / args.slices)
        processor.append((time.process_time() - used) / args.slices)
    facts = {"rank": args.rank, "sweeps": args.sweeps, "nonzeros": args.slice_nonzeros, "slices": args.slices}
    per_slice = {"wall clock": summary(seconds), "processor": summary(processor)}
    yield {**facts, "seconds per slice": per_slice, "slices per second": 1 / per_slice["wall clock"]["median"]}


def _amazon4(args: argparse.Namespace, options: Facts, clock: Clock) -> Iterator[Facts]:
    """Append a day to a tensor with the lengths of Amazon/4 and a mode of days; compare with a fit to all days."""
    lengths, rng = SHAPES["amazon4"][0], np.random.default_rng(0)
    whole = _drawn((*lengths, args.days), args.nonzeros, rng)
    columns, values = whole.columns, whole.values
    last = columns[3] == args.days - 1
    earlier = amped.SparseTensor.from_columns(columns[:, ~last].copy(), values[~last], (*lengths, args.days - 1))
    moved = columns[:, last].copy()
    moved[3] = 0
    day = amped.SparseTensor.from_columns(moved, values[last], (*lengths, 1))
    model = amped.cp_als(earlier, args.long_rank, max_iters=10, tol=0, **options)
    refits, seconds = list[float](), list[float]()
    iterations = 50
    for _ in range(args.repeats):
        seconds.append(_timed(clock, lambda: model.update(day, 3, sweeps=args.sweeps, **options)))
        short, longer = (
            _timed(clock, lambda n=n: amped.cp_als(whole, args.long_rank, max_iters=n, tol=0, **options))
            for n in (2, 7)
        )
        refits.append(short + (longer - short) / 5 * (iterations - 2))
    facts = {"rank": args.long_rank, "sweeps": args.sweeps, "nonzeros": int(values.size), "new": int(last.sum())}
    update, refit = summary(seconds), summary(refits)
    yield {
        **facts, "seconds": update, f"seconds of a refit ({iterations} iterations, from 7)": refit,
        "part of a refit": update["median"] / refit["median"],
    }  # fmt: skip


def _drawn(shape: tuple[int, ...], nonzeros: int, rng: np.random.Generator) -> amped.SparseTensor:
    """Return random nonzeros; low indices are more frequent, as of sorted rows of real tensors."""
    columns: NDArray[np.int32] = np.empty((len(shape), nonzeros), np.int32)
    for column, length in zip(columns, shape, strict=True):
        column[...] = length * rng.random(nonzeros) ** 2
    tensor = amped.SparseTensor.from_columns(columns, rng.random(nonzeros, np.float32) + 0.5, shape)
    assert tensor.nnz  # sorted now
    return tensor


def _timed(clock: Clock, work: Callable[[], object]) -> float:
    began = clock()
    work()
    return clock() - began


CASES: dict[str, Callable[[argparse.Namespace, Facts, Clock], Iterator[Facts]]] = {
    "uber": _uber,
    "nell2": _nell2,
    "amazon4": _amazon4,
}
