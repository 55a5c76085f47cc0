"""Factor matrices whose rows have labels: those of a model that is compared with a tensor or starts a decomposition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats
from partitioner.tensors.labels import Labels
from partitioner.tensors.relabel import places

from ..errors import InputError

Places = list[tuple[int, NDArray[np.int64]]]


class LabelledMatrices(list[Floats]):
    """Factor matrices, and the labels of their rows, if any."""

    def __init__(self, matrices: Iterable[Floats], labels: Labels | None) -> None:
        super().__init__(matrices)
        self.labels = labels


def in_order_of(matrices: Any, labels: Labels | None) -> Any:
    """Return matrices with their rows in the order of a tensor's labels, and in the order of its modes.

    Matrices without labels, matrices with other labels than the tensor's, and anything else are unchanged: their rows
    correspond to the tensor's indices by position.
    """
    found = places_in(matrices, labels)
    return matrices if found is None else [matrices[mode][rows] for mode, rows in found]


def aligned_rows(matrices: Any, labels: Labels | None) -> Any:
    """Return the matrices of a model with a row for each label of a tensor, in its order, in modes with common labels.

    Rows of labels that the model lacks are the mean of the others. Other modes, and anything else, are unchanged.
    """
    if not isinstance(matrices, LabelledMatrices) or matrices.labels is None or labels is None:
        return matrices
    if len(matrices.labels) != len(labels):
        return matrices
    result = list[Floats]()
    for matrix, own, wanted in zip(matrices, matrices.labels, labels, strict=True):
        found = np.full(0, -1)
        with suppress(InputError):
            found = places(own, wanted)
        known = found >= 0
        if known.any():
            rows = matrix[found]
            rows[~known] = matrix[found[known]].mean(axis=0)
            matrix = rows
        result.append(matrix)
    return result


def with_rank(matrices: Sequence[Floats], rank: int, more: Sequence[Floats]) -> list[Floats]:
    """Return matrices with `rank` columns: their first ones, or all and columns of `more`, in their size.

    Parameters
    ----------
    matrices : sequence of (I_n, K) arrays
        Of a model, whose first components have the largest weights.
    rank : int
    more : sequence of (I_n, rank - K) arrays
        Ignored unless K is below `rank`.
    """
    if len({matrix.shape[1] for matrix in matrices}) != 1:
        return list(matrices)
    if matrices[0].shape[1] >= rank:
        return [matrix[:, :rank] for matrix in matrices]
    return [
        np.hstack([matrix, new * (np.abs(matrix).mean() or 1.0)]) if len(matrix) == len(new) else matrix
        for matrix, new in zip(matrices, more, strict=True)
    ]


def in_own_order(results: Sequence[Floats], found: Places | None) -> list[Floats]:
    """Return one matrix per mode of a tensor in the order of the matrices for which `places_in` has returned `found`.

    The inverse of `in_order_of`.
    """
    own = list(results)
    for result, (mode, rows) in zip(results, found or (), strict=found is not None):
        own[mode] = np.empty_like(result)
        own[mode][rows] = result
    return own


def places_in(matrices: Any, labels: Labels | None) -> Places | None:
    """Return the number and the rows of the matrix for each mode of a tensor; None if they correspond by position."""
    if not isinstance(matrices, LabelledMatrices) or matrices.labels is None or labels is None:
        return None
    own, names = matrices.labels, labels.names
    modes = list(range(len(own)))
    if own.names and names and sorted(own.names) == sorted(names) and len(set(names)) == len(names):
        modes = [own.names.index(name) for name in names]
    if len(modes) != len(labels):
        return None
    with suppress(InputError):  # labels of other types, or repeated ones
        rows = [places(own[mode], labels[m]) for m, mode in enumerate(modes)]
        pairs = list(zip(modes, rows, strict=True))
        if all(np.array_equal(np.sort(each), np.arange(own[mode].size)) for mode, each in pairs):
            return pairs
    return None
