"""How the modes of a dense block are divided for `split`, and what it takes; needs no GPU or CuPy."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

from ...ops.dense import BlockForm, RowLayout
from ..layout import VECTOR
from ..source import REALS

READ, PRODUCTS = 4.2e12, {8: 52e12, 4: 80e12}  # bytes and floating point operations a second of an H200
CHUNKS = 2048  # blocks of threads that contract a partial result, about
LEAST_CHUNK = 64  # numbers of a column
DEPTH = 1024  # numbers that cuBLAS adds up in single precision: with more, sums are off by more than 1e-6
ALIGNED = 128, 32, VECTOR  # bytes: rows of elements begin at a multiple of the first that costs little
MOST_GAP = 1 / 32  # of a row, at most, is the gap behind it
TILE, MOST_ACROSS, MOST_WAVES = 128, 4, 6  # numbers; of tiles, as they are side by side, and as all processors have one
LEAST_PRODUCT = 128  # rows of a Khatri-Rao product, or its length
STORED = 1 / 4  # of the workspace is for Khatri-Rao products, at most, where these are stored
MOST_PIECES = 4  # of a Khatri-Rao product, for a partial result to be whole
MOST_LAUNCHES = 256  # pieces of a matrix at most, however small the workspace: each takes launches of its own
WHOLE = 16  # rows of a Khatri-Rao product that cuBLAS multiplies are a multiple: 128 bytes of a row of elements
TALL, DEPTH_BYTES = 128, 128  # as in dense_multiply.cu
WIDTHS = {8: 0.25, 16: 0.4, 32: 0.6, 64: 0.85, 128: 1.0}  # columns of a block of threads, and about how fast it is
LEAST_WIDE = {8: 32, 4: 8}  # such columns
LEAST_CAPABILITY = 90  # ten times: of tensor cores
WGMMA_CAPABILITY = 90  # of the GPUs that have wgmma, these alone
WGMMA = {32: (4, 2), 64: (5, 1), 128: (4, 1)}  # of dense_wgmma.cu, by columns: stages, and blocks on a multiprocessor
WGMMA_THREADS, WGMMA_DEEP = 256, 32  # of a block of threads; rows of a step of a Khatri-Rao product
BESIDE = 6  # steps of the depth that a block of threads could make while it begins, stores, and its sums are added up
MOST_ROUNDS = 6  # in which parts occupy a device, at most


class Division(NamedTuple):
    """Two groups of modes: those before `split` and the others; all that is counted is rows of `stride` columns.

    `partial` are the rows of a partial result that are there at once, for each group; `product`, those of the
    Khatri-Rao product of the other group, or of the parts that make up a partial result. A partial result that is not
    whole is made anew for each mode.
    """

    split: int
    partial: tuple[int, int]
    product: tuple[int, int]

    def whole(self, group: int, form: BlockForm) -> bool:
        """Return whether a group's partial result is there as a whole."""
        return self.partial[group] >= rows_of(form, self.split, group)


