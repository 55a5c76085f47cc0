"""MTTKRPs of dense blocks by two matrix products per iteration.

The modes are split into a first and a second group. The product of the unfolded tensor with the Khatri-Rao product of
one group is a partial result that serves all modes of the other group.

Matrices are transposed, (R, rows): NumPy's inner loops then run over rows instead of a few components.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def split_of(lengths: Sequence[int]) -> int:
    """Return the number of modes in the first group for which the partial results are smallest."""
    return min(range(1, len(lengths)), key=lambda at: math.prod(lengths[:at]) + math.prod(lengths[at:]))


def partial_rows(lengths: Sequence[int]) -> int:
    """Return the number of rows of the partial results of both groups."""
    split = split_of(lengths)
    return math.prod(lengths[:split]) + math.prod(lengths[split:])


def khatri_rao(matrices: Sequence[Matrix], out: Matrix | None = None) -> Matrix:
    """Return the Khatri-Rao product of transposed matrices, (R, product of rows), the last one varying fastest."""
    *others, last = matrices
    if not others:
        return last
    product = khatri_rao(others)
    if out is None:  # also of arrays on a GPU
        return (product[:, :, None] * last[:, None, :]).reshape(len(last), -1)
    np.multiply(product[:, :, None], last[:, None, :], out=out.reshape(len(last), -1, last.shape[1]))
    return out


def contract(partial: Matrix, before: Matrix | None, after: Matrix | None) -> Matrix:
    """Return the MTTKRP of one mode from a partial result and the Khatri-Rao products of the modes around it."""
    rank = len(partial)
    if after is not None:
        partial = np.matmul(partial.reshape(rank, -1, after.shape[1]), after[:, :, None])[:, :, 0]
    if before is not None:
        partial = np.matmul(before[:, None, :], partial.reshape(rank, before.shape[1], -1))[:, 0]
    return partial


class SplitProducts:
    """The MTTKRPs of a whole block, in arrays that are allocated once. Partial results are reused while they are valid.

    Parameters
    ----------
    block : array
        C-contiguous, in double precision.
    rank : int
    """

    def __init__(self, block: NDArray[np.float64], rank: int) -> None:
        lengths, split = block.shape, split_of(block.shape)
        self._groups = range(split), range(split, len(lengths))
        first, second = (math.prod(lengths[m] for m in group) for group in self._groups)
        unfolded = block.reshape(first, second)
        # The matrix that the Khatri-Rao product of each group is multiplied with; products of transposes are slower.
        self._matrices = unfolded, np.ascontiguousarray(unfolded.T)
        self._products = np.empty((rank, first)), np.empty((rank, second))
        self._partials = np.empty((rank, first)), np.empty((rank, second))
        self._valid = [False, False]

    @property
    def nbytes(self) -> int:
        """The bytes of the arrays."""
        return sum(array.nbytes for array in (*self._matrices, *self._products, *self._partials))

    def mttkrp(self, mode: int, factors: Sequence[Matrix]) -> Matrix:
        """Return the transposed MTTKRP of a mode, (R, I_mode), valid until the next call; `factors` are transposed."""
        served = int(mode in self._groups[1])
        other, modes = 1 - served, self._groups[served]
        if not self._valid[served]:
            product = khatri_rao([factors[m] for m in self._groups[other]], self._products[other])
            np.matmul(product, self._matrices[other], out=self._partials[served])
            self._valid[served] = True
        before, after = factors[modes.start : mode], factors[mode + 1 : modes.stop]
        return contract(
            self._partials[served], khatri_rao(before) if before else None, khatri_rao(after) if after else None
        )

    def changed(self, mode: int) -> None:
        """Invalidate the partial result that depends on a factor matrix."""
        self._valid[int(mode in self._groups[0])] = False
