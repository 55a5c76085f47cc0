"""Products of order-3 blocks with one factor matrix on a GPU, and launching ``dense_pairs.cu``. See `PairsSweep`."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from partitioner.cuda_code import load

from ..base import Array
from ..dense import Form
from . import blas
from .dense_code import macros
from .pairs_code import MOST_BLOCKS, ROWS, VECTOR, WARP, pair_macros
from .source import unit

THREADS = 256  # as in dense_pairs.cu
LEAST_CHUNK = 32  # numbers of a column


class PairProducts:
    """See `Products`."""

    def __init__(self, form: Form, parts: Array, device: int) -> None:
        """Take `parts`, float64, for sums that are added up; `device` is its number."""
        self._columns, self._parts = form.stride, parts
        self._contract, self._add_up = _functions(form, device)

    def multiply(self, matrix: Array, factor: Array, out: Array, adds: bool, transposed: bool) -> None:
        blas.multiply(matrix, factor, out, adds, transposed)

    def multiply_each(self, matrices: Array, factor: Array, out: Array, transposed: bool) -> None:
        blas.multiply_each(matrices, factor, out, transposed)

    def contract(
        self, partial: Array, lengths: tuple[int, int], at: int, factor: Array, out: Array, adds: bool
    ) -> None:
        columns, rows, count = self._columns, lengths[at], lengths[1 - at]
        row_step, sum_step = (1, lengths[1]) if at else (lengths[1], 1)
        across, down = -(-columns * factor.itemsize // (WARP * VECTOR)), -(-rows // ROWS)
        chunks = max(1, min(-(-MOST_BLOCKS // (across * down)), count // LEAST_CHUNK))
        chunk = -(-count // chunks)
        chunks = -(-count // chunk)
        target, numbers = (out if chunks == 1 else self._parts), (np.int32(columns), np.int32(rows), np.int32(count))
        steps = np.int64(row_step), np.int64(sum_step), np.int32(chunk), np.int32(adds and chunks == 1)
        self._contract((across, down, chunks), (THREADS,), (partial, factor, *numbers, *steps, target))
        if chunks > 1:
            each = rows * columns
            sums = np.int64(each), np.int32(chunks), np.int32(adds)
            self._add_up((-(-each // THREADS),), (THREADS,), (self._parts, *sums, out))


@cache
def _functions(form: Form, device: int) -> tuple[Any, Any]:
    pair, dense = load(unit("dense_pairs", pair_macros(form))), load(unit("dense", macros(form)))
    return pair.get_function("contract_pair"), dense.get_function("add_up")
