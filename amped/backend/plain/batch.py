"""Normal equations of several runs, which share each NumPy operation."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..device import Array
from ..normal_equations.hals import SETTLED
from ..normal_equations.state import EquationsState
from ..ops.equations import CONDITION, NOT_FINITE, RANGE, SINGULAR, EquationsCase, EquationsStatus, RunStart, RunStopped


class _Active(NamedTuple):
    """The runs without a flag: their places, and where their components are."""

    places: NDArray[np.int64]
    columns: NDArray[np.int64]  # of their components in factor matrices
    # Of each pair of components of a run: the run, the components, and the columns.
    runs: NDArray[np.int64]
    pair: tuple[NDArray[np.int64], NDArray[np.int64]]
    cell: tuple[NDArray[np.int64], NDArray[np.int64]]

    def blocks(self, matrices: NDArray[np.float64], width: int) -> NDArray[np.float64]:
        """Return the (width, width) matrix whose diagonal blocks are a matrix of each run."""
        whole = np.zeros((width, width))
        whole[self.cell] = matrices[self.runs, *self.pair]
        return whole

    def of_runs(self, whole: NDArray[np.float64], rank: int) -> NDArray[np.float64]:
        """Return the diagonal block of each run, (runs, rank, rank)."""
        matrices = np.zeros((self.places.size, rank, rank))
        matrices[self.runs, *self.pair] = whole[self.cell]
        return matrices


class SeveralEquations:
    """See `Equations`. Singular equations and columns out of range raise a flag; that run is then solved separately.

    Arrays have one row per place, with the columns of the largest run; the missing columns of smaller runs are zero.
    The rows of all runs are computed by one product with a matrix whose diagonal blocks are their inverses.
    """

    memory: Array | None = None
    reported: Array | None = None
    allocates = True

    def __init__(self, case: EquationsCase) -> None:
        self._case, self._bounds = case, case.bounds
        places, order, rank = case.places, case.terms.order, case.terms.rank
        self.totals, self.dots = np.zeros((places, 1, 1)), np.zeros((places, 1, 1))  # unused on one rank
        # Of each component: its column in factor matrices, and whether the run has it.
        self._columns, self._exists = np.zeros((places, rank), np.int64), np.zeros((places, rank), bool)
        self._norms, self._scales = np.ones((2, order, places, rank))
        self._grams, self._weights = np.zeros((order, places, rank, rank)), np.ones((places, rank))
        self._divisor, self._inner = np.ones((2, places, rank))
        self._inverse = np.zeros((places, rank, rank))
        self._flags, self._modes = np.zeros((2, places), np.int64)
        self._iterations, self._fits, self._squares = np.zeros((3, places))
        self._occupied = set[int]()  # places that have a run
        self._list_active()

    def put(self, place: int, columns: slice, start: RunStart) -> None:
        rank, terms = columns.stop - columns.start, self._case.terms
        state = EquationsState(np, terms.order, rank)
        state.begin(start, terms.norm, self._bounds.constrained)
        self._columns[place], self._exists[place] = 0, False
        self._columns[place, :rank], self._exists[place, :rank] = np.arange(columns.start, columns.stop), True
        for whole, part in ((self._norms, state.norms), (self._scales, state.scales)):
            whole[:, place], whole[:, place, :rank] = 1.0, part
        self._grams[:, place], self._grams[:, place, :rank, :rank] = 0.0, state.grams
        self._weights[place], self._weights[place, :rank] = 0.0, state.weights
        self._iterations[place], self._fits[place], self._flags[place] = start.status.iterations, start.status.fit, 0
        self._occupied.add(place)
        self._list_active()

    def take(self, place: int) -> RunStopped:
        status, exists = self._status(place), self._exists[place]
        weights = self._weights[place, exists] if self._bounds.constrained else status.norms[-1].copy()
        self._occupied.remove(place)
        self._list_active()
        return RunStopped(status, int(self._modes[place]) if status.flags else 0, weights)

    def _list_active(self) -> None:
        """List the runs without a flag."""
        places = np.array([place for place in sorted(self._occupied) if not self._flags[place]], np.int64)
        exists, columns = self._exists[places], self._columns[places]
        runs, one, other = np.nonzero(exists[:, :, None] & exists[:, None, :])
        cell = columns[runs, one], columns[runs, other]
        self._active = _Active(places, columns[exists], runs, (one, other), cell)

    def _raise(self, which: NDArray[np.bool_], flag: int, mode: int) -> None:
        """Raise a flag for some of the active runs."""
        if which.any():
            places = self._active.places[which]
            self._flags[places], self._modes[places] = flag, mode
            self._list_active()

    def _product(self, mode: int, places: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the products of the other modes' Gram matrices."""
        others = [m for m in range(self._case.terms.order) if m != mode]
        product: NDArray[np.float64] = self._grams[others[0], places]
        for m in others[1:]:
            product = product * self._grams[m, places]
        return product

    def _other_scales(self, mode: int, places: NDArray[np.int64]) -> NDArray[np.float64]:
        others = [m for m in range(self._case.terms.order) if m != mode]
        product: NDArray[np.float64] = np.multiply.reduce([self._scales[m, places] for m in others])
        return product

    def prepare(self, mode: int, double: bool = False) -> None:
        product = self._product(mode, self._active.places)
        infinite = ~np.isfinite(product.sum(axis=(1, 2)))
        self._raise(infinite, NOT_FINITE, mode)
        places = self._active.places
        divisor = self._divisor[places] = self._norms[mode, places] * self._scales[mode, places]
        if mode in self._bounds.nonnegative or not places.size:
            return
        product, each = product[~infinite], np.arange(product.shape[1])
        product[:, each, each] += self._bounds.ridge[mode] + ~self._exists[places]
        try:
            inverse = np.linalg.inv(product)
            sizes = np.sqrt(np.einsum("prs,prs->p", product, product) * np.einsum("prs,prs->p", inverse, inverse))
        except np.linalg.LinAlgError:  # of an exactly singular matrix
            sizes = np.linalg.cond(product)
            product[~(sizes <= CONDITION)] = np.eye(each.size)
            inverse = np.linalg.inv(product)
        singular = ~(sizes <= CONDITION)
        inverse = (inverse + inverse.swapaxes(1, 2)) * (self._other_scales(mode, places)[:, :, None] / 2)
        inverse /= divisor[:, None, :]
        self._inverse[places] = inverse
        self._raise(singular, SINGULAR, mode)

    def solve(self, mode: int, source: Array, target: Array, again: bool = False) -> None:
        active = self._active
        if again or not active.places.size:
            return
        finite = np.isfinite(np.ones(len(source)) @ source)
        if not finite.all():  # a run must not change the others, which share the product
            source = np.where(finite, source, 0)
        if mode in self._bounds.nonnegative:
            rows = self._nonnegative_rows(mode, source, target)
        else:
            rows = source @ active.blocks(self._inverse[active.places], source.shape[1])
        largest = np.abs(rows).max(axis=0)
        rows = _rounded(rows, target.dtype)
        gram = rows.T @ rows
        gram[~finite] = np.nan
        if mode == self._bounds.last:
            inner = np.einsum("ic,ic->c", source, rows)
            self._inner[active.places] = self._by_run(inner)
        self._set_norms(mode, self._by_run(largest), active.of_runs(gram, self._columns.shape[1]))
        write = np.zeros(source.shape[1], bool)
        write[self._active.columns] = True
        if write.all():
            target[...] = rows
        else:
            np.copyto(target, rows, "same_kind", write)

    def _by_run(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a number of each column as (runs, components); zero for missing components."""
        places = self._active.places
        return np.where(self._exists[places], numbers[self._columns[places]], 0.0)

    def _set_norms(self, mode: int, largest: Any, gram: Any) -> None:
        """Set the norms and scales of columns, or raise flags."""
        places, most = self._active.places, self._case.terms.most
        divisor, square = self._divisor[places], np.einsum("prr->pr", gram)
        finite, usual = np.isfinite(gram.sum(axis=(1, 2))), (largest == 0) | ((largest > 1 / most) & (largest < most))
        out = finite & ~usual.all(axis=1)
        length = np.sqrt(square) * divisor
        later = self._iterations[places, None] > 0 if not self._bounds.constrained else False
        norms = np.where(later, np.maximum(largest * divisor, 1.0), length)
        norms = np.where(norms > 0, norms, 1.0)
        scales = divisor / norms
        valid = finite & ~out
        some = places[valid]
        self._norms[mode, some], self._scales[mode, some] = norms[valid], scales[valid]
        self._grams[mode, some] = (gram * (scales[:, :, None] * scales[:, None, :]))[valid]
        if self._bounds.constrained:
            self._weights[some] = norms[valid]
        if not valid.all():
            self._raise(~finite, NOT_FINITE, mode)
            self._raise(out[finite], RANGE, mode)

    def _nonnegative_rows(self, mode: int, source: Array, target: Array) -> NDArray[np.float64]:
        """Return non-negative rows, by updates of one column at a time; see `normal_equations.hals`."""
        places = self._active.places
        columns, exists = self._columns[places], self._exists[places]
        mttkrps, before = (np.take(each, columns, axis=1).swapaxes(0, 1) * exists[:, None] for each in (source, target))
        divisor, product = self._divisor[places], self._product(mode, places)
        vanished = np.einsum("prr->pr", product) == 0
        each = np.arange(product.shape[1])
        product[:, each, each] += self._bounds.ridge[mode]
        product[vanished] = 0
        gram = product * (divisor[:, :, None] * divisor[:, None, :])
        rights = mttkrps * (self._other_scales(mode, places) * divisor)[:, None]
        rows: NDArray[np.float64] = before * (self._scales[mode, places] * self._weights[places] / divisor)[:, None]
        pivots = gram[:, each, each]
        known = (pivots > 0) & self._exists[places]
        rows *= np.where(known[:, None], (rights != 0).any(axis=2, keepdims=True), 1.0)
        over = np.where(known, 1 / np.where(known, pivots, 1.0), 0.0)
        for _ in range(self._bounds.sweeps):
            last = rows.copy()
            for r in each:
                change = (rights[:, :, r] - np.einsum("pir,pr->pi", rows, gram[:, r])) * over[:, r, None]
                rows[:, :, r] = np.where(known[:, r, None], np.maximum(0.0, rows[:, :, r] + change), rows[:, :, r])
            if not (np.abs(rows - last) > SETTLED * np.abs(rows).max(axis=2, keepdims=True)).any():
                break
        whole = np.zeros(source.shape)
        whole[:, columns[exists]] = rows.swapaxes(0, 1)[:, exists]
        return whole

    def widen(self, mode: int) -> None:
        """See `Equations`: a run out of range leaves the batch."""

    def finish(self, mode: int, again: bool = False) -> None:
        """See `Equations`: part of `solve`."""

    def multiply(self, source: Array, target: Array) -> None:
        """See `Equations`: fits are computed in double precision already."""

    def fit(self, exact: bool = False) -> None:
        if exact:
            return
        places, order, norm = self._active.places, self._case.terms.order, self._case.terms.norm
        product = self._product(order, places)
        weights = self._weights[places] if self._bounds.constrained else self._norms[order - 1, places]
        weights = weights * self._exists[places]
        squared = np.einsum("pr,prs,ps->p", weights, product, weights)
        parts = (weights * np.multiply.reduce(self._scales[:, places]) * self._inner[places]).sum(axis=1)
        distance = np.sqrt(np.maximum(0.0, norm**2 + squared - 2 * parts)) / norm
        self._fits[places] = 1 - distance
        self._squares[places] = np.einsum("pr,prr->p", weights**2, product)
        self._iterations[places] += 1
        self._raise(~np.isfinite(distance), NOT_FINITE, order)

    def invert(self, mode: int, double: bool = False) -> None:
        """See `Equations`: a run with singular equations leaves the batch."""

    def measure(self, norm: float) -> None:
        if norm != self._case.terms.norm:
            self._case = self._case._replace(terms=self._case.terms._replace(norm=norm))

    def report(self) -> None:
        """See `Equations`: nothing is captured."""

    def status(self) -> list[EquationsStatus]:
        return [self._status(place) for place in range(self._case.places)]

    def _status(self, place: int) -> EquationsStatus:
        exists = self._exists[place]
        numbers = int(self._flags[place]), int(self._iterations[place]), float(self._fits[place])
        norms, scales = self._norms[:, place, exists], self._scales[:, place, exists]
        return EquationsStatus(*numbers, norms, scales, float(self._squares[place]))

    def read(self, memory: NDArray[np.uint8]) -> list[EquationsStatus]:
        """See `Equations`. Nothing is captured, so this is the current status."""
        return self.status()

    def snapshot(self, source: Array, target: Array) -> None:
        """See `Equations`: nothing is captured."""


def _rounded(rows: NDArray[np.float64], dtype: Any) -> NDArray[np.float64]:
    """Return rows as they are stored in factor matrices."""
    return rows if dtype == np.float64 else rows.astype(dtype).astype(np.float64)
