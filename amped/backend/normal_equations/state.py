"""The state of the equations of a run in one array, on the host or a device."""

from __future__ import annotations

from itertools import accumulate, pairwise
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from ..device import Array
from ..ops.equations import EquationsStatus, RunStart, Terms
from ..ops.solve import Sums

Matrix = NDArray[np.float64]
ITERATIONS, FIT, BEST, FLAGS, SQUARES, MODE, FACTS = range(7)
"""Positions in the facts: number of iterations, last fit, best fit, flags, squared norms, and the mode in which a
device raised a flag; FACTS is their number."""
ALIGNED = 256 // 8  # doubles
FAR_OFF = 2.0**20  # limit of the norm of a start relative to the tensor's, as it determines rounding errors


class EquationsState:
    """The state of the equations of a run. The part that the host reads comes first.

    Attributes
    ----------
    memory : (bytes,) uint8 array
        The first `status_bytes` are facts, norms and scales.
    facts : (FACTS,) array
    norms, scales : (N, R) arrays
        See `EquationsStatus`.
    divisor : (R,) array
        Divisors of the columns of the current mode's matrix when they are stored.
    grams : (N, R, R) array
        The Gram matrices of the columns multiplied by their scales.
    weights : (R,) array
        The norms of the components, if equations are constrained.
    """

    def __init__(self, xp: ModuleType, order: int, rank: int, numbers: Array = None) -> None:
        """Use `numbers`, (`doubles`,), or allocate zeros."""
        numbers = xp.zeros(doubles(order, rank), np.float64) if numbers is None else numbers
        sizes = [FACTS, order * rank, order * rank, rank, order * rank * rank, rank]
        bounds = [0, *accumulate(sizes)]
        self.facts, norms, scales, self.divisor, grams, self.weights = (numbers[a:b] for a, b in pairwise(bounds))
        self.norms, self.scales = norms.reshape(order, rank), scales.reshape(order, rank)
        self.grams = grams.reshape(order, rank, rank)
        self.memory, self.status_bytes = numbers.view(np.uint8), 8 * bounds[3]

    def status(self, memory: NDArray[np.uint8]) -> EquationsStatus:
        """Return the status of the run from a copy of the first bytes."""
        numbers = memory[: self.status_bytes].view(np.float64)
        facts, columns = numbers[:FACTS].tolist(), numbers[FACTS:].reshape(2, *self.norms.shape).copy()
        return EquationsStatus(
            int(facts[FLAGS]), int(facts[ITERATIONS]), facts[FIT], columns[0], columns[1], facts[SQUARES]
        )

    def begin(self, start: RunStart, norm: float, constrained: bool) -> None:
        """Set the state from which a run continues, in host memory; `norm` is that of the tensor."""
        status = start.status
        self.facts[[ITERATIONS, FIT, BEST, FLAGS]] = status.iterations, status.fit, start.best, 0
        self.norms[...], self.scales[...] = status.norms, status.scales
        self.grams[...] = start.grams * (status.scales[:, :, None] * status.scales[:, None])
        if start.weights is not None:
            self.weights[...] = start.weights
        elif constrained:
            self._take_lengths_out(norm)

    def _take_lengths_out(self, norm: float) -> None:
        """Normalise all columns and set the weights."""
        self.weights[...] = 1.0
        for mode, gram in enumerate(self.grams):
            length = np.sqrt(np.diag(gram))
            length[~(length > 0)] = 1.0
            self.norms[mode] *= length
            self.scales[mode] /= length
            gram *= np.outer(1 / length, 1 / length)
            self.weights *= length
        model = np.sqrt(self.weights @ np.multiply.reduce(self.grams) @ self.weights)
        self.weights *= min(1.0, FAR_OFF * norm / max(model, np.finfo(np.float64).tiny))


def doubles(order: int, rank: int) -> int:
    """Return the number of float64 numbers of an `EquationsState`."""
    return -(-(FACTS + rank * (2 * order + 2 + order * rank)) // ALIGNED) * ALIGNED


def sums_of(totals: Array, terms: Terms, last: int) -> list[Sums]:
    """Return the parts of the first run's totals that each mode adds to; `last` also adds inner products."""
    rank, first = totals.shape[2], totals[0]
    plain = Sums(first[:rank], first[rank + 2 + terms.part])
    return [plain._replace(dots=first[rank]) if mode == last else plain for mode in range(terms.order)]
