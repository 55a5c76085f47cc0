"""Sampled losses on a GPU: launches of ``sampled.cu`` and ``stochastic_steps.cu``, which run in CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import cupy
import numpy as np

from partitioner.array_types import FloatDType, HostArray
from partitioner.cuda.code import load
from partitioner.cuda.cubins import CudaFunction

from ...coordinate_table import table_size
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
    StepMethod,
    StepRule,
    Stratum,
    every,
)
from ..code.sampled import STRATA, THREADS, WARPS, SampledCode, run_for, table_source
from ..device import CudaDevice
from ..source import by_value

TO_DEVICE = 1  # cudaMemcpyHostToDevice
AT_ONCE = 64  # steps of a graph
FUNCTIONS, METHODS = ("add_samples", "evaluate_samples", "add_parts"), ("sgd", "adagrad", "adam")
EXACT_FUNCTIONS = "bound_samples", "convert_sums"
PART = 16  # bytes of a thread block's sums
STEP = np.dtype([("key", "u8"), ("rate", "f8"), ("correction", "f8"), ("square_correction", "f8")])
STRATUM = np.dtype(
    [("samples", "i8"), ("ratio", "f8"), ("weight", "f8"), ("origin", "i4"), ("less_zero", "i4")], align=True
)


class _Launch(NamedTuple):
    """The arguments for samples of up to `STRATA` strata, and the number of thread blocks."""

    strata: np.void
    model: np.void
    blocks: int
    sum_bits: int  # binary logarithm of the number of samples, rounded up


class _Repeated(NamedTuple):
    """What a graph of steps depends on."""

    addresses: tuple[int, ...]  # of the matrix and moments
    strata: tuple[Stratum, ...]
    method: StepMethod
    betas: tuple[float, float]
    eps: float


class CudaSampled:
    """See `SampledLoss`. Sums of single precision are in single precision; with exact sums, in double precision."""

    def __init__(
        self,
        device: CudaDevice,
        elements: ListedElements,
        rows: MatrixRows,
        lower: float,
        code: SampledCode,
    ) -> None:
        self._device, self._code, self._rows, self._lower = device, code, rows, lower
        self._solved = _bits(mode for mode, solved in enumerate(rows.solved) if solved)
        self._functions = _compiled(code, device.number)
        self.load(elements)
        shape = rows.offsets[-1], code.stride
        self._found = SampledRows(cupy.zeros(shape, code.summed), cupy.zeros(shape[0], np.uint8))
        self._bound = cupy.zeros(1, np.uint64)
        addresses = [array.data.ptr for array in (*self._found, self._bound)]
        self._sums = by_value(np.array(addresses, np.uint64))
        self._steps = cupy.zeros(AT_ONCE * STEP.itemsize, np.uint8)
        self._graph: tuple[_Repeated, Any] | None = None
        self._models: dict[tuple[int, int, int], np.void] = {}

    def load(self, elements: ListedElements) -> None:
        self._lengths, self._nnz = elements.lengths, len(elements.values)
        self._elements, self._kept = packed_elements(elements), elements
        self._listed: _Launch | None = None

    def value(self, matrix: Array, strata: Sequence[Stratum], key: int) -> tuple[float, float]:
        if not strata:
            return 0.0, 0.0
        launch = self._launch(matrix, strata)
        parts = cupy.empty((launch.blocks, 2), np.float64)
        args = self._elements, launch.strata, launch.model, np.uint64(key), parts
        self._functions["evaluate_samples"]((launch.blocks,), (THREADS,), args)
        self._functions["add_parts"]((1,), (THREADS,), (parts, np.int32(launch.blocks)))
        value, slope = parts[0].get().tolist()
        return value, slope

    def gradient(self, matrix: Array, strata: Sequence[Stratum], key: int) -> SampledRows:
        if strata:
            self._send(steps_of([key], StepRule("sgd", 0.0, 1)))
            self._add(self._launch(matrix, strata), 0)
        return self._found

    def listed(self, matrix: Array, modes: Sequence[int]) -> Array:
        found, strata, stream = self._found.gradient, every(self._nnz), cupy.cuda.get_current_stream()
        for mode in modes:
            begin, end = self._rows.offsets[mode : mode + 2]
            (found.data + begin * found.strides[0]).memset_async(0, (end - begin) * found.strides[0], stream)
        if strata:
            if self._code.exact:
                self._bound.data.memset_async(0, self._bound.nbytes, stream)
            launch = self._listed or self._launch(matrix, strata)
            self._listed = launch._replace(model=self._model(matrix, _bits(modes), launch.sum_bits))
            self._add(self._listed, 0)  # no sample is drawn, so that keys do not matter
        return found

    def step(self, matrix: Array, moments: Sequence[Array], rows: SampledRows, rule: StepRule) -> None:
        self._send(steps_of([0], rule))
        self._stepping(matrix, moments, rule)(0)

    def queue(
        self, matrix: Array, moments: Sequence[Array], strata: Sequence[Stratum], keys: Sequence[int], rule: StepRule
    ) -> bool:
        addresses = tuple(array.data.ptr for array in (matrix, *moments))
        repeated = _Repeated(addresses, tuple(strata), rule.method, rule.betas, rule.eps)
        launch, take = (self._launch(matrix, strata) if strata else None), self._stepping(matrix, moments, rule)

        def queue(count: int) -> None:
            for k in range(count):
                if launch:
                    self._add(launch, k)
                take(k)

        steps = steps_of(keys, rule)
        for first in range(0, len(keys), AT_ONCE):
            some = steps[first : first + AT_ONCE]
            self._send(some)
            if some.size < AT_ONCE:
                queue(some.size)
                continue
            if self._graph is None or self._graph[0] != repeated:
                self._graph = repeated, captured(lambda: queue(AT_ONCE))
            self._graph[1].launch(cupy.cuda.get_current_stream())
        return True

    def _send(self, steps: HostArray) -> None:
        """Copy keys and rates to the device, after the work queued so far; the host does not wait."""
        to, stream = self._steps.data.ptr, cupy.cuda.get_current_stream()
        cupy.cuda.runtime.memcpyAsync(to, steps.ctypes.data, steps.nbytes, TO_DEVICE, stream.ptr)

    def _launch(self, matrix: Array, strata: Sequence[Stratum]) -> _Launch:
        assert len(strata) <= STRATA
        blocks = self._code.blocks(strata)
        fields = [("at", STRATUM, (STRATA,)), ("count", "i4"), ("second", "i4")]
        packed, of_list = np.zeros(1, np.dtype(fields, align=True)), (SampleOrigin.LISTED, SampleOrigin.EVERY)
        for at, (origin, samples, weight, less_zero) in enumerate(strata):
            length = self._nnz if origin in of_list else self._lengths[0]
            packed["at"][0, at] = samples, length / samples, weight, origin, less_zero
        packed["count"], packed["second"] = len(strata), blocks[0]
        sum_bits = sum(stratum.samples for stratum in strata).bit_length()
        return _Launch(by_value(packed), self._model(matrix, self._solved, sum_bits), sum(blocks), sum_bits)

    def _model(self, matrix: Array, solved: int, sum_bits: int) -> np.void:
        """Return `Model` of ``sampled.cu``."""
        key = matrix.data.ptr, solved, sum_bits
        if key not in self._models:
            offsets = self._rows.offsets[:-1]
            type_of_offsets = ("offset", "i8", (len(offsets),))
            fields = [("matrix", "u8"), type_of_offsets, ("lower", "f8"), ("solved", "u4"), ("sum_bits", "i4")]
            numbers = key[0], offsets, self._lower, *key[1:]
            self._models[key] = by_value(np.array([numbers], np.dtype(fields, align=True)))
        return self._models[key]

    def _add(self, launch: _Launch, step: int) -> None:
        """Queue the sums of a step's samples."""
        args = self._elements, launch.strata, launch.model, self._steps, np.int32(step), self._sums
        if self._code.exact:
            self._functions["bound_samples"]((launch.blocks,), (THREADS,), args)
        self._functions["add_samples"]((launch.blocks,), (THREADS,), args)
        if self._code.exact:
            gradient = self._found.gradient
            rows = self._sums, np.int64(len(gradient)), np.int32(launch.sum_bits)
            self._functions["convert_sums"]((-(-gradient.size // THREADS),), (THREADS,), rows)

    def _stepping(self, matrix: Array, moments: Sequence[Array], rule: StepRule) -> Callable[[int], None]:
        """Return a function that queues the step with a number in `self._steps`."""
        rows, order, code = self._rows, len(self._lengths), self._code
        arrays = [matrix, *moments, *(matrix,) * (2 - len(moments)), *self._found, self._bound]
        trained = by_value(np.array([array.data.ptr for array in arrays], np.uint64))
        by_mode = [("end", "i8", (order,)), ("lower", "f8", (order,)), ("ridge", "f8", (order,))]
        span = code.span(rows.offsets[-1], self._device.limits)
        numbers = rows.offsets[1:], rows.lower, rows.ridge, self._solved, span
        bounds = by_value(np.array([numbers], np.dtype([*by_mode, ("solved", "u4"), ("span", "i4")], align=True)))
        decay = by_value(np.array([*rule.betas, rule.eps]))
        function, blocks = self._functions[rule.method], -(-rows.offsets[-1] // (span * WARPS))
        return lambda step: function((blocks,), (THREADS,), (trained, bounds, self._steps, np.int32(step), decay))


def _bits(modes: Iterable[int]) -> int:
    """Return modes as bits of a number."""
    return sum(1 << mode for mode in modes)


def packed_elements(elements: ListedElements) -> np.void:
    """Return elements as `Elements` in ``sampled.cu``."""
    coordinates, values, slots, begin, lengths = elements
    assert coordinates.flags.c_contiguous
    order = len(lengths)
    fields = [
        ("coordinates", "u8"), ("values", "u8"), ("slots", "u8"), ("nnz", "i8"), ("mask", "i8"),
        ("begin", "i4", (order,)), ("length", "i4", (order,)),
    ]  # fmt: skip
    numbers = coordinates.data.ptr, values.data.ptr, slots.data.ptr, len(values), slots.size - 1, begin, lengths
    return by_value(np.array([numbers], np.dtype(fields, align=True)))


def steps_of(keys: Sequence[int], rule: StepRule) -> HostArray:
    """Return `Step` of ``sampled.cu`` for steps with these keys, the first of which has the number of the rule."""
    steps = np.zeros(len(keys), STEP)
    numbers = np.arange(rule.number, rule.number + len(keys), dtype=np.float64)
    steps["key"], steps["rate"] = np.array(keys, np.uint64), rule.rate
    steps["correction"], steps["square_correction"] = (1 / (1 - beta**numbers) for beta in rule.betas)
    return steps


def captured(queue: Callable[[], None]) -> Any:
    """Return queued work as a CUDA graph."""
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        try:
            queue()
        finally:
            graph = stream.end_capture()
    return graph


class CudaSampledProvider:
    """See `SampledProvider`."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def suits(self, formulas: SampledFormulas) -> bool:
        return formulas.texts is not None

    def stride(self, rank: int, dtype: FloatDType) -> int:
        return self._device.stride(rank, dtype.itemsize)

    def bytes(self, size: SampleSize) -> int:
        code = SampledCode(size.order, size.stride, size.dtype, size.exact, run_for(size.rows), None, None)
        parts = PART * (size.estimated // code.samples + STRATA)
        return size.rows * (size.stride * code.summed.itemsize + 1) + parts

    def slots(self, coordinates: Array) -> Array:
        slots = cupy.empty(table_size(len(coordinates)), np.int32)
        slots.data.memset(0xFF, slots.nbytes)  # `EMPTY`
        nnz, order = coordinates.shape
        assert coordinates.flags.c_contiguous
        if nnz:
            args = coordinates, np.int64(nnz), slots, np.uint64(slots.size - 1)
            _table(order, self._device.number)((-(-nnz // THREADS),), (THREADS,), args)
        return slots

    def make(
        self, elements: ListedElements, rows: MatrixRows, formulas: SampledFormulas, stride: int, exact: bool
    ) -> SampledLoss:
        assert formulas.texts
        order, run = len(elements.lengths), run_for(rows.offsets[-1])
        code = SampledCode(order, stride, elements.values.dtype, exact, run, *formulas.texts)
        return CudaSampled(self._device, elements, rows, formulas.lower, code)


@cache
def _compiled(code: SampledCode, device: int) -> dict[str, CudaFunction]:
    samples, steps = load(code.source()), load(code.steps())
    names = (*FUNCTIONS, *(EXACT_FUNCTIONS if code.exact else ()))
    return {name: samples.get_function(name) for name in names} | {name: steps.get_function(name) for name in METHODS}


@cache
def _table(order: int, device: int) -> CudaFunction:
    return load(table_source(order)).get_function("fill_slots")


@SAMPLED.provider("cuda")
def providers(device: CudaDevice) -> Sequence[SampledProvider]:
    """Return the providers of the operation."""
    return [CudaSampledProvider(device)]
