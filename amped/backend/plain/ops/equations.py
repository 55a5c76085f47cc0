"""Normal equations with NumPy: of one run, and of several runs at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...cpu.ops.equations import CpuEquations, CpuEquationsProvider
from ...normal_equations.inverse import noise_limit
from ...normal_equations.state import FIT, ITERATIONS, Matrix
from ...ops.equations import EQUATIONS, NOISY, NOT_FINITE, RANGE, Equations, EquationsCase, EquationsProvider
from ..batch import SeveralEquations
from ..device import PlainDevice


class PlainEquations(CpuEquations):
    """See `Equations`."""

    def prepare(self, mode: int, double: bool = False) -> None:
        if mode in self._bounds.nonnegative:
            super().prepare(mode, double)
        else:
            self._invert(mode, np.inf if double else noise_limit(self._terms, self._state.facts[FIT]))

    def _prepare_system(self, mode: int, begin: Matrix) -> None:
        state, system, rank = self._state, self.system, self._terms.rank
        others = [m for m in range(self._terms.order) if m != mode]
        product = np.prod(state.grams[others], axis=0)
        vanished = product.diagonal() == 0  # components that have vanished in another mode
        product[np.arange(rank), np.arange(rank)] += self._bounds.ridge[mode]
        if not np.isfinite(product).all():
            self._raise(NOT_FINITE)
            return
        product[vanished] = 0
        system.gram[...] = product * np.outer(state.divisor, state.divisor)
        system.right[...] = np.multiply.reduce(state.scales[others]) * state.divisor
        system.begin[...] = begin

    def finish(self, mode: int, again: bool = False) -> None:
        totals, state, rank, most = self._totals, self._state, self._terms.rank, self._terms.most
        gram, largest = totals[:rank], totals[rank + 2 :].max(axis=0)
        usual = (largest == 0) | ((largest > 1 / most) & (largest < most))
        if totals[rank + 1].any():
            self._raise(NOISY)
        elif not again and not usual.all():
            self._raise(RANGE)
        elif not np.isfinite(gram).all():
            self._raise(NOT_FINITE)
        else:
            unit = self._bounds.constrained or state.facts[ITERATIONS] == 0
            length = np.sqrt(gram.diagonal()) * state.divisor
            about = length if unit else np.maximum(largest * state.divisor, 1.0)
            state.norms[mode] = np.where(about > 0, about, 1.0)
            state.scales[mode] = scale = state.divisor / state.norms[mode]
            state.grams[mode] = gram * np.outer(scale, scale)
            if self._bounds.constrained:
                state.weights[...] = state.norms[mode]


class PlainEquationsProvider(CpuEquationsProvider):
    """See `EquationsProvider`; supports all ranks. MTTKRPs are in double precision already."""

    def __init__(self, device: PlainDevice) -> None:
        super().__init__(device)
        self._plain = device
        self.batch_columns = 32 if device.ranks == 1 else 0  # a batch does not sum over ranks

    def bytes(self, order: int, rank: int, parts: int, places: int = 1, rows: int = 0) -> int:
        if places == 1:
            return super().bytes(order, rank, parts)
        return 8 * places * rank * ((order + 4) * rank + 3 * order + 6 * rows)

    def make(self, case: EquationsCase) -> Equations:
        case = case._replace(terms=case.terms._replace(gains=False))
        return SeveralEquations(case) if case.places > 1 else PlainEquations(self._plain, case)


@EQUATIONS.provider("plain")
def providers(device: PlainDevice) -> Sequence[EquationsProvider]:
    """Return the providers of the operation."""
    return [PlainEquationsProvider(device)]
