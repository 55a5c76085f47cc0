"""MTTKRP of a dense block by matrix products with pieces of Khatri-Rao products.

The modes are cut into two groups, and the block is viewed as a matrix: the indices of the first group are its rows,
those of the second group its columns. Its product with the Khatri-Rao product of one group is a *partial result*, with
one row for each index of the other group. Contracted with all but one of the other group's factor matrices, it is an
MTTKRP.

Each thread multiplies pieces with single-threaded BLAS. Pieces are summed in double precision, so that sums of millions
of single-precision numbers are as accurate as those of a thousand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats

from ...device import Array
from ...ops.dense import BlockForm
from ..simd.vectors import LINE
from .khatri import contract, khatri_rao, put

DEPTH, LEAST_DEPTH = 1024, 128  # summed indices of a piece of a product
HEIGHT = 512  # rows of a piece
LEAST_ROWS = 64  # rows per thread, at least
SMALL = 1 << 20  # multiplications that justify more than one thread
PIECE = 1 << 15  # rows of a partial result that is not kept
KEPT_SHARE = 4  # a partial result may use all of the workspace but one part of this many
PIECES_SHARE = 8  # pieces may use one part of this many of the workspace

Matrix = Floats


class Cutting(NamedTuple):
    """How the MTTKRP of a mode is computed."""

    at: int  # the modes before this one are the first group
    kept: bool  # whether the partial result is kept for the other modes of the group


class Pool:
    """A thread pool for the parts of a step; idle threads use no CPU time."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, "amped-dense") if threads > 1 else None

    def worth(self, multiplications: int) -> int:
        """Return the number of threads that a number of multiplications justifies."""
        return self.threads if multiplications >= SMALL else 1

    def run(self, work: Callable[[Any], object], items: Sequence[Any]) -> None:
        """Apply `work` to all items."""
        if self._pool is None or len(items) < 2:
            for item in items:
                work(item)
            return
        for _ in self._pool.map(work, items):
            pass


class SweepScratch:
    """Scratch memory, handed out as consecutive arrays."""

    def __init__(self, memory: Array) -> None:
        self._memory, self._used = memory, 0

    def take(self, shape: tuple[int, ...], dtype: Any) -> Matrix:
        """Return an uninitialised array."""
        count = math.prod(shape) * np.dtype(dtype).itemsize
        begin, self._used = self._used, self._used + rounded(count)
        taken: Matrix = self._memory[begin : begin + count].view(dtype).reshape(shape)
        return taken


