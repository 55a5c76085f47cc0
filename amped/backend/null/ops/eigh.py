"""Leading eigenvectors by a GPU's algorithm, with NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...device import Array
from ...ops.eigh import EIGH, TURNS, Eigh
from ..device import NullDevice


class NumpyEigh:
    """See `Eigh`."""

    def suits(self, size: int, count: int) -> bool:
        return count <= size

    def prepare(self, size: int, count: int) -> None:
        """See `Eigh`: nothing to compile."""

    def bytes(self, size: int, count: int) -> int:
        return 8 * size * size

    def eigenvectors(self, gram: Array, out: Array, facts: Array) -> None:
        count = out.shape[1]
        values, vectors = np.linalg.eigh(gram)
        facts[:count], facts[count : 2 * count] = values[::-1][:count], 0
        with np.errstate(invalid="ignore", divide="ignore"):
            out[...] = vectors[:, ::-1][:, :count] / np.sqrt(facts[:count])

    def whiten(self, gram: Array, out: Array, facts: Array, turn: int) -> None:
        facts[turn - 2 * TURNS] = np.abs(gram - np.eye(len(gram))).max()
        lengths = np.sqrt(np.diagonal(gram))
        try:
            root = np.linalg.cholesky(gram / np.outer(lengths, lengths))
        except np.linalg.LinAlgError:
            facts[turn - TURNS], out[...] = np.nan, np.nan
            return
        facts[turn - TURNS] = np.square(np.diagonal(root)).min()
        out[...] = np.linalg.inv(root).T / lengths[:, None]


@EIGH.provider("null")
def providers(device: NullDevice) -> Sequence[Eigh]:
    """Return the providers of the operation."""
    return [NumpyEigh()]
