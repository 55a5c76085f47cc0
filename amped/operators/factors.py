"""Base class of operators: the factor matrices on all ranks, and their exchange."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats

from ..backend.device import Array, Clock
from ..backend.exchange import Machine
from ..parallel.mpi import Reduction
from .kept_rows import KeptRows
from .placement import Plan
from .workspace import Workspace


class Factors:
    """The part of `Operator` that does not depend on the tensor.

    `kept_rows` are the rows of compact matrices, by mode.
    """

    whole, distribution = True, "all-gather"
    machine: Machine
    shape: tuple[int, ...]
    ranks: tuple[int, ...]
    clock: Clock
    plan: Plan
    work: Workspace
    kept_rows: Mapping[int, KeptRows] = MappingProxyType({})

    @property
    def order(self) -> int:
        return len(self.shape)

    @property
    def lengths(self) -> tuple[int, ...]:
        kept = self.kept_rows
        return tuple(kept[mode].length if mode in kept else rows for mode, rows in enumerate(self.shape))

    def set_factor(self, mode: int, factor: Floats, columns: slice | None = None) -> None:
        self.work.set_factor(mode, self.compact(mode, factor), columns)
        self.changed(mode)

    @property
    def matrices(self) -> Array:
        return self.work.matrices

    def stored(self, mode: int, matrices: Array | None = None) -> Array:
        return self.work.stored(mode, matrices)[:, : self.ranks[mode]]

    def factor(self, mode: int, matrices: Array | None = None, columns: slice | None = None) -> Floats:
        return self.expand(mode, self.work.factor(mode, matrices, columns))

    def rows(self, mode: int, matrices: Array | None = None) -> Floats:
        return self.work.factor(mode, matrices)

    def compact(self, mode: int, matrix: Floats) -> Floats:
        return self.kept_rows[mode].compact(matrix) if mode in self.kept_rows else matrix

    def expand(self, mode: int, rows: Floats) -> Floats:
        return self.kept_rows[mode].expand(rows) if mode in self.kept_rows else rows

    def held(self, mode: int) -> slice:
        return slice(0, self.shape[mode])

    def changed(self, mode: int) -> None:
        self.work.changed(mode)

    def owned(self, mode: int) -> Array:
        return self.work.owned[mode]

    def computed(self, mode: int) -> Array:
        return self.work.computed[mode][:, : self.ranks[mode]]

    def span(self, kind: str, mode: int) -> AbstractContextManager[None]:
        return self.clock.span(kind, mode)

    def reduce(self, array: Array, reduction: Reduction, mode: int) -> None:
        if self.machine.comm.size > 1:
            with self.clock.span("exchange", mode):
                self.machine.exchange.reduce(array, reduction)

    def publish(self, mode: int, sums: Array | None = None) -> None:
        rows = self.plan.modes[mode].cut.rows
        self._send(mode, rows[:-1], rows[1:], sums)

    def _send(self, mode: int, begin: NDArray[np.int64], end: NDArray[np.int64], sums: Array | None) -> None:
        """All-gather rows of a factor matrix, each rank those from its `begin` to its `end`."""
        exchange = self.machine.exchange
        if self.machine.comm.size > 1:
            if sums is not None:  # may be computed on the side stream
                self.machine.device.wait_side()
            with exchange.comm_stream(), self.clock.span("exchange", mode):
                exchange.gather_rows(self.work.factors[mode], begin, end, sums)
        self.changed(mode)

    def forget(self) -> None:
        """See `Operator`: most operators have no partial results."""

    def kept(self) -> Hashable:
        return None

    def resume(self, kept: Hashable) -> None:
        """See `Operator`."""

    def wait_comm(self) -> None:
        self.machine.exchange.wait_comm()
        self.machine.device.wait_side()

    def synchronize(self) -> None:
        self.wait_comm()
        self.machine.device.synchronize()

    def gathered(self, mode: int, rows: Array) -> Floats:
        """All-gather owned rows, as returned by `mttkrp`, into an (I_n, R) matrix in host memory."""
        share = self.plan.modes[mode]
        whole = np.empty((self.shape[mode], share.rank), self.plan.dtype)
        whole[share.owned] = self.machine.device.to_host(rows)
        self.machine.comm.all_gather_rows(whole, share.cut.rows[:-1], share.cut.rows[1:])
        return self.expand(mode, whole)