def rounded(count: int) -> int:
    """Round up to whole cache lines."""
    return -(-count // LINE) * LINE


class Sizes(NamedTuple):
    """Sizes of the pieces and scratch arrays."""

    depth: int
    height: int
    spare: int  # rows of sums for threads that split the summed indices
    partial: int  # rows of the partial result, or of a piece of it

    @classmethod
    def of(cls, form: BlockForm, cuttings: Iterable[Cutting], threads: int) -> Sizes:
        """Return the sizes for a form and the cuttings of its modes."""
        most = max(1, form.workspace // PIECES_SHARE // threads // (form.rank * 8))
        cuts = {c.at for c in cuttings}
        longest = max(math.prod(group) for at in cuts for group in (form.lengths[:at], form.lengths[at:]))
        depth = min(longest, max(LEAST_DEPTH, min(DEPTH, most)))
        height = min(longest, max(LEAST_ROWS, min(HEIGHT, most)))
        if form.stored:
            height = min(height, max(LEAST_ROWS, form.workspace // PIECES_SHARE // threads // (depth * 8)))
        kept_rows = [rows_of(form, c, mode) for mode, c in enumerate(cuttings) if c.kept]
        other_rows = [
            min(rows_of(form, c, mode), piece_rows(form))
            for mode, c in enumerate(cuttings)
            if not c.kept and not is_single(form, c, mode)
        ]
        return cls(depth, height, 2 * LEAST_ROWS * threads, max([*kept_rows, *other_rows, 1]))

    def pieces(self, form: BlockForm) -> Sequence[tuple[int, ...]]:
        """Return the shapes of a thread's pieces: of a Khatri-Rao product, of a product, and of converted elements."""
        return (
            (self.depth, form.rank),
            (self.height, form.rank),
            (self.height * self.depth if form.stored else 0,),
        )

    def bytes(self, form: BlockForm, threads: int) -> int:
        """Return the bytes of scratch memory for these sizes."""
        pieces = sum(rounded(math.prod(shape) * form.dtype.itemsize) for shape in self.pieces(form))
        doubles = self.spare, self.partial, sum(form.lengths)
        return threads * pieces + sum(rounded(rows * form.rank * 8) for rows in doubles)


def group_of(form: BlockForm, cutting: Cutting, mode: int) -> slice:
    """Return the modes of the group that a mode is in."""
    return slice(0, cutting.at) if mode < cutting.at else slice(cutting.at, len(form.lengths))


def is_single(form: BlockForm, cutting: Cutting, mode: int) -> bool:
    """Return whether a mode is a group by itself."""
    group = group_of(form, cutting, mode)
    return len(range(group.start, group.stop)) == 1


def rows_of(form: BlockForm, cutting: Cutting, mode: int) -> int:
    """Return the number of rows of the partial result for a mode."""
    return math.prod(form.lengths[group_of(form, cutting, mode)])


def piece_rows(form: BlockForm) -> int:
    """Return how many rows of a partial result are computed at a time if it is not kept."""
    return max(LEAST_ROWS, min(PIECE, form.workspace // 2 // (form.rank * 8)))


def fits(form: BlockForm, rows: int) -> bool:
    """Return whether a partial result of `rows` rows fits the workspace."""
    return rows * form.rank * 8 <= form.workspace // KEPT_SHARE * (KEPT_SHARE - 1)


class GemmSweep:
    """MTTKRP sweep by matrix products. See `Sweep`."""

    def __init__(self, form: BlockForm, cuttings: Sequence[Cutting], threads: int, scratch: Array) -> None:
        self._form, self._cuttings, self._pool = form, cuttings, Pool(threads)
        self._sizes = sizes = Sizes.of(form, cuttings, threads)
        scratch_arrays, rank = SweepScratch(scratch), form.rank
        self._pieces = [
            [scratch_arrays.take(shape, form.dtype) for shape in sizes.pieces(form)] for _ in range(threads)
        ]
        self._spare = scratch_arrays.take((sizes.spare, rank), np.float64)
        self._partial = scratch_arrays.take((sizes.partial, rank), np.float64)
        self._rows = scratch_arrays.take((sum(form.lengths), rank), np.float64)
        ends = np.cumsum(form.lengths)
        self._lengths = np.array(form.lengths, np.int64)
        self._begins: NDArray[np.int64] = ends - self._lengths
        self._stale = set(range(len(form.lengths)))  # modes whose factor matrix has changed since `_rows` was filled
        self._valid_for: slice | None = None  # group for which the partial result is valid
        self._started = False

    def reads(self, mode: int) -> bool:
        cutting = self._cuttings[mode]
        return not (cutting.kept and self._valid_for == group_of(self._form, cutting, mode))

    def begin(self, mode: int, factors: Sequence[Array], out: Array) -> None:
        self._valid_for, self._started = None, False
        if not self._direct(mode):
            out[:, : self._form.rank] = 0
        self._load(mode, factors)

    def _direct(self, mode: int) -> bool:
        """Return whether the products are the MTTKRP itself, without a contraction."""
        cutting = self._cuttings[mode]
        return not cutting.kept and is_single(self._form, cutting, mode)

    def _load(self, mode: int, factors: Sequence[Array]) -> None:
        """Copy the changed factor matrices of all modes but `mode`."""
        for m in self._stale - {mode}:
            self._rows[self._begins[m] : self._begins[m] + self._lengths[m]] = factors[m][:, : self._form.rank]
        self._stale &= {mode}

    def add(self, mode: int, slab: Array, start: int, factors: Sequence[Array], out: Array) -> None:
        form, cutting = self._form, self._cuttings[mode]
        columns = math.prod(form.lengths[cutting.at :])
        matrix = slab.reshape(-1, columns)
        first = start * (math.prod(form.lengths[: cutting.at]) // form.lengths[0])
        if mode < cutting.at:
            source, rows, depth = matrix, first, 0
        else:
            source, rows, depth = matrix.T, 0, first
        own = group_of(form, cutting, mode)
        others = slice(cutting.at, None) if mode < cutting.at else slice(0, cutting.at)
        if cutting.kept or self._direct(mode):
            target = (self._partial if cutting.kept else out)[rows : rows + len(source)]
            self._multiply(source, others, depth, target, mode >= cutting.at and self._started)
            self._started = True
            return
        for begin in range(0, len(source), self._sizes.partial):
            part = source[begin : begin + self._sizes.partial]
            self._multiply(part, others, depth, self._partial[: len(part)], False)
            self._contract(len(part), rows + begin, own, mode, out)

    def end(self, mode: int, factors: Sequence[Array], out: Array) -> None:
        cutting = self._cuttings[mode]
        if not cutting.kept:
            return
        own = group_of(self._form, cutting, mode)
        if self._valid_for == own:  # the partial result was valid
            out[:, : self._form.rank] = 0
            self._load(mode, factors)
        self._valid_for = own
        self._contract(rows_of(self._form, cutting, mode), 0, own, mode, out)

    def changed(self, mode: int) -> None:
        self._stale.add(mode)
        if self._valid_for is not None and mode not in range(len(self._lengths))[self._valid_for]:
            self._valid_for = None

    def kept(self) -> Hashable:
        return None if self._valid_for is None else (self._valid_for.start, self._valid_for.stop)

    def resume(self, kept: Hashable) -> None:
        assert kept is None or isinstance(kept, tuple)
        self._valid_for = None if kept is None else slice(*kept)

    def _multiply(self, matrix: Matrix, group: slice, first: int, target: Matrix, add: bool) -> None:
        """Multiply a matrix by consecutive rows of a group's Khatri-Rao product, from row `first`.

        The result is written, or added if `add`, to the first columns of `target`.
        """
        height, depth = matrix.shape
        threads = self._pool.worth(height * depth * self._form.rank)
        parts = max(1, min(threads, height // LEAST_ROWS))
        cuts = max(1, min(threads // parts, depth // LEAST_DEPTH))
        lengths, begins, sizes = self._lengths[group], self._begins[group], self._sizes

        def work(task: int) -> None:
            khatri, product, converted = self._pieces[task]
            part, cut = task % parts, task // parts
            low, high = height * part // parts, height * (part + 1) // parts
            to = self._spare[(cut - 1) * height :] if cut else target
            begin, end = depth * cut // cuts, depth * (cut + 1) // cuts
            for k in range(begin, end, sizes.depth):
                stop = min(k + sizes.depth, end)
                khatri_rao(self._rows, begins, lengths, first + k, khatri[: stop - k])
                for p in range(low, high, sizes.height):
                    q = min(p + sizes.height, high)
                    adds, piece = k > begin or (add and not cut), _cast(matrix[p:q, k:stop], converted)
                    if not adds and to.dtype == khatri.dtype and to.shape[1] == khatri.shape[1]:
                        np.matmul(piece, khatri[: stop - k], out=to[p:q])
                        continue
                    np.matmul(piece, khatri[: stop - k], out=product[: q - p])
                    put(to[p:q], product[: q - p], adds)

        self._pool.run(work, range(parts * cuts))
        for cut in range(1, cuts):
            target[:, : self._form.rank] += self._spare[(cut - 1) * height : cut * height]

    def _contract(self, count: int, first: int, group: slice, mode: int, out: Array) -> None:
        """Contract `count` rows of the partial result, from row `first` of the group, to the MTTKRP of a mode."""
        lengths, begins, length = self._lengths[group], self._begins[group], int(self._lengths[mode])
        at, partial, rank = mode - group.start, self._partial, self._form.rank
        threads = self._pool.worth(count * rank)
        if length >= threads:

            def own_rows(part: int) -> None:
                low, high = length * part // threads, length * (part + 1) // threads
                contract(partial[:count], first, self._rows, begins, lengths, at, low, high, out)

            self._pool.run(own_rows, range(threads))
            return
        threads = min(threads, len(self._spare) // length)
        sums = self._spare[: threads * length].reshape(threads, length, rank)

        def own_sums(part: int) -> None:
            low, high = count * part // threads, count * (part + 1) // threads
            sums[part] = 0
            contract(partial[low:high], first + low, self._rows, begins, lengths, at, 0, length, sums[part])

        self._pool.run(own_sums, range(threads))
        out[:, :rank] += sums.sum(axis=0)


def _cast(piece: Matrix, scratch: Matrix) -> Matrix:
    """Convert elements to the type of the computation in `scratch`, keeping their order; no-op if it is empty."""
    if not scratch.size:
        return piece
    rows, columns = piece.shape
    if piece.strides[0] < piece.strides[1]:
        converted = scratch[: piece.size].reshape(columns, rows).T
    else:
        converted = scratch[: piece.size].reshape(rows, columns)
    converted[...] = piece
    return converted
