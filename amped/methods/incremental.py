"""Updates of CP models with new elements, from the model itself as a summary of the earlier data.

The last mode is the one that grows. Its rows are those of the current slices, in which there are new elements; of the
other, earlier slices only sums over their rows are needed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce
from operator import mul
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..backend.device import Array
from ..backend.formulas import Formula
from ..backend.normal_equations.inverse import inverted
from ..backend.ops.equations import CONDITION
from ..backend.ops.nonnegative import System, nonnegative_solver
from ..backend.ops.solve import Sums, solver
from ..backend.rows import add_gram, block_rows, blocks_of
from ..errors import InputError
from ..operators.sparse.listed import ListedProducts

Matrix = NDArray[np.float64]

MTTKRP, PHI = Formula("x"), Formula("x / m")
FLOOR = 1e-10  # lower bound of the model's values in quotients
HALS_SWEEPS = 50  # at most, of the columns of a non-negative matrix
EM_STEPS = 10  # of a sweep


class EarlierSlices(NamedTuple):
    """Sums over the rows of the earlier slices that are not current, weighted by forgetting: (R, R) Gram, (R,) sums."""

    gram: Matrix
    sums: Matrix

    @classmethod
    def of(cls, rows: Matrix, weights: Matrix) -> EarlierSlices:
        """Return the sums of rows, (n, R), with weights, (n,)."""
        weighted = rows * weights[:, None]
        return cls(weighted.T @ rows, weighted.sum(axis=0))


class Incremental(Protocol):
    """Updates the matrices of `ListedProducts` with the elements that it holds. Its methods are collective."""

    def run(self, earlier: EarlierSlices, sweeps: int) -> Matrix | None:
        """Update all matrices. Rows of current slices that are new must be zero before.

        Parameters
        ----------
        earlier : EarlierSlices
        sweeps : int

        Returns
        -------
        (R, R) array or None
            The rows of the earlier slices have to be multiplied by it. None if they stay as they are.
        """


class IncrementalAls:
    """Least squares: each mode in turn minimises ``||H - M||**2``, where H is the earlier model plus the new elements.

    This is CP-stream (Smith, Huang, Sidiropoulos and Karypis 2018), extended in two ways: the rows of earlier slices
    change with the other matrices, and slices that are known may have new elements. With ``H_m`` the earlier matrix of
    a mode and ``U_m`` the current one, ``U_n = (sums_n + H_n C) G^-1``, where C and G are elementwise products over the
    other modes of the (R, R) matrices ``H_m^T U_m`` and ``U_m^T U_m``.

    Parameters
    ----------
    products : ListedProducts
        MTTKRPs of the new elements, and the matrices.
    nonnegative : collection of int
        Modes whose entries must not be negative.
    """

    def __init__(self, products: ListedProducts, nonnegative: Collection[int]) -> None:
        self._products, self._nonnegative, self._last = products, nonnegative, products.order - 1
        self._device, self._rank = products.machine.device, products.rank
        self._grams = [self._gram_of(products.rows(mode)) for mode in range(products.order)]
        self._solver = solver(self._device, self._rank, products.options.dtype)
        if nonnegative:
            self._hals = nonnegative_solver(self._device, self._rank, products.options.dtype)
        self._scratch: tuple[int, object, object] = 0, None, None

    def run(self, earlier: EarlierSlices, sweeps: int) -> Matrix | None:
        """See `Incremental`: solves the current rows, then `sweeps` times the other matrices and the last mode."""
        last = self._last
        self._rest_before = self._rest = earlier.gram
        self._change = np.eye(self._rank)
        self._before = self._products.matrix.copy()
        self._grams[last] = self._gram_of(self._products.rows(last))
        self._crosses = list(self._grams)
        self._prepare()
        self._solve(last)
        for _ in range(sweeps):
            for mode in range(last):
                self._solve(mode)
            self._solve(last)
            if last not in self._nonnegative:
                self._change_rest()
        return None if last in self._nonnegative else self._change

    def _prepare(self) -> None:
        """Allocate the scratch memory of the solvers, if the matrices have grown."""
        ends = zip(self._products.offsets[:-1], self._products.offsets[1:], strict=True)
        longest, dtype = max(end - begin for begin, end in ends), self._products.options.dtype
        if longest > self._scratch[0]:
            hals = self._hals.make(longest, self._rank, dtype) if self._nonnegative else None
            self._scratch = longest, self._solver.make(longest, self._rank, dtype), hals

    def _gram_of(self, rows: Array) -> Matrix:
        total = self._device.zeros((self._rank, self._rank), np.float64)
        add_gram(self._device.xp, rows, total)
        return np.array(self._device.to_host(total))

    def _of_others(self, mode: int) -> tuple[Matrix, Matrix]:
        """Return C and G of a mode, including the earlier slices."""
        crosses, grams = list(self._crosses), list(self._grams)
        crosses[self._last] = crosses[self._last] + self._rest_before @ self._change
        grams[self._last] = grams[self._last] + self._rest
        others = [m for m in range(len(grams)) if m != mode]
        return _product([crosses[m] for m in others]), _product([grams[m] for m in others])

    def _solve(self, mode: int) -> None:
        """Solve the rows of a mode with the other matrices fixed."""
        products, device, rank = self._products, self._device, self._rank
        cross, gram = self._of_others(mode)
        if not (np.isfinite(cross).all() and np.isfinite(gram).all()):
            raise InputError("the update is not finite: use precision 'fp64', or scale the new values")
        source, before, target = products.sums(mode), products.rows(mode, self._before), products.rows(mode)
        right = device.to_device(np.ascontiguousarray(cross))
        for block in blocks_of(len(source), block_rows(rank)):
            source[block] += device.xp.matmul(before[block].astype(np.float64, copy=False), right)
        sums = Sums(device.zeros((rank, rank), np.float64), device.zeros((rank,), np.float64))
        _, scratch, hals = self._scratch
        if mode in self._nonnegative:
            ones = device.to_device(np.ones(rank))
            system = System(device.to_device(np.ascontiguousarray(gram)), ones, ones)
            self._hals.run(hals, source, system, HALS_SWEEPS, target, sums)
        else:
            inverse = device.to_device(np.ascontiguousarray(inverted(gram, CONDITION, np)[0]))
            self._solver.run(scratch, source, inverse, target, sums)
        device.wait_side()
        self._grams[mode], self._crosses[mode] = self._both(sums.gram, before, target)

    def _both(self, gram: Array, before: Array, target: Array) -> tuple[Matrix, Matrix]:
        """Return ``U^T U``, which is `gram`, and ``H^T U`` of a mode, with one transfer to the host."""
        device, rank = self._device, self._rank
        both = device.zeros((2, rank, rank), np.float64)
        both[0] = gram
        for block in blocks_of(len(target), block_rows(rank)):
            earlier, current = (each[block].astype(np.float64, copy=False) for each in (before, target))
            both[1] += device.xp.matmul(earlier.T, current)
        host = np.array(device.to_host(both))
        return host[0], host[1]

    def _change_rest(self) -> None:
        """Change the rows of the earlier slices, which are not stored here, to their least-squares solution."""
        cross, gram = (_product(each[: self._last]) for each in (self._crosses, self._grams))
        self._change = cross @ inverted(gram, CONDITION, np)[0]
        self._rest = self._change.T @ self._rest_before @ self._change


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

    def run(self, earlier: EarlierSlices, sweeps: int) -> Matrix | None:
        """See `Incremental`: `EM_STEPS` steps of the current rows, then `sweeps` times as many of all matrices."""
        products, device = self._products, self._products.machine.device
        before = [products.rows(mode).astype(np.float64) for mode in range(products.order)]
        sums = np.array(device.to_host(before[-1].sum(axis=0))) + earlier.sums
        weights = device.to_device(sums)
        self._counts = [*(each * weights for each in before[:-1]), before[-1]]
        for mode, rows in enumerate(before):
            start = sums / max(1, len(rows)) if mode == self._last else np.full(sums.size, 1 / len(rows))
            empty = (rows == 0).all(axis=1)[:, None]
            products.rows(mode)[...] = rows + empty * device.to_device(np.maximum(start, FLOOR))
        for step in range((sweeps + 1) * EM_STEPS):
            self._step(alone=step < EM_STEPS)
        return None

    def _step(self, alone: bool) -> None:
        products = self._products
        phi = {self._last: products.sums(self._last)} if alone else dict(enumerate(products.all_sums()))
        for mode, sums in phi.items():
            rows = products.rows(mode)
            counts = self._counts[mode] + rows * sums
            if mode != self._last:
                totals = counts.sum(axis=0)
                counts /= totals + (totals == 0)
            rows[...] = counts


def _product(matrices: Sequence[Matrix]) -> Matrix:
    return reduce(mul, matrices)
