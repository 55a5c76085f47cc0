"""Sweeps over dense blocks on a GPU: matrix products by cuBLAS or tensor cores, and launches of ``dense.cu``."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import cache
from typing import NamedTuple

import cupy
import numpy as np

from partitioner.cuda.code import allow_shared, load
from partitioner.cuda.cubins import CudaFunction, CudaSource

from ...device import Array
from ...ops.dense import BlockForm
from ..blas import multiply, multiply_parts
from ..code.dense import (
    DEPTH,
    WGMMA_THREADS,
    WHOLE,
    Division,
    across_of,
    chunk_of,
    lanes_of,
    macros,
    multiply_macros,
    multiply_shared,
    multiply_threads,
    tiling_of,
    uses_wgmma,
    wgmma_macros,
    wgmma_shared,
    whole_row,
    whole_waves,
)
from ..device import CudaDevice
from ..source import by_value, unit

THREADS, WARP = 256, 32  # as in dense.cu
FILLING = 16  # thread blocks per multiprocessor for kernels whose work has no natural grid
FUNCTIONS = "khatri_rao", "contract", "add_up", "add_parts", "widen", "matrix_free"


class BlockLaunches:
    """Launches of the kernels of ``dense.cu`` on a block."""

    def __init__(self, form: BlockForm, device: CudaDevice) -> None:
        self.form, self._functions = form, _functions(unit("dense", macros(form)), device.number)
        self.number, self.processors = device.number, device.limits.processors
        self.capability = device.capability
        self._most = FILLING * self.processors

    def modes(self, factors: Sequence[Array], start: int = 0, count: int | None = None) -> np.void:
        """Return factor matrices as the argument of ``dense.cu``; of mode 0 the rows from `start` on."""
        addresses = np.array([factor.data.ptr for factor in factors], np.uint64)
        addresses[0] += start * factors[0].strides[0]
        lengths = np.array(self.form.lengths, np.int32)
        lengths[0] = lengths[0] if count is None else count
        return by_value(addresses, np.append(lengths, np.zeros(len(lengths) % 2, np.int32)))

    def khatri_rao(self, modes: np.void, group: tuple[int, int], begin: int, rows: int, out: Array) -> None:
        numbers = np.int32(group[0]), np.int32(group[1]), np.int64(begin), np.int64(rows), np.int32(self.form.stride)
        blocks = min(-(-rows * self.form.stride // THREADS), self._most)
        self._functions["khatri_rao"]((blocks,), (THREADS,), (modes, *numbers, out))

    def contract(
        self, modes: np.void, lengths: tuple[int, ...], group: tuple[int, int], mode: int, partial: Array, parts: Array,
        out: Array, adds: bool,
    ) -> None:  # fmt: skip
        """Contract the partial result of a group of modes of `lengths` to the MTTKRP of one of them, or add it."""
        length, columns = lengths[mode], self.form.stride
        others = math.prod(lengths[slice(*group)]) // length
        if group[1] - group[0] == 1:
            count = np.int64(length * columns)
            self._functions["widen"](
                (-(-length * columns // THREADS),), (THREADS,), (partial, count, np.int32(adds), out)
            )
            return
        chunk, chunks = chunk_of(self.form, length, others)
        numbers = np.int32(group[0]), np.int32(group[1]), np.int32(mode)
        grid = length, chunks, -(-columns // lanes_of(self.form))
        target, at_once = (parts, False) if chunks > 1 else (out, adds)
        arguments = modes, *numbers, partial, np.int32(columns), np.uint32(chunk), np.int32(at_once), target
        self._functions["contract"](grid, (THREADS,), arguments)
        if chunks > 1:
            sums = np.int64(length * columns), np.int32(chunks), np.int32(adds)
            self._functions["add_up"]((-(-length * columns // THREADS),), (THREADS,), (parts, *sums, out))

    def add_parts(self, parts: Array, count: int, adds: bool, out: Array) -> None:
        """Sum `count` matrices of the shape of `out` in double precision."""
        numbers = np.int64(out.size), np.int32(count), np.int32(adds)
        self._functions["add_parts"]((-(-out.size // THREADS),), (THREADS,), (parts, *numbers, out))

    def matrix_free(self, modes: np.void, slab: Array, mode: int, tile: int, adds: bool, out: Array) -> None:
        """Compute an MTTKRP element by element. If a slice is one tile, its sum is stored; otherwise sums are added."""
        length, columns = slab.shape[mode], self.form.stride
        others = slab.size // length
        tile = min(tile, others)
        tiles = -(-others // tile)
        jobs = length * tiles * -(-columns // WARP)
        numbers = np.int32(mode), np.int32(columns), np.int64(tile), np.int64(tiles)
        arguments = modes, slab, *numbers, np.int32(tiles == 1), np.int32(adds), out
        self._functions["matrix_free"]((min(-(-jobs * WARP // THREADS), self._most),), (THREADS,), arguments)


class StoredProduct:
    """Products with a Khatri-Rao product that is stored in pieces, by cuBLAS."""

    def __init__(self, block: BlockLaunches, memory: Array) -> None:
        """`memory`, (rows, stride), is used for the pieces of the Khatri-Rao product."""
        self._block, self._memory, self._double = block, memory, block.form.dtype == np.float64

    def run(self, matrix: Array, transposed: bool, piece: GroupPiece, out: Array, adds: bool) -> None:
        """Queue ``out = matrix @ K`` (transposed: ``matrix.T @ K``), or add it; K are the rows of `piece`."""
        depth, step = matrix.shape[0 if transposed else 1], self._step(len(out))
        for k in range(0, depth, step):
            rows, parts = self._memory[: min(step, depth - k)], self._memory[step:]
            count = min(len(rows), piece.rows(self._block.form) - k)
            self._block.khatri_rao(piece.modes, piece.group, piece.begin + k, count, rows)
            if count < len(rows):  # zero rows for the padding of the matrix
                rows[count:] = 0
            part = matrix[k : k + len(rows)] if transposed else matrix[:, k : k + len(rows)]
            self._multiply(part, rows, parts, out, adds or k > 0, transposed)

    def _step(self, rows: int) -> int:
        """Return the rows of the Khatri-Rao product per piece, leaving memory for parts of the size of `out`."""
        most = len(self._memory)
        if self._double:
            return most // WHOLE * WHOLE or most
        fitting = int(most / (1 + rows / DEPTH)) // DEPTH * DEPTH
        return fitting if fitting > DEPTH else min(DEPTH, most)

    def _multiply(self, part: Array, rows: Array, parts: Array, out: Array, adds: bool, transposed: bool) -> None:
        """Queue a product; in single precision as a sum of products over at most `DEPTH` terms."""
        whole = len(rows) // DEPTH
        if self._double or whole < 2:
            end = whole_waves(len(out), out.shape[1], self._block.processors) if transposed else len(out)
            multiply(part[:, :end] if transposed else part, rows, out[:end], adds, transposed)
            if end < len(out):
                multiply(part[:, end:], rows, out[end:], adds, transposed)
            return
        end = whole * DEPTH
        multiply_parts(part[:end] if transposed else part[:, :end], rows[:end], parts, whole, len(out), transposed)
        self._block.add_parts(parts, whole, adds, out)
        if end < len(rows):
            multiply(part[end:] if transposed else part[:, end:], rows[end:], out, True, transposed)


class FusedProduct:
    """Products with a Khatri-Rao product that is computed on the fly: ``dense_wgmma.cu``, ``dense_multiply.cu``."""

    def __init__(self, block: BlockLaunches, memory: Array) -> None:
        """`memory`, (rows, stride), is used for partial sums of the rows that are cut."""
        self._block, self._memory, self._form = block, memory, block.form

    def run(self, matrix: Array, transposed: bool, piece: GroupPiece, out: Array, adds: bool) -> None:
        """See `StoredProduct`."""
        form, block, count = self._form, self._block, piece.group[1] - piece.group[0]
        rows, depth = matrix.shape[::-1] if transposed else matrix.shape
        tiling = tiling_of(rows, depth, form, block.processors, len(self._memory))
        pitch, size = matrix.strides[0] // matrix.itemsize, matrix.itemsize
        aligned = matrix.strides[0] % 16 == 0 and matrix.data.ptr % 16 == 0
        if uses_wgmma(form, aligned, block.capability):
            last, threads, shared = form.lengths[piece.group[1] - 1], WGMMA_THREADS, wgmma_shared(form, transposed)
            function = _product("dense_wgmma", block.number, **wgmma_macros(form, count, transposed, aligned, last))
        else:
            threads, shared = multiply_threads(form), multiply_shared(form, transposed)
            multiply_options = multiply_macros(form, count, transposed, 16 if aligned else size)
            function = _product("dense_multiply", block.number, **multiply_options)
        numbers = np.int64(pitch), np.int32(rows), np.uint32(depth)
        tiles = by_value(np.array([self._memory.data.ptr], np.uint64), np.array([*tiling[:3], 0], np.uint32))
        arguments = matrix, *numbers, tiles, piece.product(form), np.int32(form.stride), np.int32(adds), out
        function((tiling.blocks * across_of(form),), (threads,), arguments, shared_mem=shared)
        if tiling.rest:
            block.add_parts(self._memory, tiling.parts, adds, out[rows - tiling.rest :])


class GroupPiece(NamedTuple):
    """Rows of the Khatri-Rao product of a group of modes, starting at `begin`."""

    factors: Sequence[Array]
    modes: np.void  # the factor matrices as the argument of ``dense.cu``
    group: tuple[int, int]
    begin: int

    def rows(self, form: BlockForm) -> int:
        """Return the number of rows."""
        return math.prod(form.lengths[slice(*self.group)]) - self.begin

    def product(self, form: BlockForm) -> np.void:
        """Return the argument `Product` of the multiplying kernels."""
        addresses = np.array([factor.data.ptr for factor in self.factors[slice(*self.group)]], np.uint64)
        numbers = [*form.lengths[slice(*self.group)], self.begin]
        return by_value(addresses, np.array([*numbers, *[0] * (len(numbers) % 2)], np.uint32))


class SplitSweep:
    """Two passes over the elements: each group's partial result serves all of its modes. See `Sweep`."""

    def __init__(self, form: BlockForm, division: Division, scratch: Array, device: CudaDevice, fused: bool) -> None:
        self._form, self._division, self._block = form, division, BlockLaunches(form, device)
        self._groups = (0, division.split), (division.split, len(form.lengths))
        row = form.stride * form.dtype.itemsize
        rows = max(a + b for a, b in zip(division.partial, division.product, strict=True))
        matrices = scratch[: rows * row].view(form.dtype).reshape(-1, form.stride)
        self._partial = [matrices[count:] for count in division.product]
        self._fused, kind = fused, FusedProduct if fused else StoredProduct
        self._product = [kind(self._block, matrices[:count]) for count in division.product]
        self._parts = scratch[rows * row :].view(np.float64)
        self._valid_group = -1  # group whose partial result is in memory, or -1

    def _group_of(self, mode: int) -> int:
        return int(mode >= self._division.split)

    def reads(self, mode: int) -> bool:
        return self._valid_group != self._group_of(mode)

    def changed(self, mode: int) -> None:
        if self._valid_group == 1 - self._group_of(mode):
            self._valid_group = -1

    def kept(self) -> Hashable:
        return None if self._valid_group < 0 else self._valid_group

    def resume(self, kept: Hashable) -> None:
        assert kept is None or isinstance(kept, int)
        self._valid_group = -1 if kept is None else kept

    def begin(self, mode: int, factors: Sequence[Array], out: Array) -> None:
        self._valid_group = -1
        if not self._division.whole(self._group_of(mode), self._form):
            out.fill(0)

    def add(self, mode: int, slab: Array, start: int, factors: Sequence[Array], out: Array) -> None:
        (self._add_to_second if self._group_of(mode) else self._add_to_first)(mode, slab, start, factors, out)

    def _add_to_first(self, mode: int, slab: Array, start: int, factors: Sequence[Array], out: Array) -> None:
        """Multiply rows of X, those of the slab, by the Khatri-Rao product of the second group."""
        whole = self._division.whole(0, self._form)
        each = math.prod(slab.shape[1 : self._division.split])
        matrix, piece = self._matrix(slab), self._piece(factors, 1, 0)
        step = len(slab) if whole else max(1, self._division.partial[0] // each)
        for i in range(0, len(slab), step):
            count = min(step, len(slab) - i)
            begin = start * each if whole else 0
            target = self._partial[0][begin : begin + count * each]
            self._product[0].run(matrix[i * each : (i + count) * each], False, piece, target, False)
            if not whole:
                self._contract_piece(mode, 0, start + i, count, target, factors, out)

    def _add_to_second(self, mode: int, slab: Array, start: int, factors: Sequence[Array], out: Array) -> None:
        """Multiply X^T, whose columns are those of the slab, by the Khatri-Rao product of the first group."""
        split, whole = self._division.split, self._division.whole(1, self._form)
        each, inside, length = math.prod(slab.shape[1:split]), math.prod(slab.shape[split + 1 :]), slab.shape[split]
        matrix, piece = self._matrix(slab), self._piece(factors, 0, start * each)
        if whole:
            matrix = matrix[:, : len(self._partial[1])]
            self._product[1].run(matrix, True, piece, self._partial[1][: matrix.shape[1]], start > 0)
            return
        step = max(1, self._division.partial[1] // inside)
        for i in range(0, length, step):
            count = min(step, length - i)
            target = self._partial[1][: count * inside]
            self._product[1].run(matrix[:, i * inside : (i + count) * inside], True, piece, target, False)
            self._contract_piece(mode, 1, i, count, target, factors, out)

    def _matrix(self, slab: Array) -> Array:
        """Return a slab as a matrix; for cuBLAS including the zero padding of its rows to whole vectors."""
        matrix = slab.reshape(math.prod(slab.shape[: self._division.split]), -1)
        rows, columns = len(matrix), whole_row(self._form, self._division.split)
        if self._fused or columns * matrix.itemsize > matrix.strides[0]:
            return matrix
        return cupy.lib.stride_tricks.as_strided(matrix, (rows, columns), matrix.strides)

    def _piece(self, factors: Sequence[Array], group: int, begin: int) -> GroupPiece:
        return GroupPiece(factors, self._block.modes(factors), self._groups[group], begin)

    def _contract_piece(
        self, mode: int, group: int, start: int, count: int, partial: Array, factors: Sequence[Array], out: Array
    ) -> None:
        """Contract a piece of a partial result: a range of indices of the group's first mode."""
        first, end = self._groups[group]
        lengths = list(self._form.lengths)
        lengths[first] = count
        shifted = [*factors[:first], factors[first][start : start + count], *factors[first + 1 :]]
        target = out[start : start + count] if mode == first else out
        modes = pack(shifted, lengths)
        self._block.contract(modes, tuple(lengths), (first, end), mode, partial, self._parts, target, True)

    def end(self, mode: int, factors: Sequence[Array], out: Array) -> None:
        group = self._group_of(mode)
        if not self._division.whole(group, self._form):
            return
        self._valid_group = group
        modes, lengths = self._block.modes(factors), self._form.lengths
        self._block.contract(modes, lengths, self._groups[group], mode, self._partial[group], self._parts, out, False)


class MatrixFreeSweep:
    """MTTKRPs without Khatri-Rao products; see `Sweep` and `matrix_free` in ``dense.cu``."""

    def __init__(self, form: BlockForm, tile: int, device: CudaDevice) -> None:
        self._form, self._tile, self._block = form, tile, BlockLaunches(form, device)

    def reads(self, mode: int) -> bool:
        return True

    def begin(self, mode: int, factors: Sequence[Array], out: Array) -> None:
        out.fill(0)

    def add(self, mode: int, slab: Array, start: int, factors: Sequence[Array], out: Array) -> None:
        modes = self._block.modes(factors, start, len(slab))
        target = out[start : start + len(slab)] if mode == 0 else out
        self._block.matrix_free(modes, slab, mode, self._tile, mode > 0, target)

    def end(self, mode: int, factors: Sequence[Array], out: Array) -> None:
        """See `Sweep`: nothing remains to be done."""

    def changed(self, mode: int) -> None:
        """See `Sweep`: nothing is kept."""

    def kept(self) -> None:
        """See `Sweep`: nothing."""

    def resume(self, kept: Hashable) -> None:
        """See `Sweep`: with nothing."""


class ModeByMode:
    """A separate division for each mode, without reuse between modes: GenTen's MTTKRP-GEMM. See `Sweep`."""

    def __init__(self, form: BlockForm, divisions: Sequence[Division], scratch: Array, device: CudaDevice) -> None:
        self._sweeps = [SplitSweep(form, division, scratch, device, False) for division in divisions]

    def reads(self, mode: int) -> bool:
        return True

    def begin(self, mode: int, factors: Sequence[Array], out: Array) -> None:
        self._sweeps[mode].begin(mode, factors, out)

    def add(self, mode: int, slab: Array, start: int, factors: Sequence[Array], out: Array) -> None:
        self._sweeps[mode].add(mode, slab, start, factors, out)

    def end(self, mode: int, factors: Sequence[Array], out: Array) -> None:
        self._sweeps[mode].end(mode, factors, out)

    def changed(self, mode: int) -> None:
        """See `Sweep`: nothing is kept."""

    def kept(self) -> None:
        """See `Sweep`: nothing."""

    def resume(self, kept: Hashable) -> None:
        """See `Sweep`: with nothing."""


def pack(factors: Sequence[Array], lengths: Sequence[int]) -> np.void:
    addresses = np.array([factor.data.ptr for factor in factors], np.uint64)
    return by_value(addresses, np.array([*lengths, *[0] * (len(lengths) % 2)], np.int32))


@cache
def _functions(source: CudaSource, device: int) -> dict[str, CudaFunction]:
    module = load(source)
    return {name: module.get_function(name) for name in FUNCTIONS}


@cache
def _product(name: str, device: int, **options: str | int) -> CudaFunction:
    """Return the multiplying kernel of a source file on the current device."""
    function = load(unit(name, options)).get_function("multiply_block")
    allow_shared(function)
    return function
