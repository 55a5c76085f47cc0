"""MTTKRP of one shard on the cores of a rank."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base import PERMUTED
from .layout import NO_BLOCKS, NUMBER, Blocks, Column, Fibres, Numbers, Parts, Pieces
from .segmented import segmented
from .vectors import ADD, LANE, LINE, PAST, STORE

SEGMENTED, PREFETCHED, FIBRE, BLOCKED = "segmented", "prefetched", "fibre", "blocked"
KERNELS = (SEGMENTED, PREFETCHED, FIBRE, BLOCKED, PERMUTED)
MOST_LANES = 8  # 256 bytes of a row: half of the registers, on a processor with AVX2
SMALLEST = 4096  # nonzeros a thread; below this a second thread costs more than it saves
CACHED = 8 << 20  # bytes of an output that the caches may still hold when it is read


@dataclass(frozen=True)
class HostShard:
    """Nonzeros in pieces of output rows, or with a permutation that brings them there.

    Attributes
    ----------
    indices : sequence of (nnz,) int32 arrays
        Those of the input modes, in ascending order of modes.
    values : (nnz,) array
    rows : (nnz,) array
        The output indices, in the order of the nonzeros that `shard` was given: those of `permuted` are made of it.
    pieces : Pieces
    row_begin : int
        The output index that is row 0 of the output.
    continues : bool
        The first row already has a sum, to be added to.
    ahead : bool
        Whether the rows of nonzeros to come are fetched.
    fibres : Fibres, optional
    blocks : Blocks
    parts : Parts, optional
        What is computed side by side, where rows recur.
    permutation : (nnz,) uint32 array, optional
        Which nonzero comes when; those are of a shard of mode 0, which counts their memory, and any row may have a sum.
    """

    indices: Sequence[Column]
    values: NDArray[Any]
    rows: Column
    pieces: Pieces
    row_begin: int
    continues: bool
    ahead: bool = False
    fibres: Fibres | None = None
    blocks: Blocks = NO_BLOCKS
    parts: Parts | None = None
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
            arrays += [*self.indices, self.values, self.rows]
        else:
            arrays += [self.permutation]
        return sum(array.nbytes for array in arrays)


class Threads:
    """Run the kernel on equal runs of nonzeros side by side.

    Each thread is an inter-shard partition (AMPED, section 3.1.2). A row that begins in an earlier thread's run is
    carried: its sum is added to the output when all are done, so that no two threads write one row.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count - 1, "amped-mttkrp") if count > 1 else None

    def mttkrp(
        self, shard: HostShard, factors: Sequence[NDArray[np.floating]], out: NDArray[np.floating], new: slice
    ) -> None:
        """See `Backend.mttkrp`."""
        bounds, shared = shard.parts or self._parts(shard)
        columns, inputs = [*map(_constant, shard.indices)], [*map(_constant, factors)]
        lanes, fibres = lanes_of(factors[0]), None
        if shard.fibres:
            fibres = *shard.fibres, columns.pop(0), inputs.pop(0)
        nonzeros = *shard.pieces, tuple(columns), _constant(shard.values)
        layout = shard.permutation, fibres, tuple(shard.blocks), shard.ahead
        way, matrices = _way(shard, out), tuple(inputs)
        carries = np.zeros((len(shared), 1, out.shape[1]))
        empty = np.append(shard.pieces.rows[bounds[:-1] - 1] + 1 - shard.row_begin, 0)
        empty[0] = shard.pieces.rows[0] - shard.row_begin
        if new.stop > new.start:
            empty[0], empty[-1] = new.start, new.stop
        if way == ADD:
            out[new] = 0

        def work(t: int) -> None:
            until = empty[-1] if t == len(shared) - 1 else 0
            part = int(bounds[t]), int(bounds[t + 1]), int(shared[t]), carries[t], int(empty[t]), int(until)
            segmented(nonzeros, matrices, out, shard.row_begin, way, part, *layout, *lanes)

        others = [self._pool.submit(work, t) for t in range(1, len(shared))] if self._pool else []
        work(0)
        for other in others:
            other.result()
        for row, carry in zip(shared, carries, strict=True):
            if row >= 0:
                out[row - shard.row_begin] += carry[0]

    def _parts(self, shard: HostShard) -> Parts:
        """Cut the pieces into equal parts, to be computed side by side."""
        count = parts_of(shard.nnz, self.count)
        bounds = np.unique(
            np.searchsorted(shard.pieces.starts, (shard.nnz * np.arange(count + 1) // count).astype(NUMBER))
        )
        rows, begin = shard.pieces.rows, bounds[:-1]
        shared = np.where(rows[begin] == rows[begin - 1], rows[begin], -1)
        shared[0] = rows[0] if shard.continues else -1
        return Parts(bounds, shared)


def parts_of(nnz: int, threads: int) -> int:
    """Return how many parts of so many nonzeros are worth a thread each."""
    return max(1, min(threads, nnz // SMALLEST))


def _constant(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array as one that cannot be written to, as those of mapped files are: kernels are compiled once."""
    view = array.view()
    view.flags.writeable = False
    return view


def _way(shard: HostShard, out: NDArray[np.floating]) -> int:
    """Return how the first sum of a row is brought into the output."""
    if shard.permutation is not None or shard.parts is not None:
        return ADD
    lines = out.ctypes.data % LINE == 0 and out.strides[0] % LINE == 0
    return PAST if lines and out.nbytes > CACHED else STORE


def lanes_of(factor: NDArray[np.floating]) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Return what of a row is computed together, and what is left, as `segmented` takes them."""
    lanes = factor.shape[1] * factor.itemsize // LANE
    most = min(lanes, MOST_LANES)
    return (0,) * most, (0,) * (lanes % most) or None
