"""Absent elements of a sparse tensor for which a model expects the largest values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats
from partitioner.tensors.sparse import SparseTensor

from .explained import values_at

ROWS = 1 << 12  # rows per mode that are examined
GRID = 1 << 24  # bounds in memory at once
MOST = 1 << 18  # elements whose values are computed
CHUNK = 1 << 22  # nonzeros compared at once

Places = NDArray[np.int64]
"""Coordinates, (order, n)."""


class Absent(NamedTuple):
    """Absent elements with the largest expected magnitudes, the largest first.

    `bound` limits the magnitude of all absent elements that were not examined.
    """

    places: Places
    expected: NDArray[np.float64]
    bound: float


def absent_elements(
    weights: NDArray[np.float64], factors: Sequence[Floats], tensor: SparseTensor, count: int
) -> Absent:
    """Return up to `count` absent elements with the largest expected magnitudes.

    Elements are found by branch and bound. The magnitude of an element is at most the sum over the components of the
    product of the magnitudes; for a prefix of its coordinates, entries of the other modes are replaced by the largest
    ones of their columns. Prefixes with the largest bounds are extended, mode by mode, the shortest mode first.
    """
    order = sorted(range(len(factors)), key=lambda mode: tensor.shape[mode])
    sizes = [np.abs(factor).astype(np.float64) for factor in factors]
    most = np.array([size.max(axis=0, initial=0) for size in sizes])  # (order, R)
    rows, dropped = list[NDArray[np.int64]](), 0.0
    for mode, size in enumerate(sizes):
        bounds = size @ (np.abs(weights) * np.prod(np.delete(most, mode, 0), axis=0))
        chosen, rest = _largest(bounds, ROWS)
        rows.append(chosen)
        dropped = max(dropped, rest)
    places, prefix = np.zeros((len(factors), 1), np.int64), np.abs(weights)[None, :]
    for at, mode in enumerate(order):
        rest_of = np.prod(most[order[at + 1 :]], axis=0)
        last = at == len(order) - 1
        limit = MOST if last else max(1, GRID // len(rows[order[at + 1]]))
        grid = prefix @ (sizes[mode][rows[mode]] * rest_of).T
        chosen, rest = _largest(grid.reshape(-1), limit)
        dropped = max(dropped, rest)
        parents, children = np.divmod(chosen, len(rows[mode]))
        places = places[:, parents]
        places[mode] = rows[mode][children]
        prefix = prefix[parents] * sizes[mode][places[mode]]
    places = places[:, ~_present(places, tensor)]
    expected = values_at(weights, factors, list(places))
    best = np.lexsort((*places[::-1], -np.abs(expected)))[:count]
    best = best[expected[best] != 0]
    return Absent(places[:, best], expected[best], dropped)


def _largest(bounds: NDArray[np.float64], limit: int) -> tuple[NDArray[np.int64], float]:
    """Return the places of the largest bounds, at most `limit`, and the largest of the others."""
    if bounds.size <= limit:
        return np.arange(bounds.size), 0.0
    places = np.argpartition(-bounds, limit)
    return places[:limit], float(bounds[places[limit:]].max())


def _present(places: Places, tensor: SparseTensor) -> NDArray[np.bool_]:
    """Return which elements are stored in the tensor."""
    shape = tensor.shape
    if math.prod(shape) >= 1 << 62:  # too many elements to number: compare tuples
        wanted = set(zip(*places.tolist(), strict=True))
        used = np.isin(tensor.columns[0], places[0])
        found = set(zip(*(column[used].tolist() for column in tensor.columns), strict=True)) & wanted
        return np.array([place in found for place in zip(*places.tolist(), strict=True)], bool)
    numbers = np.ravel_multi_index(tuple(places), shape)
    ordered = np.sort(numbers)
    found_numbers = [np.empty(0, np.int64)]
    for begin in range(0, tensor.nnz, CHUNK):
        part = tuple(np.asarray(column[begin : begin + CHUNK], np.int64) for column in tensor.columns)
        mine = np.ravel_multi_index(part, shape)
        at = np.minimum(np.searchsorted(ordered, mine), max(0, ordered.size - 1))
        found_numbers.append(mine[ordered[at] == mine] if ordered.size else mine[:0])
    present: NDArray[np.bool_] = np.isin(numbers, np.concatenate(found_numbers))
    return present
