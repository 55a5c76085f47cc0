"""Sampled losses on the host's cores, by compiled code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import FloatDType, HostArray

from ...coordinate_table import MARKED, marks_of, slots_of, table_size
from ...counter_rng import key_of
from ...device import Array
from ...ops.sampled import (
    SAMPLED,
    ListedElements,
    MatrixRows,
    SampledFormulas,
    SampledLoss,
    SampledProvider,
    SampledRows,
    SampleSize,
    StepRule,
    Stratum,
    every,
)
from ..caches import aligned
from ..device import CpuDevice
from ..kernels import sampled
from ..kernels.row_systems import compiled
from ..simd.doubles import EIGHT
from ..threads import check

WORTH, ROWS_WORTH = 1 << 15, 1 << 17  # numbers of samples, or of rows, that are worth a further thread
PRODUCTS, LEAST = 1 << 11, 8  # numbers of products of rows at a time, and samples at least
DOUBLE, INDEX = np.dtype(np.float64), np.dtype(np.int64)


class HostSampled:
    """See `SampledLoss`. Each thread sums the gradient of a part of the samples in its own memory."""

    def __init__(
        self, device: CpuDevice, elements: ListedElements, rows: MatrixRows, formulas: SampledFormulas, stride: int
    ) -> None:
        self._threads, self._stride, self._rows = device.threads, stride, rows
        self.load(elements)
        assert formulas.texts
        self._codes = [compiled(formula) for formula in formulas.texts]  # the addresses are valid while these live
        self._maps = np.array([code.address for code in self._codes], INDEX), float(formulas.lower)
        self._offsets, self._solved = np.array(rows.offsets, INDEX), np.array(rows.solved, np.uint8)
        parts, order = self._threads.count, len(elements.lengths)
        self._gradients = aligned((parts, rows.offsets[-1], stride), DOUBLE)
        self._gradients.fill(0)
        self._touched = np.zeros((parts, rows.offsets[-1]), np.uint8)
        self._scratch = _scratch(parts, order, stride)
        self._turn = np.zeros(1, INDEX)

    def load(self, elements: ListedElements) -> None:
        coordinates, values, slots, begin, lengths = elements
        marks = marks_of(coordinates, table_size(len(values), MARKED)) if slots.size else np.zeros(1, np.uint8)
        self._elements = coordinates, values, slots, marks, np.array(begin, INDEX), np.array(lengths, INDEX)

    def value(self, matrix: Array, strata: Sequence[Stratum], key: int) -> tuple[float, float]:
        totals = self._add(matrix, strata, key, self._solved, gradients=False)
        value, slope = totals.sum(axis=0)
        return float(value), float(slope)

    def gradient(self, matrix: Array, strata: Sequence[Stratum], key: int) -> SampledRows:
        return self._gradient(matrix, strata, key, self._solved)

    def _gradient(self, matrix: Array, strata: Sequence[Stratum], key: int, solved: NDArray[np.uint8]) -> SampledRows:
        """Add the gradient in the rows of solved modes."""
        self._add(matrix, strata, key, solved, gradients=True)
        numbers = self._gradients[0].size
        check(sampled.join_parts(*self._team(numbers // ROWS_WORTH), self._gradients, self._touched))
        return SampledRows(self._gradients[0], self._touched[0])

    def listed(self, matrix: Array, modes: Sequence[int]) -> Array:
        for mode in modes:
            rows = slice(*self._offsets[mode : mode + 2])
            self._gradients[0, rows], self._touched[0, rows] = 0, 0
        solved = np.isin(np.arange(self._solved.size), modes).astype(np.uint8)
        return self._gradient(matrix, every(len(self._elements[1])), 0, solved).gradient

    def step(self, matrix: Array, moments: Sequence[Array], rows: SampledRows, rule: StepRule) -> None:
        missing = 2 - len(moments)
        both = (*moments, *(matrix[:0] for _ in range(missing)))
        lower, ridge = np.array(self._rows.lower, DOUBLE), np.array(self._rows.ridge, DOUBLE)
        corrections = (1 / (1 - beta**rule.number) for beta in rule.betas)
        numbers = len(moments), self._rows.rank, rule.rate, *rule.betas, *corrections, rule.eps
        by_mode = self._offsets, lower, ridge, self._solved
        check(
            sampled.take_step(
                *self._team(rows.gradient.size // ROWS_WORTH), matrix, both, tuple(rows), by_mode, numbers
            )
        )

    def queue(
        self, matrix: Array, moments: Sequence[Array], strata: Sequence[Stratum], keys: Sequence[int], rule: StepRule
    ) -> bool:
        return False

    def _add(
        self, matrix: Array, strata: Sequence[Stratum], key: int, solved: NDArray[np.uint8], *, gradients: bool
    ) -> NDArray[np.float64]:
        """Add gradients or, otherwise, return each part's loss and its derivative."""
        if not strata:
            return np.zeros((1, 2))
        samples = sum(stratum.samples for stratum in strata)
        team = self._team(samples * self._stride * solved.size // WORTH)
        totals = np.zeros((team[2], 2))
        stored = matrix.ctypes.data, matrix.dtype == DOUBLE, self._stride
        model = stored, self._offsets, solved
        by_part = self._gradients.reshape(len(self._gradients), -1), self._touched
        out = *(each if gradients else each[:, :0] for each in by_part), totals
        check(sampled.add_samples(*team, self._elements, _columns(strata, key), model, self._maps, out, self._scratch))
        return totals

    def _team(self, worth: int) -> tuple[int, NDArray[np.int64], int, NDArray[np.int64]]:
        """Return the arguments of a call by at most `worth` threads."""
        return 0, self._threads.team, max(1, min(self._threads.count, worth)), self._turn


def _scratch(parts: int, order: int, stride: int) -> tuple[HostArray, ...]:
    """Return the scratch arrays of `sampled.add_samples`."""
    block = parts, sampled.BLOCK
    indices = (np.zeros((parts, order, sampled.BLOCK), INDEX) for _ in range(2))
    hashes, positions = np.zeros(block, np.uint64), np.zeros(block, INDEX)
    numbers = (np.zeros(block) for _ in range(3))
    return *indices, hashes, positions, *numbers, aligned((parts, order, _step(order, stride) * stride), DOUBLE)


def _step(order: int, stride: int) -> int:
    """Return the number of samples that are evaluated at a time, whose products of rows fit into a core's cache."""
    return max(LEAST, min(sampled.BLOCK, PRODUCTS // (order * stride)))


def _columns(strata: Sequence[Stratum], key: int) -> tuple[HostArray, ...]:
    """Return strata as arrays, with their keys."""
    origins, counts, weights, less_zero = zip(*strata, strict=True)
    keys = [key_of(key, number) for number in range(len(strata))]
    return (
        np.array(origins, INDEX), np.array(counts, INDEX), np.array(less_zero, np.uint8), np.array(keys, np.uint64),
        np.array(weights, DOUBLE),
    )  # fmt: skip


class HostProvider:
    """See `SampledProvider`."""

    def __init__(self, device: CpuDevice) -> None:
        self._device = device

    def suits(self, formulas: SampledFormulas) -> bool:
        return formulas.texts is not None

    def stride(self, rank: int, dtype: FloatDType) -> int:
        return -(-rank // EIGHT) * EIGHT

    def bytes(self, size: SampleSize) -> int:
        rows, stride, order, nnz = size[:4]
        scratch = 8 * (_step(order, stride) * order * stride + sampled.BLOCK * (2 * order + 5))
        return self._device.cores * (rows * (8 * stride + 1) + scratch) + table_size(nnz, MARKED) // 8

    def slots(self, coordinates: Array) -> Array:
        return slots_of(coordinates)

    def make(
        self, elements: ListedElements, rows: MatrixRows, formulas: SampledFormulas, stride: int, exact: bool
    ) -> SampledLoss:
        return HostSampled(self._device, elements, rows, formulas, stride)


@SAMPLED.provider("cpu")
def providers(device: CpuDevice) -> Sequence[SampledProvider]:
    """Return the providers of the operation."""
    return [HostProvider(device)]
