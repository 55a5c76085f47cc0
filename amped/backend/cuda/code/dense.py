"""Division of a dense block's modes into two groups, its cost, and the macros of the kernels; needs no GPU or CuPy."""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

from ...ops.dense import BlockForm, RowLayout
from ..layout import VECTOR
from ..source import REALS, Macros

READ, PRODUCTS = 4.2e12, {8: 52e12, 4: 80e12}  # bytes and floating-point operations per second of an H200
CHUNKS = 2048  # approximate number of thread blocks that contract a partial result
LEAST_CHUNK = 64  # numbers of a column
DEPTH = 1024  # terms that cuBLAS sums in single precision; longer sums have errors above 1e-6
ALIGNED = 128, 32, VECTOR  # bytes: rows are aligned to the largest of these that costs little memory
MOST_GAP = 1 / 32  # largest gap behind a row, relative to its length
# Tile size in numbers; most tiles side by side; most waves for which all processors are busy.
TILE, MOST_ACROSS, MOST_WAVES = 128, 4, 6
LEAST_PRODUCT = 128  # least rows of a Khatri-Rao product, or its length
STORED = 1 / 4  # largest share of the workspace for stored Khatri-Rao products
MOST_LAUNCHES = 256  # most pieces of a matrix, however small the workspace: each takes its own launches
MOST_PIECES = 4  # most pieces of a Khatri-Rao product with which a partial result stays whole
WHOLE = 16  # rows of a Khatri-Rao product for cuBLAS are a multiple of this: 128 bytes of a row of elements
TALL, DEPTH_BYTES = 128, 128  # as in dense_multiply.cu
# Columns of a thread block, and its approximate relative speed.
WIDTHS = {8: 0.25, 16: 0.4, 32: 0.6, 64: 0.85, 128: 1.0}
LEAST_WIDE = {8: 32, 4: 8}  # least columns of a thread block, by item size
LEAST_CAPABILITY = 90  # compute capability x 10 from which tensor cores are used
WGMMA_CAPABILITY = 90  # compute capability x 10 of the only GPUs with wgmma
# Of dense_wgmma.cu by columns: stages, and thread blocks per multiprocessor.
WGMMA = {32: (4, 2), 64: (5, 1), 128: (4, 1)}
WGMMA_THREADS, WGMMA_DEEP = 256, 32  # threads of a block; rows of a step of a Khatri-Rao product
BESIDE = 6  # overhead of a thread block, its stores and the sum of its results, in steps of the depth
MOST_ROUNDS = 6  # most rounds in which parts occupy a device


class Division(NamedTuple):
    """Two groups of modes, those before `split` and the others. Sizes are in rows of `stride` columns.

    `partial` are, per group, the rows of the partial result in memory at once. `product` are, per group, the rows of
    the other group's Khatri-Rao product, or of the parts that are summed to a partial result. A partial result that is
    not whole is computed again for each mode.
    """

    split: int
    partial: tuple[int, int]
    product: tuple[int, int]

    def whole(self, group: int, form: BlockForm) -> bool:
        """Return whether a group's partial result is in memory as a whole."""
        return self.partial[group] >= rows_of(form, self.split, group)


