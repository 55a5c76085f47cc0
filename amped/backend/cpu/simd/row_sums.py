"""Loops over nonzeros as LLVM instructions: sums of factor rows, held in registers; see `vectors`.

Numba takes a tenth of a second to compile such a loop from Python, in each kernel variant. Most of that time goes into
type inference, which is not needed here because the types are known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir
from numba import types
from numba.core import cgutils

from .vectors import (
    ADD,
    LANE,
    Vector,
    array_of,
    fused,
    input_rows,
    load_piece,
    operation,
    plus_nonzero,
    prefetch_bytes,
    row_address,
    vector_address,
    vector_of,
    write,
)

if TYPE_CHECKING:
    from .vectors import Builder, Context, Operation, Signature, Type, Typing, Value, Values

ZEROS = Vector(types.float64, 4)  # numbers written at once; rows of sums have a multiple of this length


def element_of(context: Context, builder: Builder, kind: Type, value: Value, at: Value) -> Value:
    """Return an element of an integer array as an index."""
    loaded = builder.load(builder.gep(array_of(context, builder, kind, value).data, [at]))
    return context.cast(builder, loaded, kind.dtype, types.intp)


def place_of(context: Context, builder: Builder, order: tuple[Type, Value], q: Value) -> Value:
    """Return the position of nonzero `q`; `order` is the type and value of a permutation, or of None for none."""
    return q if isinstance(order[0], types.NoneType) else element_of(context, builder, *order, q)


def prefetch_rows(
    context: Context,
    builder: Builder,
    signature: Signature,
    args: Values,
    order: tuple[Type, Value],
    q: Value,
    last: Value,
    column: Value,
    lanes: Value,
) -> None:
    """Prefetch the input factor rows of nonzero ``min(q, last)``, from `column` on."""
    then = builder.select(builder.icmp_signed("<", q, last), q, last)
    for address in input_rows(context, builder, signature, args, place_of(context, builder, order, then), column):
        prefetch_bytes(builder, address, len(lanes) * LANE)


@operation
def sum_of_rows(
    typing: Typing,
    indices: Type,
    factors: Type,
    values: Type,
    order: Type,
    start: Type,
    stop: Type,
    last: Type,
    ahead: Type,
    column: Type,
    lanes: Type,
) -> Operation:
    """Return the sum of values times input factor rows over nonzeros `start` to `stop`, from `column` on.

    Rows of the nonzero `ahead` positions later, at most `last`, are prefetched; 0 disables prefetching.
    """
    vector = vector_of(factors, lanes)

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        order_value, start, stop, last, ahead, column, _ = args[3:]
        total = cgutils.alloca_once_value(builder, ir.Constant(context.get_value_type(vector), None))
        with cgutils.for_range(builder, stop, start) as loop:
            q, permutation = loop.index, (order, order_value)
            with builder.if_then(cgutils.is_not_null(builder, ahead)):
                prefetch_rows(
                    context, builder, signature, args, permutation, builder.add(q, ahead), last, column, lanes
                )
            at = place_of(context, builder, permutation, q)
            added = plus_nonzero(context, builder, signature, args, at, column, builder.load(total))
            builder.store(added, total)
        return builder.load(total)

    return vector(indices, factors, values, order, *[types.intp] * 5, lanes), generate


@operation
def sum_of_fibres(
    typing: Typing, indices: Type, factors: Type, values: Type, fibres: Type, piece: Type, column: Type, lanes: Type
) -> Operation:
    """Return the sum over a piece's fibres, from `column` on: the sum of a fibre times its row of the first input mode.

    `fibres` are the arrays of `layout.FibreRuns`, then indices and matrix of the first input mode.
    """
    vector = vector_of(factors, lanes)

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        parts, piece, column, _ = args[3:]
        arrays = [(kind, builder.extract_value(parts, k)) for k, kind in enumerate(fibres.types)]
        of_piece, starts, leading, (factor, matrix) = arrays
        zero = ir.Constant(context.get_value_type(vector), None)
        total = cgutils.alloca_once_value(builder, zero)
        begin, end = (
            element_of(context, builder, *of_piece, each) for each in (piece, builder.add(piece, piece.type(1)))
        )
        with cgutils.for_range(builder, end, begin) as fibre:
            start = element_of(context, builder, *starts, fibre.index)
            stop = element_of(context, builder, *starts, builder.add(fibre.index, piece.type(1)))
            part = cgutils.alloca_once_value(builder, zero)
            with cgutils.for_range(builder, stop, start) as loop:
                added = plus_nonzero(context, builder, signature, args, loop.index, column, builder.load(part))
                builder.store(added, part)
            row = element_of(context, builder, *leading, start)
            address = row_address(context, builder, factor, matrix, row, column)
            stored = context.get_value_type(factor.dtype)
            found = load_piece(builder, address, stored, zero.type)
            builder.store(fused(builder, vector, builder.load(part), found, builder.load(total)), total)
        return builder.load(total)

    return vector(indices, factors, values, fibres, types.intp, types.intp, lanes), generate


@operation
def put_sum(
    typing: Typing,
    out: Type,
    row: Type,
    carries: Type,
    part: Type,
    carried: Type,
    column: Type,
    vector: Type,
    way: Type,
) -> Operation:
    """Write a vector to a row of the output like `put`, or, if `carried`, add it to the carry of a part."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        matrix, row, carry, part, carried, column, value, way = args
        output = vector_address(context, builder, out, matrix, row, column, vector.count)
        other = vector_address(context, builder, carries, carry, part, column, vector.count)
        address = builder.select(carried, other, output)
        write(builder, value, address, out.dtype.bitwidth // 8, builder.select(carried, way.type(ADD), way))
        return context.get_dummy_value()

    places = types.intp, carries, types.intp, types.boolean, types.intp
    return types.none(out, *places, vector, types.intp), generate


@operation
def put_zeros(typing: Typing, out: Type, row: Type, column: Type, way: Type) -> Operation:
    """Write zeros, of the type `ZEROS`, to a row of a float64 matrix, from `column` on, like `put`."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        matrix, row, column, way = args
        address = vector_address(context, builder, out, matrix, row, column, ZEROS.count)
        write(builder, ir.Constant(context.get_value_type(ZEROS), None), address, 8, way)
        return context.get_dummy_value()

    return types.none(out, types.intp, types.intp, types.intp), generate
