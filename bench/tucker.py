"""Tucker decompositions: HOOI of sparse tensors, mode by mode against a floor, and ST-HOSVD of dense ones."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

import amped
from amped.backend.device import Array
from amped.methods.tucker_params import Compression
from amped.options import DTYPES, Options
from amped.parallel.mpi import SingleComm
from amped.runs.assembly import begin, bring_up
from amped.runs.compression import compressed
from partitioner.array_types import FloatDType, Floats
from partitioner.shards.partition import Cut, mode_order

from .groups import free_memory
from .harness import Facts, Result, common_flags, seconds_of
from .spread import summary
from .synthetic import SHAPES, SyntheticSource, recipe

CASES = {
    "cpu": ("nell2:16,16,16", "enron:8,8,8,8", "uber:3,4,5,5"),
    "cuda": ("nell2:16,16,16", "enron:8,8,8,8", "amazon4:10,10,10"),
}
FIELDS = {"cpu": ("200x200x200",), "cuda": ("800x800x1600",)}
MOST_ON_A_CPU = 2_000_000  # nonzeros, unless --nonzeros says how many
COPY, GATHER = 4236e9, {13e6: 9.0e12, 38e6: 9.0e12, 128e6: 5.7e12, math.inf: 4.1e12}
"""Bytes a second that one H200 copies, and that it gathers from matrices of as many bytes."""
FLOPS = {"fp32": 60e12, "fp64": 30e12}
WARM = 1  # iterations that do not count


class Ordered(SyntheticSource):
    """A synthetic tensor whose nonzeros are in the order of all their indices, as those of files are.

    Attributes
    ----------
    nodes : dict
        By mode, how many runs of equal output index and first, second, ... input indices there are.
    """

    def load(self, mode: int, cut: Cut, dtype: FloatDType, keep: int | None = None) -> Iterator[Array]:
        columns, xp = list(super().load(mode, cut, dtype, keep)), self.xp
        inputs = mode_order(len(self.shape), mode)[1:]
        if len(inputs) > 2:
            keys = columns[1].astype(np.int64)
            for column, m in zip(columns[2:-1], inputs[1:], strict=True):
                keys = keys * self.shape[m] + column
            for key in (keys, None):
                order = xp.argsort(columns[0] if key is None else key, kind="stable")
                columns = [column[order] for column in columns]
            del order, keys, key
        self.nodes = {**getattr(self, "nodes", {}), mode: self._runs(columns[:-1])}
        self._release()
        yield from columns

    def _runs(self, columns: Sequence[Array]) -> list[int]:
        """Return how many runs of equal first indices there are, for each number of them but one and all."""
        changes, found = self.xp.zeros(columns[0].size, bool), []
        changes[:1] = True
        for column in columns[:-1]:
            changes[1:] |= column[1:] != column[:-1]
            found.append(int(changes.sum()))
        return found[1:]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = common_flags(parser, "tucker-DEVICE", device="cpu")
    add("--cases", nargs="*", metavar="SHAPE:R1,R2,...", help="sparse tensors and ranks")
    add("--fields", nargs="*", metavar="IxJxK", help="smooth dense tensors")
    add("--precision", nargs="+", choices=tuple(DTYPES), default=["fp32"])
    add("--nonzeros", type=int, help="instead of those of the shape")
    add("--error", type=float, default=1e-3, help="of dense tensors (1e-3)")
    add("--peers", nargs="*", choices=tuple(PEERS), default=list(PEERS), help="to compare with (all)")
    add("--threads", type=int, help="host threads (all cores)")
    add("--iterations", type=int, default=5, help="that count (5)")


def run(args: argparse.Namespace) -> None:
    """Run all cases; write the result after each."""
    machine = bring_up(Options(device=args.device, threads=args.threads), SingleComm())
    result = Result(args, f"tucker-{args.device}", [machine.device.description])
    work: list[tuple[str, str, Callable[..., Facts], Callable[[Facts], str]]] = [
        *(("sparse", case, run_sparse, sparse_line) for case in _given(args.cases, CASES[args.device])),
        *(("dense", field, run_dense, dense_line) for field in _given(args.fields, FIELDS[args.device])),
    ]
    for kind, case, measure, line in work:
        for precision in args.precision:
            facts = {"load": os.getloadavg()[0], **measure(args, case, precision)}
            result.add(facts, line(facts), kind)


def _given(value: Sequence[str] | None, default: Sequence[str]) -> Sequence[str]:
    return default if value is None else value


def run_sparse(args: argparse.Namespace, case: str, precision: str) -> Facts:
    """Time HOOI of a synthetic tensor."""
    name, _, text = case.partition(":")
    ranks, own = tuple(map(int, text.split(","))), SHAPES[name][1]
    options = Options(device=args.device, precision=precision, threads=args.threads)  # type: ignore[arg-type]
    machine = bring_up(options, SingleComm())
    nonzeros = args.nonzeros or (min(own, MOST_ON_A_CPU) if machine.device.on_host else own)
    source = Ordered(recipe(name, nonzeros), machine.comm, machine.device.xp)
    machine.device.rest()
    method = compressed(source, machine, options, Compression("hooi", ranks))
    begin(method, source)

    def step() -> None:
        method.step(lambda: False)
        method.operator.synchronize()

    seconds, spans = list[float](), list[dict[tuple[str, int], float]]()
    for _ in range(WARM + args.iterations):
        seconds.append(seconds_of(step))
        spans.append(method.operator.clock.collect())
    free_memory(machine.device.xp)
    return {
        "case": case, "precision": precision, "nonzeros": nonzeros, "fit": method.state.series["fit"][-1],
        "iteration_ms": summary([1e3 * s for s in seconds[WARM:]]),
        "modes": [_mode(source, mode, ranks, precision, spans[WARM:]) for mode in range(len(ranks))],
        "peak_bytes": machine.device.peak_bytes(), "planned_bytes": sum(method.operator.plan.device_bytes.values()),
    }  # fmt: skip


def _mode(source: Ordered, mode: int, ranks: Sequence[int], precision: str, spans: Sequence[Any]) -> Facts:
    """Return what a mode has taken, in milliseconds, and the least that it could take on one H200."""
    item, inputs = DTYPES[precision].itemsize, mode_order(len(ranks), mode)[1:]
    nodes, nnz = [*source.nodes[mode], source.nnz], source.nnz
    rows = [source.shape[m] * ranks[m] * item for m in inputs]
    gathers = sum(count * ranks[m] * item / _gather(size) for count, m, size in zip(nodes, inputs, rows, strict=True))
    widths = [math.prod(ranks[m] for m in inputs[k:]) for k in range(len(inputs))]
    flops = 2 * sum(count * width for count, width in zip(nodes, widths, strict=True))
    stream = (nnz * (4 * len(ranks) + item) + 8 * source.shape[mode] * widths[0]) / COPY
    times = {kind: summary([1e3 * s.get((kind, mode), 0.0) for s in spans]) for kind in ("compute", "solve")}
    least = 1e3 * max(gathers + stream, flops / FLOPS[precision])
    return {"mode": mode, **times, "runs": nodes, "gflop": flops / 1e9, "floor_ms": least}


def _gather(size: float) -> float:
    return next(rate for most, rate in GATHER.items() if size <= most)


def sparse_line(facts: Facts) -> str:
    """Return a case as one line of text."""
    parts = [
        f"mode {m['mode']}: TTMc {m['compute']['median']:.3g} (floor {m['floor_ms']:.2g}), "
        f"solve {m['solve']['median']:.3g}"
        for m in facts["modes"]
    ]
    return (
        f"{facts['case']} {facts['precision']}: iteration {facts['iteration_ms']['median']:.3g} ms; {'; '.join(parts)}"
    )


def run_dense(args: argparse.Namespace, text: str, precision: str) -> Facts:
    """Time ST-HOSVD of a smooth field, and of peers at the same ranks."""
    field = smooth(tuple(map(int, text.split("x"))), precision)
    options = {"device": args.device, "precision": precision, "threads": args.threads}
    found, seconds, failed = list[amped.TuckerTensor](), dict[str, float](), dict[str, str]()
    for _ in range(1 + WARM):
        seconds["amped"] = seconds_of(
            lambda: found.append(amped.tucker(field, error=args.error, method="sthosvd", **options))
        )
    model = found[-1]
    for name in args.peers:
        try:
            seconds[name] = seconds_of(partial(PEERS[name], field, model.ranks, args.device))
        except Exception as error:  # of a library: what it says is the result
            failed[name] = f"{type(error).__name__}: {error}"
    return {
        "field": text, "precision": precision, "asked": args.error, "error": sampled_error(field, model),
        "ranks": model.ranks, "compression": model.compression, "seconds": seconds, "failed": failed,
        "bytes": field.nbytes,
    }  # fmt: skip


def dense_line(facts: Facts) -> str:
    """Return a case as one line of text."""
    times = [f"{name} {s:.3g} s" for name, s in facts["seconds"].items()]
    faults = [f"{name}: {fault}" for name, fault in facts["failed"].items()]
    head = f"{facts['field']} {facts['precision']}: ranks {facts['ranks']}, {facts['compression']:.0f} times smaller"
    return f"{head}, error {facts['error']:.2e}; {', '.join(times + faults)}"


def smooth(shape: tuple[int, ...], precision: str) -> Floats:
    """Return a smooth field: a wave that runs across, and what falls off from a point."""
    dtype = DTYPES[precision]
    axes = np.meshgrid(*(np.linspace(0, 1, n, dtype=dtype) for n in shape), indexing="ij", sparse=True)
    field = np.sin(3 * sum((m + 1) * axis for m, axis in enumerate(axes)))
    field += 1 / (0.1 + sum((axis - 0.4) ** 2 for axis in axes))
    return field


def sampled_error(field: Floats, model: amped.TuckerTensor, count: int = 16) -> float:
    """Return the relative error of a part of each mode's indices."""
    at = [np.linspace(0, n - 1, min(n, count * 4)).astype(int) for n in field.shape]
    part = field[np.ix_(*at)].astype(np.float64)
    return float(np.linalg.norm(part - model.reconstruct(*at)) / np.linalg.norm(part))


