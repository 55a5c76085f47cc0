"""Sorting on the GPU, by the partitioner's sorter."""

from __future__ import annotations

from collections.abc import Sequence

from partitioner.array_types import FloatDType
from partitioner.cuda import sort as cuda_sort
from partitioner.cuda.sort_keys import MOST
from partitioner.tensors.value_range import ValueRange

from ...device import Array
from ...ops.sort import SORT, DeviceSorter
from ..device import CudaDevice


class RadixSorter:
    """See `DeviceSorter`."""

    most, scratch = MOST, cuda_sort.SORTING

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def places(self, columns: Sequence[Array], modes: Sequence[int], lengths: Sequence[int]) -> Array:
        result = cuda_sort.sorted_places(columns, modes, lengths)
        self._device.trim()
        return result

    def merge(self, columns: Array, values: Array, places: Array, keep_zeros: bool = False) -> tuple[Array, int]:
        """See `DeviceSorter`."""
        result = cuda_sort.merge(columns, values, places, keep_zeros)
        self._device.trim()
        return result

    def take(self, array: Array, places: Array) -> Array:
        return cuda_sort.take(array, places)

    def starts(self, columns: Sequence[Array], elements: int) -> Array:
        return cuda_sort.starts(columns, elements)

    def between(self, column: Array, low: int, high: int) -> Array:
        return cuda_sort.between(column, low, high)

    def counts(self, column: Array, length: int) -> Array:
        return cuda_sort.counts(column, length)

    def cast(self, values: Array, dtype: FloatDType) -> Array:
        return cuda_sort.cast(values, dtype)

    def value_range(self, values: Array) -> ValueRange:
        return cuda_sort.value_range(values)

    def squares(self, values: Array, largest: float) -> list[float]:
        return cuda_sort.squares(values, largest)


@SORT.provider("cuda")
def providers(device: CudaDevice) -> Sequence[DeviceSorter]:
    """Return the sorters, the preferred ones first."""
    return [RadixSorter(device)]
