"""Add a shard's MTTKRP to the output: panels of columns, outputs for parts that share rows, and what comes together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..layout import PIECE
from ..shard import HostShard, constant
from ..simd.vectors import ADD, LANE, LINE, PAST, STORE
from ..threads import Threads, check
from .phi import add_logs as logs_of_parts
from .segmented import add_up, copy_panels, segmented

PANEL = 128  # bytes of a row that are computed at once where rows are too wide for the caches
MOST_LANES = 8  # 256 bytes of a row: half of the registers, on a processor with AVX2
CACHED = 8 << 20  # bytes of an output that the caches may still hold when it is read
START_SECONDS = 2e-6  # of a thread that waits for work
WORK_SECONDS = 1e-11  # of a byte of a factor row in the caches, by one thread

Matrix = NDArray[np.floating]


def add_sums(
    threads: Threads,
    shard: HostShard,
    factors: Sequence[Matrix],
    out: NDArray[np.float64],
    new: slice,
    scratch: NDArray[np.uint8] | None,
    double: bool = False,
    model: Model | None = None,
) -> None:
    """Add a shard's MTTKRP, or its Phi of a model, to the output; see `Kernel.run` and `Phi.run`.

    Parts are the inter-shard partitions of AMPED, section 3.1.2. A row that begins in an earlier part is carried: its
    sum is added to the output when all are done, so that no two threads write one row. Of blocks, where each part may
    have all rows, each has an output of its own, and these are added up.
    """
    room, parts, way = SumScratch(scratch), shard.parts.shared.size, _way(shard, out)
    carries = room.take((parts, out.shape[1]), out.dtype)
    others = room.take((parts - 1 if shard.apart else 0, *out.shape), out.dtype)
    if new.stop > new.start:
        rows = new.start, new.stop
    else:
        rows = (0, 0) if way == ADD else (int(shard.parts.firsts[0]) - shard.row_begin, 0)
    output = _Output(out, others, carries, way, rows, double)
    of_model = _of_model(model, room, parts) if model else NO_MODEL
    size = min(threads_worth(threads.count, shard, factors[0]), parts)
    column = 0
    for matrices in _panels(threads, factors, room) if shard.panels and not model else [factors]:
        _add_columns(threads, size, shard, matrices, output, column, of_model)
        column += matrices[0].shape[1]
    if others.size:
        check(add_up(0, threads.team, size, np.zeros(1, np.int64), out, others))


def add_logs(
    threads: Threads,
    shard: HostShard,
    factors: Sequence[Matrix],
    model: Model,
    total: NDArray[np.float64],
    scratch: NDArray[np.uint8] | None,
) -> None:
    """Add a shard's part of the log-likelihood to `total`; see `Phi.add_logs`."""
    sums = SumScratch(scratch).take((shard.parts.shared.size,), np.dtype(np.float64))
    inputs, own = tuple(map(constant, factors)), constant(model.own)
    nonzeros = *shard.pieces, tuple(map(constant, shard.indices)), constant(shard.values)
    size, turn = min(threads_worth(threads.count, shard, factors[0]), sums.size), np.zeros(1, np.int64)
    given = inputs, own, shard.row_begin, model.floor, shard.parts.bounds, sums, shard.permutation
    check(logs_of_parts(0, threads.team, size, turn, nonzeros, *given, *lanes_of(factors[0])))
    for each in sums:
        total[0] += each


class Model(NamedTuple):
    """What values are divided by: see `Phi.run`."""

    own: Matrix
    floor: float


class _Output(NamedTuple):
    """Where sums go: to rows of `out`, in a `way` of `vectors` (`new` rows have none so far), or to `carries`."""

    out: NDArray[np.float64]
    others: NDArray[np.float64]
    carries: NDArray[np.float64]
    way: int
    new: tuple[int, int]
    double: bool  # the precision of products and short sums


OfModel = tuple[Matrix | None, float, Matrix | None]
NO_MODEL: OfModel = None, 0.0, None


