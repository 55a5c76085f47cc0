"""How long products with one factor matrix take that serve two modes of an order-3 block; needs no GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ops.dense import BlockForm
from ...ops.dimension_tree import (
    ORDER,
    TILES,
    DimensionTree,
    added,
    is_batch,
    next_of,
    pairs_bytes,
    pairs_of,
    step_of,
    third,
)
from ..source import REALS
from .dense import MOST_GAP, PRODUCTS, READ, whole_row

LINK = 55e9  # bytes a second from the host to an H200
CALLS = 2e-5  # seconds that the work on a block of a partial result takes beside what its numbers take
ROWS = 2  # of an output that a thread computes in dimension_tree.cu
WARP, VECTOR = 32, 16  # as there: threads, and bytes that each reads at once
MOST_BLOCKS = 528  # of threads that contract a partial result, about
TILED = 32  # rows that cuBLAS computes at least


def pairs_on_gpu(form: BlockForm) -> DimensionTree | None:
    """Return how partial results fit the workspace; None if they do not, or are in single precision.

    That is multiplied on tensor cores by ``dense_multiply.cu``, which has no products of several matrices.
    """
    if form.dtype != np.float64:
        return None
    form, item = widened(form), form.dtype.itemsize
    return pairs_of(form, form.workspace - parts_bytes(item) - last_bytes(form), form.stride, item)


def widened(form: BlockForm) -> BlockForm:
    """Return the form with a last length of whole vectors, if gaps may be: what is added is zero."""
    if not form.gaps or len(form.lengths) != ORDER:
        return form
    *others, length = form.lengths
    wide = whole_row(form, ORDER - 1)
    return form._replace(lengths=(*others, wide)) if wide <= length * (1 + MOST_GAP) else form


def scratch_bytes(form: BlockForm, pairs: DimensionTree) -> int:
    """Return the bytes of scratch memory, with parts of sums."""
    wide = widened(form)
    return pairs_bytes(wide, pairs) + parts_bytes(form.dtype.itemsize) + last_bytes(wide)


def last_bytes(form: BlockForm) -> int:
    """Return the bytes of the last mode's factor matrix, to which zeros are added, if gaps may be."""
    return form.lengths[-1] * form.stride * form.dtype.itemsize if form.gaps else 0


def parts_bytes(itemsize: int) -> int:
    """Return the bytes of sums that are added up, at most, of numbers of so many bytes."""
    return 8 * 2 * MOST_BLOCKS * ROWS * WARP * VECTOR // itemsize


def seconds(form: BlockForm, pairs: DimensionTree) -> float:
    """Return about how long the MTTKRPs of all modes take: half of those of two sweeps, which take three products."""
    form = widened(form)
    return sum(_product_seconds(form, pairs, mode) for mode in range(ORDER)) / 2


def link_seconds(form: BlockForm) -> float:
    """Return about how long elements take to come for a pass."""
    return form.elements * form.dtype.itemsize / LINK if form.streamed else 0.0


def _product_seconds(form: BlockForm, pairs: DimensionTree, mode: int) -> float:
    contracted = third(mode, next_of(mode))
    step, length, other = step_of(pairs, form, mode, contracted), form.lengths[mode], form.lengths[next_of(mode)]
    blocks, size = -(-length // step), form.dtype.itemsize
    computed = length
    if mode != 0 and is_batch(mode, contracted):  # in whole tiles
        tile = next((tile for tile in TILES if step >= tile >= TILED), TILED)
        computed = blocks * -(-step // tile) * tile
    product = 2.0 * form.elements / length * computed * form.stride / PRODUCTS[size]
    contractions = (3 + 2 * added(form, contracted)) * length * other * form.stride * size / READ
    return max(form.elements * size / READ, product) + contractions + blocks * CALLS


def pair_macros(form: BlockForm) -> dict[str, Any]:
    """Return the macros with which ``dimension_tree.cu`` is compiled."""
    return {"REAL": REALS[form.dtype], "ROWS": ROWS}
