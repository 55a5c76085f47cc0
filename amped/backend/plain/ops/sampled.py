"""Sampled losses without compiled code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import FloatDType
from partitioner.host.imports import scipy_module

from ...coordinate_table import EMPTY, find, slots_of
from ...counter_rng import key_of, uniform
from ...device import Array
from ...ops.sampled import (
    SAMPLED,
    ListedElements,
    MatrixRows,
    SampledFormulas,
    SampledLoss,
    SampledProvider,
    SampledRows,
    SampleOrigin,
    SampleSize,
    StepRule,
    Stratum,
    every,
)
from ..device import PlainDevice

csc_array = scipy_module("sparse").csc_array

BLOCK = 1 << 14  # samples at a time
ARRAYS = 4  # of doubles for each sample, mode and column

Vector = NDArray[np.float64]


class _Samples(NamedTuple):
    """Samples of a stratum: coordinates (n, order), values and weights."""

    coordinates: NDArray[np.int32]
    values: Vector
    weights: float
    less_zero: bool


class PlainSampled:
    """See `SampledLoss`. Products are in double precision."""

    def __init__(self, elements: ListedElements, rows: MatrixRows, formulas: SampledFormulas, stride: int) -> None:
        self._elements, self._rows, self._formulas = elements, rows, formulas
        self._found = SampledRows(np.zeros((rows.offsets[-1], stride)), np.zeros(rows.offsets[-1], np.uint8))

    def load(self, elements: ListedElements) -> None:
        self._elements = elements

    def value(self, matrix: Array, strata: Sequence[Stratum], key: int) -> tuple[float, float]:
        total = slope = 0.0
        for samples in self._drawn(strata, key):
            model = self._model(self._factor_rows(matrix, samples))
            value, derivative = (self._less(samples, each, model) for each in self._formulas[:2])
            total += samples.weights * float(value.sum())
            slope += samples.weights * float(derivative @ model)
        return total, slope

    def gradient(self, matrix: Array, strata: Sequence[Stratum], key: int) -> SampledRows:
        return self._gradient(matrix, strata, key, [mode for mode, solved in enumerate(self._rows.solved) if solved])

    def listed(self, matrix: Array, modes: Sequence[int]) -> Array:
        for mode in modes:
            self._found.gradient[slice(*self._rows.offsets[mode : mode + 2])] = 0
        return self._gradient(matrix, every(len(self._elements.values)), 0, modes).gradient

    def _gradient(self, matrix: Array, strata: Sequence[Stratum], key: int, modes: Sequence[int]) -> SampledRows:
        """Add the gradient in the rows of some modes."""
        for samples in self._drawn(strata, key):
            factors = self._factor_rows(matrix, samples)
            slopes = samples.weights * self._less(samples, self._formulas.slope, self._model(factors))
            for mode in modes:
                product = slopes[:, None] * np.prod([f for k, f in enumerate(factors) if k != mode], axis=0)
                self._add(mode, samples.coordinates[:, mode], product)
        return self._found

    def step(self, matrix: Array, moments: Sequence[Array], rows: SampledRows, rule: StepRule) -> None:
        layout = self._rows
        for mode, (begin, end) in enumerate(zip(layout.offsets[:-1], layout.offsets[1:], strict=True)):
            if not layout.solved[mode]:
                continue
            ridge, some = layout.ridge[mode], np.flatnonzero(rows.touched[begin:end]) + begin
            at = np.arange(begin, end) if ridge else some
            own = matrix[at, : layout.rank].astype(np.float64)
            gradient = rows.gradient[at, : layout.rank] + 2 * ridge * own
            before = [each[at, : layout.rank].astype(np.float64) for each in moments]
            change, after = stepped(gradient, before, rule)
            matrix[at, : layout.rank] = np.maximum(own - change, layout.lower[mode])
            for each, new in zip(moments, after, strict=True):
                each[at, : layout.rank] = new
            rows.gradient[some] = 0
            rows.touched[begin:end] = 0

    def queue(
        self, matrix: Array, moments: Sequence[Array], strata: Sequence[Stratum], keys: Sequence[int], rule: StepRule
    ) -> bool:
        return False

    def _drawn(self, strata: Sequence[Stratum], key: int) -> Iterator[_Samples]:
        """Yield the samples of all strata in blocks."""
        for number, stratum in enumerate(strata):
            for begin in range(0, stratum.samples, BLOCK):
                end = min(begin + BLOCK, stratum.samples)
                samples = self._block(stratum, key_of(key, number), np.arange(begin, end, dtype=np.uint64))
                yield _Samples(*samples, stratum.weight, stratum.less_zero)

    def _block(self, stratum: Stratum, key: int, numbers: NDArray[np.uint64]) -> tuple[NDArray[np.int32], Vector]:
        elements, origin = self._elements, stratum.origin
        if origin in (SampleOrigin.LISTED, SampleOrigin.EVERY):
            places = numbers.astype(np.int64)
            if origin == SampleOrigin.LISTED:
                places = _in_order(uniform(key, numbers), numbers, stratum.samples, len(elements.values))
            return elements.coordinates[places], elements.values[places].astype(np.float64)
        coordinates, values = self._anywhere(key, numbers, stratum.samples), np.zeros(numbers.size)
        if origin == SampleOrigin.BLIND:
            return coordinates, values
        found = find(elements.slots, elements.coordinates, coordinates)
        if origin == SampleOrigin.ABSENT:
            return coordinates[found == EMPTY], values[found == EMPTY]
        present = found != EMPTY
        values[present] = elements.values[found[present]]
        return coordinates, values

    def _anywhere(self, key: int, numbers: NDArray[np.uint64], count: int) -> NDArray[np.int32]:
        """Draw coordinates of all elements."""
        begin, lengths = self._elements.begin, self._elements.lengths
        order, result = len(lengths), np.empty((numbers.size, len(lengths)), np.int32)
        for mode, length in enumerate(lengths):
            numbers_in_unit = uniform(key, numbers * np.uint64(order) + np.uint64(mode))
            if mode:
                result[:, mode] = begin[mode] + (numbers_in_unit * length).astype(np.int64)
            else:
                result[:, 0] = begin[0] + _in_order(numbers_in_unit, numbers, count, length)
        return result

    def _factor_rows(self, matrix: Array, samples: _Samples) -> list[Vector]:
        """Return each mode's factor row of each sample."""
        rank, offsets = self._rows.rank, self._rows.offsets
        places = (samples.coordinates[:, mode] + offset for mode, offset in enumerate(offsets[:-1]))
        return [matrix[at, :rank].astype(np.float64) for at in places]

    def _model(self, factors: Sequence[Vector]) -> Vector:
        model: Vector = np.prod(factors, axis=0).sum(axis=1)
        return np.maximum(model, self._formulas.lower)

    def _less(self, samples: _Samples, formula: object, model: Vector) -> Vector:
        """Evaluate a formula at the samples, less that of zeros if the stratum requires it."""
        assert callable(formula)
        result: Vector = formula(samples.values, model)
        return result - formula(np.zeros_like(model), model) if samples.less_zero else result

    def _add(self, mode: int, indices: NDArray[np.int32], products: Vector) -> None:
        """Add products to the rows of a mode; a sparse matrix sums those of a row."""
        begin, end = self._rows.offsets[mode : mode + 2]
        rows: NDArray[np.int64] = indices.astype(np.int64)
        touched = rows
        if end - begin > len(indices):
            touched, rows = np.unique(rows, return_inverse=True)
            end = begin + touched.size
        sums = (
            csc_array((np.ones(rows.size), rows, np.arange(rows.size + 1)), shape=(end - begin, rows.size)) @ products
        )
        gradient = self._found.gradient[:, : self._rows.rank]
        if touched is rows:
            gradient[begin:end] += sums
        else:
            gradient[begin + touched] += sums
        self._found.touched[begin + touched] = 1


