"""How ``ttmc.cu`` is compiled: how threads share a row of the result; needs no GPU or CuPy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..ttmc import width
from .layout import VECTOR
from .source import REALS

THREADS, MOST_LANES = 128, 32
USUAL = 32  # columns: with more, code in double precision takes more registers
SHORT = 3  # input modes; with more, a thread takes as many registers as there are
FASTEST = {np.dtype(np.float32): (8, 4, 4), np.dtype(np.float64): (16, 2, 3)}
"""Of `TtmcCode`, on an H200, of (4, 4, 5), (4, 2, 6), (8, 2, 4), (8, 4, 4), (8, 8, 3), (16, 2, 3) and others."""
CHUNK, LEAST_CHUNK, WAVES = 1024, 64, 8  # nonzeros of a chunk at most and at least; groups for each that can be there
ALIGNED = 8  # nonzeros: a chunk begins with a whole batch
RESIDENT = 512  # threads of a multiprocessor


@dataclass(frozen=True)
class TtmcCode:
    """The code for input factor matrices of so many columns."""

    ranks: tuple[int, ...]
    dtype: np.dtype[Any]
    sums: int  # vectors of a row that a thread holds
    batch: int  # of nonzeros that are loaded together
    blocks: int  # of threads that a multiprocessor is to have room for

    @property
    def vector(self) -> int:
        """Numbers of 16 bytes."""
        return VECTOR // self.dtype.itemsize

    @property
    def width(self) -> int:
        """Columns of the result."""
        return width(self.ranks)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Columns of each factor matrix in memory."""
        return tuple(-(-rank // self.vector) * self.vector for rank in self.ranks)

    @cached_property
    def macros(self) -> dict[str, Any]:
        """The macros with which it is compiled; see there."""
        of_w = width(self.ranks[:-2])
        of_b = self.ranks[-2] if len(self.ranks) > 1 else 1
        lanes_c = min(MOST_LANES, self.strides[-1] // self.vector)
        ws = min(of_w, self.sums)
        bs = max(1, min(of_b, self.sums // ws))
        if bs >= self.vector:  # loaded as whole vectors
            bs = min(bs // self.vector * self.vector if bs < of_b else -(-bs // self.vector) * self.vector, self.sums)
        lanes_b = max(1, min(-(-of_b // bs), MOST_LANES // lanes_c))
        return {
            "REAL": REALS[self.dtype], "INPUTS": len(self.ranks), "RANKS": ",".join(map(str, self.ranks)),
            "STRIDES": ",".join(map(str, self.strides)), "BS": bs, "LANES_B": lanes_b, "LANES_C": lanes_c, "WS": ws,
            "PANELS_B": -(-of_b // (bs * lanes_b)), "PANELS_C": -(-self.strides[-1] // (lanes_c * self.vector)),
            "PANELS_W": -(-of_w // ws), "THREADS": THREADS, "BATCH": self.batch,
            "BLOCKS": self._least_blocks,
        }  # fmt: skip

    @property
    def _least_blocks(self) -> int:
        """The blocks that a multiprocessor has room for; fewer where threads would spill."""
        if len(self.ranks) > SHORT:
            return 1
        return self.blocks if max(self.ranks) <= USUAL or self.dtype == np.float32 else self.blocks - 1

    @property
    def lanes(self) -> int:
        """Threads of a group."""
        return int(self.macros["LANES_B"] * self.macros["LANES_C"])

    @property
    def panels(self) -> int:
        """Groups that share a chunk's columns."""
        return math.prod(int(self.macros[f"PANELS_{each}"]) for each in "BCW")

    def chunk(self, nnz: int, processors: int) -> int:
        """Return the nonzeros of a chunk, few enough to occupy every multiprocessor."""
        groups = max(1, processors * RESIDENT // self.lanes) * WAVES
        return min(CHUNK, max(LEAST_CHUNK, -(-nnz // (groups * ALIGNED)) * ALIGNED))

    def chunks(self, nnz: int, processors: int) -> int:
        """Return how many there are."""
        return -(-nnz // self.chunk(nnz, processors))

    def carry_bytes(self, nnz: int, processors: int) -> int:
        """Return the bytes of what chunks carry."""
        return 8 * self.width * self.chunks(nnz, processors)


def code_of(ranks: Sequence[int], dtype: np.dtype[Any]) -> TtmcCode:
    """Return the code for input factor matrices of so many columns."""
    dtype = np.dtype(dtype)
    return TtmcCode(tuple(ranks), dtype, *FASTEST[dtype])