def whole_waves(rows: int, columns: int, processors: int) -> int:
    """Return how many rows of a product with a transposed matrix are best multiplied apart from the others.

    cuBLAS takes its fastest kernel, by tiles of 128 x 128 numbers, where all processors are busy all the time.
    """
    across = -(-columns // TILE)
    wave = processors // across * TILE if TILE // 2 < columns <= MOST_ACROSS * TILE else 0
    waves = rows // wave if wave else 0
    return waves * wave if 0 < waves <= MOST_WAVES else rows


def rows_of(form: BlockForm, split: int, group: int) -> int:
    """Return the rows of a group's partial result."""
    return math.prod(form.lengths[split:] if group else form.lengths[:split])


def whole_row(form: BlockForm, split: int) -> int:
    """Return the numbers of a row of elements, in whole vectors."""
    numbers = VECTOR // form.dtype.itemsize
    return -(-rows_of(form, split, 1) // numbers) * numbers


def spaced(form: BlockForm, split: int) -> RowLayout | None:
    """Return how rows of elements are aligned, if they are not and gaps may be, and cost little memory."""
    row = rows_of(form, split, 1)
    for unit in ALIGNED if form.gaps else ():
        pitch = -(-row * form.dtype.itemsize // unit) * unit // form.dtype.itemsize
        if pitch <= row * (1 + MOST_GAP):
            return RowLayout(split, pitch) if pitch > row else None
    return None


def divide(form: BlockForm, processors: int = 0) -> Division:
    """Return the division that takes the least time, as far as that can be foreseen.

    With `processors`, Khatri-Rao products are made where they are multiplied with, by ``dense_multiply.cu``.
    """
    splits = list(range(1, len(form.lengths)))
    aligned = math.prod(form.lengths[1:]) * form.dtype.itemsize % VECTOR == 0
    if not (processors or aligned or form.gaps):
        splits.reverse()  # of those that are alike, cuBLAS takes the one with short rows fastest
    return min((division_at(form, split, processors) for split in splits), key=lambda d: seconds(form, d))


def divide_for(form: BlockForm, mode: int) -> Division:
    """Return the division for one mode alone, at the end of its group: that of fewer rows (Phan et al. 2013)."""
    splits = [split for split in (mode, mode + 1) if 0 < split < len(form.lengths)]
    split = min(splits, key=lambda split: rows_of(form, split, int(mode >= split)))
    return division_at(form, split, 0)


def division_at(form: BlockForm, split: int, processors: int) -> Division:
    """Return the division of a split, within the workspace: pieces of whole indices of a group's first mode."""
    row, have = form.stride * form.dtype.itemsize, form.workspace - parts_bytes(form)
    sides = rows_of(form, split, 0), whole_row(form, split)
    units = sides[0] // form.lengths[0], rows_of(form, split, 1) // form.lengths[split]  # rows of a group's first index
    partial, product = [], []
    for group in (0, 1):
        left = have - sides[group] * row
        if processors:
            tiling = tiling_of(sides[group], sides[1 - group], form, processors, left // row)
            at_once = TALL * blocks_of(form) * processors // across_of(form)  # rows: of a slab, or a piece, all are cut
            more = max(0, min(left // row, at_once), tiling.parts * tiling.rest)
        else:
            other = sides[1] if group == 0 else min(sides[0], units[0] * form.slab)
            parts = 0 if form.dtype.itemsize == 8 else other // DEPTH * sides[group]
            more = stored_rows(other + parts, left // row, int(have * STORED) // row)
        indices = max((have - more * row) // row // units[group], -(-sides[group] // (units[group] * MOST_LAUNCHES)))
        product.append(more)
        partial.append(min(sides[group], units[group] * indices))
    return Division(split, (partial[0], partial[1]), (product[0], product[1]))


def stored_rows(rows: int, beside: int, share: int) -> int:
    """Return how many rows of a Khatri-Rao product are stored at once, in few pieces of equal size if it is cut.

    `beside`: rows that fit beside a whole partial result; `share`: those that count if it does not fit.
    """
    if beside * MOST_PIECES < rows:
        return min(rows, max(LEAST_PRODUCT, -(-rows // MOST_LAUNCHES), share, beside))
    pieces = -(-rows // beside)
    return min(beside, -(-rows // (pieces * WHOLE)) * WHOLE)


def width_of(form: BlockForm) -> int:
    """Return how many columns a block of threads multiplies."""
    known = [width for width in WIDTHS if width >= LEAST_WIDE[form.dtype.itemsize]]
    return min(known, key=lambda width: -(-form.stride // width) * width / WIDTHS[width])


def blocks_of(form: BlockForm) -> int:
    """Return how many blocks of threads that multiply a multiprocessor has room for."""
    width = width_of(form)
    return 1 if width == 128 else 2 if width >= 32 else 3


def across_of(form: BlockForm) -> int:
    """Return how many blocks of threads multiply the columns of the same rows."""
    return -(-form.stride // width_of(form))


class Tiling(NamedTuple):
    """Which blocks of rows of a product are computed whole, and the others in parts; see ``dense_tiles.cuh``."""

    whole: int
    parts: int  # of each of the others
    share: int  # of the depth that a part has
    rest: int  # rows of the others

    @property
    def blocks(self) -> int:
        """How many blocks of rows, and parts of such, there are."""
        return self.whole + -(-self.rest // TALL) * self.parts


@cache
def tiling_of(rows: int, depth: int, form: BlockForm, processors: int, most_rows: int) -> Tiling:
    """Return how a product occupies a device; parts have no more than so many rows in all."""
    deep, places = DEPTH_BYTES // form.dtype.itemsize, blocks_of(form) * processors
    tiles, across = -(-rows // TALL), across_of(form)
    whole = tiles * across // places * places // across
    left, rest = (tiles - whole) * across, rows - whole * TALL
    if rest <= 0:
        return Tiling(tiles, 1, depth, 0)
    steps = -(-depth // deep)
    most = min(steps, most_rows // rest, -(-MOST_ROUNDS * places // left))
    parts = min(range(1, max(1, most) + 1), key=lambda n: -(-left * n // places) * (-(-steps // n) + BESIDE))
    share = -(-steps // parts) * deep
    parts = -(-depth // share)
    return Tiling(whole, parts, share, rest) if parts > 1 else Tiling(tiles, 1, depth, 0)


def multiply_shared(form: BlockForm, transposed: bool) -> int:
    """Return the bytes of shared memory of a block of threads of ``dense_multiply.cu``."""
    size = form.dtype.itemsize
    deep, width, item = DEPTH_BYTES // size, width_of(form), (form.held or form.dtype).itemsize
    pad = {8: 4, 4: 8}  # numbers behind a row, by their size
    held = deep * (TALL + pad[item]) if transposed else TALL * (deep + 4)
    span = width + (0 if width == 8 else pad[size])
    return stages_of(form) * (item * held + (1 if size == 8 else 2) * size * deep * span)


def stages_of(form: BlockForm) -> int:
    """Return how many steps ``dense_multiply.cu`` has in shared memory."""
    return 4 if form.dtype.itemsize == 8 and (form.held or width_of(form) == 128) else 3


def multiply_threads(form: BlockForm) -> int:
    """Return the threads of a block of ``dense_multiply.cu``."""
    width = width_of(form)
    return TALL // (32 if width <= 32 else 64) * max(width, 32)


def multiply_macros(form: BlockForm, parts: int, transposed: bool, vector: int) -> dict[str, Any]:
    """Return the macros with which ``dense_multiply.cu`` is compiled."""
    return {
        "REAL": REALS[form.dtype], "REAL_IS_DOUBLE": int(form.dtype.itemsize == 8), "PARTS": parts,
        "ITEM": REALS[form.held or form.dtype], "STAGES": stages_of(form), "VECTOR": vector,
        "TRANSPOSED": int(transposed), "WIDE": width_of(form), "BLOCKS": blocks_of(form),
    }  # fmt: skip


def takes_wgmma(form: BlockForm, aligned: bool, capability: int) -> bool:
    """Return whether ``dense_wgmma.cu`` multiplies, as it is faster; rows are aligned to 16 bytes, or not."""
    width = width_of(form)
    known = form.dtype.itemsize == 4 and width in WGMMA and capability == WGMMA_CAPABILITY
    return known and (aligned or width > min(WGMMA))


def wgmma_shared(form: BlockForm, transposed: bool) -> int:
    """Return the bytes of shared memory of a block of threads of ``dense_wgmma.cu``."""
    width, deep = width_of(form), WGMMA_DEEP
    held = deep * (TALL + 8) if transposed else TALL * (deep + 4)
    return WGMMA[width][0] * 4 * (held + 2 * deep * width)


def wgmma_macros(form: BlockForm, parts: int, transposed: bool, aligned: bool, last: int) -> dict[str, Any]:
    """Return the macros with which ``dense_wgmma.cu`` is compiled; `last` is the length of the last factor matrix."""
    width = width_of(form)
    stages, blocks = WGMMA[width]
    return {
        "PARTS": parts, "TRANSPOSED": int(transposed), "SHIFTED": int(not aligned), "LONG": int(last >= WGMMA_DEEP),
        "WIDE": width, "STAGES": stages, "BLOCKS": blocks,
    }  # fmt: skip


def seconds(form: BlockForm, division: Division) -> float:
    """Return about how long the MTTKRPs of all modes take."""
    size, count = form.dtype.itemsize, len(form.lengths)
    total = 0.0
    for group, modes in ((0, division.split), (1, count - division.split)):
        times = 1 if division.whole(group, form) else modes
        once = max(form.elements * size / READ, 2.0 * form.elements * form.stride / PRODUCTS[size])
        sides = rows_of(form, division.split, group) * (1 + modes) + 2 * rows_of(form, division.split, 1 - group)
        total += times * once + sides * form.stride * size / READ
    return total


def scratch_bytes(form: BlockForm, division: Division) -> int:
    """Return the bytes of scratch memory: a Khatri-Rao product, a partial result, and parts of sums."""
    rows = max(a + b for a, b in zip(division.partial, division.product, strict=True))
    return rows * form.stride * form.dtype.itemsize + parts_bytes(form)


def lanes_of(form: BlockForm) -> int:
    """Return how many threads take the columns of a row of a partial result."""
    return next((lanes for lanes in (4, 8, 16) if form.stride <= lanes), 32)


def chunk_of(form: BlockForm, length: int, others: int) -> tuple[int, int]:
    """Return the numbers of a chunk that are added up for a row, and how many chunks there are."""
    wanted = max(1, CHUNKS // (length * -(-form.stride // 32)))
    chunk = max(LEAST_CHUNK, -(-others // wanted))
    return chunk, -(-others // chunk)


def parts_bytes(form: BlockForm) -> int:
    """Return the bytes of the parts that chunks add up to, at most: a mode of more rows has one chunk, and no parts."""
    return 8 * form.stride * CHUNKS


def macros(form: BlockForm) -> dict[str, Any]:
    """Return the macros with which ``dense.cu`` is compiled."""
    return {"ORDER": len(form.lengths), "REAL": REALS[form.dtype], "LANES": lanes_of(form)}
