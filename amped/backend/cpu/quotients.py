"""Values divided by a model's, of a few nonzeros at a time: vector operations for Phi; see `vectors`.

One division takes as long as four, and so does a sum over the columns if sums of four rows end in one vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types

from .vectors import Vector, _array, _fused, _input_rows, _load, _row, _splat, _vector, operation

GROUP = 4  # nonzeros that are computed at once
WIDEST = 64  # bytes of a vector in which columns are added up: those of the widest registers

_places = types.UniTuple(types.intp, GROUP)


def _group(factors: Any, lanes: Any = None) -> Vector:
    """Return the type of a number for each nonzero of a group."""
    return Vector(factors.types[0].dtype, GROUP)


def _places_of(builder: Any, value: Any) -> list[Any]:
    return [builder.extract_value(value, k) for k in range(GROUP)]


def _rows(context: Any, builder: Any, signature: Any, args: Any, at: Any, column: Any, kind: Any) -> list[Any]:
    """Return the input factor rows of nonzero `at`, from `column` on."""
    stored = context.get_value_type(signature.args[1].types[0].dtype)
    return [_load(builder, a, stored, kind) for a in _input_rows(context, builder, signature, args, at, column)]


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


def _halves(builder: Any, a: Any, b: Any, length: int, count: int) -> Any:
    """Add the second half of each run of so many elements to the first; of `count` elements of two vectors."""
    low = [start + k for start in range(0, count, length) for k in range(length // 2)]
    return builder.fadd(_chosen(builder, a, b, low), _chosen(builder, a, b, [k + length // 2 for k in low]))


def _added_up(builder: Any, vectors: Sequence[Any], bits: int) -> Any:
    """Return the sums of each vector's elements as one vector: there are `GROUP` of them."""
    vectors = [_folded(builder, vector, WIDEST * 8 // bits) for vector in vectors]
    length = vectors[0].type.count  # of what belongs to one sum
    while len(vectors) > 1:
        vectors = [
            _halves(builder, a, b, length, 2 * a.type.count) for a, b in zip(vectors[::2], vectors[1::2], strict=True)
        ]
        length //= 2
    total = vectors[0]
    while length > 1:
        total = _halves(builder, total, total, length, total.type.count)
        length //= 2
    return total


def _divided(context: Any, builder: Any, values: Any, args: Sequence[Any], group: Vector) -> Any:
    """Return quotients of values; see `quotients`."""
    value_array, places, count, floor, models = args
    kind, data = context.get_value_type(group), _array(context, builder, values, value_array).data
    found = ir.Constant(kind, ir.Undefined)
    for k, at in enumerate(_places_of(builder, places)):
        value = context.cast(builder, builder.load(builder.gep(data, [at])), values.dtype, group.dtype)
        valid = builder.icmp_signed("<", ir.Constant(count.type, k), count)
        value = builder.select(valid, value, ir.Constant(kind.element, 0.0))
        found = builder.insert_element(found, value, ir.Constant(ir.IntType(32), k))
    least = _splat(builder, context.cast(builder, floor, types.float64, group.dtype), kind)
    # In this order a model's NaN stays.
    return builder.fdiv(found, builder.select(builder.fcmp_ordered("<", models, least), least, models))


@operation
def piece_of_row(typing: Any, factors: Any, own: Any, row: Any, column: Any, lanes: Any) -> Any:
    """Return a row of the output mode's matrix, of the same type as `factors`, from `column` on."""
    vector = _vector(factors, lanes)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _row(context, builder, own, *args[1:4])
        return _load(builder, address, context.get_value_type(own.dtype), context.get_value_type(vector))

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
    typing: Any, indices: Any, factors: Any, places: Any, column: Any, lanes: Any, row: Any, so_far: Any
) -> Any:
    """Return `so_far` plus the model's values at a group of nonzeros, of the columns that are in `row`."""
    group = _group(factors)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, places, column, _, row, so_far = args
        products = [
            _product(builder, [row, *_rows(context, builder, signature, args, at, column, row.type)])
            for at in _places_of(builder, places)
        ]
        return builder.fadd(so_far, _added_up(builder, products, group.dtype.bitwidth))

    return group(indices, factors, _places, types.intp, lanes, row, group), generate


@operation
def quotients(typing: Any, values: Any, places: Any, count: Any, floor: Any, models: Any) -> Any:
    """Return a group's values divided by the model's, at least by `floor`; 0 for all but the first `count`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _divided(context, builder, values, args, models)

    return models(values, _places, types.intp, types.float64, models), generate


@operation
def accumulate_quotients(
    typing: Any,
    indices: Any,
    factors: Any,
    values: Any,
    places: Any,
    count: Any,
    floor: Any,
    lanes: Any,
    row: Any,
    total: Any,
) -> Any:
    """Return `total` plus, for each of a group, the quotient times its input factor rows; `row` is all of a row."""
    group = _group(factors)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, value_array, places, count, floor, _, row, total = args
        first = ir.Constant(ir.IntType(64), 0)
        products = [
            _product(builder, _rows(context, builder, signature, args, at, first, row.type))
            for at in _places_of(builder, places)
        ]
        models = _added_up(builder, [builder.fmul(p, row) for p in products], group.dtype.bitwidth)
        found = _divided(context, builder, values, (value_array, places, count, floor, models), group)
        for k, product in enumerate(products):
            each = _chosen(builder, found, found, [k] * row.type.count)
            total = _fused(builder, signature.return_type, each, product, total)
        return total

    given = indices, factors, values, _places, types.intp, types.float64, lanes, row, total
    return total(*given), generate


@operation
def accumulate_weighted(
    typing: Any, indices: Any, factors: Any, weight: Any, at: Any, column: Any, lanes: Any, total: Any
) -> Any:
    """Return `total` plus a weight, of the factors' type, times a nonzero's input factor rows, from `column` on."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, weight, at, column, _, total = args
        *others, last = _rows(context, builder, signature, args, at, column, total.type)
        product = _product(builder, [_splat(builder, weight, total.type), *others])
        return _fused(builder, signature.return_type, product, last, total)

    return total(indices, factors, total.dtype, types.intp, types.intp, lanes, total), generate


@operation
def keep(typing: Any, room: Any, row: Any, column: Any, vector: Any) -> Any:
    """Write a group to a row of a matrix of its type, from `column` on."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        *where, value = args
        address = builder.bitcast(_row(context, builder, room, *where), value.type.as_pointer())
        builder.store(value, address, align=4)
        return context.get_dummy_value()

    return types.none(room, types.intp, types.intp, vector), generate


@operation
def element(typing: Any, vector: Any, at: Any) -> Any:
    """Return an element of a vector."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.extract_element(*args)

    return vector.dtype(vector, types.intp), generate
