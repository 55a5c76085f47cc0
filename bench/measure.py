"""Measure sweeps (MTTKRPs of all modes in turn) on every rank; used by all benchmarks of MTTKRP."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from amped.backend.choose import choose
from amped.backend.device import Device
from amped.backend.rows import block_rows, blocks_of
from amped.operators.base import Operator
from amped.operators.sparse.operator import SparseOperator
from amped.options import Options
from amped.parallel.mpi import Comm
from amped.report.metrics import Spans, peak_resident_bytes
from amped.runs import assembly
from amped.runs.assembly import bring_up, solving_bytes

from . import yardstick
from .counter_rng import Recipe
from .spread import summary
from .sweeps import shards, sustained_sweeps, timed_sweeps
from .synthetic import SyntheticSource

FACTOR_SEED = 1000
KINDS = ("compute", "copy", "exchange")

Facts = dict[str, Any]


def measure(  # eight parameters: what is measured, and what a benchmark's flags leave out by default
    source: SyntheticSource,
    rank: int,
    options: Options,
    comm: Comm,
    sweeps: int = 5,
    ceilings: Mapping[str, Any] | None = None,
    compare: Sequence[str] = (),
    sustained: float = 0,
) -> Facts:
    """Place a tensor and measure sweeps over its modes. Collective.

    Each mode's rows are published (exchanged) after it, as in CP-ALS; a second series leaves that out. Sweeps of
    resident nonzeros are separated by pauses, see `Cooldown`.

    - `rank`: columns of the factor matrices. `sweeps`: their number at least.
    - `ceilings`: of `bench.ceilings`; adds the link's to the plain copies that are measured in turn with the sweeps.
    - `compare`: what else to measure on the same nonzeros and factor matrices, "yardstick" or "errors".
    - `sustained`: seconds for which sweeps of resident nonzeros are also repeated without pauses.
    """
    operator, loading = place(source, rank, options, comm)
    seconds, spans, copies = timed_sweeps(operator, sweeps, publish=True)
    alone = timed_sweeps(operator, sweeps, publish=False).seconds if comm.size > 1 else seconds
    facts: Facts = {
        "device": operator.machine.device.name,
        "rank": rank,
        "ranks": comm.size,
        "precision": options.precision,
        "placement": options.placement,
        "kernel": options.kernel,
        "gather": options.gather,
        "exchange": operator.machine.exchange.name,
        "kernels": comm.allgather(operator.kernels),
        "seconds_a_sweep": summary(seconds),
        "seconds_a_sweep_without_exchange": summary(alone),
        "seconds_by_kind": _by_kind(spans, operator.order),
        "seconds_to_load": {step: max(comm.allgather(seconds)) for step, seconds in loading.items()},
        "balance": balance(spans, operator.order),
        "memory": _memory(operator),
        "in_place": _in_place(operator),
    }
    facts["link"] = _link(facts, operator, ceilings, seconds, copies)
    if sustained and not copies:
        facts["seconds_a_sustained_sweep"] = summary(sustained_sweeps(operator, sustained))
    return facts | (_compared(operator, source, compare) if compare else {})


def place(source: SyntheticSource, rank: int, options: Options, comm: Comm) -> tuple[SparseOperator, dict[str, float]]:
    """Return the operator with its nonzeros in place and random factor matrices, and the seconds of each step.

    Rows are counted once per tensor; each call reports that time.
    """
    before, begin = dict(source.seconds), time.perf_counter()
    machine, chosen = bring_up(options, comm), with_room(source, options, comm)
    operator = assembly.place(source, rank, machine, chosen, solving_bytes(machine, chosen, len(source.shape)))
    operator.synchronize()
    rest = time.perf_counter() - begin
    steps = {step: seconds - before[step] for step, seconds in source.seconds.items()}
    steps["pack, tune and place"] = rest - sum(steps.values())
    steps["count"] = sum(source.counting.values())
    fill_factors(operator)
    return operator, {"all": sum(steps.values()), **steps}


def _compared(operator: SparseOperator, source: SyntheticSource, compare: Sequence[str]) -> Facts:
    try:
        return yardstick.compare(operator, source, compare)
    except MemoryError as error:  # the comparison holds the nonzeros twice
        if operator.machine.comm.size > 1:
            raise  # the other ranks would wait
        return {"not_compared": str(error)}


def tensor_facts(source: SyntheticSource) -> dict[str, object]:
    """Return the facts that identify a tensor."""
    made = source.recipe
    return {
        "lengths": made.lengths,
        "nonzeros": made.nonzeros,
        "skew": made.skew,
        "values": "integer" if made.integers else "real",
    }


def with_room(source: SyntheticSource, options: Options, comm: Comm) -> Options:
    """Limit the plan's device memory to leave room for loading columns on the device."""
    if options.placement != "auto" or options.device_memory or source.xp is np:
        return options

    cuts = [source.cut(mode, comm.size) for mode in range(len(source.shape))]
    nonzeros = max(int(np.diff(cut.nonzeros).max()) for cut in cuts)
    room = choose("cuda", comm).memory(comm.local_size) - source.loading_bytes(nonzeros, options.dtype)
    return replace(options, device_memory=max(1, min(comm.allgather(room))))


