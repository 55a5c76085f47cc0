"""How a CPU solves the row problems of CP-APR: what memory it takes, and what compiled code is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ...base import Array
from ...mttkrp import Kernel, Share
from ...rowproblems import RowLimits, RowMethod, RowProblems, RowsSolved
from ..device import CpuDevice
from ..eights import FOUR
from ..layout import NARROW
from ..newton import FAILED, ITERATIONS, KKT
from ..rowmodel import block_of, kept_in, room_of
from ..rowproblems import RowOrder, noted, order_rows, solve_by_newton, solve_by_quasi_newton
from ..shard import HostShard
from ..threads import aligned, check
from ..vectors import LINE
from .mttkrp import Blocked, Permuted, Segmented, Tiled

KEPT_BYTES = 4 << 20  # of a thread's room: reading Pi from a far cache is still sooner than making it again
METHODS: dict[RowMethod, Callable[..., int]] = {"pdnr": solve_by_newton, "pqnr": solve_by_quasi_newton}


class HostRows:
    """Rows that are solved one by one, each by one thread. See `RowProblems`."""

    def __init__(self, device: CpuDevice, method: RowMethod) -> None:
        self.method, self._threads = method, device.threads

    def suits(self, kernel: Kernel, share: Share) -> bool:
        """See `RowProblems`: nonzeros of a row lie side by side."""
        return isinstance(kernel, Segmented) and not isinstance(kernel, (Blocked, Tiled, Permuted))

    def bytes(self, kernel: Kernel, share: Share, nnz: int) -> int:
        return self._threads.count * _numbers(share.stride) * 8 + LINE if nnz else 0

    def make(self, shard: HostShard, share: Share) -> RowOrder:
        return order_rows(shard, share.rows.stop - share.rows.start)

    def run(
        self,
        made: RowOrder,
        shard: HostShard,
        factors: Sequence[Array],
        own: Array,
        rank: int,
        limits: RowLimits,
        whole: slice | None = None,
        scratch: Array = None,
    ) -> RowsSolved:
        padded = -(-rank // FOUR) * FOUR
        rooms, seen = self._rooms(scratch, padded), noted(self._threads.count)
        rows = (0, len(own)) if whole is None else (whole.start, whole.stop)
        bounds = int(limits.inner), float(limits.tolerance), float(limits.floor)
        where = _addresses(shard, factors, rank, padded), tuple(made), own, rows
        turn, team, count = np.zeros(1, np.int64), self._threads.team, self._threads.count
        kept = kept_in(padded, rooms.shape[1])
        check(METHODS[self.method](0, team, count, turn, *where, bounds, rooms, kept, seen))
        return RowsSolved(float(seen[:, KKT].max()), int(seen[:, ITERATIONS].sum()), int(seen[:, FAILED].sum()))

    def _rooms(self, scratch: NDArray[np.uint8] | None, padded: int) -> NDArray[np.float64]:
        """Return the threads' rooms."""
        shape = self._threads.count, _numbers(padded)
        if scratch is None:
            return aligned(shape, np.dtype(np.float64))
        begin = -scratch.ctypes.data % LINE
        return scratch[begin : begin + 8 * shape[0] * shape[1]].view(np.float64).reshape(shape)


def providers(device: CpuDevice) -> Sequence[RowProblems]:
    """Return the providers of the family, one for each method."""
    return [HostRows(device, method) for method in METHODS]


def _numbers(padded: int) -> int:
    """Return the numbers of a thread's room."""
    return max(KEPT_BYTES // 8, room_of(padded, 1))


def _addresses(
    shard: HostShard, factors: Sequence[Array], rank: int, padded: int
) -> tuple[Array, Array, tuple[int, ...]]:
    """Return where columns and matrices are, and their form; see `rowmodel`."""
    stride, kind = factors[0].shape[1], factors[0].dtype
    columns = [shard.values, *shard.indices]
    assert all(array.flags.c_contiguous for array in (*columns, *factors))
    assert shard.values.dtype == kind
    assert stride % FOUR == 0
    form = shard.indices[0].itemsize == NARROW.itemsize, kind.itemsize == 8, stride, rank, padded, block_of(padded)
    matrices = np.array([factor.ctypes.data for factor in factors], np.int64)
    return np.array([column.ctypes.data for column in columns], np.int64), matrices, form
