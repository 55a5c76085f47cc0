"""Updates of CP models with new elements, from the model itself as a summary of the earlier data.

Of each mode the current rows are solved: those of the new elements, or all. Of other rows, only sums are needed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce
from operator import mul
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import FloatDType, Floats, HostArray

from ..backend.device import Array, Device
from ..backend.formulas import Formula
from ..backend.normal_equations.inverse import inverted
from ..backend.ops.equations import CONDITION
from ..backend.ops.gram import gram
from ..backend.ops.nonnegative import System, nonnegative_solver
from ..backend.ops.solve import Sums, solver
from ..backend.ops.update_equations import UPDATE_EQUATIONS, UpdateEquations
from ..backend.rows import block_rows, blocks_of
from ..errors import InputError
from ..operators.sparse.listed import ListedProducts

Matrix = NDArray[np.float64]

MTTKRP, PHI = Formula("x"), Formula("x / m")
FLOOR = 1e-10  # lower bound of the model's values in quotients
HALS_SWEEPS = 50  # at most, of the columns of a non-negative matrix
EM_STEPS = 10  # of a sweep


class RowTotals(NamedTuple):
    """Weighted sums over the rows of a mode that are not current: their Gram matrix, (R, R), and their sum, (R,)."""

    gram: Matrix
    sums: Matrix

    @classmethod
    def of(cls, rows: Matrix, weights: Matrix) -> RowTotals:
        """Return the sums of rows, (n, R), with weights, (n,)."""
        weighted = rows * weights[:, None]
        return cls(weighted.T @ rows, weighted.sum(axis=0))

    @classmethod
    def none(cls, rank: int) -> RowTotals:
        """Return the sums over no rows."""
        return cls(np.zeros((rank, rank)), np.zeros(rank))

    def changed(self, change: Matrix) -> RowTotals:
        """Return the sums of the rows multiplied by a matrix."""
        return RowTotals(change.T @ self.gram @ change, self.sums @ change)

    def times(self, number: float) -> RowTotals:
        """Return the sums with other weights."""
        return RowTotals(self.gram * number, self.sums * number)

    def plus(self, other: RowTotals) -> RowTotals:
        """Return the sums over further rows, too."""
        return RowTotals(self.gram + other.gram, self.sums + other.sums)


class Incremental(Protocol):
    """Updates the matrices of `ListedProducts` with the elements that it holds. Its methods are collective."""

    def load(self, columns: Sequence[HostArray] | None, values: Floats | None, replaced: Floats | None) -> None:
        """Take new elements of rank 0, and the model's values that they replace, if any; see `ListedProducts.load`."""

    def run(self, others: Sequence[RowTotals], sweeps: int) -> list[Matrix | None]:
        """Update the current rows of all modes. Rows of new slices and labels must be zero before.

        Parameters
        ----------
        others : sequence of RowTotals
            Of each mode.
        sweeps : int

        Returns
        -------
        list of (R, R) arrays or None
            The other rows of each mode have to be multiplied by it. None if they stay as they are.
        """


