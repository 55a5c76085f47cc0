"""Vector operations for Phi: values of several nonzeros divided by the model's values; see `vectors`.

Dividing a vector takes as long as dividing a number. Likewise, summing the columns of several rows into one vector
takes less time than summing each row separately.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from llvmlite import ir
from numba import types

from .vectors import Vector, array_of, fused, input_rows, load_piece, operation, row_address, splat, vector_of

if TYPE_CHECKING:
    from .vectors import Builder, Context, Operation, Signature, Type, Typing, Value, Values

GROUP = 4  # nonzeros computed at once
MOST, LEAST = 8, 2  # nonzeros at once if a row is a single vector; minimum, for long rows and for the remainder
MOST_LANES = 4  # rows up to this length allow MOST at once: their registers suffice
WIDEST = 64  # bytes of the vectors in which columns are summed: the widest registers


def _group(factors: Type) -> Vector:
    """Return the type of a vector with one number per nonzero of a group."""
    return Vector(factors.types[0].dtype, GROUP)


def _of_group(
    context: Context,
    builder: Builder,
    order: Type,
    args: Sequence[Value],
    body: Callable[[list[Value], Value], Value],
    sizes: tuple[int, int] = (GROUP, GROUP),
) -> Value:
    """Call `body` for a group of nonzeros and return its result; `args` are the permutation, the first nonzero, the
    end.

    `body` takes the positions of the nonzeros and their number. A group has ``sizes[0]`` nonzeros; if fewer are left,
    separate code computes groups of ``sizes[1]``, in which the last nonzero is repeated to fill the group.
    """
    order_array, first, end = args

    def call_body(positions: list[Value], count: Value) -> Value:
        if not isinstance(order, types.NoneType):
            data = array_of(context, builder, order, order_array).data
            loaded = [builder.load(builder.gep(data, [place])) for place in positions]
            positions = [context.cast(builder, place, order.dtype, types.intp) for place in loaded]
        return body(positions, count), builder.block

    whole, rest = ([builder.add(first, _word(k)) for k in range(size)] for size in sizes)
    with builder.if_else(builder.icmp_signed("<", whole[-1], end)) as (if_whole, if_partial):
        with if_whole:
            results = [call_body(whole, _word(sizes[0]))]
        with if_partial:
            last = builder.sub(end, _word(1))
            clamped = [builder.select(builder.icmp_signed("<", k, last), k, last) for k in rest]
            results.append(call_body(clamped, builder.sub(end, first)))
    result = builder.phi(results[0][0].type)
    for value, block in results:
        result.add_incoming(value, block)
    return result


def _sizes(lanes: Type) -> tuple[int, int]:
    """Return the group size for rows of this length, and the size for the remainder; limited by the registers."""
    return MOST if len(lanes) <= MOST_LANES else LEAST, LEAST


def _word(number: int) -> Value:
    return ir.Constant(ir.IntType(64), number)


def _rows(
    context: Context, builder: Builder, signature: Signature, args: Values, at: Value, column: Value, kind: ir.Type
) -> list[Value]:
    """Load the input factor rows of nonzero `at`, from `column` on."""
    stored = context.get_value_type(signature.args[1].types[0].dtype)
    return [load_piece(builder, a, stored, kind) for a in input_rows(context, builder, signature, args, at, column)]


def _product(builder: Builder, rows: Sequence[Value]) -> Value:
    product = rows[0]
    for row in rows[1:]:
        product = builder.fmul(product, row)
    return product


def _shuffle(builder: Builder, a: Value, b: Value, positions: Sequence[int]) -> Value:
    """Return elements of two vectors by their positions in the concatenation of both."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(positions)), list(positions)))


def _folded(builder: Builder, vector: Value, most: int) -> Value:
    """Add parts of a vector to each other until its length is at most `most`, a power of two."""
    count = vector.type.count
    if count <= most:
        return vector
    first = 1 << (count - 1).bit_length() - 1
    low, high = (_shuffle(builder, vector, vector, range(*ends)) for ends in ((0, first), (first, count)))
    if first + first > count:
        low, high = _folded(builder, low, most), _folded(builder, high, most)
    return _folded(builder, builder.fadd(low, high), most)


