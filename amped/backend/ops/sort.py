"""The sort operation: sorts nonzeros in device memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from partitioner.array_types import FloatDType
from partitioner.tensors.value_range import ValueRange

from ..device import Array
from ..registry import Op


class DeviceSorter(Protocol):
    """Sorts nonzeros in device memory, like `partitioner.sorting.sort` in host memory: a provider of the operation."""

    most: int  # largest number of nonzeros
    scratch: int  # bytes of temporary memory per nonzero while nonzeros are sorted, merged and reordered

    def places(self, columns: Sequence[Array], modes: Sequence[int], lengths: Sequence[int]) -> Array:
        """Return the uint32 permutation that sorts nonzeros stably and lexicographically by their indices of `modes`.

        Column ``m`` holds indices from 0 to below ``lengths[m]``.
        """

    def merge(self, columns: Array, values: Array, places: Array, keep_zeros: bool = False) -> tuple[Array, int]:
        """Sum nonzeros with equal indices, in double precision, into the first of them; this modifies `values`.

        Parameters
        ----------
        columns, values : (order, nonzeros) and (nonzeros,) arrays
        places : (nonzeros,) uint32 array
            The permutation that sorts them lexicographically.
        keep_zeros : bool
            Whether zero sums remain.

        Returns
        -------
        places : array
            The permutation without merged nonzeros and, unless kept, zero sums.
        distinct : int
            The number of distinct coordinates.
        """

    def take(self, array: Array, places: Array) -> Array:
        """Return the elements of a 1-d array of 32- or 64-bit numbers at the positions `places`, uint32."""

    def starts(self, columns: Sequence[Array], elements: int) -> Array:
        """Return the positions at which any of the columns changes, the first position, and the end, uint32."""

    def between(self, column: Array, low: int, high: int) -> Array:
        """Return the positions of a column's indices from `low` to below `high`, uint32."""

    def counts(self, column: Array, length: int) -> Array:
        """Return how often each index below `length` occurs in a column, int64."""

    def cast(self, values: Array, dtype: FloatDType) -> Array:
        """Return values as a floating-point type, without copying if they have it already."""

    def value_range(self, values: Array) -> ValueRange:
        """Return bounds of values, which may be infinite."""

    def squares(self, values: Array, largest: float) -> list[float]:
        """Return the sums of squares of blocks of values; see `partitioner.tensors.value_range.squares`."""


SORT = Op[DeviceSorter]("sort")
"""Only devices whose nonzeros need not be sorted on the host have a provider."""
