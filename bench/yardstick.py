"""References for the operator's kernels: a plain kernel for speed on one GPU, and double-precision sums for errors."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from amped.backend.cuda.source import REALS, compile_options
from amped.backend.device import Array
from amped.backend.rows import block_rows
from amped.operators.sparse.operator import SparseOperator
from partitioner.array_types import FloatDType
from partitioner.shards.partition import mode_order

from .ceilings import seconds
from .synthetic import SyntheticSource

CHUNKS = (128, 256, 512)
ORACLE_CHUNK = 1024
THREADS, WARP = 256, 32
VECTOR = 4  # columns per lane
HOST_BLOCK = 1 << 14
RUNS = 7

Facts = dict[str, Any]


def compare(operator: SparseOperator, source: SyntheticSource, what: Sequence[str]) -> Facts:
    """Run the comparisons `what` on the operator's nonzeros and factor matrices. Collective."""
    speeds: list[Facts] = []
    errors: list[Facts] = []
    for mode in range(operator.order):
        columns = list(source.load(mode, operator.plan.modes[mode].cut, operator.plan.dtype))
        modes = mode_order(operator.order, mode)
        factors = [operator.work.factors[m] for m in modes[1:]]
        if "yardstick" in what and suits(operator):
            out = operator.machine.device.empty((operator.shape[mode], operator.plan.modes[0].share.stride), np.float32)
            speeds.append(best(operator, columns, factors, out))
            del out
        if "errors" in what:
            errors.append(_errors(operator, mode, oracle(operator, mode, columns, factors)))
        del columns
    facts: Facts = {}
    if speeds:
        each = [speed["seconds"] for speed in speeds]
        facts["yardstick"] = {"seconds_by_mode": each, "seconds_a_sweep": sum(each)}
    if errors:
        facts["errors"] = {name: max(e[name] for e in errors) for name in errors[0]}
    return facts


def suits(operator: SparseOperator) -> bool:
    """Return whether the yardstick supports this case: one GPU, fp32, a power of two of vectors per row."""
    machine, lanes = operator.machine, operator.plan.modes[0].share.stride // VECTOR
    alone = machine.comm.size == 1 and not machine.device.on_host and operator.plan.dtype == np.float32
    return alone and operator.ranks[0] % VECTOR == 0 and 1 <= lanes <= WARP and lanes & (lanes - 1) == 0


def best(operator: SparseOperator, columns: Sequence[Array], factors: Sequence[Array], out: Array) -> Facts:
    """Return the seconds of the yardstick, clearing of the output included, with the chunk that suits it best."""
    lanes, count = operator.plan.modes[0].share.stride // VECTOR, len(columns[0])
    module = _module(macros(len(columns) - 1, lanes, operator.plan.dtype), columns[0].device.id)
    function = module.get_function("yardstick")
    nonzeros = _nonzeros(columns, factors)
    found: dict[int, float] = {}
    for chunk in CHUNKS:
        blocks = _blocks_of_threads(count, chunk, lanes)
        arguments = (nonzeros, columns[-1], out, np.int64(count), np.int32(chunk))

        def once(blocks: int = blocks, arguments: tuple[object, ...] = arguments) -> None:
            out.fill(0)
            function((blocks,), (THREADS,), arguments)

        found[chunk] = statistics.median(seconds(operator.machine.device, once, RUNS))
    chunk = min(found, key=lambda c: found[c])
    return {"seconds": found[chunk], "chunk": chunk, "nonzeros_a_second": count / found[chunk]}


def oracle(operator: SparseOperator, mode: int, columns: Sequence[Array], factors: Sequence[Array]) -> Array:
    """Return the MTTKRP of one mode in double precision, all (I_n, stride) rows on every rank."""
    backend = operator.machine.device
    out = backend.zeros((operator.shape[mode], operator.plan.modes[0].share.stride), np.float64)
    if len(columns[0]):
        add = _add_on_host if backend.on_host else _add_on_device
        add(columns, factors, out)
    operator.machine.exchange.reduce(out, "sum")
    return out


def _add_on_host(columns: Sequence[Array], factors: Sequence[Array], out: Array) -> None:
    for block in _blocks(len(columns[0]), HOST_BLOCK):
        rows, *inputs, values = (column[block] for column in columns)
        product = values.astype(np.float64)[:, None]
        for index, factor in zip(inputs, factors, strict=True):
            product = product * factor[index]
        starts = np.flatnonzero(np.diff(rows, prepend=-1))
        out[rows[starts]] += np.add.reduceat(product, starts, axis=0)


def _add_on_device(columns: Sequence[Array], factors: Sequence[Array], out: Array) -> None:
    count, width = len(columns[0]), out.shape[1]
    function = _module(macros(len(columns) - 1, 1, columns[-1].dtype), out.device.id).get_function("oracle")
    blocks = _blocks_of_threads(count, ORACLE_CHUNK, WARP)
    numbers = np.int64(count), np.int32(ORACLE_CHUNK), np.int32(width)
    function((blocks,), (THREADS,), (_nonzeros(columns, factors), columns[-1], out, *numbers))


def _blocks_of_threads(count: int, chunk: int, lanes: int) -> int:
    chunks = -(-count // chunk)
    return -(-chunks * lanes // THREADS)


def _errors(operator: SparseOperator, mode: int, want: Array) -> Facts:
    """Return the operator's error, relative to the norm of the result and to that of each row."""
    xp, owned = operator.machine.device.xp, operator.plan.modes[mode].owned
    got, want = operator.mttkrp(mode), want[owned, : operator.ranks[0]]
    off, norm, worst = 0.0, 0.0, 0.0
    for block in _blocks(len(got), block_rows(operator.ranks[0])):
        wrong = xp.square(got[block] - want[block]).sum(axis=1)
        right = xp.square(want[block]).sum(axis=1)
        off, norm = off + float(wrong.sum()), norm + float(right.sum())
        worst = max(worst, float(xp.sqrt(wrong / xp.where(right > 0, right, 1)).max()))
    totals = list(zip(*operator.machine.comm.allgather((off, norm, worst)), strict=True))
    return {"norm-wise": math.sqrt(sum(totals[0]) / sum(totals[1])), "row-wise": max(totals[2])}


def _blocks(length: int, step: int) -> Iterator[slice]:
    return (slice(b, min(b + step, length)) for b in range(0, length, step))


def macros(order: int, lanes: int, dtype: FloatDType) -> tuple[tuple[str, str | int], ...]:
    """Return the macros with which ``yardstick.cu`` is compiled."""
    return ("ORDER", order), ("LANES", lanes), ("REAL", REALS[np.dtype(dtype)])


def text() -> str:
    """Return the text of ``yardstick.cu``."""
    return Path(__file__).with_suffix(".cu").read_text()


@cache
def _module(named: tuple[tuple[str, object], ...], device: int) -> Any:
    import cupy

    return cupy.RawModule(code=text(), options=compile_options(dict(named)))


def _nonzeros(columns: Sequence[Array], factors: Sequence[Array]) -> Any:
    """Return the addresses of indices and factor matrices as a structure to pass by value."""
    packed = np.array([a.data.ptr for a in (*columns[:-1], *factors)], np.uint64)
    return np.frombuffer(packed.tobytes(), np.dtype((np.void, packed.nbytes)))[0]
