"""Time sweeps (MTTKRPs of all modes in turn): with pauses, without, and in turn with plain copies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from amped.backend.device import Array
from amped.operators.base import in_turn
from amped.operators.sparse.operator import SparseOperator
from amped.report.metrics import Spans

from .cooldown import Cooldown

WARM = 2
LEAST_SECONDS, MOST_SWEEPS = 0.5, 40  # quick sweeps are repeated for this time, up to this number
IN_A_ROW = 2  # streamed sweeps between plain copies


class Sweeps(NamedTuple):
    """Timed sweeps.

    `copies` are seconds of plain copies of the streamed bytes, all ranks at once, before each of `seconds`; empty if
    resident.
    """

    seconds: list[float]  # of each sweep on the slowest rank
    spans: list[list[Spans]]  # by rank and sweep; their mean if copies run ahead into the next sweep
    copies: list[float]


def timed_sweeps(operator: SparseOperator, least: int, publish: bool) -> Sweeps:
    """Time at least `least` sweeps, after warm-up sweeps. Collective."""
    for _ in range(WARM):
        warm = _timed_sweep(operator, publish)
    count = max(least, min(MOST_SWEEPS, int(LEAST_SECONDS / warm)))
    streaming = any(operator.machine.comm.allgather(bool(operator.plan.slot)))
    return (_streamed_sweeps if streaming else _resident_sweeps)(operator, count, publish)


def _resident_sweeps(operator: SparseOperator, count: int, publish: bool) -> Sweeps:
    seconds, spans, cooldown = [], [], Cooldown()
    for _ in range(count):
        seconds.append(_timed_sweep(operator, publish))
        spans.append(_settle(operator))
        cooldown.after(seconds[-1])
    return Sweeps(seconds, operator.machine.comm.allgather(spans), [])


def _timed_sweep(operator: SparseOperator, publish: bool) -> float:
    _settle(operator)
    begin = time.perf_counter()
    _sweep(operator, publish)
    operator.synchronize()
    return max(operator.machine.comm.allgather(time.perf_counter() - begin))


def _streamed_sweeps(operator: SparseOperator, count: int, publish: bool) -> Sweeps:
    """Time sweeps and plain copies of the same bytes in turn, as a host's bandwidth to its links varies by the second.

    Each turn begins and ends with filled slots, so that it copies as much as its sweeps stream.
    """
    seconds, copies, comm = list[float](), list[float](), operator.machine.comm
    copy = _plain_copies(operator)
    _settle(operator)
    for _ in range(count):
        for times, repeat, action in ((copies, 1, copy), (seconds, IN_A_ROW, lambda: _sweep(operator, publish))):
            comm.allgather(None)
            begin = time.perf_counter()
            for _ in range(repeat):
                action()
            for slot in operator.stream.slots:
                slot.shard()  # wait for the copy
            operator.synchronize()
            times.append(max(comm.allgather(time.perf_counter() - begin)) / repeat)
    spans = [{key: s / (IN_A_ROW * count) for key, s in operator.clock.collect().items()}]
    return Sweeps(seconds, comm.allgather(spans), copies)


def _plain_copies(operator: SparseOperator) -> Callable[[], None]:
    """Return a function that only copies what this rank streams in a sweep."""
    device = operator.machine.device
    slot = device.slot(operator.plan.slot_bytes, device.clock())
    streamed = [(shard, mode) for mode, (_, some) in enumerate(shards(operator)) for shard in some]

    def copy() -> None:
        for shard, mode in streamed:
            slot.fill(shard, mode)
        if streamed:
            slot.shard()

    return copy


def sustained_sweeps(operator: SparseOperator, limit: float) -> list[float]:
    """Sweep without pauses for `limit` seconds; return the seconds of sweeps that began in the second half."""
    seconds, last = list[float](), time.perf_counter()
    while sum(seconds) < limit:
        _sweep(operator, publish=True)
        operator.synchronize()
        now = time.perf_counter()
        seconds.append(max(operator.machine.comm.allgather(now - last)))
        last = now
    begun = np.cumsum([0, *seconds[:-1]])
    return [s for s, at in zip(seconds, begun, strict=True) if at >= limit / 2] or seconds[-1:]


def _sweep(operator: SparseOperator, publish: bool) -> None:
    for mode in range(operator.order):
        operator.mttkrp(mode, _as_it_is if publish else None, in_turn(mode, operator.order))


def _as_it_is(rows: Array, target: Array) -> None:
    """Identity in place of an update: leaves factor rows unchanged."""


def _settle(operator: SparseOperator) -> Spans:
    """Wait for the device, then for the other ranks; return the spans so far."""
    operator.synchronize()
    spans = operator.clock.collect()
    operator.machine.comm.allgather(None)
    return spans


def shards(operator: SparseOperator) -> Iterator[tuple[Sequence[Any], Sequence[Any]]]:
    """Yield each mode's resident and streamed shards."""
    for mode in operator.stream.modes:
        yield mode.resident, mode.streamed
