"""Normal equations of several runs, which share each NumPy operation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..device import Array
from ..normal_equations.hals import SETTLED
from ..normal_equations.state import EquationsState
from ..ops.equations import CONDITION, NOT_FINITE, RANGE, SINGULAR, Case, EquationsStatus, RunStart, RunStopped


class SeveralEquations:
    """See `Equations`. Singular equations and columns out of range raise a flag; that run is then solved separately.

    Arrays have one row per place, with the columns of the largest run; the missing columns of smaller runs are zero.
    """

    memory: Array | None = None
    reported: Array | None = None
    allocates = True

    def __init__(self, case: Case) -> None:
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
        self._active = np.zeros(0, np.int64)  # places of runs without a flag
        self._occupied = set[int]()  # places that have a run

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
        self._active = np.array([place for place in sorted(self._occupied) if not self._flags[place]], np.int64)

    def _raise(self, which: NDArray[np.bool_], flag: int, mode: int) -> None:
        """Raise a flag for some of the active runs."""
        if which.any():
            self._flags[self._active[which]], self._modes[self._active[which]] = flag, mode
            self._list_active()

    def _product(self, mode: int, places: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the products of the other modes' Gram matrices."""
        others = [m for m in range(self._case.terms.order) if m != mode]
        product: NDArray[np.float64] = self._grams[others[0], places]
        for m in others[1:]:
            product = product * self._grams[m, places]
        return product

    def _other_scales(self, mode: int, places: NDArray[np.int64]) -> NDArray[np.float64]:
        product: NDArray[np.float64] = np.multiply.reduce(np.delete(self._scales, mode, axis=0)[:, places])
        return product

    def prepare(self, mode: int, double: bool = False) -> None:
        product = self._product(mode, self._active)
        self._raise(~np.isfinite(product.sum(axis=(1, 2))), NOT_FINITE, mode)
        if mode in self._bounds.nonnegative or not self._active.size:
            self._divisor[self._active] = self._norms[mode, self._active] * self._scales[mode, self._active]
            return
        product, each = self._product(mode, self._active), np.arange(product.shape[1])
        product[:, each, each] += self._bounds.ridge[mode] + ~self._exists[self._active]
        try:
            inverse = np.linalg.inv(product)
            sizes = np.linalg.norm(product, axis=(1, 2)) * np.linalg.norm(inverse, axis=(1, 2))
        except np.linalg.LinAlgError:
            inverse, sizes = product, np.linalg.cond(product)
        singular = ~(sizes <= CONDITION)
        inverse = ((inverse + inverse.swapaxes(1, 2)) / 2)[~singular]
        self._raise(singular, SINGULAR, mode)
        divisor = self._norms[mode, self._active] * self._scales[mode, self._active]
        self._divisor[self._active] = divisor
        inverse *= self._other_scales(mode, self._active)[:, :, None]
        self._inverse[self._active] = inverse / divisor[:, None, :]

    def solve(self, mode: int, source: Array, target: Array, again: bool = False) -> None:
        if again or not self._active.size:
            return
        places = self._active
        columns, exists = self._columns[places].ravel(), self._exists[places].ravel()
        shape = len(source), places.size, self._columns.shape[1]
        mttkrps = (np.take(source, columns, axis=1) * exists).reshape(shape).transpose(1, 0, 2)
        if mode in self._bounds.nonnegative:
            before = (np.take(target, columns, axis=1) * exists).reshape(shape).transpose(1, 0, 2)
            rows = self._nonnegative_rows(mode, places, mttkrps, before)
        else:
            rows = mttkrps @ self._inverse[places]
        largest = np.abs(rows).max(axis=1)
        rows = _rounded(rows, target.dtype)
        gram = rows.swapaxes(1, 2) @ rows
        if mode == self._bounds.last:
            self._inner[places] = np.einsum("pir,pir->pr", mttkrps, rows)
        self._set_norms(mode, places, largest, gram)
        without_flag = self._flags[places] == 0
        write = (exists.reshape(shape[1:]) & without_flag[:, None]).ravel()
        target[:, columns[write]] = rows.transpose(1, 0, 2).reshape(shape[0], -1)[:, write]

    def _set_norms(self, mode: int, places: Any, largest: Any, gram: Any) -> None:
        """Set the norms and scales of columns, or raise flags."""
        most, divisor = self._case.terms.most, self._divisor[places]
        square = np.einsum("prr->pr", gram)
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

    def _nonnegative_rows(self, mode: int, places: Any, mttkrps: Any, before: Any) -> NDArray[np.float64]:
        """Return non-negative rows, by updates of one column at a time; see `normal_equations.hals`."""
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
        return rows

    def widen(self, mode: int) -> None:
        """See `Equations`: a run out of range leaves the batch."""

    def finish(self, mode: int, again: bool = False) -> None:
        """See `Equations`: part of `solve`."""

    def multiply(self, source: Array, target: Array) -> None:
        """See `Equations`: fits are computed in double precision already."""

    def fit(self, exact: bool = False) -> None:
        if exact:
            return
        places, order, norm = self._active, self._case.terms.order, self._case.terms.norm
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
