"""MTTKRP of one shard on the cores of a rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base import PERMUTED
from .layout import NO_BLOCKS, Blocks, Column, Fibres, Numbers, Parts, Pieces
from .segmented import segmented
from .vectors import ADD, LANE, LINE, PAST, STORE

SEGMENTED, PREFETCHED, PANELLED, FIBRE, BLOCKED = "segmented", "prefetched", "panelled", "fibre", "blocked"
KERNELS = (SEGMENTED, PREFETCHED, PANELLED, FIBRE, BLOCKED, PERMUTED)
PANEL = 128  # bytes of a row that are computed at once where rows are too wide for the caches
MOST_LANES = 8  # 256 bytes of a row: half of the registers, on a processor with AVX2
SMALLEST = 4096  # nonzeros a thread; below this a second thread costs more than it saves
CACHED = 8 << 20  # bytes of an output that the caches may still hold when it is read


@dataclass(frozen=True)
class HostShard:
    """Nonzeros in pieces of output rows, or with a permutation that brings them there.

    Attributes
    ----------
    indices : sequence of (nnz,) int32 or uint16 arrays
        Those of the input modes, in ascending order of modes.
    values : (nnz,) array
    rows : (nnz,) int32 array, optional
        The output indices, in the order of the nonzeros that `shard` was given, if it keeps their columns: those of
        `permuted` are made of them.
    pieces : Pieces
    row_begin : int
        The output index that is row 0 of the output.
    ahead : int
        Of which nonzero to come the rows are fetched, counted from the one that is computed; 0: of none.
    panels : bool
        Whether columns are computed `PANEL` bytes after the other, from matrices that have no others.
    fibres : Fibres, optional
    blocks : Blocks
    parts : Parts
        What is computed side by side.
    permutation : (nnz,) uint32 array, optional
        Which nonzero comes when; those are of a shard of mode 0, which counts their memory, and any row may have a sum.
    """

    indices: Sequence[Column]
    values: NDArray[Any]
    rows: Column | None
    pieces: Pieces
    parts: Parts
    row_begin: int
    ahead: int = 0
    panels: bool = False
    fibres: Fibres | None = None
    blocks: Blocks = NO_BLOCKS
    permutation: Numbers | None = None

    @property
    def nnz(self) -> int:
        """The number of nonzeros."""
        return int(self.values.size)

    @property
    def nbytes(self) -> int:
        """The bytes of what others do not count."""
        arrays: list[NDArray[Any]] = [*self.pieces, *(self.fibres or ())]
        if self.permutation is None:
            arrays += [*self.indices, self.values, *([] if self.rows is None else [self.rows])]
        else:
            arrays += [self.permutation]
        return sum(array.nbytes for array in arrays)


class _Output(NamedTuple):
    """Where sums go: to rows of `out`, in a `way` of `vectors` (`new` rows have none so far), or to `carries`."""

    out: NDArray[np.floating]
    way: int
    new: slice
    carries: NDArray[np.float64]


class Threads:
    """Run the kernel on equal runs of nonzeros side by side.

    They are inter-shard partitions (AMPED, section 3.1.2), which threads take in turn. A row that begins in an earlier
    one is carried: its sum is added to the output when all are done, so that no two threads write one row. Of blocks,
    where all parts may have all rows, each has an output of its own, and these are added up.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count - 1, "amped-mttkrp") if count > 1 else None
        self._memory = aligned((0,), np.dtype(np.uint8))

    def mttkrp(
        self, shard: HostShard, factors: Sequence[NDArray[np.floating]], out: NDArray[np.floating], new: slice
    ) -> None:
        """See `Backend.mttkrp`."""
        way, shared = _way(shard, out), shard.parts.shared
        if way == ADD:
            out[new] = 0
        output, column = _Output(out, way, new, np.zeros((len(shared), out.shape[1]))), 0
        for matrices in self._panels(factors) if shard.panels else [factors]:
            self._sums(shard, matrices, output, column)
            column += matrices[0].shape[1]
        for t in np.flatnonzero(shared >= 0):
            out[shared[t] - shard.row_begin] += output.carries[t]

    def _sums(self, shard: HostShard, factors: Sequence[NDArray[np.floating]], output: _Output, column: int) -> None:
        """Compute the columns of the output from `column` on that `factors` have."""
        out, way, new, carries = output
        bounds, shared = shard.parts
        columns, inputs = [*map(_constant, shard.indices)], [*map(_constant, factors)]
        lanes, fibres = lanes_of(factors[0]), None
        if shard.fibres:
            fibres = *shard.fibres, columns.pop(0), inputs.pop(0)
        nonzeros = *shard.pieces, tuple(columns), _constant(shard.values)
        layout = shard.permutation, fibres, tuple(shard.blocks), shard.ahead
        matrices, origin = tuple(inputs), (shard.row_begin, column)
        empty = np.append(shard.pieces.rows[bounds[:-1] - 1] + np.int64(1 - shard.row_begin), 0)
        empty[0] = shard.pieces.rows[0] - shard.row_begin
        if new.stop > new.start:
            empty[0], empty[-1] = new.start, new.stop

        apart = shard.blocks.lows.size > 0  # rows recur in all parts
        copies = self._room((len(shared) - 1, *out.shape), out.dtype) if apart else ()
        turn = np.zeros(1, np.int64)

        def work(t: int) -> None:
            sums, parts = out, (turn, bounds, shared, carries, empty)
            if apart:
                span, one = slice(t, t + 2), slice(t, t + 1)
                if t:
                    sums = copies[t - 1]
                    sums.fill(0)
                parts = np.zeros(1, np.int64), bounds[span], shared[one], carries[one], empty[span]
            segmented(nonzeros, matrices, sums, origin, way, parts, *layout, *lanes)

        self._each(min(self.count, len(shared)), work)
        for copy in copies:
            out += copy

    def _panels(self, factors: Sequence[NDArray[np.floating]]) -> Sequence[Sequence[NDArray[np.floating]]]:
        """Return, for each panel of columns, matrices of these alone: a cache holds more of their rows."""
        kind, pieces = factors[0].dtype, [factor.view((np.void, PANEL)) for factor in factors]
        ends = np.cumsum([len(piece) for piece in pieces])
        panels = self._room((pieces[0].shape[1], int(ends[-1])), np.dtype((np.void, PANEL)))

        def copy(p: int) -> None:
            np.concatenate([piece[:, p] for piece in pieces], out=panels[p])

        self._each(len(panels), copy)
        return [np.split(panel.view(kind).reshape(-1, PANEL // kind.itemsize), ends[:-1]) for panel in panels]

    def _each(self, count: int, work: Callable[[int], None]) -> None:
        """Do so many works side by side, the first of them in the calling thread."""
        others = [self._pool.submit(work, t) for t in range(1, count)] if self._pool else []
        for t in range(1 if self._pool else count):
            work(t)
        for other in others:
            other.result()

    def _room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return memory that is kept: new pages take longer than what is computed."""
        size = math.prod(shape) * dtype.itemsize
        if self._memory.size < size:
            self._memory = aligned((size,), np.dtype(np.uint8))
        return self._memory[:size].view(dtype).reshape(shape)


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array that begins with a line of the caches: rows of whole lines lie in as few as can be."""
    count = math.prod(shape) * dtype.itemsize
    memory = np.empty(count + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + count].view(dtype).reshape(shape)


def parts_of(nnz: int, threads: int, each: int = 1) -> int:
    """Return how many parts of so many nonzeros are worth it, at most so many for each thread."""
    return max(1, min(threads * each, nnz // SMALLEST))


def _constant(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array as one that cannot be written to, as those of mapped files are: kernels are compiled once."""
    view = array.view()
    view.flags.writeable = False
    return view


def _way(shard: HostShard, out: NDArray[np.floating]) -> int:
    """Return how the first sum of a row is brought into the output."""
    if shard.permutation is not None or shard.blocks.lows.size:
        return ADD
    lines = out.ctypes.data % LINE == 0 and out.strides[0] % LINE == 0
    return PAST if lines and out.nbytes > CACHED and not shard.panels else STORE


def lanes_of(factor: NDArray[np.floating]) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Return what of a row is computed together, and what is left, as `segmented` takes them."""
    lanes = factor.shape[1] * factor.itemsize // LANE
    # Powers of two: LLVM makes of other vectors code that takes twice as long.
    most = MOST_LANES if lanes % MOST_LANES in (0, 1, 2, 4) else MOST_LANES // 2
    most = min(most, 1 << lanes.bit_length() - 1)
    return (0,) * most, (0,) * (lanes % most) or None