def whole_waves(rows: int, columns: int, processors: int) -> int:
    """Return how many rows of a product with a transposed matrix to multiply separately from the rest.

    cuBLAS selects its fastest kernel, with tiles of 128 x 128, if all processors are busy throughout.
    """
    across = -(-columns // TILE)
    wave = processors // across * TILE if TILE // 2 < columns <= MOST_ACROSS * TILE else 0
    waves = rows // wave if wave else 0
    return waves * wave if 0 < waves <= MOST_WAVES else rows


def rows_of(form: BlockForm, split: int, group: int) -> int:
    """Return the rows of a group's partial result."""
    return math.prod(form.lengths[split:] if group else form.lengths[:split])


def whole_row(form: BlockForm, split: int) -> int:
    """Return the numbers of a row of elements, rounded up to whole vectors."""
    numbers = VECTOR // form.dtype.itemsize
    return -(-rows_of(form, split, 1) // numbers) * numbers


def spaced(form: BlockForm, split: int) -> RowLayout | None:
    """Return a row layout with gaps, if rows are not aligned, gaps are allowed and cost little memory; else None."""
    row = rows_of(form, split, 1)
    for unit in ALIGNED if form.gaps else ():
        pitch = -(-row * form.dtype.itemsize // unit) * unit // form.dtype.itemsize
        if pitch <= row * (1 + MOST_GAP):
            return RowLayout(split, pitch) if pitch > row else None
    return None


def divide(form: BlockForm, processors: int = 0) -> Division:
    """Return the division with the least estimated time.

    With `processors`, Khatri-Rao products are computed on the fly by ``dense_multiply.cu`` instead of stored.
    """
    splits = list(range(1, len(form.lengths)))
    aligned = math.prod(form.lengths[1:]) * form.dtype.itemsize % VECTOR == 0
    if not (processors or aligned or form.gaps):
        splits.reverse()  # among equals, cuBLAS is fastest with short rows
    return min((division_at(form, split, processors) for split in splits), key=lambda d: seconds(form, d))


def divide_for(form: BlockForm, mode: int) -> Division:
    """Return the division for a single mode, at an end of its group: the one of fewer rows (Phan et al. 2013)."""
    splits = [split for split in (mode, mode + 1) if 0 < split < len(form.lengths)]
    split = min(splits, key=lambda split: rows_of(form, split, int(mode >= split)))
    return division_at(form, split, 0)


def division_at(form: BlockForm, split: int, processors: int) -> Division:
    """Return the division for a split, within the workspace; pieces are whole indices of a group's first mode."""
    row, available = form.stride * form.dtype.itemsize, form.workspace - parts_bytes(form)
    sides = rows_of(form, split, 0), whole_row(form, split)
    # Rows per index of a group's first mode.
    units = sides[0] // form.lengths[0], rows_of(form, split, 1) // form.lengths[split]
    partial, product = [], []
    for group in (0, 1):
        remaining = available - sides[group] * row
        if processors:
            tiling = tiling_of(sides[group], sides[1 - group], form, processors, remaining // row)
            at_once = TALL * blocks_of(form) * processors // across_of(form)  # rows, if all are cut into parts
            more = max(0, min(remaining // row, at_once), tiling.parts * tiling.rest)
        else:
            other = sides[1] if group == 0 else min(sides[0], units[0] * form.slab)
            parts = 0 if form.dtype.itemsize == 8 else other // DEPTH * sides[group]
            more = stored_rows(other + parts, remaining // row, int(available * STORED) // row)
        indices = max(
            (available - more * row) // row // units[group], -(-sides[group] // (units[group] * MOST_LAUNCHES))
        )
        product.append(more)
        partial.append(min(sides[group], units[group] * indices))
    return Division(split, (partial[0], partial[1]), (product[0], product[1]))


def stored_rows(rows: int, beside: int, share: int) -> int:
    """Return how many rows of a Khatri-Rao product are stored at once; if it is cut, in few pieces of equal size.

    `beside`: rows that fit next to a whole partial result; `share`: rows to use if a whole partial result does not fit.
    """
    if beside * MOST_PIECES < rows:
        return min(rows, max(LEAST_PRODUCT, -(-rows // MOST_LAUNCHES), share, beside))
    pieces = -(-rows // beside)
    return min(beside, -(-rows // (pieces * WHOLE)) * WHOLE)


def width_of(form: BlockForm) -> int:
    """Return the number of columns that a thread block computes."""
    widths = [width for width in WIDTHS if width >= LEAST_WIDE[form.dtype.itemsize]]
    return min(widths, key=lambda width: -(-form.stride // width) * width / WIDTHS[width])


def blocks_of(form: BlockForm) -> int:
    """Return the thread blocks per multiprocessor."""
    width = width_of(form)
    return 1 if width == 128 else 2 if width >= 32 else 3


def across_of(form: BlockForm) -> int:
    """Return the number of thread blocks across the columns."""
    return -(-form.stride // width_of(form))


class Tiling(NamedTuple):
    """The blocks of rows of a product that are computed whole, and the parts of the others; see ``dense_tiles.cuh``."""

    whole: int
    parts: int  # parts of each of the other blocks
    share: int  # depth of a part
    rest: int  # rows of the other blocks

    @property
    def blocks(self) -> int:
        """The number of whole blocks and parts."""
        return self.whole + -(-self.rest // TALL) * self.parts


@cache
def tiling_of(rows: int, depth: int, form: BlockForm, processors: int, most_rows: int) -> Tiling:
    """Return how a product is tiled for a device; all parts together have at most `most_rows` rows."""
    deep, places = DEPTH_BYTES // form.dtype.itemsize, blocks_of(form) * processors
    tiles, across = -(-rows // TALL), across_of(form)
    whole = tiles * across // places * places // across
    remaining, rest = (tiles - whole) * across, rows - whole * TALL
    if rest <= 0:
        return Tiling(tiles, 1, depth, 0)
    steps = -(-depth // deep)
    most = min(steps, most_rows // rest, -(-MOST_ROUNDS * places // remaining))
    parts = min(range(1, max(1, most) + 1), key=lambda n: -(-remaining * n // places) * (-(-steps // n) + BESIDE))
    share = -(-steps // parts) * deep
    parts = -(-depth // share)
    return Tiling(whole, parts, share, rest) if parts > 1 else Tiling(tiles, 1, depth, 0)


def multiply_shared(form: BlockForm, transposed: bool) -> int:
    """Return the bytes of shared memory of a thread block of ``dense_multiply.cu``."""
    size = form.dtype.itemsize
    deep, width, item = DEPTH_BYTES // size, width_of(form), (form.stored or form.dtype).itemsize
    pad = {8: 4, 4: 8}  # padding of a row in numbers, by item size
    staged = deep * (TALL + pad[item]) if transposed else TALL * (deep + 4)
    span = width + (0 if width == 8 else pad[size])
    return stages_of(form) * (item * staged + (1 if size == 8 else 2) * size * deep * span)


def stages_of(form: BlockForm) -> int:
    """Return the pipeline stages of ``dense_multiply.cu`` in shared memory."""
    return 4 if form.dtype.itemsize == 8 and (form.stored or width_of(form) == 128) else 3


def multiply_threads(form: BlockForm) -> int:
    """Return the threads of a block of ``dense_multiply.cu``."""
    width = width_of(form)
    return TALL // (32 if width <= 32 else 64) * max(width, 32)


def multiply_macros(form: BlockForm, parts: int, transposed: bool, vector: int) -> Macros:
    """Return the macros of ``dense_multiply.cu``."""
    return {
        "REAL": REALS[form.dtype], "REAL_IS_DOUBLE": int(form.dtype.itemsize == 8), "PARTS": parts,
        "ITEM": REALS[form.stored or form.dtype], "STAGES": stages_of(form), "VECTOR": vector,
        "TRANSPOSED": int(transposed), "WIDE": width_of(form), "BLOCKS": blocks_of(form),
    }  # fmt: skip


def uses_wgmma(form: BlockForm, aligned: bool, capability: int) -> bool:
    """Return whether ``dense_wgmma.cu`` is used, because it is faster; `aligned`: rows are aligned to 16 bytes."""
    width = width_of(form)
    supported = form.dtype.itemsize == 4 and width in WGMMA and capability == WGMMA_CAPABILITY
    return supported and (aligned or width > min(WGMMA))


def wgmma_shared(form: BlockForm, transposed: bool) -> int:
    """Return the bytes of shared memory of a thread block of ``dense_wgmma.cu``."""
    width, deep = width_of(form), WGMMA_DEEP
    staged = deep * (TALL + 8) if transposed else TALL * (deep + 4)
    return WGMMA[width][0] * 4 * (staged + 2 * deep * width)


def wgmma_macros(form: BlockForm, parts: int, transposed: bool, aligned: bool, last: int) -> Macros:
    """Return the macros of ``dense_wgmma.cu``; `last` is the length of the last factor matrix."""
    width = width_of(form)
    stages, blocks = WGMMA[width]
    return {
        "PARTS": parts, "TRANSPOSED": int(transposed), "SHIFTED": int(not aligned), "LONG": int(last >= WGMMA_DEEP),
        "WIDE": width, "STAGES": stages, "BLOCKS": blocks,
    }  # fmt: skip


def seconds(form: BlockForm, division: Division) -> float:
    """Return the estimated time of the MTTKRPs of all modes."""
    size, count = form.dtype.itemsize, len(form.lengths)
    total = 0.0
    for group, modes in ((0, division.split), (1, count - division.split)):
        times = 1 if division.whole(group, form) else modes
        once = max(form.elements * size / READ, 2.0 * form.elements * form.stride / PRODUCTS[size])
        sides = rows_of(form, division.split, group) * (1 + modes) + 2 * rows_of(form, division.split, 1 - group)
        total += times * once + sides * form.stride * size / READ
    return total


def scratch_bytes(form: BlockForm, division: Division) -> int:
    """Return the bytes of scratch memory: a Khatri-Rao product, a partial result, and partial sums."""
    rows = max(a + b for a, b in zip(division.partial, division.product, strict=True))
    return rows * form.stride * form.dtype.itemsize + parts_bytes(form)


def lanes_of(form: BlockForm) -> int:
    """Return the number of threads that share a row of a partial result."""
    return next((lanes for lanes in (4, 8, 16) if form.stride <= lanes), 32)


def chunk_of(form: BlockForm, length: int, others: int) -> tuple[int, int]:
    """Return the rows of a chunk that are summed by a thread block, and the number of chunks."""
    target = max(1, CHUNKS // (length * -(-form.stride // 32)))
    chunk = max(LEAST_CHUNK, -(-others // target))
    return chunk, -(-others // chunk)


def parts_bytes(form: BlockForm) -> int:
    """Return an upper bound of the bytes of the chunks' partial sums; a mode with more rows has one chunk and none."""
    return 8 * form.stride * CHUNKS


def macros(form: BlockForm) -> Macros:
    """Return the macros of ``dense.cu``."""
    return {"ORDER": len(form.lengths), "REAL": REALS[form.dtype], "LANES": lanes_of(form)}
