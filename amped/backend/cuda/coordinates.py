"""Nonzeros in coordinate format, and their kernels in ``coordinates.cu``: ``atomic`` and ``permuted``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import cupy
import numpy as np

from partitioner.array_types import FloatDType
from partitioner.cuda.code import load

from ..device import Array
from ..ops.mttkrp import NOTHING_STORED, Kernel, Share
from .layout import ALIGNMENT, SORTING, VECTOR, row_lanes
from .shard import copied, unloaded
from .source import by_value, coordinate_macros, unit

ATOMIC = "atomic"
"""Algorithm 2 of AMPED as published, for comparison: one atomic addition per nonzero."""
PERMUTED = "permuted"
"""GenTen's MTTKRP-C (Phipps and Kolda, SIAM J. Sci. Comput. 41(3), 2019), the kernel of least memory: nonzeros are
stored for mode 0 only, with a permutation for each other mode, whose output is a whole matrix on every rank."""
CHUNK = 128  # as in coordinates.cu
THREADS = 256


@dataclass
class CoordinateShard:
    """Nonzeros of a range of output rows, column by column, or of any rows with a permutation. See `Shard`."""

    kernel: Kernel
    share: Share
    nnz: int
    first_row: int  # of the range, relative to the rank's first row
    rows: int  # number of rows of the range
    memory: Array  # (bytes,) uint8: columns and values; on the device, or page-locked on the host
    order: Array | None = None  # (nnz,) uint32: the nonzeros by output row

    @property
    def nbytes(self) -> int:
        """Size in bytes, without memory that another shard accounts for."""
        return int(self.memory.size if self.order is None else self.order.nbytes)

    def unloaded(self, stored: Mapping[int, Any] = NOTHING_STORED) -> CoordinateShard:
        return replace(self, memory=unloaded(self.memory))

    def copied(self, buffer: Array) -> CoordinateShard:
        return replace(self, memory=copied(self.memory, buffer))


def _column_bytes(nnz: int, itemsize: int) -> int:
    return -(-nnz * itemsize // ALIGNMENT) * ALIGNMENT


def _sizes(share: Share, nnz: int) -> list[int]:
    return [_column_bytes(nnz, 4)] * (len(share.lengths) + 1) + [_column_bytes(nnz, share.dtype.itemsize)]


def shard_bytes(share: Share, nnz: int) -> int:
    """Return an upper bound of the bytes of shards of `nnz` nonzeros in all."""
    if share.column:
        return 4 * nnz
    shards = 1 + nnz // (1 << 20)  # each shard's columns are padded
    return sum(_sizes(share, nnz)) + shards * len(_sizes(share, 0)) * ALIGNMENT if nnz else 0


def packing_bytes(share: Share, nnz: int) -> int:
    """Return the bytes of temporary memory while a shard is made: columns, or memory of the sort."""
    return nnz * (4 + SORTING) if share.column else sum(_sizes(share, nnz))


def scratch_bytes(share: Share, kernel: str) -> int:
    """Return the bytes of scratch memory that `mttkrp` needs."""
    narrow = kernel == ATOMIC and share.dtype == np.float32
    return (share.rows.stop - share.rows.start) * share.stride * 4 if narrow else 0


def make_shard(kernel: Kernel, columns: Sequence[Array], values: Array, share: Share) -> CoordinateShard:
    """Copy columns and values, sorted by output row, into one block of memory."""
    memory = cupy.empty(sum(_sizes(share, values.size)), np.uint8)
    at = 0
    for array, size in zip((*columns, values), _sizes(share, values.size), strict=True):
        memory[at : at + array.nbytes] = array.view(np.uint8)
        at += size
    first, last = (int(columns[0][k]) for k in (0, -1))
    return CoordinateShard(kernel, share, values.size, first - share.rows.start, last - first + 1, memory)


def permuted(shard: CoordinateShard, share: Share) -> CoordinateShard:
    """See `Kernel.derive`."""
    begin = share.column * _column_bytes(shard.nnz, 4)
    column = shard.memory[begin : begin + 4 * shard.nnz].view(np.int32)
    order = cupy.argsort(column).astype(np.uint32)  # a stable sort
    return replace(shard, share=share, first_row=0, rows=share.rows.stop - share.rows.start, order=order)


def column_places(shard: CoordinateShard) -> list[int]:
    """Return the addresses of the columns and the values."""
    begins = np.concatenate([[0], np.cumsum(_sizes(shard.share, shard.nnz)[:-1])])
    return [int(shard.memory.data.ptr) + begin for begin in begins.tolist()]


def mttkrp(shard: CoordinateShard, factors: Sequence[Array], out: Array, scratch: Array | None, double: bool) -> None:
    """See `Kernel.run`; queued on the current stream."""
    share, part = shard.share, out[shard.first_row : shard.first_row + shard.rows]
    width = share.stride * share.dtype.itemsize // VECTOR
    lanes = row_lanes(width, 32)
    addresses = column_places(shard)
    order = 0 if shard.order is None else shard.order.data.ptr
    words = np.array([*addresses, order, *(f.data.ptr for f in factors)], np.uint64)
    numbers = np.array([shard.nnz, share.rows.start + shard.first_row], np.uint64)
    atomic = shard.kernel.name == ATOMIC
    narrow = atomic and share.dtype == np.float32 and not double
    sums = part
    if narrow:
        nbytes = part.size * 4
        sums = (cupy.empty(nbytes, np.uint8) if scratch is None else scratch)[:nbytes].view(np.float32)
        sums = sums.reshape(part.shape)
        sums.fill(0)
    function = _kernel(len(factors), share.dtype, lanes, width, share.column, atomic, double, out.device.id)
    groups = THREADS // lanes
    grid = -(-shard.nnz // (groups * CHUNK)), -(-width // lanes)
    function(grid, (groups * lanes,), (by_value(words, numbers), sums))
    if narrow:
        part += sums


@cache
def _kernel(
    inputs: int, dtype: FloatDType, lanes: int, width: int, column: int, atomic: bool, double: bool, device: int
) -> Any:
    macros = coordinate_macros(inputs, dtype, lanes, width, column, atomic, double)
    return load(unit("coordinates", macros)).get_function("mttkrp")