def _in_order(drawn: Vector, numbers: NDArray[np.uint64], count: int, length: int) -> NDArray[np.int64]:
    """Return integers below `length`, each in the part with its number of `count` equal parts."""
    return np.minimum((numbers.astype(np.float64) + drawn) * (length / count), length - 1).astype(np.int64)


def stepped(gradient: Vector, moments: Sequence[Vector], rule: StepRule) -> tuple[Vector, list[Vector]]:
    """Return the step to subtract, and the new moments."""
    if rule.method == "sgd":
        return rule.rate * gradient, []
    if rule.method == "adagrad":
        sums = moments[0] + gradient**2
        return rule.rate * gradient / (np.sqrt(sums) + rule.eps), [sums]
    first, second = (
        beta * moment + (1 - beta) * power
        for beta, moment, power in zip(rule.betas, moments, (gradient, gradient**2), strict=True)
    )
    corrected, squares = (m / (1 - b**rule.number) for m, b in zip((first, second), rule.betas, strict=True))
    return rule.rate * corrected / (np.sqrt(squares) + rule.eps), [first, second]


class PlainProvider:
    """See `SampledProvider`. Formulas may be NumPy functions."""

    def suits(self, formulas: SampledFormulas) -> bool:
        return True

    def stride(self, rank: int, dtype: FloatDType) -> int:
        return rank

    def bytes(self, size: SampleSize) -> int:
        block = 8 * ARRAYS * BLOCK * size.order * size.stride
        return size.rows * (8 * size.stride + 1) + block

    def slots(self, coordinates: Array) -> Array:
        return slots_of(coordinates)

    def make(
        self, elements: ListedElements, rows: MatrixRows, formulas: SampledFormulas, stride: int, exact: bool
    ) -> SampledLoss:
        return PlainSampled(elements, rows, formulas, stride)


@SAMPLED.provider("plain")
def providers(device: PlainDevice) -> Sequence[SampledProvider]:
    """Return the providers of the operation."""
    return [PlainProvider()]
