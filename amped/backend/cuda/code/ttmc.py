"""Compile-time parameters of the TTMc kernels: how threads share a row of the result; needs no GPU or CuPy."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from partitioner.array_types import FloatDType

from ...ops.ttmc import width
from ..layout import VECTOR
from ..source import REALS, Macros

THREADS, MOST_LANES, WARP = 128, 32, 32
USUAL = 32  # columns; with more, double-precision code needs more registers
SHORT = 3  # input modes; with more, a thread uses all available registers
FASTEST = {np.dtype(np.float32): (8, 4, 4), np.dtype(np.float64): (16, 2, 3)}
"""(sums, batch, blocks) of `WalkedCode`, the fastest on an H200 of about ten that were timed."""
DOUBLED = 8, 2, 2  # for single-precision numbers summed in double precision, with as many registers
LEAST_CHUNK, WAVES = 64, 8  # least nonzeros of a chunk; groups per resident group
ALIGNED = 16  # nonzeros: chunks begin with a whole batch
RESIDENT = 512  # threads per multiprocessor
OF_TILE, MOST_PARTS = 8, 4  # columns of a tile of a product; most columns of a mode per thread
MOST_TILES = 16  # tiles per warp, at most


@dataclass(frozen=True)
class TtmcCode(ABC):
    """The code for input factor matrices with `ranks` columns."""

    ranks: tuple[int, ...]
    dtype: FloatDType

    source: ClassVar[str]  # see `source.unit`
    most: ClassVar[int]  # maximum nonzeros of a chunk

    @property
    @abstractmethod
    def macros(self) -> Macros:
        """The macros of the source."""

    @property
    @abstractmethod
    def lanes(self) -> int:
        """Threads of a group."""

    @property
    def vector(self) -> int:
        """Numbers per 16 bytes."""
        return VECTOR // self.dtype.itemsize

    @property
    def width(self) -> int:
        """Columns of the result."""
        return width(self.ranks)

    @property
    def of_w(self) -> int:
        """Columns of the Kronecker product of all modes but the last two."""
        return width(self.ranks[:-2])

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Columns of each factor matrix in memory."""
        return tuple(-(-rank // self.vector) * self.vector for rank in self.ranks)

    @property
    def shared(self) -> Macros:
        """The macros of ``ttmc_rows.cuh``, except the batch size."""
        return {
            "STORED": REALS[self.dtype], "REAL": REALS[self.dtype],
            "INPUTS": len(self.ranks), "RANKS": ",".join(map(str, self.ranks)),
            "STRIDES": ",".join(map(str, self.strides)), "THREADS": THREADS,
        }  # fmt: skip

    @property
    def panels(self) -> int:
        """Groups that share the columns of a chunk."""
        return math.prod(int(self.macros[f"PANELS_{each}"]) for each in "BCW")

    def chunk(self, nnz: int, processors: int) -> int:
        """Return the nonzeros of a chunk, few enough to occupy every multiprocessor."""
        groups = max(1, processors * RESIDENT // self.lanes) * WAVES
        return min(self.most, max(LEAST_CHUNK, -(-nnz // (groups * ALIGNED)) * ALIGNED))

    def chunks(self, nnz: int, processors: int) -> int:
        """Return the number of chunks."""
        return -(-nnz // self.chunk(nnz, processors))

    def carry_bytes(self, nnz: int, processors: int) -> int:
        """Return the bytes of the chunks' carries."""
        return 8 * self.width * self.chunks(nnz, processors)


@dataclass(frozen=True)
class WalkedCode(TtmcCode):
    """The code of ``ttmc.cu``."""

    source, most = "ttmc", 1024
    sums: int  # vectors of a row per thread
    batch: int  # nonzeros loaded together
    blocks: int  # target of thread blocks per multiprocessor
    real: FloatDType  # type of products and short sums

    @cached_property
    def macros(self) -> Macros:
        of_w, of_b = self.of_w, self.ranks[-2] if len(self.ranks) > 1 else 1
        lanes_c = min(MOST_LANES, self.strides[-1] // self.vector)
        ws = min(of_w, self.sums)
        bs = max(1, min(of_b, self.sums // ws))
        if bs >= self.vector:  # loaded as whole vectors
            bs = min(bs // self.vector * self.vector if bs < of_b else -(-bs // self.vector) * self.vector, self.sums)
        lanes_b = max(1, min(-(-of_b // bs), MOST_LANES // lanes_c))
        return {
            **self.shared, "REAL": REALS[self.real], "BS": bs, "LANES_B": lanes_b, "LANES_C": lanes_c, "WS": ws,
            "PANELS_B": -(-of_b // (bs * lanes_b)), "PANELS_C": -(-self.strides[-1] // (lanes_c * self.vector)),
            "PANELS_W": -(-of_w // ws), "BATCH": self.batch, "BLOCKS": self._least_blocks,
        }  # fmt: skip

    @property
    def _least_blocks(self) -> int:
        """The thread blocks per multiprocessor; fewer if threads would spill registers."""
        if len(self.ranks) > SHORT:
            return 1
        return self.blocks if max(self.ranks) <= USUAL or self.real == np.float32 else self.blocks - 1

    @property
    def lanes(self) -> int:
        return math.prod(int(self.macros[f"LANES_{each}"]) for each in "BC")


@dataclass(frozen=True)
class ProductsCode(TtmcCode):
    """The code of ``ttmc_products.cu``, for two or three input modes."""

    source, most, lanes = "ttmc_products", 4096, WARP

    @cached_property
    def macros(self) -> Macros:
        hb, hc = (_parts(rank) for rank in self.ranks[-2:])
        # Larger tiles run out of registers.
        small = len(self.ranks) < SHORT and self.dtype == np.float32 and hb * hc <= 4
        hw = min(self.of_w, max(1, MOST_TILES // (hb * hc)))
        return {
            **self.shared, "HB": hb, "HC": hc, "HW": hw, "PANELS_B": -(-self.ranks[-2] // (OF_TILE * hb)),
            "PANELS_C": -(-self.ranks[-1] // (OF_TILE * hc)), "PANELS_W": -(-self.of_w // hw),
            "BATCH": 4 if small else 2, "BLOCKS": 1,
        }  # fmt: skip


def _parts(rank: int) -> int:
    """Return the columns of a mode per thread: a power of two, so that they can be loaded at once."""
    needed = -(-rank // OF_TILE)
    return next((count for count in (1, 2) if count >= needed), MOST_PARTS)


def walked_code(ranks: Sequence[int], dtype: FloatDType, double: bool = False) -> WalkedCode:
    """Return the code of ``ttmc.cu`` for input factor matrices of these ranks; `double`: sums in double precision."""
    dtype, real = np.dtype(dtype), np.dtype(np.float64 if double else dtype)
    return WalkedCode(tuple(ranks), dtype, *(FASTEST[dtype] if real == dtype else DOUBLED), real)


def products_code(ranks: Sequence[int], dtype: FloatDType) -> ProductsCode:
    """Return the code of ``ttmc_products.cu`` for input factor matrices of these ranks."""
    return ProductsCode(tuple(ranks), np.dtype(dtype))
