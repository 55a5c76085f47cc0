"""Values divided by a model's, of a few nonzeros at a time: vector operations for Phi; see `vectors`.

One division of a vector takes as long as that of a number, and sums over the columns of several rows that end in one
vector take less than as many of one row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types

from .vectors import Vector, array_of, fused, input_rows, load_piece, operation, row_address, splat, vector_of

GROUP = 4  # nonzeros that are computed at once
MOST, LEAST = 8, 2  # the same where a row is a single vector; the least for long rows, and where fewer are left
MOST_LANES = 4  # of the rows of which most are computed at once: registers hold them
WIDEST = 64  # bytes of a vector in which columns are added up: those of the widest registers


def _group(factors: Any) -> Vector:
    """Return the type of a number for each nonzero of a group."""
    return Vector(factors.types[0].dtype, GROUP)


def _of_group(
    context: Any,
    builder: Any,
    order: Any,
    args: Sequence[Any],
    body: Callable[[list[Any], Any], Any],
    sizes: tuple[int, int] = (GROUP, GROUP),
) -> Any:
    """Return what `body` returns of the places of a group, and their number: `args` are the order, the first, the end.

    A group is as many as the first of `sizes` says; where fewer are left, as the second says, by code of its own: there
    the last nonzero takes the place of those that are missing.
    """
    order_array, first, end = args

    def found(places: list[Any], count: Any) -> Any:
        if not isinstance(order, types.NoneType):
            data = array_of(context, builder, order, order_array).data
            loaded = [builder.load(builder.gep(data, [place])) for place in places]
            places = [context.cast(builder, place, order.dtype, types.intp) for place in loaded]
        return body(places, count), builder.block

    whole, rest = ([builder.add(first, _word(k)) for k in range(size)] for size in sizes)
    with builder.if_else(builder.icmp_signed("<", whole[-1], end)) as (then, otherwise):
        with then:
            results = [found(whole, _word(sizes[0]))]
        with otherwise:
            last = builder.sub(end, _word(1))
            at_most = [builder.select(builder.icmp_signed("<", k, last), k, last) for k in rest]
            results.append(found(at_most, builder.sub(end, first)))
    result = builder.phi(results[0][0].type)
    for value, block in results:
        result.add_incoming(value, block)
    return result


def _sizes(lanes: Any) -> tuple[int, int]:
    """Return how many nonzeros are computed at once, and how many where fewer are left: registers hold their rows."""
    return MOST if len(lanes) <= MOST_LANES else LEAST, LEAST


def _word(number: int) -> Any:
    return ir.Constant(ir.IntType(64), number)


def _rows(context: Any, builder: Any, signature: Any, args: Any, at: Any, column: Any, kind: Any) -> list[Any]:
    """Return the input factor rows of nonzero `at`, from `column` on."""
    stored = context.get_value_type(signature.args[1].types[0].dtype)
    return [load_piece(builder, a, stored, kind) for a in input_rows(context, builder, signature, args, at, column)]


def _product(builder: Any, rows: Sequence[Any]) -> Any:
    product = rows[0]
    for row in rows[1:]:
        product = builder.fmul(product, row)
    return product


def _chosen(builder: Any, a: Any, b: Any, places: Sequence[int]) -> Any:
    """Return elements of one vector, then of the other, by their places in both."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(places)), list(places)))


def _folded(builder: Any, vector: Any, most: int) -> Any:
    """Add parts of a vector to each other until it is as short as that, a power of two."""
    count = vector.type.count
    if count <= most:
        return vector
    first = 1 << (count - 1).bit_length() - 1
    low, high = (_chosen(builder, vector, vector, range(*ends)) for ends in ((0, first), (first, count)))
    if first + first > count:
        low, high = _folded(builder, low, most), _folded(builder, high, most)
    return _folded(builder, builder.fadd(low, high), most)


