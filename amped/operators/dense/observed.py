"""Row problems of a small dense array with missing elements, on one CPU without compiled code.

With a mask W of weights (0: missing), a row's matrix ``sum w v v^T`` is an MTTKRP of W: its factors have a column for
each pair of components, the product of both. So a few matrix products compute all rows' matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats, Integers
from partitioner.tensors.dense import DenseTensor

from ...backend.device import Array
from ...backend.exchange import Machine
from ...backend.ops.rowproblems import DEFICIENT, RESIDUAL, RowTerms
from ...backend.plain.split import Matrix, SplitProducts, khatri_rao, partial_rows, split_of
from ...backend.row_constants import PRECISE
from ...backend.systems import Pairs, solve_systems
from ...options import Options
from ..placement import Setting
from ..sources.dense import of_array
from .direct import DirectDense
from .plan import DensePlan

NUMBERS = 1 << 22  # most elements and numbers in partial results: so little memory is not planned


class MaskedArray(NamedTuple):
    """An array with missing elements.

    Attributes
    ----------
    values : array
        Zero where elements are missing.
    weights : array
        Zero where elements are missing, otherwise positive.
    """

    values: NDArray[np.float64]
    weights: NDArray[np.float64]

    @classmethod
    def of_elements(
        cls, shape: Sequence[int], columns: Integers, values: Floats, weights: Floats | None = None
    ) -> MaskedArray:
        """Return the array that has only the elements at `columns`, (order, n)."""
        places = np.ravel_multi_index(tuple(columns[: len(shape)]), tuple(shape))
        result = cls(np.zeros(shape), np.zeros(shape))
        result.values.reshape(-1)[places] = values
        result.weights.reshape(-1)[places] = 1.0 if weights is None else weights
        return result


class DirectObserved(DirectDense):
    """Solves rows; see `RowSolver`. See also `DirectDense`."""

    repeats = False

    def __init__(
        self, array: MaskedArray, rank: int, machine: Machine, options: Options, setting: Callable[[], Setting]
    ) -> None:
        super().__init__(of_array(DenseTensor(array.values), machine.comm), rank, machine, options, setting)
        self._modes = tuple(range(self.order))
        rounded = array.values.astype(options.dtype).astype(np.float64)
        self._array, self._pairs = MaskedArray(rounded, array.weights), Pairs(rank)
        weighted = rounded * array.weights
        self._products, self.norm = SplitProducts(weighted, rank), math.sqrt(np.vdot(weighted, rounded))
        self._matrices = SplitProducts(array.weights, self._pairs.first.size)
        self._pair_factors = [np.zeros((self._pairs.first.size, length)) for length in self.shape]
        self._exact = [np.zeros((rank, length)) for length in self.shape]  # in double precision

    @staticmethod
    def fits(shape: Sequence[int], rank: int, machine: Machine) -> bool:
        """Return whether the array and the partial results are small, on one rank whose device is the CPU."""
        if not machine.device.on_host or machine.comm.size > 1:
            return False
        pairs = rank * (rank + 1) // 2
        return 4 * math.prod(map(float, shape)) + 2 * pairs * (sum(shape) + partial_rows(shape)) <= NUMBERS

    @cached_property
    def plan(self) -> DensePlan:  # type: ignore[override]
        """The plan that `DenseOperator` would have, and the memory for the rows' matrices."""
        plan, matrices = super().plan, self._matrices.nbytes + 3 * self._array.values.nbytes
        used = {**plan.device_bytes, "row systems": matrices}
        return replace(plan, device_bytes=used, host_bytes=plan.host_bytes + matrices)

    def changed(self, mode: int) -> None:
        super().changed(mode)
        self._exact[mode][...] = self._transposed[mode]
        self._pairs.products(self._exact[mode], out=self._pair_factors[mode])
        self._matrices.changed(mode)

    def solve(self, mode: int, limits: RowTerms, seen: Array, then: Sequence[int] = ()) -> None:
        """Solve the rows of a mode, in place in its factor matrix, before `publish`; see `RowSolver.solve`."""
        with self.clock.span("compute", mode):
            rights = self._products.mttkrp(mode, self._exact)
            matrices = self._matrices.mttkrp(mode, self._pair_factors)[self._pairs.index]
            rows, deficient = solve_systems(matrices, rights, limits.ridge, limits.sweeps, self._exact[mode])
            self._transposed[mode][...] = rows
            seen[DEFICIENT] += deficient
            if limits.measured:
                seen[RESIDUAL] += self._squares(mode, matrices, rights)

    def residual(self, mode: int, squares: float) -> float:
        """Return the sum of squared residuals, which is complete."""
        return squares

    def _squares(self, mode: int, matrices: Matrix, rights: Matrix) -> float:
        """Return the weighted sum of squared residuals; the rows of the mode are solutions of these equations."""
        rows = self._transposed[mode].astype(np.float64, copy=False)
        model = np.add.reduce(matrices * rows, axis=1)
        squares = self.norm**2 - 2 * float(np.vdot(rows, rights)) + float(np.vdot(rows, model))
        if squares > PRECISE * self.norm**2:
            return squares
        self._exact[mode][...] = rows
        return self._summed_squares()

    def _summed_squares(self) -> float:
        split = split_of(self.shape)
        first, second = khatri_rao(self._exact[:split]), khatri_rao(self._exact[split:])
        residuals = first.T @ second
        residuals -= self._array.values.reshape(residuals.shape)
        weights = self._array.weights.reshape(residuals.shape)
        return float(np.vdot(residuals * weights, residuals))