def _halved(builder: Builder, a: Value, b: Value, length: int, count: int) -> Value:
    """Add the second half of each run of `length` elements to its first half; keep runs of length 1.

    Runs are those of the first `count` elements of the concatenation of two vectors.
    """
    if length == 1:
        return _shuffle(builder, a, b, range(count))
    low = [k for k in range(count) if k % length < length // 2]
    return builder.fadd(_shuffle(builder, a, b, low), _shuffle(builder, a, b, [k + length // 2 for k in low]))


def _sums_of(builder: Builder, vectors: Sequence[Value]) -> Value:
    """Return the sums of the elements of each vector as one vector; the number of vectors is a power of two."""
    number, size = len(vectors), 4 if vectors[0].type.element == ir.FloatType() else 8
    vectors = [_folded(builder, vector, WIDEST // size) for vector in vectors]
    length = count = vectors[0].type.count  # elements per sum, and in total
    while len(vectors) > 1:
        vectors = [_halved(builder, a, b, length, 2 * count) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
        length, count = max(1, length // 2), vectors[0].type.count
    total = vectors[0]
    while total.type.count > number:
        total = _halved(builder, total, total, length, total.type.count)
        length //= 2
    return total


def _divided(
    context: Context,
    builder: Builder,
    values: Type,
    array: Value,
    positions: Sequence[Value],
    count: Value,
    floor: Value,
    models: Value,
) -> Value:
    """Return the values at `positions` divided by ``max(models, floor)``; 0 for all but the first `count`."""
    kind, data = models.type, array_of(context, builder, values, array).data
    dtype = types.float32 if kind.element == ir.FloatType() else types.float64
    dividends = ir.Constant(kind, ir.Undefined)
    for k, at in enumerate(positions):
        value = context.cast(builder, builder.load(builder.gep(data, [at])), values.dtype, dtype)
        value = builder.select(builder.icmp_signed("<", _word(k), count), value, ir.Constant(kind.element, 0.0))
        dividends = builder.insert_element(dividends, value, ir.Constant(ir.IntType(32), k))
    least = splat(builder, context.cast(builder, floor, types.float64, dtype), kind)
    # This order of operands lets NaN propagate.
    return builder.fdiv(dividends, builder.select(builder.fcmp_ordered("<", models, least), least, models))


@operation
def piece_of_row(typing: Typing, factors: Type, own: Type, row: Type, column: Type, lanes: Type) -> Operation:
    """Load a row of the output mode's matrix, of the same type as `factors`, from `column` on."""
    vector = vector_of(factors, lanes)

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        address = row_address(context, builder, own, *args[1:4])
        return load_piece(builder, address, context.get_value_type(own.dtype), context.get_value_type(vector))

    return vector(factors, own, types.intp, types.intp, lanes), generate


@operation
def no_models(typing: Typing, factors: Type) -> Operation:
    """Return zeros, one per nonzero of a group."""
    group = _group(factors)

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        return ir.Constant(context.get_value_type(group), None)

    return group(factors), generate


@operation
def add_models(
    typing: Typing,
    indices: Type,
    factors: Type,
    order: Type,
    q: Type,
    stop: Type,
    column: Type,
    lanes: Type,
    row: Type,
    so_far: Type,
) -> Operation:
    """Return `so_far` plus the products of `row` with the input factor rows of a group, from `column` on."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        column, _, row, so_far = args[5:]

        def models(positions: list[Value], count: Value) -> Value:
            products = [
                _product(builder, [row, *_rows(context, builder, signature, args, at, column, row.type)])
                for at in positions
            ]
            return _sums_of(builder, products)

        return builder.fadd(so_far, _of_group(context, builder, order, args[2:5], models))

    return so_far(indices, factors, order, types.intp, types.intp, types.intp, lanes, row, so_far), generate


@operation
def quotients(typing: Typing, values: Type, order: Type, q: Type, stop: Type, floor: Type, models: Type) -> Operation:
    """Return the values from `q` to `stop` divided by ``max(models, floor)``; 0 from `stop` on."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        array, *group, floor, models = args

        def divided(positions: list[Value], count: Value) -> Value:
            return _divided(context, builder, values, array, positions, count, floor, models)

        return _of_group(context, builder, order, group, divided)

    return models(values, order, types.intp, types.intp, types.float64, models), generate


@operation
def accumulate_quotients(
    typing: Typing,
    indices: Type,
    factors: Type,
    values: Type,
    order: Type,
    q: Type,
    stop: Type,
    floor: Type,
    lanes: Type,
    row: Type,
    total: Type,
) -> Operation:
    """Return `total` plus the quotients of a group times their input factor rows; `row` is the whole row."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        array, *group, floor, _, row, total = args[2:]

        def accumulated(positions: list[Value], count: Value) -> Value:
            products = [
                _product(builder, _rows(context, builder, signature, args, at, _word(0), row.type)) for at in positions
            ]
            models = _sums_of(builder, [builder.fmul(p, row) for p in products])
            weights, result = _divided(context, builder, values, array, positions, count, floor, models), total
            for k, product in enumerate(products):
                each = _shuffle(builder, weights, weights, [k] * row.type.count)
                result = fused(builder, signature.return_type, each, product, result)
            return result

        return _of_group(context, builder, order, group, accumulated, _sizes(lanes))

    argument_types = indices, factors, values, order, types.intp, types.intp, types.float64, lanes, row, total
    return total(*argument_types), generate


@operation
def group_size(typing: Typing, q: Type, stop: Type, lanes: Type) -> Operation:
    """Return how many nonzeros `accumulate_quotients` processes from `q` on; may exceed what is left."""
    whole, least = map(_word, _sizes(lanes))

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        q, stop, _ = args
        return builder.select(builder.icmp_signed("<=", builder.add(q, whole), stop), whole, least)

    return types.intp(types.intp, types.intp, lanes), generate


@operation
def accumulate_weighted(
    typing: Typing, indices: Type, factors: Type, weight: Type, at: Type, column: Type, lanes: Type, total: Type
) -> Operation:
    """Return `total` plus a weight, of the factors' type, times a nonzero's input factor rows, from `column` on."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        _, _, weight, at, column, _, total = args
        *others, last = _rows(context, builder, signature, args, at, column, total.type)
        product = _product(builder, [splat(builder, weight, total.type), *others])
        return fused(builder, signature.return_type, product, last, total)

    return total(indices, factors, total.dtype, types.intp, types.intp, lanes, total), generate


@operation
def store_group(typing: Typing, matrix: Type, row: Type, column: Type, vector: Type) -> Operation:
    """Store a group's numbers in a row of a matrix of the same type, from `column` on."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        *where, value = args
        address = builder.bitcast(row_address(context, builder, matrix, *where), value.type.as_pointer())
        builder.store(value, address, align=4)
        return context.get_dummy_value()

    return types.none(matrix, types.intp, types.intp, vector), generate


@operation
def element(typing: Typing, vector: Type, at: Type) -> Operation:
    """Return an element of a vector."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        return builder.extract_element(*args)

    return vector.dtype(vector, types.intp), generate
