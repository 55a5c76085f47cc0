"""The operation that sorts nonzeros in device memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from partitioner.tensors.sparse import ValueRange

from ..device import Array
from ..registry import Op


class DeviceSorter(Protocol):
    """Sorts nonzeros where they are, as `partitioner.sorting.sort` does in host memory: a provider of the operation."""

    most: int  # nonzeros
    scratch: int  # bytes a nonzero, beside the nonzeros, while they are sorted, merged, and moved into order

    def places(self, columns: Sequence[Array], modes: Sequence[int], lengths: Sequence[int]) -> Array:
        """Return the permutation, uint32, that sorts nonzeros stably by their indices of `modes`, the first one first.

        Column ``m`` holds indices from 0 to below ``lengths[m]``.
        """

    def merge(self, columns: Array, values: Array, places: Array) -> tuple[Array, int]:
        """Sum nonzeros of equal indices, in double precision, into the first of them; change `values`.

        Parameters
        ----------
        columns, values : (order, nonzeros) and (nonzeros,) arrays
        places : (nonzeros,) uint32 array
            What puts them in lexicographic order.

        Returns
        -------
        places : array
            Without those merged into others and zero sums.
        distinct : int
            How many coordinates there were.
        """

    def take(self, array: Array, places: Array) -> Array:
        """Return the elements of a 1-d array of 32- or 64-bit numbers at some places, uint32."""

    def cast(self, values: Array, dtype: np.dtype[Any]) -> Array:
        """Return values as another floating-point type, or as they are if they have it."""

    def value_range(self, values: Array) -> ValueRange:
        """Return bounds on values; infinite ones are told as they are."""

    def squares(self, values: Array, largest: float) -> list[float]:
        """Return the sums of squares of blocks of values; see `partitioner.tensors.sparse.squares`."""


SORT = Op[DeviceSorter]("sort")
"""Only devices whose nonzeros need not be sorted on the host have a provider."""
