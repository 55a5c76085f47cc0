"""Sweeps over order-3 blocks in which three products serve the six MTTKRPs of two sweeps.

The product of a block and one mode's factor matrix is a *partial result*, with a row for each pair of indices of the
other two modes. It serves these two modes, one after the other: modes 0 and 1, then 2 and 0, then 1 and 2. Each factor
matrix is up to date when the block is multiplied by it, and does not change before the second of the two modes is
served (multi-sweep dimension trees: Ma and Solomonik 2021).

A partial result that does not fit into memory is computed in blocks of indices of its first mode. The rows of the first
mode's MTTKRP are then complete. They are solved, and the block is contracted with the new factor rows, which gives a
contribution to the second mode's MTTKRP.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from ..device import Array
from .dense import BlockForm

ORDER = 3
PASSES = 3 / 2  # passes over the elements per sweep
TILES = 128, 64, 32, 8  # rows of a product computed at a time: block sizes are multiples of the first that fits


class DimensionTree(NamedTuple):
    """The buffer of partial results: `rows` of `columns` numbers; `whole`: whether every partial result fits."""

    rows: int
    columns: int
    itemsize: int  # bytes of a number
    whole: bool


def next_of(mode: int) -> int:
    """Return the mode that follows in memory order."""
    return (mode + 1) % ORDER


def third(mode: int, following: int) -> int:
    """Return the third mode."""
    return 3 - mode - following


def is_batch(mode: int, contracted: int) -> bool:
    """Return whether the product for blocks of a mode is a batch of products, as its rows are not contiguous.

    The rows of the partial result are indices of the two modes that are not `contracted`, in memory order.
    """
    return contracted == 1 or (contracted, mode) in ((2, 1), (0, 2))


def step_of(tree: DimensionTree, form: BlockForm, mode: int, contracted: int) -> int:
    """Return the number of indices of a mode per block."""
    length, other = form.lengths[mode], form.lengths[third(mode, contracted)]
    step = tree.rows // other
    if step >= length:
        return length
    if mode != 0 and is_batch(mode, contracted):
        step = next((step // tile * tile for tile in TILES if step >= tile), step)
    return max(1, step)


def added(form: BlockForm, contracted: int) -> int:
    """Return the number of additions to a partial result: if mode 0 is contracted, it may be passed in slabs."""
    return -(-form.lengths[0] // form.slab) - 1 if contracted == 0 else 0


def next_bytes(form: BlockForm, tree: DimensionTree) -> int:
    """Return the bytes of the next mode's MTTKRP, which is computed block by block if partial results do not fit."""
    return 0 if tree.whole else max(form.lengths) * tree.columns * 8


def tree_of(form: BlockForm, workspace: int, columns: int, itemsize: int) -> DimensionTree | None:
    """Return the buffer for partial results that fits a workspace; None if there is none."""
    if len(form.lengths) != ORDER or not form.dimension_tree:
        return None
    (a, b, c), row = form.lengths, columns * itemsize
    most = max(a * b, b * c, a * c)
    if most * row <= workspace:
        return DimensionTree(most, columns, itemsize, True)
    tree = DimensionTree(0, columns, itemsize, False)
    rows = (workspace - next_bytes(form, tree)) // row
    fits = form.whole and not form.streamed and rows >= max(form.lengths)
    return tree._replace(rows=rows) if fits else None


def tree_bytes(form: BlockForm, tree: DimensionTree) -> int:
    """Return the bytes of scratch memory: a partial result and the next mode's MTTKRP."""
    return tree.rows * tree.columns * tree.itemsize + next_bytes(form, tree)


class Products(Protocol):
    """The matrix products that a device provides for `DimensionTreeSweep`; all work is queued.

    Matrices may have more columns than `factor` has rows; the additional columns are zero.
    """

    def whole(self, block: Array) -> Array:
        """Return a C-contiguous block; padding of the last mode becomes additional indices."""

    def multiply(self, matrix: Array, factor: Array, out: Array, adds: bool, transposed: bool) -> None:
        """Compute ``out = matrix @ factor``, with the matrix `transposed` or not; add to `out` if `adds`."""

    def multiply_each(self, matrices: Array, factor: Array, out: Array, transposed: bool) -> None:
        """Compute ``out[i] = matrices[i] @ factor`` for all i, with the matrices `transposed` or not."""

    def contract(
        self, partial: Array, lengths: tuple[int, int], at: int, factor: Array, out: Array, adds: bool
    ) -> None:
        """Compute ``out[i] = sum over k of partial[i, k] * factor[k]``, or with ``partial[k, i]``; add if `adds`.

        Rows of `partial` are index pairs of two modes of the given `lengths`; `at` is the position, 0 or 1, of the mode
        of `out`. If a mode is padded, `out` and `factor` have fewer rows.
        """