class IncrementalAls:
    """Least squares: each mode in turn minimises ``||H - M||**2``, where H is the earlier model plus the new elements.

    This is CP-stream (Smith, Huang, Sidiropoulos and Karypis 2018), extended in two ways: the rows of earlier slices
    change with the other matrices, and slices that are known may have new elements. With ``H_m`` the earlier matrix of
    a mode and ``U_m`` the current one, ``U_n = (sums_n + H_n C) G^-1``, where C and G are elementwise products over the
    other modes of the (R, R) matrices ``H_m^T U_m`` and ``U_m^T U_m``. Rows without new elements are ``H_n C G^-1``.

    Parameters
    ----------
    products : ListedProducts
        MTTKRPs of the new elements, and the current rows. The last mode is the one that grows.
    nonnegative : collection of int
        Modes whose entries must not be negative. Other rows of these modes stay as they are.
    """

    def __init__(self, products: ListedProducts, nonnegative: Collection[int]) -> None:
        self._products, self._nonnegative = products, nonnegative
        device, rank, dtype = products.machine.device, products.rank, products.options.dtype
        self._equations: list[UpdateEquations] = [HostUpdateEquations(device, products.order, rank, dtype, nonnegative)]
        queued = UPDATE_EQUATIONS.first(device, lambda each: each.suits(rank)) if not nonnegative else None
        if queued is not None:
            self._equations.insert(0, queued.make(products.order, rank, dtype))
        self._latest: UpdateEquations | None = None  # those that have the Gram matrices of the last update

    def load(self, columns: Sequence[HostArray] | None, values: Floats | None, replaced: Floats | None) -> None:
        """See `Incremental`: adds the differences."""
        self._products.load(columns, values if values is None or replaced is None else values - replaced)

    def run(self, others: Sequence[RowTotals], sweeps: int) -> list[Matrix | None]:
        """See `Incremental`: solves the last mode, then `sweeps` times all modes in turn."""
        before = self._products.matrix.copy()
        for equations in self._equations:
            changes = self._solved(equations, before, others, sweeps)
            if changes is not None:
                break
            self._products.matrix[...] = before
        self._latest = equations
        assert changes is not None
        return [None if mode in self._nonnegative else change for mode, change in enumerate(changes)]

    def _solved(
        self, equations: UpdateEquations, before: Array, others: Sequence[RowTotals], sweeps: int
    ) -> Matrix | None:
        """Solve all modes by some equations; return their changes of other rows."""
        products, order = self._products, self._products.order
        for mode in range(products.lasting if equations is self._latest else 0, order):
            equations.set_gram(mode, gram(products.machine.device, products.rows(mode)))
        equations.begin(np.stack([each.gram for each in others]))
        rows = [(products.rows(mode, before), products.rows(mode)) for mode in range(order)]
        for step, mode in enumerate((order - 1, *list(range(order)) * sweeps)):
            equations.solve(mode, products.sums(mode), *rows[mode], keeps=not step)
        return equations.changes()


class HostUpdateEquations:
    """See `UpdateEquations`; the host has the (R, R) matrices. Singular equations have minimum-norm solutions.

    Parameters
    ----------
    device : Device
    order, rank : int
    dtype : dtype
        Of the factor matrices.
    nonnegative : collection of int
        Modes that are solved by HALS; their other rows stay as they are.
    """

    def __init__(self, device: Device, order: int, rank: int, dtype: FloatDType, nonnegative: Collection[int]) -> None:
        self._device, self._rank, self._dtype, self._nonnegative = device, rank, dtype, nonnegative
        self._grams = [np.zeros((rank, rank))] * order
        self._solver = solver(device, rank, dtype)
        if nonnegative:
            self._hals = nonnegative_solver(device, rank, dtype)
        self._scratch: tuple[int, object, object] = 0, None, None

    def set_gram(self, mode: int, gram: Array) -> None:
        self._grams[mode] = np.array(self._device.to_host(gram))

    def begin(self, others: Matrix) -> None:
        self._others, self._crosses = others, list(self._grams)
        self._changes = np.tile(np.eye(self._rank), (len(others), 1, 1))

    def changes(self) -> Matrix:
        return self._changes

    def solve(self, mode: int, sums: Array, before: Array, target: Array, keeps: bool) -> None:
        """See `UpdateEquations`.

        Raises
        ------
        InputError
            If equations are not finite.
        """
        device, rank, xp = self._device, self._rank, self._device.xp
        cross, gram = self._of_others(mode)
        if not (np.isfinite(cross).all() and np.isfinite(gram).all()):
            raise InputError("the update is not finite: use precision 'fp64', or scale the new values")
        source, right = sums.astype(np.float64, copy=False), device.to_device(np.ascontiguousarray(cross))
        for block in blocks_of(len(source), block_rows(rank)):
            source[block] += xp.matmul(before[block].astype(np.float64, copy=False), right)
        found = Sums(device.zeros((rank, rank), np.float64), device.zeros((rank,), np.float64))
        scratch, hals = self._scratch_for(len(target))
        if mode in self._nonnegative:
            ones = device.to_device(np.ones(rank))
            system = System(device.to_device(np.ascontiguousarray(gram)), ones, ones)
            self._hals.run(hals, source, system, HALS_SWEEPS, target, found)
        else:
            inverse = np.ascontiguousarray(inverted(gram, CONDITION, np)[0])
            self._solver.run(scratch, source, device.to_device(inverse), target, found)
            if not keeps:
                self._changes[mode] = cross @ inverse
        device.wait_side()
        self._grams[mode], self._crosses[mode] = self._both(found.gram, before, target)

    def _scratch_for(self, rows: int) -> tuple[Any, Any]:
        """Return the scratch memory of the solvers, for at least as many rows."""
        if rows > self._scratch[0]:
            hals = self._hals.make(rows, self._rank, self._dtype) if self._nonnegative else None
            self._scratch = rows, self._solver.make(rows, self._rank, self._dtype), hals
        return self._scratch[1:]

    def _of_others(self, mode: int) -> tuple[Matrix, Matrix]:
        """Return C and G of a mode."""
        modes = [m for m in range(len(self._grams)) if m != mode]
        crosses = [self._crosses[m] + self._others[m] @ self._changes[m] for m in modes]
        grams = [self._grams[m] + self._changes[m].T @ self._others[m] @ self._changes[m] for m in modes]
        return reduce(mul, crosses), reduce(mul, grams)

    def _both(self, gram: Array, before: Array, target: Array) -> tuple[Matrix, Matrix]:
        """Return ``U^T U``, which is `gram`, and ``H^T U`` of a mode, with one transfer to the host."""
        device, blocks = self._device, blocks_of(len(target), block_rows(self._rank))
        cross = device.zeros(gram.shape, np.float64)
        for block in blocks:
            cross += device.xp.matmul(
                *(rows.astype(np.float64, copy=False) for rows in (before[block].T, target[block]))
            )
        host = np.array(device.to_host(device.xp.stack([gram, cross])))
        return host[0], host[1]


