"""Sorting on the null device, by the host's sort."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partitioner.array_types import FloatDType
from partitioner.sorting.sort import stable_argsort
from partitioner.tensors import value_range as vr

from ...device import Array
from ...fibres import fibre_starts
from ...ops.sort import SORT, DeviceSorter
from ..device import NullDevice


class NullSorter:
    """See `DeviceSorter`."""

    most, scratch = (1 << 31) - 1, 40

    def places(self, columns: Sequence[Array], modes: Sequence[int], lengths: Sequence[int]) -> Array:
        chosen = [columns[m] for m in modes], [lengths[m] for m in modes]
        return stable_argsort(*chosen).astype(np.uint32)

    def merge(self, columns: Array, values: Array, places: Array, keep_zeros: bool = False) -> tuple[Array, int]:
        """See `DeviceSorter`."""
        ordered = columns[:, places]
        differs = np.any(ordered[:, 1:] != ordered[:, :-1], axis=0)
        starts = np.concatenate([[0], np.flatnonzero(differs) + 1])
        ends = np.append(starts[1:], places.size)
        for begin, end in zip(starts, ends, strict=True):
            with np.errstate(over="ignore"):  # callers check the sums
                values[places[begin]] = np.add.accumulate(values[places[begin:end]].astype(np.float64))[-1]
        first = places[starts]
        return first[(values[first] != 0) | keep_zeros], int(starts.size)

    def take(self, array: Array, places: Array) -> Array:
        return array[places]

    def starts(self, columns: Sequence[Array], elements: int) -> Array:
        return fibre_starts(columns, elements).astype(np.uint32)

    def between(self, column: Array, low: int, high: int) -> Array:
        return np.flatnonzero((column >= low) & (column < high)).astype(np.uint32)

    def counts(self, column: Array, length: int) -> Array:
        return np.bincount(column, minlength=length)

    def cast(self, values: Array, dtype: FloatDType) -> Array:
        return values.astype(dtype, copy=False)

    def value_range(self, values: Array) -> vr.ValueRange:
        return vr.ValueRange(*vr.ends(values), vr.grain(values))

    def squares(self, values: Array, largest: float) -> list[float]:
        return vr.squares(values, (-largest, largest))


@SORT.provider("null")
def providers(device: NullDevice) -> Sequence[DeviceSorter]:
    """Return the sorters, the preferred ones first."""
    return [NullSorter()]
