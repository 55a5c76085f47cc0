"""MTTKRP of a shard on the CPU: calls the compiled code with panels of columns and separate outputs where needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Element, Floats

from ..layout import PIECE
from ..shard import HostShard, constant
from ..simd.vectors import ADD, LANE, LINE, PAST, STORE
from ..threads import Threads, check
from .phi import add_logs as logs_of_parts
from .segmented import add_up, copy_panels, segmented

PANEL = 128  # bytes of a row processed at once where rows are too wide for the caches
MOST_LANES = 8  # 256 bytes of a row: half of the registers of a processor with AVX2
CACHED = 16 << 20  # bytes of an output that the caches may still hold when it is read next
START_SECONDS = 2e-6  # to start a thread
WORK_SECONDS = 1e-11  # for one thread to process one byte of a factor row in the caches

Matrix = Floats


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
    """Add a shard's MTTKRP, or its Phi for a model, to the output; see `Kernel.run` and `PhiProvider.run`.

    Parts are the inter-shard partitions of AMPED, section 3.1.2. A row that begins in an earlier part is carried: its
    sum is added to the output at the end, so that no two threads write the same row. In blocks, where each part may
    have any row, each part has a separate output, and these are added up.
    """
    scratch_arrays, parts, store_mode = SumScratch(scratch), shard.parts.shared.size, _store_mode(shard, out)
    carries = scratch_arrays.take((parts, out.shape[1]), out.dtype)
    others = scratch_arrays.take((parts - 1 if shard.apart else 0, *out.shape), out.dtype)
    if new.stop > new.start:
        rows = new.start, new.stop
    else:
        rows = (0, 0) if store_mode == ADD else (int(shard.parts.firsts[0]) - shard.row_begin, 0)
    output = _Output(out, others, carries, store_mode, rows, double)
    model_arguments = _model_arguments(model, scratch_arrays, parts) if model else NO_MODEL
    size = min(threads_worth(threads.count, shard, factors[0]), parts)
    column = 0
    for matrices in _panels(threads, factors, scratch_arrays) if shard.panels and not model else [factors]:
        _add_columns(threads, size, shard, matrices, output, column, model_arguments)
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
    """Add a shard's part of the log-likelihood to `total`; see `PhiProvider.add_logs`."""
    sums = SumScratch(scratch).take((shard.parts.shared.size,), np.dtype(np.float64))
    inputs, own = tuple(map(constant, factors)), constant(model.own)
    nonzeros = *shard.pieces, tuple(map(constant, shard.indices)), constant(shard.values)
    size, turn = min(threads_worth(threads.count, shard, factors[0]), sums.size), np.zeros(1, np.int64)
    arguments = inputs, own, shard.row_begin, model.floor, shard.parts.bounds, sums, shard.permutation
    check(logs_of_parts(0, threads.team, size, turn, nonzeros, *arguments, *lanes_of(factors[0])))
    for each in sums:
        total[0] += each


class Model(NamedTuple):
    """The model whose values divide the nonzeros' values; see `PhiProvider.run`."""

    own: Matrix
    floor: float


class _Output(NamedTuple):
    """Destination of sums: rows of `out`, written in mode `store_mode`, or `carries`. `new` rows have no sums yet."""

    out: NDArray[np.float64]
    others: Floats
    carries: Floats
    store_mode: int
    new: tuple[int, int]
    double: bool  # whether products and short sums are in double precision


ModelArguments = tuple[Matrix | None, float, Matrix | None]
NO_MODEL: ModelArguments = None, 0.0, None


