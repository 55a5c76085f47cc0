"""MTTKRP of dense tensors element by element, without Khatri-Rao products: compiled code.

These are the matrix-free algorithms ELEM, SLICE and TILE of GenTen's "Dense MTTKRP". See `khatri` for the layout of the
factor matrices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import types
from numpy.typing import NDArray

from partitioner.array_types import Floats
from partitioner.host.jit import inner, jit

from ..simd.vectors import operation, row_address

if TYPE_CHECKING:
    from ..simd.vectors import Builder, Context, Operation, Signature, Type, Typing, Value, Values

Matrix = Floats
Numbers = NDArray[np.int64]


@operation
def _add_at(typing: Typing, matrix: Type, row: Type, column: Type, number: Type) -> Operation:
    """Atomically add to an element of a contiguous matrix."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        address = row_address(context, builder, signature.args[0], *args[:3])
        builder.atomic_rmw("fadd", address, args[3], "monotonic")
        return context.get_dummy_value()

    return types.none(matrix, types.intp, types.intp, types.float64), generate


@jit
def add_elements(
    elements: Floats,
    first: int,
    lengths: Numbers,
    rows: Matrix,
    begins: Numbers,
    mode: int,
    out: Matrix,
    shift: int,
) -> None:
    """ELEM: add consecutive elements, starting with number `first`, times a row of every other mode, atomically.

    Row ``i`` of the mode is row ``i + shift`` of the output.
    """
    columns = rows.shape[1]
    product = np.empty(columns)
    for p in range(elements.size):
        remaining, own_index = first + p, 0
        product[:] = elements[p]
        for m in range(lengths.size - 1, -1, -1):
            index = remaining % lengths[m]
            remaining //= lengths[m]
            if m == mode:
                own_index = index + shift
            else:
                row = rows[begins[m] + index]
                for r in range(columns):
                    product[r] *= row[r]
        for r in range(columns):
            _add_at(out, own_index, r, product[r])


@inner
def _add_run(elements: Floats, at: int, step: int, count: int, rows: Matrix, first: int, run: Matrix) -> None:
    """Add up `count` elements, `step` apart, times the rows of the mode along which they lie."""
    run[:] = 0.0
    for j in range(count):
        x, row = elements[at + j * step], rows[first + j]
        for r in range(run.size):
            run[r] += x * row[r]


@inner
def _add_box(
    elements: Floats, lengths: Numbers, strides: Numbers, rows: Matrix, begins: Numbers, mode: int, own: int,
    low: Numbers, high: Numbers, innermost: int, index: Numbers, run: Matrix, total: Matrix,
) -> None:  # fmt: skip
    """Add up a box of elements within one slice of the mode; `index` is scratch."""
    for m in range(lengths.size):
        index[m] = low[m]
    while True:
        at = own * strides[mode]
        for m in range(lengths.size):
            at += index[m] * strides[m] if m != mode else 0
        _add_run(
            elements,
            at,
            strides[innermost],
            high[innermost] - low[innermost],
            rows,
            begins[innermost] + low[innermost],
            run,
        )
        for m in range(lengths.size):
            if m not in (mode, innermost):
                row = rows[begins[m] + index[m]]
                for r in range(run.size):
                    run[r] *= row[r]
        for r in range(run.size):
            total[r] += run[r]
        m = lengths.size - 1
        while m >= 0:
            if m not in (mode, innermost):
                index[m] += 1
                if index[m] < high[m]:
                    break
                index[m] = low[m]
            m -= 1
        if m < 0:
            return


@jit
def add_boxes(
    elements: Floats, lengths: Numbers, rows: Matrix, begins: Numbers, mode: int, widths: Numbers,
    first: int, last: int, out: Matrix, shift: int,
) -> None:  # fmt: skip
    """SLICE and TILE: add up boxes `first` to `last` (exclusive). A box lies in one slice of the mode; `widths` are its
    lengths.

    Boxes of a slice are consecutive. Row ``i`` of the mode is row ``i + shift`` of the output.
    """
    order, columns = lengths.size, rows.shape[1]
    strides, low, high, index = np.empty((4, order), np.int64)
    run, total = np.empty(columns), np.empty(columns)
    innermost, boxes, stride = order - 1 if mode < order - 1 else order - 2, 1, 1
    for m in range(order - 1, -1, -1):
        strides[m] = stride
        stride *= lengths[m]
        if m != mode:
            boxes *= -(-lengths[m] // widths[m])
    for box in range(first, last):
        remaining, own = box % boxes, box // boxes
        for m in range(order - 1, -1, -1):
            if m != mode:
                count = -(-lengths[m] // widths[m])
                low[m] = (remaining % count) * widths[m]
                high[m] = min(lengths[m], low[m] + widths[m])
                remaining //= count
        total[:] = 0.0
        _add_box(elements, lengths, strides, rows, begins, mode, own, low, high, innermost, index, run, total)
        to = out[own + shift]
        for r in range(columns):
            to[r] += total[r]
