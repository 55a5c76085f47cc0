"""MTTKRP of a small dense array on one CPU, without the overhead of `DenseOperator`'s plan."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property

import numpy as np

from partitioner.array_types import Floats
from partitioner.tensors.dense import DenseTensor

from ...backend.device import Array
from ...backend.exchange import Machine
from ...backend.plain.split import Matrix, SplitProducts, partial_rows
from ...options import Options
from ...parallel.progress import CURRENT
from ..base import Solve
from ..factors import Factors
from ..limits import check_range
from ..placement import MAX_DENSE_RANK, Setting, check_rank
from ..sources.dense import DenseSource
from ..sources.grid import Grid
from .plan import DensePlan, make_dense_plan

NUMBERS = 1 << 20  # most elements and numbers in partial results and factor matrices: so little memory is not planned


class DirectDense(Factors):
    """See `Operator`. The plan is only made if something reads it."""

    def __init__(
        self, source: DenseSource, rank: int, machine: Machine, options: Options, setting: Callable[[], Setting]
    ) -> None:
        check_rank(rank, MAX_DENSE_RANK)
        self.machine, self.options, self.shape = machine, options, source.shape
        self.ranks = (rank,) * len(source.shape)
        self.clock, self.kernels = machine.device.clock(), ["split"] * len(source.shape)
        self._source, self._setting, self._modes = source, setting, source.modes
        with np.errstate(over="ignore"):  # of elements, whose range is checked
            block = np.ascontiguousarray(source.block(Grid.of(source.lengths, 1)), options.dtype)
        source.set_statistics(DenseTensor(block).facts())
        check_range(source.value_range, options.dtype, source.path)
        self.norm = source.rounded_norm(options.dtype)
        self._block = block
        self._products = SplitProducts(block.astype(np.float64, copy=False), rank)
        self._transposed: list[Floats] = [np.zeros((rank, n), options.dtype) for n in source.shape]

    @staticmethod
    def suits(source: DenseSource, machine: Machine, rank: int) -> bool:
        """Return whether a rank without compiled code holds a small array in its memory."""
        in_memory = not (source.in_file or source.on_gpu or source.mapped)
        if machine.device.folder != "plain" or machine.comm.size > 1 or not in_memory:
            return False
        return source.nnz + 2 * rank * (sum(source.shape) + partial_rows(source.lengths)) <= NUMBERS

    @cached_property
    def plan(self) -> DensePlan:  # type: ignore[override]
        """The plan that `DenseOperator` would have."""
        return make_dense_plan(self._source, 0, 1, self._setting())

    @property
    def modes(self) -> tuple[int, ...]:
        """The modes in memory order."""
        return self._modes

    @property
    def ranges(self) -> list[slice]:
        """The ranges of the array, in memory order of the modes."""
        return [slice(0, self.shape[mode]) for mode in self._modes]

    def slabs(self) -> Iterator[tuple[int, Array]]:
        """Yield the array; see `DenseOperator.slabs`."""
        yield 0, self._block

    @property
    def matrices(self) -> Array:
        return np.concatenate([matrix.T.reshape(-1) for matrix in self._transposed]).view(np.uint8)

    def set_factor(self, mode: int, factor: Floats, columns: slice | None = None) -> None:
        self._transposed[mode][columns or slice(None)] = factor.T
        self.changed(mode)

    def stored(self, mode: int, matrices: Array | None = None) -> Array:
        return self._transposed[mode].T

    def factor(self, mode: int, matrices: Array | None = None, columns: slice | None = None) -> Floats:
        assert matrices is None
        return self._transposed[mode][columns or slice(None)].T.copy(order="C")

    def rows(self, mode: int, matrices: Array | None = None) -> Floats:
        return self.factor(mode, matrices)

    def changed(self, mode: int) -> None:
        self._products.changed(self._modes.index(mode))

    def owned(self, mode: int) -> Array:
        return self._transposed[mode].T

    def computed(self, mode: int) -> Array:
        return self.owned(mode)

    def publish(self, mode: int, sums: Array | None = None) -> None:
        self.changed(mode)

    def forget(self) -> None:
        for mode in range(self.order):
            self.changed(mode)

    def kept(self) -> Hashable:
        return None

    def resume(self, kept: Hashable) -> None:
        self.forget()

    def transposed_mttkrp(self, mode: int) -> Matrix:
        """Return the transposed MTTKRP of a mode, (R, I_mode), valid until the next call."""
        CURRENT.mode = mode
        factors = [self._transposed[m].astype(np.float64, copy=False) for m in self._modes]
        with self.clock.span("compute", mode):
            return self._products.mttkrp(self._modes.index(mode), factors)

    def mttkrp(
        self,
        mode: int,
        solve: Solve | None = None,
        then: Sequence[int] = (),
        double: bool = False,
        sums: Array | None = None,
    ) -> Array:
        rows = self.transposed_mttkrp(mode).T
        if solve:
            solve(rows, self.owned(mode))
            self.publish(mode, sums)
        return rows
