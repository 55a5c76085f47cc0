"""Vector operations of interleaved models: pieces of rows in several registers; see `interleaved` and `vectors`.

A vector of as many numbers as several registers have is compiled badly unless that is a power of two. So a piece is
several vectors: each has the numbers of a register of 64 bytes, but for the last one, which may have half as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import models, register_model

from .vectors import LANE, LINE, Vector, array_of, fused, input_rows, load_piece, operation, row_address, splat

EIGHT = 8  # columns that are updated at a time: less than the fewest of a group


class Registers(types.Type):  # type: ignore[misc]
    """A piece of a row: `counts` are the numbers of each vector."""

    def __init__(self, dtype: Any, counts: tuple[int, ...]) -> None:
        self.dtype, self.counts = dtype, counts
        super().__init__(f"Registers({dtype}, {counts})")


@register_model(Registers)
class _RegistersModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, registers: Registers) -> None:
        element = manager.lookup(registers.dtype).get_value_type()
        vectors = [ir.VectorType(element, count) for count in registers.counts]
        super().__init__(manager, registers, ir.LiteralStructType(vectors))


def _register(factors: Any) -> Vector:
    """Return the type of the vector that has a number of each model, perhaps several times."""
    stored = factors.types[0].dtype
    return Vector(stored, LINE * 8 // stored.bitwidth)


def _registers(factors: Any, lanes: Any) -> Registers:
    """Return the type of a piece of so many lanes."""
    most = _register(factors).count
    whole, rest = divmod(len(lanes) * LANE * 8 // factors.types[0].dtype.bitwidth, most)
    return Registers(factors.types[0].dtype, (most,) * whole + (rest,) * (rest > 0))


def _parts(builder: Any, value: Any) -> list[Any]:
    return [builder.extract_value(value, k) for k in range(len(value.type.elements))]


def _together(builder: Any, parts: Sequence[Any]) -> Any:
    value = ir.Constant(ir.LiteralStructType([part.type for part in parts]), ir.Undefined)
    for k, part in enumerate(parts):
        value = builder.insert_value(value, part, k)
    return value


def _loaded(builder: Any, address: Any, kind: Any) -> list[Any]:
    """Load the numbers from an address on as a piece."""
    parts, at = list[Any](), 0
    for vector in kind.elements:
        place = builder.gep(address, [ir.Constant(ir.IntType(64), at)])
        parts.append(load_piece(builder, place, vector.element, vector))
        at += vector.count
    return parts


def _product(context: Any, builder: Any, signature: Any, args: Any, kind: Any) -> list[Any]:
    """Return the product of the input factor rows of a nonzero: `args` are indices, factors, its place, the column."""
    first, *others = input_rows(context, builder, signature, args, args[2], args[3])
    product = _loaded(builder, first, kind)
    for address in others:
        product = [builder.fmul(a, b) for a, b in zip(product, _loaded(builder, address, kind), strict=True)]
    return product


def _chosen(builder: Any, vector: Any, places: Sequence[int]) -> Any:
    return builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(ir.IntType(32), len(places)), [*places]))


def _halved(builder: Any, total: Any, count: int) -> Any:
    """Add parts of a vector to each other until it has so many numbers."""
    while total.type.count > count:
        half = total.type.count // 2
        low, high = (_chosen(builder, total, range(begin, begin + half)) for begin in (0, half))
        total = builder.fadd(low, high)
    return total


def _models(builder: Any, dtype: Any, product: Sequence[Any], mine: Sequence[Any], count: int) -> Any:
    """Return the sums over a row's columns: one of each of `count` models."""
    total = None
    for part, own in zip(product, mine, strict=True):
        if total is None:
            total = builder.fmul(part, own)
        else:
            total = _halved(builder, total, part.type.count)
            total = fused(builder, Vector(dtype, part.type.count), part, own, total)
    return _halved(builder, total, count)


def _at_least(context: Any, builder: Any, floor: Any, dtype: Any, models: Any) -> Any:
    least = splat(builder, context.cast(builder, floor, types.float64, dtype), models.type)
    # In this order a model's NaN stays.
    return builder.select(builder.fcmp_ordered("<", models, least), least, models)


@operation
def nothing(typing: Any, factors: Any, lanes: Any) -> Any:
    """Return a piece of zeros."""
    registers = _registers(factors, lanes)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(context.get_value_type(registers), None)

    return registers(factors, lanes), generate


@operation
def own_row(typing: Any, factors: Any, own: Any, row: Any, column: Any, lanes: Any) -> Any:
    """Return a row of the output mode's matrix, of the same type as `factors`, from `column` on."""
    registers = _registers(factors, lanes)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = row_address(context, builder, own, *args[1:4])
        return _together(builder, _loaded(builder, address, context.get_value_type(registers)))

    return registers(factors, own, types.intp, types.intp, lanes), generate


