"""MTTKRPs of dense tensors element by element, without Khatri-Rao products: compiled code.

These are the matrix-free ways of "Dense MTTKRP" of GenTen: ELEM, SLICE and TILE. Factor matrices lie as in `khatri`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from partitioner.host.jit import inner, jit

from ..simd.vectors import operation, row_address

Matrix = NDArray[Any]
Numbers = NDArray[np.int64]


@operation
def _add_at(typing: Any, matrix: Any, row: Any, column: Any, number: Any) -> Any:
    """Add to an element of a contiguous matrix that other threads may add to as well."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = row_address(context, builder, signature.args[0], *args[:3])
        builder.atomic_rmw("fadd", address, args[3], "monotonic")
        return context.get_dummy_value()

    return types.none(matrix, types.intp, types.intp, types.float64), generate


@jit
def add_elements(
    elements: NDArray[Any],
    first: int,
    lengths: Numbers,
    rows: Matrix,
    begins: Numbers,
    mode: int,
    out: Matrix,
    shift: int,
) -> None:
    """ELEM: add each element, of number `first` and the next ones, times a row of every other mode, atomically.

    Row ``i`` of the mode is row ``i + shift`` of the output.
    """
    columns = rows.shape[1]
    product = np.empty(columns)
    for p in range(elements.size):
        left, own = first + p, 0
        product[:] = elements[p]
        for m in range(lengths.size - 1, -1, -1):
            index = left % lengths[m]
            left //= lengths[m]
            if m == mode:
                own = index + shift
            else:
                row = rows[begins[m] + index]
                for r in range(columns):
                    product[r] *= row[r]
        for r in range(columns):
            _add_at(out, own, r, product[r])


@inner
def _add_run(elements: NDArray[Any], at: int, step: int, count: int, rows: Matrix, first: int, run: Matrix) -> None:
    """Add up elements, `step` apart, times rows of the mode that they differ in."""
    run[:] = 0.0
    for j in range(count):
        x, row = elements[at + j * step], rows[first + j]
        for r in range(run.size):
            run[r] += x * row[r]


@inner
def _add_box(
    elements: NDArray[Any], lengths: Numbers, strides: Numbers, rows: Matrix, begins: Numbers, mode: int, own: int,
    low: Numbers, high: Numbers, inmost: int, index: Numbers, run: Matrix, total: Matrix,
) -> None:  # fmt: skip
    """Add up a box of elements of one slice of a mode; `index` is room."""
    for m in range(lengths.size):
        index[m] = low[m]
    while True:
        at = own * strides[mode]
        for m in range(lengths.size):
            at += index[m] * strides[m] if m != mode else 0
        _add_run(elements, at, strides[inmost], high[inmost] - low[inmost], rows, begins[inmost] + low[inmost], run)
        for m in range(lengths.size):
            if m not in (mode, inmost):
                row = rows[begins[m] + index[m]]
                for r in range(run.size):
                    run[r] *= row[r]
        for r in range(run.size):
            total[r] += run[r]
        m = lengths.size - 1
        while m >= 0:
            if m not in (mode, inmost):
                index[m] += 1
                if index[m] < high[m]:
                    break
                index[m] = low[m]
            m -= 1
        if m < 0:
            return


@jit
def add_boxes(
    elements: NDArray[Any], lengths: Numbers, rows: Matrix, begins: Numbers, mode: int, widths: Numbers,
    first: int, last: int, out: Matrix, shift: int,
) -> None:  # fmt: skip
    """SLICE and TILE: add up boxes, `first` to before `last`, each of one slice of a mode and so wide in the others.

    Boxes of a slice follow one another. Row ``i`` of the mode is row ``i + shift`` of the output.
    """
    order, columns = lengths.size, rows.shape[1]
    strides, low, high, index = np.empty((4, order), np.int64)
    run, total = np.empty(columns), np.empty(columns)
    inmost, boxes, stride = order - 1 if mode < order - 1 else order - 2, 1, 1
    for m in range(order - 1, -1, -1):
        strides[m] = stride
        stride *= lengths[m]
        if m != mode:
            boxes *= -(-lengths[m] // widths[m])
    for box in range(first, last):
        left, own = box % boxes, box // boxes
        for m in range(order - 1, -1, -1):
            if m != mode:
                count = -(-lengths[m] // widths[m])
                low[m] = (left % count) * widths[m]
                high[m] = min(lengths[m], low[m] + widths[m])
                left //= count
        total[:] = 0.0
        _add_box(elements, lengths, strides, rows, begins, mode, own, low, high, inmost, index, run, total)
        to = out[own + shift]
        for r in range(columns):
            to[r] += total[r]