def fill_factors(operator: Operator) -> None:
    """Draw random factor matrices, uniform in (0, 1] and the same on every rank, in device memory."""
    rank = operator.ranks[0]
    for mode, length in enumerate(operator.shape):
        rng = Recipe((length,), length, seed=FACTOR_SEED + mode).rng(operator.machine.device.xp)
        stored, held = operator.stored(mode), operator.held(mode)
        for rows in blocks_of(held.stop - held.start, block_rows(rank)):
            first, last = held.start + rows.start, held.start + rows.stop
            stored[rows] = rng.values(range(first * rank, last * rank), operator.plan.dtype).reshape(-1, rank)


def _median_spans(spans: Sequence[Spans], kind: str, modes: Sequence[int]) -> float:
    return statistics.median(sum(s.get((kind, mode), 0.0) for mode in modes) for s in spans)


def _by_kind(by_rank: Sequence[Sequence[Spans]], order: int) -> Facts:
    """Return each rank's seconds by kind of work; of computing by mode, too."""
    modes = range(order)
    found: Facts = {kind: [_median_spans(spans, kind, modes) for spans in by_rank] for kind in KINDS}
    by_mode = [[_median_spans(spans, "compute", [mode]) for spans in by_rank] for mode in modes]
    return found | {"compute by mode": by_mode}


def balance(by_rank: Sequence[Sequence[Spans]], order: int) -> float:
    """Return (max - mean) / mean of the ranks' computing seconds, over all modes."""
    seconds = [_median_spans(spans, "compute", range(order)) for spans in by_rank]
    mean = statistics.mean(seconds)
    return max(seconds) / mean - 1 if mean else 0.0


def _in_place(operator: SparseOperator) -> list[Facts]:
    """Return the nonzeros and bytes of each mode, resident and streamed, of all ranks. Collective."""
    mine = [
        (sum(s.nnz for some in both for s in some), sum(s.nbytes for some in both for s in some))
        for both in shards(operator)
    ]
    of_all = np.sum(operator.machine.comm.allgather(mine), axis=0).tolist()
    return [{"nonzeros": nonzeros, "bytes": nbytes} for nonzeros, nbytes in of_all]


def _memory(operator: SparseOperator) -> Facts:
    """Return the memory planned and used by the rank that has most. Collective."""
    used, planned = used_bytes(operator.machine.device), sum(operator.plan.device_bytes.values())
    mine = {"planned_bytes": planned, "used_bytes": used or 0, "host_peak_bytes": peak_resident_bytes()}
    by_rank = operator.machine.comm.allgather(mine)
    return {name: max(each[name] for each in by_rank) for name in mine}


def used_bytes(backend: Device) -> int | None:
    """Return the device memory held by arrays; None on the host."""
    if backend.on_host:
        return None
    used: int = backend.xp.get_default_memory_pool().used_bytes()
    return used


def _link(
    facts: Facts,
    operator: SparseOperator,
    ceilings: Mapping[str, Any] | None,
    sweeps: Sequence[float],
    copies: Sequence[float],
) -> Facts | None:
    """Return the copy speed of streamed shards over whole sweeps, against the link; None if nothing is streamed.

    The link's speed is that of plain copies of the same bytes, in turn with the sweeps. Collective.
    """
    mine = sum(shard.nbytes for _, streamed in shards(operator) for shard in streamed)
    copied = operator.machine.comm.allgather(mine)
    if not sum(copied):
        return None
    shares = [plain / each for plain, each in zip(copies, sweeps, strict=True)]
    result: Facts = {
        "bytes_a_sweep": copied,
        "gigabytes_a_second": sum(copied) / facts["seconds_a_sweep"]["median"] / 1e9,
        "measured_link": sum(copied) / statistics.median(copies) / 1e9,
        "fraction_of_link": statistics.median(shares),
        "seconds_of_plain_copies": summary(copies),
    }
    links = (ceilings or {}).get("link", {}).get("at once")
    return result | ({"ceiling": sum(links)} if links else {})