def numpy_sthosvd(field: Floats, ranks: Sequence[int], device: str) -> None:
    """Compute ST-HOSVD with NumPy, with all cores: Gram matrices and products of unfolded tensors."""
    found = field
    for mode, rank in enumerate(ranks):
        unfolded = np.moveaxis(found, mode, 0).reshape(found.shape[mode], -1)
        vectors = np.linalg.eigh(unfolded @ unfolded.T)[1][:, ::-1][:, :rank]
        found = np.moveaxis((vectors.T @ unfolded).reshape(rank, *np.delete(found.shape, mode)), 0, mode)


def tensorly_tucker(field: Floats, ranks: Sequence[int], device: str, svd: str = "truncated_svd") -> None:
    """Compute TensorLy's Tucker decomposition of the same ranks: its start, and one iteration."""
    import tensorly
    from tensorly.decomposition import tucker

    tensorly.set_backend("cupy" if device == "cuda" else "numpy")
    tucker(tensorly.tensor(field), rank=list(ranks), n_iter_max=1, init="svd", svd=svd)


PEERS: dict[str, Callable[[Floats, Sequence[int], str], None]] = {
    "numpy": numpy_sthosvd,
    "tensorly": tensorly_tucker,
    "tensorly-randomized": partial(tensorly_tucker, svd="randomized_svd"),
}
