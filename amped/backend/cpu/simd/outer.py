"""Sums of outer products in registers: tiles of ``sum v v^T`` over the rows v of a matrix.

A tile has a few rows and one or two vectors per row. Each entry of a row of the matrix is multiplied by vectors of the
same row, so that nothing is transposed and no vector is folded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from .doubles import EIGHT, _all, _at, _double, _doubles, _library, _shuffle
from .vectors import operation

if TYPE_CHECKING:
    from .vectors import Builder, Context, Operation, Signature, Type, Typing, Value, Values


def _adder(rows: int, vectors: int) -> Callable[..., Any]:
    """Return an operation that adds a tile of `rows` times ``8 * vectors`` numbers."""

    def add(typing: Typing, matrix: Type, width: Type, count: Type, i: Type, k: Type, sums: Type) -> Operation:
        def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
            matrix_value, width, count, i, k, sums_value = args
            each = [(row, vector) for row in range(rows) for vector in range(vectors)]
            tile = {place: cgutils.alloca_once(builder, _doubles) for place in each}
            for total in tile.values():
                builder.store(_all(0.0), total)
            with cgutils.for_range(builder, count) as loop:
                begin = builder.mul(loop.index, width)

                def at(column: Value, offset: int, kind: ir.Type) -> Value:
                    place = builder.add(builder.add(begin, column), ir.Constant(column.type, offset))
                    return builder.load(_at(context, builder, matrix, matrix_value, place, kind), align=8)

                right = [at(k, EIGHT * vector, _doubles) for vector in range(vectors)]
                for row in range(rows):
                    entry = builder.insert_element(
                        ir.Constant(_doubles, ir.Undefined), at(i, row, _double), ir.IntType(32)(0)
                    )
                    left = _shuffle(builder, entry, entry, [0] * EIGHT)
                    for vector in range(vectors):
                        total = tile[row, vector]
                        builder.store(_library(builder, "fma", left, right[vector], builder.load(total)), total)
            for (row, vector), total in tile.items():
                line = builder.mul(builder.add(i, ir.Constant(i.type, row)), width)
                place = builder.add(builder.add(line, k), ir.Constant(k.type, EIGHT * vector))
                target = _at(context, builder, sums, sums_value, place, _doubles)
                builder.store(builder.fadd(builder.load(target, align=8), builder.load(total)), target, align=8)
            return context.get_dummy_value()

        return types.none(matrix, types.intp, types.intp, types.intp, types.intp, sums), generate

    return operation(add)


add_8x1, add_8x2, add_4x1, add_4x2 = _adder(8, 1), _adder(8, 2), _adder(4, 1), _adder(4, 2)
"""Called with a matrix of rows of a `width`, as an array of numbers; the number of its rows; the first row and column
of the tile; and the (width, width) array of sums."""
