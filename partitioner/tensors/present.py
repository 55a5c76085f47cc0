"""The elements of a dense tensor that are not NaN, described without a list of them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..host.threads import parallel_map, threads_for
from .dense import DenseTensor, indices_of
from .observed import NAN, observed_elements
from .sparse import SparseTensor
from .stored import Place, pieces
from .value_range import BLOCK, ValueRange, ends, grain, norm, squares

Columns = NDArray[np.int32]
Values = NDArray[np.float64]


class _Part(NamedTuple):
    """What is known of the present elements of a part of the tensor; their range is (inf, -inf) if there are none."""

    place: Place
    nnz: int
    bounds: tuple[float, float]
    grain: float
    squares: float  # their sum, divided by the square of the largest magnitude
    used: list[NDArray[np.bool_]]  # which indices of each mode, in memory order, have any

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return max(map(abs, self.bounds))


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
        begin = self._part(first, 1.0)
        rest = parallel_map(lambda place: self._part(place, begin.grain), others, threads_for(len(others)))
        parts = [part for part in (begin, *rest) if part.nnz]
        self.nnz = sum(part.nnz for part in parts)
        bounds = (
            min((part.bounds[0] for part in parts), default=math.inf),
            max((p.bounds[1] for p in parts), default=0.0),
        )
        if not all(map(math.isfinite, bounds)):
            self.listed()  # raises the error
        self.values = ValueRange(*bounds, min(part.grain for part in parts))
        scale = self.values.largest or 1.0
        self.norm = norm(bounds, [part.squares * (part.largest / scale) ** 2 for part in parts])
        self._used = [np.zeros(length, bool) for length in tensor.memory.shape]
        for part in parts:
            for used, within, mine in zip(self._used, part.place, part.used, strict=True):
                used[within] |= mine

    def _part(self, place: Place, most: float) -> _Part:
        """Return what is known of a part; its grain only if that of other parts, `most`, is not 0."""
        block = self.tensor.memory[place]
        present = ~np.isnan(block)
        whole = bool(present.all())
        values = np.asarray(block.reshape(-1) if whole else block[present], np.float64)
        used = [_used(present, mode, whole) for mode in range(block.ndim)]
        if not values.size:
            return _Part(place, 0, (math.inf, -math.inf), most, 0.0, used)
        bounds = ends(values)
        total = sum(squares(values, bounds)) if all(map(math.isfinite, bounds)) else 0.0
        return _Part(place, values.size, bounds, grain(values) if most else 0.0, total, used)

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
