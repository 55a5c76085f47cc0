"""The row_admm operation by NumPy, as a reference and for devices that have none."""

from __future__ import annotations

from typing import Any

import numpy as np

from amped.backend.ops.row_admm import RowAdmm, RowAdmmCase, RowTerms
from amped.methods.proximal.admm import ModeSolver, Storage
from amped.methods.proximal.equations import SharedGram
from amped.methods.proximal.operators import Proximal
from amped.methods.proximal.terms import ModeTerms


def mode_terms(terms: RowTerms) -> ModeTerms:
    """Return the constraints of a mode from those of its rows."""
    shape = ("simplex", "rows") if terms.simplex else ("", "")
    return ModeTerms((), terms.low, terms.high, terms.l1, terms.l2, shape=shape[0], option=shape[1])


class HostRowAdmm:
    """See `RowAdmm`: the same objective, and one test of convergence for all rows of a call."""

    def __init__(self, case: RowAdmmCase) -> None:
        self.totals = np.zeros((len(case.terms), case.rank**2 + 2))
        self._case, self._gram = case, np.empty(0)

    def prepare(self, mode: int) -> None:
        rank = self._case.rank
        others = np.delete(self.totals[:, :-2], mode, axis=0)
        self._gram = others.prod(axis=0).reshape(rank, rank)
        self.totals[mode] = 0

    def solve(self, mode: int, source: Any, target: Any, dual: Any, fixed: Any) -> None:
        proximal = Proximal(mode_terms(self._case.terms[mode]), fixed=fixed)
        solver = ModeSolver(proximal, Storage(rounded=lambda rows: rows.astype(target.dtype).astype(float)))
        duals = np.empty((0, *source.shape)) if dual is None else dual[None]
        found = solver.solve(SharedGram(np.array(source), self._gram), target.astype(float), duals)
        target[...] = found.rows
        if dual is not None:
            dual[...] = found.dual[0]
        stored = target.astype(float)
        self.totals[mode, :-2] += (stored.T @ stored).reshape(-1)
        self.totals[mode, -2:] += found.data, found.penalty


class HostProvider:
    """See `RowAdmmProvider`."""

    def suits(self, rank: int) -> bool:
        return True

    def bytes(self, order: int, rank: int, rows: int) -> int:
        return 0

    def make(self, case: RowAdmmCase) -> RowAdmm:
        return HostRowAdmm(case)
