"""The elements of a dense tensor that are not NaN, described without a list of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..host.threads import parallel_map, threads_for
from .dense import DenseTensor, indices_of
from .observed import NAN, observed_elements
from .sparse import SparseTensor
from .statistics import ElementStatistics, facts_of, joined
from .stored import Place, pieces
from .value_range import BLOCK, ValueRange, grain

Columns = NDArray[np.int32]
Values = NDArray[np.float64]


class _Part(NamedTuple):
    """Facts about a part of the tensor that has elements."""

    place: Place
    nnz: int
    statistics: ElementStatistics
    grain: float
    used: list[NDArray[np.bool_]]  # which indices of each mode, in memory order, have elements


def _used(present: NDArray[np.bool_], mode: int, whole: bool) -> NDArray[np.bool_]:
    """Return which indices of a mode have elements; `whole`: all have."""
    if whole:
        return np.ones(present.shape[mode], bool)
    others = tuple(other for other in range(present.ndim) if other != mode)
    return np.asarray(present.any(axis=others))


class PresentElements:
    """The elements of a dense tensor that are not NaN.

    Parameters
    ----------
    tensor : DenseTensor
        In host memory.

    Attributes
    ----------
    nnz : int
        The number of elements.
    values : ValueRange
        Bounds on their values.
    norm : float
        The Frobenius norm of the tensor with zeros in place of NaN.

    Raises
    ------
    InputError
        If an element is infinite, or all are NaN.
    """

    def __init__(self, tensor: DenseTensor) -> None:
        self.tensor = tensor
        first, *others = pieces(tensor.memory.shape, (), BLOCK)
        begin = self._part(first, True)
        has_grain = begin is None or begin.grain > 0
        rest = parallel_map(lambda place: self._part(place, has_grain), others, threads_for(len(others)))
        parts = [part for part in (begin, *rest) if part is not None]
        statistics = joined([part.statistics for part in parts])
        if not parts or statistics.bad >= 0:
            self.listed()  # raises the error
        self.nnz, self.norm = sum(part.nnz for part in parts), statistics.norm()
        self.values = ValueRange(statistics.low, statistics.high, min(part.grain for part in parts))
        self._used = [np.zeros(length, bool) for length in tensor.memory.shape]
        for part in parts:
            for used, within, mine in zip(self._used, part.place, part.used, strict=True):
                used[within] |= mine

    def _part(self, place: Place, has_grain: bool) -> _Part | None:
        """Return facts about a part; `has_grain`: whether other parts have a grain, so that its own matters."""
        block = self.tensor.memory[place]
        present = ~np.isnan(block)
        whole = bool(present.all())
        values = block.reshape(-1) if whole else block[present]
        if not values.size:
            return None
        statistics = facts_of(values, (slice(0, values.size),), (self.tensor.size,))
        mine = grain(np.asarray(values, np.float64)) if has_grain else 0.0
        return _Part(place, values.size, statistics, mine, [_used(present, mode, whole) for mode in range(block.ndim)])

    def used_indices(self, mode: int) -> Columns:
        """Return the indices of a mode that have elements, ascending."""
        return np.flatnonzero(self._used[self.tensor.modes.index(mode)]).astype(np.int32)

    def of_rows(self, mode: int, chosen: NDArray[np.bool_]) -> tuple[Columns, Values]:
        """Return the indices, (order, n), and the values of the elements of the chosen indices of a mode."""
        rows = np.flatnonzero(chosen)
        part = np.take(self.tensor.array(), rows, axis=mode)
        present = ~np.isnan(part)
        columns = indices_of(present)
        columns[mode] = rows[columns[mode]]
        return columns, part[present].astype(np.float64, copy=False)

    def listed(self) -> SparseTensor:
        """Return all elements as a sparse tensor."""
        return observed_elements(self.tensor, NAN).tensor