class SumScratch:
    """Arrays in scratch memory, one after the other; new pages would take longer than what is computed."""

    def __init__(self, scratch: NDArray[np.uint8] | None) -> None:
        self._memory, self._at = scratch, 0

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array of unset contents."""
        if self._memory is None:
            return np.empty(shape, dtype)
        begin, size = self._at, math.prod(shape) * dtype.itemsize
        self._at = begin + -(-size // LINE) * LINE
        return self._memory[begin : begin + size].view(dtype).reshape(shape)


def _of_model(model: Model, room: SumScratch, parts: int) -> OfModel:
    """Return the last arguments of `segmented`."""
    lanes, _ = lanes_of(model.own)
    several = len(lanes) * LANE < model.own.strides[0]
    return constant(model.own), model.floor, room.take((parts, PIECE), model.own.dtype) if several else None


def _add_columns(
    threads: Threads,
    size: int,
    shard: HostShard,
    factors: Sequence[Matrix],
    output: _Output,
    column: int,
    of_model: OfModel,
) -> None:
    """Compute the columns of the output from `column` on that `factors` have."""
    out, others, carries, way, new, double = output
    columns, inputs = [*map(constant, shard.indices)], [*map(constant, factors)]
    lanes, fibres = lanes_of(factors[0], double), None
    if shard.fibres and of_model is NO_MODEL:
        fibres = *shard.fibres, columns.pop(0), inputs.pop(0)
    nonzeros = *shard.pieces, tuple(columns), constant(shard.values)
    layout = shard.permutation, fibres, tuple(shard.blocks), shard.ahead
    parts = size, np.empty(len(carries), np.int64), carries, *shard.parts
    outs, origin = (out, others), (shard.row_begin, column)
    given = tuple(inputs), outs, origin, way, new, parts, *layout, *lanes, *of_model
    check(segmented(0, threads.team, nonzeros, *given))


def threads_worth(most: int, shard: HostShard, factor: Matrix) -> int:
    """Return how many threads to use: as many as make their starts and the work of one take least together."""
    work = WORK_SECONDS * shard.nnz * len(shard.indices) * factor.nbytes / max(1, len(factor))
    return max(1, min(most, round(math.sqrt(work / START_SECONDS))))


def _panels(threads: Threads, factors: Sequence[Matrix], room: SumScratch) -> Sequence[Sequence[Matrix]]:
    """Return, for each panel of columns, matrices of these alone: a cache holds more of their rows."""
    kind = factors[0].dtype
    width, ends = PANEL // kind.itemsize, np.cumsum([len(factor) for factor in factors])
    panels, turn = room.take((factors[0].shape[1] // width, int(ends[-1]), width), kind), np.zeros(1, np.int64)
    for factor, end in zip(factors, ends.tolist(), strict=True):
        check(copy_panels(0, threads.team, threads.count, turn, constant(factor), panels, end - len(factor)))
    return [np.split(panel, ends[:-1]) for panel in panels]


def _way(shard: HostShard, out: NDArray[np.floating]) -> int:
    """Return how the first sum of a row is brought into the output."""
    if shard.permutation is not None or shard.apart or shard.units > 1:
        return ADD
    if shard.panels or out.nbytes <= CACHED:
        return STORE
    return PAST if out.ctypes.data % LINE == 0 and out.strides[0] % LINE == 0 else STORE


def lanes_of(factor: NDArray[np.floating], double: bool = False) -> tuple[tuple[float, ...], tuple[float, ...] | None]:
    """Return what of a row is computed together, and what is left, as `segmented` takes them; see `vectors`."""
    lanes, widens = factor.shape[1] * factor.itemsize // LANE, double and factor.itemsize < 8
    # Powers of two: LLVM makes of other vectors code that takes twice as long.
    most = MOST_LANES if lanes % MOST_LANES in (0, 1, 2, 4) and not widens else MOST_LANES // 2
    most = min(most, 1 << lanes.bit_length() - 1)
    kind = 0.0 if widens else 0
    return (kind,) * most, (kind,) * (lanes % most) or None
