"""MTTKRP without compiled code: usually one copy of the nonzeros, in the order of mode 0, serves all modes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats

from ...device import NOTHING, Array
from ...ops.mttkrp import MTTKRP, NOTHING_STORED, Kernel, KernelBytes, Offers, Share
from ..device import PlainDevice
from ..tree import Tree

NODE_BYTES = 48  # of a node of a tree and of the matrices that sum its rows, at most
LIBRARIES = 6 << 20  # host memory of SciPy and NumPy beyond that of the device, which a bound by nonzeros covers
SPLITTING = 32  # bytes per nonzero, besides one per mode, of the indices that are compared to make the trees
PRODUCTS = 3  # rows of doubles per node that are in memory at the same time


@dataclass(frozen=True)
class PlainShard:
    """The nonzeros of a rank, for the products of one mode. See `Shard`."""

    kernel: Kernel
    tree: Tree
    rows: slice  # of the tree's first mode: those that the rank has; the tree counts from the first one
    mode: int  # of the tree
    nbytes: int

    @property
    def nnz(self) -> int:
        """The number of nonzeros."""
        return int(self.tree.values.size)

    def unloaded(self, stored: Mapping[int, Any] = NOTHING_STORED) -> PlainShard:
        """See `Shard`: it stays in host memory."""
        return self

    def copied(self, buffer: NDArray[np.uint8]) -> PlainShard:
        """See `Movable`: nothing is copied."""
        return self


class TreeKernel:
    """Sparse products between two trees of indices; supports all tensors. See `Kernel`."""

    name = code = "tree"
    most_nonzeros = (1 << 31) - 1
    repeatable, reads_narrow = True, False
    offers = Offers.TREE

    def __init__(self, tree_rows: int | None = None) -> None:
        """`tree_rows`: see `PlainDevice`."""
        self._tree_rows = tree_rows

    def suits(self, share: Share) -> bool:
        return True

    def gains(self, share: Share) -> bool:
        return True

    def keeps_columns(self, share: Share) -> bool:
        return True

    def prepare(self, share: Share) -> None:
        """See `Kernel`: nothing is compiled."""

    def bytes(self, share: Share, nnz: int) -> KernelBytes:
        """See `Kernel`: all modes share the trees and products, which count for mode 0."""
        if share.column:
            return KernelBytes(0, 0, 0)
        inputs = len(share.lengths)
        nonzero, row = 4 * (inputs + 1) + 8, NODE_BYTES + 8 * PRODUCTS * share.stride
        if self._tree_rows is None:
            return KernelBytes(nnz * (nonzero + row * inputs), 0, 0)
        return KernelBytes(nnz * (nonzero + SPLITTING + inputs) + row * self._tree_rows + LIBRARIES, 0, 0)

    def make(self, columns: Sequence[Array], values: Array, share: Share, continues: bool) -> PlainShard:
        rows, (first, *others) = share.rows, (np.ascontiguousarray(column, np.int32) for column in columns)
        tree = Tree([first - rows.start, *others], values, (rows.stop - rows.start, *share.lengths))
        return PlainShard(self, tree, rows, 0, tree.nbytes + tree.values.nbytes)

    def derive(self, shard: PlainShard, share: Share) -> PlainShard:
        return replace(shard, mode=share.column, nbytes=0)

    def run(
        self,
        shard: PlainShard,
        factors: Sequence[Array],
        out: Array,
        new: slice = NOTHING,
        scratch: Array = None,
        double: bool = False,
    ) -> None:
        """See `Kernel`: always in double precision."""
        add_rows(shard.tree.mttkrp(shard.mode, inputs_of(shard, factors)), out, new)


def inputs_of(shard: PlainShard, factors: Sequence[Array]) -> list[Array | None]:
    """Return a factor matrix for each mode, with the rows that the tree has; None for the shard's mode."""
    inputs = [*factors[: shard.mode], None, *factors[shard.mode :]]
    return [factor[shard.rows] if mode == 0 and factor is not None else factor for mode, factor in enumerate(inputs)]


def add_rows(rows: Floats, out: Array, new: slice) -> None:
    """Add rows to the output, after setting its `new` rows to zero."""
    if new == slice(0, len(out)):
        out[...] = rows
        return
    out[new] = 0
    out += rows


class ModeTreeKernel(TreeKernel):
    """The same with a copy of the nonzeros for each mode, sorted by its index. See `Kernel`."""

    name = code = "trees"
    offers = Offers.TREE | Offers.ROWS
    derive = None  # type: ignore[assignment]


@MTTKRP.provider("plain")
def providers(device: PlainDevice) -> Sequence[Kernel]:
    """Return the kernels of the operation; the first supports all tensors."""
    return [TreeKernel(device.tree_rows) if device.one_copy else ModeTreeKernel()]
