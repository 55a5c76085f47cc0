"""The admm_steps operation by NumPy, as a reference and for devices that have none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from amped.backend.ops.admm_steps import AdmmStart


class PlainAdmmSteps:
    """See `AdmmSteps`."""

    def __init__(self, start: AdmmStart) -> None:
        self._start, self.scaled = start, start.scaled
        self.copies = np.stack([start.rows] * len(start.scaled))
        self._moved = np.empty_like(self.scaled)

    def advance(self) -> Any:
        free = (self.copies + self.scaled).sum(axis=0) @ self._start.inverse + self._start.unmoved
        self._moved[...] = free - self.scaled
        return self._moved

    def _of_entries(self, matrix: np.ndarray) -> np.ndarray:
        terms = self._start.first
        assert terms is not None
        if terms.low >= 0:
            matrix = matrix - terms.l1
        else:
            matrix = np.sign(matrix) * np.maximum(abs(matrix) - terms.l1, 0)
        matrix = np.clip(matrix, terms.low, terms.high)
        return matrix / np.maximum(1, np.linalg.norm(matrix, axis=0)) if terms.ball else matrix

    def settle(self, results: Sequence[Any], tested: bool) -> Any:
        new = np.stack([self._of_entries(self._moved[0]) if each is None else each for each in results])
        after = new - self._moved
        squared = [np.square(each).sum(axis=(1, 2)) for each in (after - self.scaled, new, new - self.copies, after)]
        self.copies[...], self.scaled[...] = new, after
        return np.stack(squared, axis=1) if tested else None


class PlainAdmmStepsProvider:
    """See `AdmmStepsProvider`."""

    def suits(self, rank: int, operators: int) -> bool:
        return True

    def begin(self, start: AdmmStart) -> PlainAdmmSteps:
        return PlainAdmmSteps(start)
