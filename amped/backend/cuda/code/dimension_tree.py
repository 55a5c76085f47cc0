"""Cost model of dimension trees: products with one factor matrix that serve two modes of an order-3 block."""

from __future__ import annotations

import numpy as np

from ...ops.dense import BlockForm
from ...ops.dimension_tree import (
    ORDER,
    TILES,
    DimensionTree,
    added,
    is_batch,
    next_of,
    step_of,
    third,
    tree_bytes,
    tree_of,
)
from ..source import REALS, Macros
from .dense import MOST_GAP, PRODUCTS, READ, whole_row

LINK = 55e9  # bytes per second from the host to an H200
CALLS = 2e-5  # seconds of fixed overhead per block of a partial result
ROWS = 2  # rows of the output that a thread of dimension_tree.cu computes
WARP, VECTOR = 32, 16  # as in dimension_tree.cu: threads of a warp, and bytes that each reads at once
MOST_BLOCKS = 528  # approximate number of thread blocks that contract a partial result
TILED = 32  # cuBLAS computes at least this many rows


def tree_on_gpu(form: BlockForm) -> DimensionTree | None:
    """Return the dimension tree that fits the workspace; None if none fits, or in single precision.

    Single precision uses the tensor cores by ``dense_multiply.cu``, which has no batched products.
    """
    if form.dtype != np.float64:
        return None
    form, item = widened(form), form.dtype.itemsize
    return tree_of(form, form.workspace - parts_bytes(item) - last_bytes(form), form.stride, item)


def widened(form: BlockForm) -> BlockForm:
    """Return the form with the last length padded to whole vectors, if gaps are allowed; padding is zero."""
    if not form.gaps or len(form.lengths) != ORDER:
        return form
    *others, length = form.lengths
    wide = whole_row(form, ORDER - 1)
    return form._replace(lengths=(*others, wide)) if wide <= length * (1 + MOST_GAP) else form


def scratch_bytes(form: BlockForm, tree: DimensionTree) -> int:
    """Return the bytes of scratch memory, including partial sums."""
    wide = widened(form)
    return tree_bytes(wide, tree) + parts_bytes(form.dtype.itemsize) + last_bytes(wide)


def last_bytes(form: BlockForm) -> int:
    """Return the bytes of the last mode's padded factor matrix, if gaps are allowed."""
    return form.lengths[-1] * form.stride * form.dtype.itemsize if form.gaps else 0


def parts_bytes(itemsize: int) -> int:
    """Return an upper bound of the bytes of partial sums of numbers of `itemsize` bytes."""
    return 8 * 2 * MOST_BLOCKS * ROWS * WARP * VECTOR // itemsize


def seconds(form: BlockForm, tree: DimensionTree) -> float:
    """Return the estimated time of the MTTKRPs of all modes: half the time of two sweeps, which take three products."""
    form = widened(form)
    return sum(_product_seconds(form, tree, mode) for mode in range(ORDER)) / 2


def link_seconds(form: BlockForm) -> float:
    """Return the estimated time to transfer the elements for one pass."""
    return form.elements * form.dtype.itemsize / LINK if form.streamed else 0.0


def _product_seconds(form: BlockForm, tree: DimensionTree, mode: int) -> float:
    contracted = third(mode, next_of(mode))
    step, length, other = step_of(tree, form, mode, contracted), form.lengths[mode], form.lengths[next_of(mode)]
    blocks, size = -(-length // step), form.dtype.itemsize
    computed = length
    if mode != 0 and is_batch(mode, contracted):  # in whole tiles
        tile = next((tile for tile in TILES if step >= tile >= TILED), TILED)
        computed = blocks * -(-step // tile) * tile
    product = 2.0 * form.elements / length * computed * form.stride / PRODUCTS[size]
    contractions = (3 + 2 * added(form, contracted)) * length * other * form.stride * size / READ
    return max(form.elements * size / READ, product) + contractions + blocks * CALLS


def pair_macros(form: BlockForm) -> Macros:
    """Return the macros of ``dimension_tree.cu``."""
    return {"REAL": REALS[form.dtype], "ROWS": ROWS}