class IncrementalCounts:
    """Counts: EM steps with the expected counts of the earlier data as given (online EM, Cappe and Moulines 2009).

    A component's expected counts of the earlier data in the rows of a mode are its column times its weight. They are
    added to those of the new elements by the model so far, and columns become proportional to the sums. No step
    decreases the likelihood of the new elements plus the expected log-likelihood of the earlier ones.

    Parameters
    ----------
    products : ListedProducts
        Sums of x / m, and the matrices: columns have unit sums in all modes but the last, whose rows include the
        weights.
    """

    def __init__(self, products: ListedProducts) -> None:
        self._products, self._last = products, products.order - 1
        self._removed: list[Array] | None = None  # by mode, the expected counts of elements that others replace

    def load(self, columns: Sequence[HostArray] | None, values: Floats | None, replaced: Floats | None) -> None:
        """See `Incremental`: subtracts the expected counts of replaced elements from those of the earlier data."""
        products, self._removed = self._products, None
        if products.machine.comm.bcast(replaced is not None):
            products.load(columns, replaced)
            rows = map(products.rows, range(products.order))
            self._removed = [own * sums.astype(np.float64) for own, sums in zip(rows, products.all_sums(), strict=True)]
        products.load(columns, values)

    def run(self, others: Sequence[RowTotals], sweeps: int) -> list[Matrix | None]:
        """See `Incremental`: `EM_STEPS` steps of the last mode, then `sweeps` times as many of all modes."""
        products, device, last = self._products, self._products.machine.device, self._last
        before = [products.rows(mode).astype(np.float64) for mode in range(products.order)]
        weights = np.array(device.to_host(before[last].sum(axis=0))) + others[last].sums
        self._factors = device.to_device(weights)
        self._counts = [*(each * self._factors for each in before[:last]), before[last]]
        if self._removed is not None:
            pairs = zip(self._counts, self._removed, strict=True)
            self._counts = [device.xp.maximum(counts - removed, 0) for counts, removed in pairs]
        self._known = [device.to_device(weights * each.sums) for each in others[:last]]
        self._totals = [device.to_device(np.ones(weights.size)) for _ in self._known]
        for mode, rows in enumerate(before):
            start = weights / max(1, len(rows)) if mode == last else np.full(weights.size, 1 / max(1, len(rows)))
            empty = (rows == 0).all(axis=1)[:, None]
            products.rows(mode)[...] = rows + empty * device.to_device(np.maximum(start, FLOOR))
        for step in range((sweeps + 1) * EM_STEPS):
            self._step(only_last=step < EM_STEPS)
        totals = [np.array(device.to_host(each)) for each in self._totals]
        return [*(np.diag(weights / np.where(each > 0, each, 1)) for each in totals), None]

    def _step(self, only_last: bool) -> None:
        products = self._products
        phi = {self._last: products.sums(self._last)} if only_last else dict(enumerate(products.all_sums()))
        for mode, sums in phi.items():
            rows = products.rows(mode)
            counts = self._counts[mode] + rows * sums.astype(np.float64, copy=False)
            if mode != self._last:
                self._totals[mode] = counts.sum(axis=0) + self._known[mode]
                counts /= self._totals[mode] + (self._totals[mode] == 0)
            rows[...] = counts