class SumScratch:
    """Arrays in reused scratch memory; allocating new pages would take longer than the computation."""

    def __init__(self, scratch: NDArray[np.uint8] | None) -> None:
        self._memory, self._at = scratch, 0

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Element]) -> NDArray[Element]:
        """Return an uninitialised array."""
        if self._memory is None:
            return np.empty(shape, dtype)
        begin, size = self._at, math.prod(shape) * dtype.itemsize
        self._at = begin + -(-size // LINE) * LINE
        return self._memory[begin : begin + size].view(dtype).reshape(shape)


def _model_arguments(model: Model, scratch_arrays: SumScratch, parts: int) -> ModelArguments:
    """Return the last arguments of `segmented`."""
    lanes, _ = lanes_of(model.own)
    is_wide = len(lanes) * LANE < model.own.strides[0]
    return constant(model.own), model.floor, scratch_arrays.take((parts, PIECE), model.own.dtype) if is_wide else None


def _add_columns(
    threads: Threads,
    size: int,
    shard: HostShard,
    factors: Sequence[Matrix],
    output: _Output,
    column: int,
    model_arguments: ModelArguments,
) -> None:
    """Compute the output's columns, from `column` on, that belong to the columns of `factors`."""
    out, others, carries, store_mode, new, double = output
    columns, inputs = [*map(constant, shard.indices)], [*map(constant, factors)]
    lanes, fibres = lanes_of(factors[0], double), None
    if shard.fibres and model_arguments is NO_MODEL:
        fibres = *shard.fibres, columns.pop(0), inputs.pop(0)
    nonzeros = *shard.pieces, tuple(columns), constant(shard.values)
    layout = shard.permutation, fibres, tuple(shard.blocks), shard.ahead
    parts = size, np.empty(len(carries), np.int64), carries, *shard.parts
    outs, origin = (out, others), (shard.row_begin, column)
    arguments = tuple(inputs), outs, origin, store_mode, new, parts, *layout, *lanes, *model_arguments
    check(segmented(0, threads.team, nonzeros, *arguments))


def threads_worth(most: int, shard: HostShard, factor: Matrix) -> int:
    """Return the number of threads that minimises the time of their starts plus the time of the work."""
    work = WORK_SECONDS * shard.nnz * len(shard.indices) * factor.nbytes / max(1, len(factor))
    return max(1, min(most, round(math.sqrt(work / START_SECONDS))))


def _panels(threads: Threads, factors: Sequence[Matrix], scratch_arrays: SumScratch) -> Sequence[Sequence[Matrix]]:
    """Return contiguous matrices for each panel of columns, so that the caches hold more of their rows."""
    kind = factors[0].dtype
    width, ends = PANEL // kind.itemsize, np.cumsum([len(factor) for factor in factors])
    panels, turn = (
        scratch_arrays.take((factors[0].shape[1] // width, int(ends[-1]), width), kind),
        np.zeros(1, np.int64),
    )
    for factor, end in zip(factors, ends.tolist(), strict=True):
        check(copy_panels(0, threads.team, threads.count, turn, constant(factor), panels, end - len(factor)))
    return [np.split(panel, ends[:-1]) for panel in panels]


def _store_mode(shard: HostShard, out: Floats) -> int:
    """Return how the first sum of a row is written to the output."""
    if shard.permutation is not None or shard.apart or shard.units > 1:
        return ADD
    if shard.panels or out.nbytes <= CACHED:
        return STORE
    return PAST if out.ctypes.data % LINE == 0 and out.strides[0] % LINE == 0 else STORE


def lanes_of(factor: Floats, double: bool = False) -> tuple[tuple[float, ...], tuple[float, ...] | None]:
    """Return the vectors of a row that are processed together, and the remainder; see `segmented`, `vectors`."""
    lanes, widens = factor.shape[1] * factor.itemsize // LANE, double and factor.itemsize < 8
    # Powers of two only: for other vector lengths LLVM generates code that takes twice as long.
    most = MOST_LANES if lanes % MOST_LANES in (0, 1, 2, 4) and not widens else MOST_LANES // 2
    most = min(most, 1 << lanes.bit_length() - 1)
    kind = 0.0 if widens else 0
    return (kind,) * most, (kind,) * (lanes % most) or None