@operation
def accumulate_divided(
    typing: Any,
    indices: Any,
    factors: Any,
    at: Any,
    column: Any,
    value: Any,
    floor: Any,
    folds: Any,
    mine: Any,
    total: Any,
) -> Any:
    """Return `total` plus a nonzero's input factor rows times its value, divided by the models'; see `models_of`."""
    register = _register(factors)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number, floor, _, mine, total = args[4:]
        product, dtype = _product(context, builder, signature, args, total.type), register.dtype
        models = _models(builder, dtype, product, _parts(builder, mine), register.count >> len(folds))
        models = _at_least(context, builder, floor, dtype, models)
        number = splat(builder, context.cast(builder, number, value, dtype), models.type)
        quotients = builder.fdiv(number, models)
        sums = list[Any]()
        for part, so_far in zip(product, _parts(builder, total), strict=True):
            wide = _chosen(builder, quotients, [k % models.type.count for k in range(part.type.count)])
            sums.append(fused(builder, Vector(dtype, part.type.count), part, wide, so_far))
        return _together(builder, sums)

    return total(indices, factors, types.intp, types.intp, value, types.float64, folds, mine, total), generate


@operation
def models_of(typing: Any, indices: Any, factors: Any, at: Any, column: Any, floor: Any, folds: Any, mine: Any) -> Any:
    """Return the values of models at a nonzero, at least `floor`, in double precision.

    `mine` is the output mode's row; `folds` is a tuple whose length says how often a register is halved until it has
    one number of each model.
    """
    register = _register(factors)
    wide = Vector(types.float64, register.count >> len(folds))

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        floor, mine = args[4], args[-1]
        product = _product(context, builder, signature, args, mine.type)
        models = _models(builder, register.dtype, product, _parts(builder, mine), wide.count)
        models = _at_least(context, builder, floor, register.dtype, models)
        kind = context.get_value_type(wide)
        return models if models.type == kind else builder.fpext(models, kind)

    return wide(indices, factors, types.intp, types.intp, types.float64, folds, mine), generate


@operation
def ones(typing: Any, factors: Any, folds: Any) -> Any:
    """Return a vector of ones, as many numbers as models have values."""
    wide = Vector(types.float64, _register(factors).count >> len(folds))

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(context.get_value_type(wide), [1.0] * wide.count)

    return wide(factors, folds), generate


@operation
def times(typing: Any, one: Any, other: Any) -> Any:
    """Return the product of two vectors."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fmul(*args)

    return one(one, other), generate


@operation
def add_to_row(typing: Any, out: Any, row: Any, column: Any, piece: Any) -> Any:
    """Add a piece to a row of a float64 matrix, from `column` on."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
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


def _eight(context: Any, builder: Any, kind: Any, value: Any, *places: Any) -> tuple[Any, Any]:
    """Return where eight numbers of an array begin, as a vector's address, and the numbers in double precision."""
    array = array_of(context, builder, kind, value)
    places = tuple(builder.mul(place, builder.extract_value(array.strides, k)) for k, place in enumerate(places))
    address = builder.bitcast(array.data, ir.IntType(8).as_pointer())
    for place in places:
        address = builder.gep(address, [place])
    item = context.get_value_type(kind.dtype)
    address = builder.bitcast(address, ir.VectorType(item, EIGHT).as_pointer())
    found = builder.load(address, align=kind.dtype.bitwidth // 8)
    wide = ir.VectorType(ir.DoubleType(), EIGHT)
    return address, found if found.type == wide else builder.fpext(found, wide)


@operation
def enlarge(typing: Any, found: Any, part: Any, matrix: Any, phi: Any, row: Any, column: Any) -> Any:
    """Let numbers of a row of `found` be at least ``|min(B, 1 - Phi)|`` of eight columns; NaN wins."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found_value, part, *arrays, row, column = args
        place, so_far = _eight(context, builder, found, found_value, part, column)
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

    return types.none(found, types.intp, matrix, phi, types.intp, types.intp), generate


@operation
def multiply(typing: Any, still: Any, matrix: Any, phi: Any, row: Any, column: Any) -> Any:
    """Multiply eight numbers of a row by Phi, from `column` on, but where `still`, float64, is not 0."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        *arrays, row, column = args
        _, stays = _eight(context, builder, still, arrays[0], column)
        kinds = zip((matrix, phi), arrays[1:], strict=True)
        (place, entry), (_, of_phi) = (_eight(context, builder, kind, value, row, column) for kind, value in kinds)
        goes = builder.fcmp_ordered("==", stays, ir.Constant(stays.type, None))
        product = builder.select(goes, builder.fmul(entry, of_phi), entry)
        stored = place.type.pointee
        product = product if product.type == stored else builder.fptrunc(product, stored)
        builder.store(product, place, align=matrix.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.none(still, matrix, phi, types.intp, types.intp), generate