def _halved(builder: Any, a: Any, b: Any, length: int, count: int) -> Any:
    """Add the second half of each run of so many elements to the first, if there are halves.

    Runs are those of the first `count` elements of two vectors behind each other.
    """
    if length == 1:
        return _chosen(builder, a, b, range(count))
    low = [k for k in range(count) if k % length < length // 2]
    return builder.fadd(_chosen(builder, a, b, low), _chosen(builder, a, b, [k + length // 2 for k in low]))


def _added_up(builder: Any, vectors: Sequence[Any]) -> Any:
    """Return the sums of each vector's elements as one vector: there are a power of two of them."""
    number, size = len(vectors), 4 if vectors[0].type.element == ir.FloatType() else 8
    vectors = [_folded(builder, vector, WIDEST // size) for vector in vectors]
    length = count = vectors[0].type.count  # of what belongs to one sum, and in all
    while len(vectors) > 1:
        vectors = [_halved(builder, a, b, length, 2 * count) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
        length, count = max(1, length // 2), vectors[0].type.count
    total = vectors[0]
    while total.type.count > number:
        total = _halved(builder, total, total, length, total.type.count)
        length //= 2
    return total


def _divided(
    context: Any, builder: Any, values: Any, array: Any, places: Sequence[Any], count: Any, floor: Any, models: Any
) -> Any:
    """Return the values at `places` divided by `models`, at least by `floor`; 0 for all but the first `count`."""
    kind, data = models.type, array_of(context, builder, values, array).data
    dtype = types.float32 if kind.element == ir.FloatType() else types.float64
    found = ir.Constant(kind, ir.Undefined)
    for k, at in enumerate(places):
        value = context.cast(builder, builder.load(builder.gep(data, [at])), values.dtype, dtype)
        value = builder.select(builder.icmp_signed("<", _word(k), count), value, ir.Constant(kind.element, 0.0))
        found = builder.insert_element(found, value, ir.Constant(ir.IntType(32), k))
    least = splat(builder, context.cast(builder, floor, types.float64, dtype), kind)
    # In this order a model's NaN stays.
    return builder.fdiv(found, builder.select(builder.fcmp_ordered("<", models, least), least, models))


@operation
def piece_of_row(typing: Any, factors: Any, own: Any, row: Any, column: Any, lanes: Any) -> Any:
    """Return a row of the output mode's matrix, of the same type as `factors`, from `column` on."""
    vector = vector_of(factors, lanes)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = row_address(context, builder, own, *args[1:4])
        return load_piece(builder, address, context.get_value_type(own.dtype), context.get_value_type(vector))

    return vector(factors, own, types.intp, types.intp, lanes), generate


@operation
def no_models(typing: Any, factors: Any) -> Any:
    """Return zeros for a group."""
    group = _group(factors)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(context.get_value_type(group), None)

    return group(factors), generate


@operation
def add_models(
    typing: Any,
    indices: Any,
    factors: Any,
    order: Any,
    q: Any,
    stop: Any,
    column: Any,
    lanes: Any,
    row: Any,
    so_far: Any,
) -> Any:
    """Return `so_far` plus the model's values at nonzeros from `q` on, of the columns that are in `row`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        column, _, row, so_far = args[5:]

        def models(places: list[Any], count: Any) -> Any:
            products = [
                _product(builder, [row, *_rows(context, builder, signature, args, at, column, row.type)])
                for at in places
            ]
            return _added_up(builder, products)

        return builder.fadd(so_far, _of_group(context, builder, order, args[2:5], models))

    return so_far(indices, factors, order, types.intp, types.intp, types.intp, lanes, row, so_far), generate


@operation
def quotients(typing: Any, values: Any, order: Any, q: Any, stop: Any, floor: Any, models: Any) -> Any:
    """Return values from `q` on divided by the model's, at least by `floor`; 0 from `stop` on."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array, *group, floor, models = args

        def divided(places: list[Any], count: Any) -> Any:
            return _divided(context, builder, values, array, places, count, floor, models)

        return _of_group(context, builder, order, group, divided)

    return models(values, order, types.intp, types.intp, types.float64, models), generate


@operation
def accumulate_quotients(
    typing: Any,
    indices: Any,
    factors: Any,
    values: Any,
    order: Any,
    q: Any,
    stop: Any,
    floor: Any,
    lanes: Any,
    row: Any,
    total: Any,
) -> Any:
    """Return `total` plus quotients of nonzeros from `q` on times their input factor rows; `row` is all of a row."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array, *group, floor, _, row, total = args[2:]

        def accumulated(places: list[Any], count: Any) -> Any:
            products = [
                _product(builder, _rows(context, builder, signature, args, at, _word(0), row.type)) for at in places
            ]
            models = _added_up(builder, [builder.fmul(p, row) for p in products])
            found, result = _divided(context, builder, values, array, places, count, floor, models), total
            for k, product in enumerate(products):
                each = _chosen(builder, found, found, [k] * row.type.count)
                result = fused(builder, signature.return_type, each, product, result)
            return result

        return _of_group(context, builder, order, group, accumulated, _sizes(lanes))

    given = indices, factors, values, order, types.intp, types.intp, types.float64, lanes, row, total
    return total(*given), generate


@operation
def taken(typing: Any, q: Any, stop: Any, lanes: Any) -> Any:
    """Return how many nonzeros `accumulate_quotients` computes, or more if no more are left."""
    whole, least = map(_word, _sizes(lanes))

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        q, stop, _ = args
        return builder.select(builder.icmp_signed("<=", builder.add(q, whole), stop), whole, least)

    return types.intp(types.intp, types.intp, lanes), generate


@operation
def accumulate_weighted(
    typing: Any, indices: Any, factors: Any, weight: Any, at: Any, column: Any, lanes: Any, total: Any
) -> Any:
    """Return `total` plus a weight, of the factors' type, times a nonzero's input factor rows, from `column` on."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, weight, at, column, _, total = args
        *others, last = _rows(context, builder, signature, args, at, column, total.type)
        product = _product(builder, [splat(builder, weight, total.type), *others])
        return fused(builder, signature.return_type, product, last, total)

    return total(indices, factors, total.dtype, types.intp, types.intp, lanes, total), generate


@operation
def keep(typing: Any, room: Any, row: Any, column: Any, vector: Any) -> Any:
    """Write a group to a row of a matrix of its type, from `column` on."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        *where, value = args
        address = builder.bitcast(row_address(context, builder, room, *where), value.type.as_pointer())
        builder.store(value, address, align=4)
        return context.get_dummy_value()

    return types.none(room, types.intp, types.intp, vector), generate


@operation
def element(typing: Any, vector: Any, at: Any) -> Any:
    """Return an element of a vector."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.extract_element(*args)

    return vector.dtype(vector, types.intp), generate