class DimensionTreeSweep:
    """A sweep whose products serve pairs of modes, also across sweeps; see `Sweep`.

    `expect` must precede each MTTKRP. If `in_blocks`, modes that read are computed as follows, not by `begin`, `add`
    and `end`::

        for rows in sweep.blocks(mode):
            sweep.compute(mode, rows, block, factors, out)
            ...  # these rows of factors[mode] are solved
            sweep.pass_on(mode, rows, factors, out)

    As the next mode is computed from the new rows, `changed` must not be called for this factor matrix. The last of
    `rows` may exceed the existing rows.
    """

    def __init__(
        self,
        form: BlockForm,
        tree: DimensionTree,
        scratch: Array,
        products: Products,
        lengths: tuple[int, ...] | None = None,
    ) -> None:
        """The last length of `form` includes padding, if there is any; `lengths` are without it."""
        self._form, self._tree, self._products, self.in_blocks = form, tree, products, not tree.whole
        self._lengths = lengths or form.lengths
        end = tree.rows * tree.columns * tree.itemsize
        self._partial = scratch[:end].view(f"f{tree.itemsize}").reshape(-1, tree.columns)
        self._next = scratch[end : end + next_bytes(form, tree)].view(np.float64).reshape(-1, tree.columns)
        self._pair = 0, 1  # the modes that are served
        self._ready = False  # whether the partial result is valid; if `in_blocks`, the second mode's MTTKRP

    def expect(self, mode: int, following: int) -> None:
        if self.reads(mode):
            self._pair, self._ready = (mode, following), False

    def _contracted(self) -> int:
        mode, following = self._pair
        return third(mode, next_of(mode) if following == mode else following)

    def reads(self, mode: int) -> bool:
        return not self._ready or mode not in (self._pair[1:] if self.in_blocks else self._served())

    def _served(self, mode: int = 0, rows: slice | None = None) -> dict[int, int]:
        """Return the lengths of the served modes, in memory order; with `rows`, `mode` is restricted to these."""
        lengths = {m: n for m, n in enumerate(self._form.lengths) if m != self._contracted()}
        return lengths if rows is None else lengths | {mode: rows.stop - rows.start}

    def changed(self, mode: int) -> None:
        """See `Sweep`: when the second mode's matrix of a pair changes, both modes have been served."""
        if self.in_blocks or mode == self._contracted() or mode == self._pair[1] != self._pair[0]:
            self._ready = False

    def kept(self) -> Hashable:
        return self._pair if self._ready else None

    def resume(self, kept: Hashable) -> None:
        assert kept is None or isinstance(kept, tuple)
        self._ready = kept is not None
        self._pair = kept or self._pair

    def begin(self, mode: int, factors: Sequence[Array], out: Array) -> None:
        if mode not in self._served():
            self._pair = mode, next_of(mode)
        self._ready = False

    def add(self, mode: int, slab: Array, start: int, factors: Sequence[Array], out: Array) -> None:
        contracted, (first, second) = self._contracted(), self._served().values()
        slab = self._products.whole(slab)
        if contracted == 0:
            matrix, factor = slab.reshape(len(slab), -1), factors[0][start : start + len(slab)]
            self._products.multiply(matrix, factor, self._partial[: first * second], start > 0, True)
            return
        target = self._partial[start * second : (start + len(slab)) * second]
        self._multiply(slab, 0, slice(0, len(slab)), contracted, factors[contracted], target)

    def _multiply(self, block: Array, mode: int, rows: slice, contracted: int, factor: Array, out: Array) -> None:
        """Queue the product of a range of a mode of a block and the factor matrix of another mode."""
        products, n, (i, j, k) = self._products, rows.stop - rows.start, block.shape
        part = block[(slice(None),) * mode + (rows,)]
        if contracted == 2 and (mode == 0 or n == j):
            products.multiply(part.reshape(-1, k), factor, out, False, False)
        elif contracted == 2:
            products.multiply_each(part, factor, out.reshape(i, n, -1), False)
        elif contracted == 1:
            products.multiply_each(part, factor, out.reshape(len(part), part.shape[2], -1), True)
        elif mode == 1 or n == k:
            columns = slice(rows.start * k, rows.stop * k) if mode == 1 else slice(None)
            products.multiply(block.reshape(i, -1)[:, columns], factor, out, False, True)
        else:
            products.multiply_each(part.transpose(1, 0, 2), factor, out.reshape(j, n, -1), True)

    def end(self, mode: int, factors: Sequence[Array], out: Array) -> None:
        if self.in_blocks:
            out[:, : self._tree.columns] = self._next[: len(out)]
            return
        self._ready = True
        self._contract(mode, self._served(), factors, out, False)

    def _contract(self, mode: int, lengths: dict[int, int], factors: Sequence[Array], out: Array, adds: bool) -> None:
        """Contract a partial result of two modes to the MTTKRP of one of them."""
        first, second = lengths
        other, sizes = (second if mode == first else first), (lengths[first], lengths[second])
        self._products.contract(
            self._partial[: math.prod(sizes)], sizes, int(mode == second), factors[other], out, adds
        )

    def blocks(self, mode: int) -> Sequence[slice]:
        self._ready = False
        length, step = self._form.lengths[mode], step_of(self._tree, self._form, mode, self._contracted())
        return [slice(begin, min(begin + step, length)) for begin in range(0, self._lengths[mode], step)]

    def compute(self, mode: int, rows: slice, block: Array, factors: Sequence[Array], out: Array) -> None:
        contracted, lengths = self._contracted(), self._served(mode, rows)
        first, second = lengths.values()
        block = self._products.whole(block)
        self._multiply(block, mode, rows, contracted, factors[contracted], self._partial[: first * second])
        self._contract(mode, lengths, factors, out[rows], False)

    def pass_on(self, mode: int, rows: slice, factors: Sequence[Array], out: Array) -> None:
        following = self._pair[1]
        if following == mode:
            done = out[rows, : self._tree.columns]
            self._next[rows.start : rows.start + len(done)] = done
        else:
            solved = [factor[rows] if m == mode else factor for m, factor in enumerate(factors)]
            target = self._next[: self._form.lengths[following]]
            self._contract(following, self._served(mode, rows), solved, target, rows.start > 0)
        self._ready = rows.stop >= self._lengths[mode]
