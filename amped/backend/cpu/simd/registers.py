"""Vector operations for interleaved models: pieces of rows in several registers; see `interleaved` and `vectors`.

LLVM compiles vectors that span several registers badly unless their length is a power of two. Therefore a piece
consists of several vectors, each the size of a 64-byte register, except that the last may be half as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import models, register_model

from .vectors import LANE, LINE, Vector, array_of, fused, input_rows, load_piece, operation, row_address, splat

if TYPE_CHECKING:
    from numba.core.datamodel import DataModelManager

    from .vectors import Builder, Context, Operation, Signature, Type, Typing, Value, Values

EIGHT = 8  # columns updated at once; no group of models has fewer


class Registers(types.Type):  # type: ignore[misc]
    """The type of a piece of a row; `counts` are the lengths of its vectors."""

    def __init__(self, dtype: Type, counts: tuple[int, ...]) -> None:
        self.dtype, self.counts = dtype, counts
        super().__init__(f"Registers({dtype}, {counts})")


@register_model(Registers)
class _RegistersModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: DataModelManager, registers: Registers) -> None:
        element = manager.lookup(registers.dtype).get_value_type()
        vectors = [ir.VectorType(element, count) for count in registers.counts]
        super().__init__(manager, registers, ir.LiteralStructType(vectors))


def _register(factors: Type) -> Vector:
    """Return the type of a vector with the models' values, repeated to fill a register."""
    stored = factors.types[0].dtype
    return Vector(stored, LINE * 8 // stored.bitwidth)


def _registers(factors: Type, lanes: Type) -> Registers:
    """Return the type of a piece of the length of `lanes`."""
    most = _register(factors).count
    whole, rest = divmod(len(lanes) * LANE * 8 // factors.types[0].dtype.bitwidth, most)
    return Registers(factors.types[0].dtype, (most,) * whole + (rest,) * (rest > 0))


def _parts(builder: Builder, value: Value) -> list[Value]:
    return [builder.extract_value(value, k) for k in range(len(value.type.elements))]


def _combined(builder: Builder, parts: Sequence[Value]) -> Value:
    value = ir.Constant(ir.LiteralStructType([part.type for part in parts]), ir.Undefined)
    for k, part in enumerate(parts):
        value = builder.insert_value(value, part, k)
    return value


def _loaded(builder: Builder, address: Value, kind: ir.Type) -> list[Value]:
    """Load a piece from consecutive numbers."""
    parts, at = list[ir.Value](), 0
    for vector in kind.elements:
        place = builder.gep(address, [ir.Constant(ir.IntType(64), at)])
        parts.append(load_piece(builder, place, vector.element, vector))
        at += vector.count
    return parts


def _product(context: Context, builder: Builder, signature: Signature, args: Values, kind: ir.Type) -> list[Value]:
    """Return the product of a nonzero's input factor rows; `args` are indices, factors, nonzero and column."""
    first, *others = input_rows(context, builder, signature, args, args[2], args[3])
    product = _loaded(builder, first, kind)
    for address in others:
        product = [builder.fmul(a, b) for a, b in zip(product, _loaded(builder, address, kind), strict=True)]
    return product


def _shuffle(builder: Builder, vector: Value, positions: Sequence[int]) -> Value:
    return builder.shuffle_vector(
        vector, vector, ir.Constant(ir.VectorType(ir.IntType(32), len(positions)), [*positions])
    )


def _halved(builder: Builder, total: Value, count: int) -> Value:
    """Add the halves of a vector until it has `count` elements."""
    while total.type.count > count:
        half = total.type.count // 2
        low, high = (_shuffle(builder, total, range(begin, begin + half)) for begin in (0, half))
        total = builder.fadd(low, high)
    return total


def _models(builder: Builder, dtype: Type, product: Sequence[Value], own_parts: Sequence[Value], count: int) -> Value:
    """Return the sums over a row's columns, one for each of `count` models."""
    total = None
    for part, own in zip(product, own_parts, strict=True):
        if total is None:
            total = builder.fmul(part, own)
        else:
            total = _halved(builder, total, part.type.count)
            total = fused(builder, Vector(dtype, part.type.count), part, own, total)
    return _halved(builder, total, count)


def _at_least(context: Context, builder: Builder, floor: Value, dtype: Type, models: Value) -> Value:
    least = splat(builder, context.cast(builder, floor, types.float64, dtype), models.type)
    # This order of operands lets NaN propagate.
    return builder.select(builder.fcmp_ordered("<", models, least), least, models)


@operation
def zeros(typing: Typing, factors: Type, lanes: Type) -> Operation:
    """Return a piece of zeros."""
    registers = _registers(factors, lanes)

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        return ir.Constant(context.get_value_type(registers), None)

    return registers(factors, lanes), generate


@operation
def own_row(typing: Typing, factors: Type, own: Type, row: Type, column: Type, lanes: Type) -> Operation:
    """Load a row of the output mode's matrix, of the same type as `factors`, from `column` on."""
    registers = _registers(factors, lanes)

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        address = row_address(context, builder, own, *args[1:4])
        return _combined(builder, _loaded(builder, address, context.get_value_type(registers)))

    return registers(factors, own, types.intp, types.intp, lanes), generate


@operation
def accumulate_divided(
    typing: Typing,
    indices: Type,
    factors: Type,
    at: Type,
    column: Type,
    value: Type,
    floor: Type,
    folds: Type,
    mine: Type,
    total: Type,
) -> Operation:
    """Return `total` plus a nonzero's value times its input factor rows, divided by the models; see `models_of`."""
    register = _register(factors)

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        number, floor, _, mine, total = args[4:]
        product, dtype = _product(context, builder, signature, args, total.type), register.dtype
        models = _models(builder, dtype, product, _parts(builder, mine), register.count >> len(folds))
        models = _at_least(context, builder, floor, dtype, models)
        number = splat(builder, context.cast(builder, number, value, dtype), models.type)
        quotients = builder.fdiv(number, models)
        sums = list[ir.Value]()
        for part, so_far in zip(product, _parts(builder, total), strict=True):
            wide = _shuffle(builder, quotients, [k % models.type.count for k in range(part.type.count)])
            sums.append(fused(builder, Vector(dtype, part.type.count), part, wide, so_far))
        return _combined(builder, sums)

    return total(indices, factors, types.intp, types.intp, value, types.float64, folds, mine, total), generate


@operation
def models_of(
    typing: Typing, indices: Type, factors: Type, at: Type, column: Type, floor: Type, folds: Type, mine: Type
) -> Operation:
    """Return the values of the models at a nonzero, at least `floor`, in double precision.

    `mine` is the output mode's row. A register is halved ``len(folds)`` times until it has one number per model.
    """
    register = _register(factors)
    result_type = Vector(types.float64, register.count >> len(folds))

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        floor, mine = args[4], args[-1]
        product = _product(context, builder, signature, args, mine.type)
        models = _models(builder, register.dtype, product, _parts(builder, mine), result_type.count)
        models = _at_least(context, builder, floor, register.dtype, models)
        kind = context.get_value_type(result_type)
        return models if models.type == kind else builder.fpext(models, kind)

    return result_type(indices, factors, types.intp, types.intp, types.float64, folds, mine), generate


@operation
def ones(typing: Typing, factors: Type, folds: Type) -> Operation:
    """Return a vector of ones with one element per model."""
    result_type = Vector(types.float64, _register(factors).count >> len(folds))

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        return ir.Constant(context.get_value_type(result_type), [1.0] * result_type.count)

    return result_type(factors, folds), generate


@operation
def times(typing: Typing, one: Type, other: Type) -> Operation:
    """Return the product of two vectors."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        return builder.fmul(*args)

    return one(one, other), generate


@operation
def add_to_row(typing: Typing, out: Type, row: Type, column: Type, piece: Type) -> Operation:
    """Add a piece to a row of a float64 matrix, from `column` on."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        *where, piece = args
        address, at = row_address(context, builder, out, *where), 0
        for part in _parts(builder, piece):
            wide = ir.VectorType(ir.DoubleType(), part.type.count)
            place = builder.gep(address, [ir.Constant(ir.IntType(64), at)])
            place, at = builder.bitcast(place, wide.as_pointer()), at + part.type.count
            part = part if part.type == wide else builder.fpext(part, wide)
            builder.store(builder.fadd(builder.load(place, align=8), part), place, align=8)
        return context.get_dummy_value()

    return types.none(out, types.intp, types.intp, piece), generate


def _eight(context: Context, builder: Builder, kind: Type, value: Value, *indices: Value) -> tuple[Value, Value]:
    """Return the address of eight numbers of an array, as a vector's address, and the numbers in float64."""
    array = array_of(context, builder, kind, value)
    indices = tuple(builder.mul(index, builder.extract_value(array.strides, k)) for k, index in enumerate(indices))
    address = builder.bitcast(array.data, ir.IntType(8).as_pointer())
    for index in indices:
        address = builder.gep(address, [index])
    item = context.get_value_type(kind.dtype)
    address = builder.bitcast(address, ir.VectorType(item, EIGHT).as_pointer())
    loaded = builder.load(address, align=kind.dtype.bitwidth // 8)
    wide = ir.VectorType(ir.DoubleType(), EIGHT)
    return address, loaded if loaded.type == wide else builder.fpext(loaded, wide)


@operation
def update_maxima(
    typing: Typing, maxima: Type, part: Type, matrix: Type, phi: Type, row: Type, column: Type
) -> Operation:
    """Update a row of `maxima` with ``|min(B, 1 - Phi)|`` of eight columns; NaN propagates."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        maxima_value, part, *arrays, row, column = args
        place, so_far = _eight(context, builder, maxima, maxima_value, part, column)
        (_, entry), (_, of_phi) = (
            _eight(context, builder, kind, value, row, column)
            for kind, value in zip((matrix, phi), arrays, strict=True)
        )
        left = builder.fsub(ir.Constant(of_phi.type, [1.0] * EIGHT), of_phi)
        least = builder.select(builder.fcmp_ordered("<", entry, left), entry, left)
        kind = ir.FunctionType(least.type, [least.type])
        size = builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.fabs.v{EIGHT}f64"), [least])
        larger = builder.or_(builder.fcmp_ordered(">", size, so_far), builder.fcmp_unordered("uno", size, size))
        builder.store(builder.select(larger, size, so_far), place, align=8)
        return context.get_dummy_value()

    return types.none(maxima, types.intp, matrix, phi, types.intp, types.intp), generate


@operation
def multiply(typing: Typing, finished_flags: Type, matrix: Type, phi: Type, row: Type, column: Type) -> Operation:
    """Multiply eight numbers of a row by Phi, from `column` on, except where `still`, float64, is nonzero."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        *arrays, row, column = args
        _, finished = _eight(context, builder, finished_flags, arrays[0], column)
        kinds = zip((matrix, phi), arrays[1:], strict=True)
        (place, entry), (_, of_phi) = (_eight(context, builder, kind, value, row, column) for kind, value in kinds)
        active = builder.fcmp_ordered("==", finished, ir.Constant(finished.type, None))
        product = builder.select(active, builder.fmul(entry, of_phi), entry)
        stored = place.type.pointee
        product = product if product.type == stored else builder.fptrunc(product, stored)
        builder.store(product, place, align=matrix.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.none(finished_flags, matrix, phi, types.intp, types.intp), generate
