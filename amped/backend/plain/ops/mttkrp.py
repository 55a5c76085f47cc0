"""MTTKRP without compiled code: one copy of the nonzeros, in the order of mode 0, serves all modes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...device import NOTHING, Array
from ...ops.mttkrp import MTTKRP, NOTHING_STORED, Kernel, KernelBytes, Offers, Share
from ..device import PlainDevice
from ..tree import Tree

NODE_BYTES = 48  # of a node of the tree and of what adds it up, at most
PRODUCTS = 3  # rows of doubles of a node that are in memory at once


@dataclass(frozen=True)
class PlainShard:
    """All nonzeros, as one mode reads them. See `Shard`."""

    kernel: Kernel
    tree: Tree
    mode: int
    nbytes: int

    @property
    def nnz(self) -> int:
        """The number of nonzeros."""
        return int(self.tree.values.size)

    def unloaded(self, stored: Mapping[int, Any] = NOTHING_STORED) -> PlainShard:
        """See `Shard`: it is on the host, and stays there."""
        return self

    def copied(self, buffer: NDArray[np.uint8]) -> PlainShard:
        """See `Movable`: nothing is copied."""
        return self


class TreeKernel:
    """Sparse products along a tree of nonzeros; suits all. See `Kernel`."""

    name = code = "tree"
    most_nonzeros = (1 << 31) - 1
    repeatable, reads_narrow = True, False
    offers = Offers.TREE

    def suits(self, share: Share) -> bool:
        return True

    def gains(self, share: Share) -> bool:
        return True

    def keeps_columns(self, share: Share) -> bool:
        return True

    def prepare(self, share: Share) -> None:
        """See `Kernel`: nothing is compiled."""

    def bytes(self, share: Share, nnz: int) -> KernelBytes:
        """See `Kernel`: mode 0 counts the tree and its products; other modes have a part of these."""
        if share.column:
            return KernelBytes(0, 0, 0)
        inputs = len(share.lengths)
        products = 8 * PRODUCTS * share.stride * inputs
        return KernelBytes(nnz * (4 * (inputs + 1) + 8 + NODE_BYTES * inputs + products), 0, 0)

    def make(self, columns: Sequence[Array], values: Array, share: Share, continues: bool) -> PlainShard:
        kept = [np.ascontiguousarray(column, np.int32) for column in columns]
        tree = Tree(kept, values, (share.rows.stop, *share.lengths))
        return PlainShard(self, tree, 0, tree.nbytes + values.size * (4 * len(columns) + 8))

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
        """See `Kernel`: in double precision in any case."""
        put(shard.tree.mttkrp(shard.mode, inputs_of(shard, factors)), out, new)


def inputs_of(shard: PlainShard, factors: Sequence[Array]) -> list[Array | None]:
    """Return a factor matrix for each mode, None for the shard's."""
    return [*factors[: shard.mode], None, *factors[shard.mode :]]


def put(found: NDArray[np.float64], out: Array, new: slice) -> None:
    """Add what was found to the output, of which some rows are `new`."""
    if new == slice(0, len(out)):
        out[...] = found
        return
    out[new] = 0
    out += found


@MTTKRP.provider("plain")
def providers(device: PlainDevice) -> Sequence[Kernel]:
    """Return the kernels of the operation; the first suits all nonzeros."""
    return [TreeKernel()]
