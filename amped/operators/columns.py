"""A view of some columns of an operator's factor matrices as an operator, for one of multiple runs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np

from partitioner.array_types import Floats

from ..backend.device import Array
from ..parallel.mpi import Reduction
from .base import Operator, Solve


class Columns:
    """An operator of some columns; see `Operator`. Passes over the nonzeros compute all columns of `whole`."""

    def __init__(self, whole: Operator, first: int, rank: int, apart: int = 1) -> None:
        """View `rank` columns from `first` on, at a distance of `apart`."""
        self._whole, self.columns = whole, slice(first, first + (rank - 1) * apart + 1, apart)
        self.machine, self.options, self.shape = whole.machine, whole.options, whole.shape
        self.whole, self.distribution = whole.whole, whole.distribution
        self.norm, self.clock, self.kernels = whole.norm, whole.clock, whole.kernels
        self.ranks = (rank,) * len(whole.shape)
        self.plan = replace(whole.plan, pipelined=False)  # runs wait for each other

    @property
    def order(self) -> int:
        return len(self.shape)

    @property
    def lengths(self) -> tuple[int, ...]:
        return self._whole.lengths

    @property
    def matrices(self) -> Array:
        return self._whole.matrices

    def set_factor(self, mode: int, factor: Floats, columns: slice | None = None) -> None:
        if columns is not None:
            some, factor = factor, self.factor(mode)
            factor[:, columns] = some
        self._whole.set_factor(mode, factor, self.columns)

    def stored(self, mode: int, matrices: Array | None = None) -> Array:
        return self._whole.stored(mode, matrices)[:, self.columns]

    def factor(self, mode: int, matrices: Array | None = None, columns: slice | None = None) -> Floats:
        result = self._whole.factor(mode, matrices, self.columns)
        return result if columns is None else result[:, columns]

    def rows(self, mode: int, matrices: Array | None = None) -> Floats:
        return np.ascontiguousarray(self._whole.rows(mode, matrices)[:, self.columns])

    def held(self, mode: int) -> slice:
        return self._whole.held(mode)

    def compact(self, mode: int, matrix: Floats) -> Floats:
        return self._whole.compact(mode, matrix)

    def expand(self, mode: int, rows: Floats) -> Floats:
        return self._whole.expand(mode, rows)

    def changed(self, mode: int) -> None:
        self._whole.changed(mode)

    def owned(self, mode: int) -> Array:
        return self._whole.owned(mode)[:, self.columns]

    def computed(self, mode: int) -> Array:
        return self._whole.computed(mode)[:, self.columns]

    def publish(self, mode: int, sums: Array | None = None) -> None:
        self._whole.publish(mode, sums)

    def reduce(self, array: Array, reduction: Reduction, mode: int) -> None:
        self._whole.reduce(array, reduction, mode)

    def span(self, kind: str, mode: int) -> AbstractContextManager[None]:
        return self._whole.span(kind, mode)

    def wait_comm(self) -> None:
        self._whole.wait_comm()

    def synchronize(self) -> None:
        self._whole.synchronize()

    def forget(self) -> None:
        self._whole.forget()

    def kept(self) -> Hashable:
        return self._whole.kept()

    def resume(self, kept: Hashable) -> None:
        self._whole.resume(kept)

    def mttkrp(
        self,
        mode: int,
        solve: Solve | None = None,
        then: Sequence[int] = (),
        double: bool = False,
        sums: Array | None = None,
    ) -> Array:
        """See `Operator`: a pass of which only these columns are used."""

        def part(source: Array, target: Array) -> None:
            assert solve is not None
            solve(self.of(source), self.of(target))

        return self.of(self._whole.mttkrp(mode, part if solve else None, then, double, sums))

    def gathered(self, mode: int, rows: Array) -> Floats:
        whole = self._whole.owned(mode)
        result = self.machine.device.zeros(whole.shape, np.float64)
        result[:, self.columns] = rows
        return np.ascontiguousarray(self._whole.gathered(mode, result)[:, self.columns])

    def of(self, rows: Array) -> Array:
        """Return these columns of the rows of a pass."""
        return rows[:, self.columns]
