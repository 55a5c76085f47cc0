"""Vector values in Numba: pieces of factor rows held in registers.

LLVM vectorises a plain loop over columns badly: with a compile-time length it unrolls the loop fully, without one it
keeps the sum in memory. Here a piece of a row is one value of an LLVM vector type, in one or more registers. Its size
is the length of a tuple, `lanes`, and so part of the signature by which compiled kernels are cached. If the tuple has
floating-point numbers instead of integers, the vector is in double precision, whatever the factors' type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from ..caches import LANE as LANE
from ..caches import LINE as LINE

STORE, ADD, PAST = range(3)
"""How `put` writes a sum: overwrite, add, or overwrite by a non-temporal store, which bypasses the caches."""


if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.datamodel import DataModelManager
    from numba.core.typing import Signature as NumbaSignature
    from numba.core.typing.context import BaseContext as BaseTyping

    Builder: TypeAlias = ir.IRBuilder
    Context: TypeAlias = BaseContext
    Signature: TypeAlias = NumbaSignature
    Type: TypeAlias = types.Type
    Typing: TypeAlias = BaseTyping
    Value: TypeAlias = ir.Value
    Values: TypeAlias = Sequence[ir.Value]
    Operation: TypeAlias = tuple[Signature, Callable[[Context, Builder, Signature, Values], Value]]


def operation(define: Callable[..., Operation]) -> Callable[..., Any]:
    """Make an intrinsic of a function that maps argument types to a signature and a code generator."""
    operation: Callable[..., Any] = intrinsic(define)
    return operation


class Vector(types.Type):  # type: ignore[misc]
    """The type of a piece of a row: `count` floating-point numbers."""

    def __init__(self, dtype: Type, count: int) -> None:
        self.dtype, self.count = dtype, count
        super().__init__(f"Vector({dtype}, {count})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: DataModelManager, vector: Vector) -> None:
        element = manager.lookup(vector.dtype).get_value_type()
        super().__init__(manager, vector, ir.VectorType(element, vector.count))


def vector_of(factors: Type, lanes: Type) -> Vector:
    """Return the type of a piece of a row of the length of `lanes`."""
    stored = factors.types[0].dtype
    dtype = types.float64 if isinstance(lanes.dtype, types.Float) else stored
    return Vector(dtype, len(lanes) * LANE * 8 // stored.bitwidth)


def array_of(context: Context, builder: Builder, kind: Type, value: Value) -> cgutils._StructProxy:
    """Return an array's structure: `data`, `shape`, `strides`, ..."""
    return context.make_array(kind)(context, builder, value)


def address_of(context: Context, builder: Builder, kind: Type, value: Value) -> Value:
    """Return the address of an array's first element."""
    return array_of(context, builder, kind, value).data


def splat(builder: Builder, scalar: Value, kind: ir.Type) -> Value:
    """Broadcast a number to a vector."""
    zero = ir.Constant(ir.IntType(32), 0)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, zero)
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(ir.IntType(32), kind.count), None))


def row_address(context: Context, builder: Builder, kind: Type, matrix: Value, index: Value, column: Value) -> Value:
    """Return the address of an element of a contiguous matrix."""
    array = array_of(context, builder, kind, matrix)
    width = builder.extract_value(array.shape, 1)
    return builder.gep(array.data, [builder.add(builder.mul(index, width), column)])


def input_rows(
    context: Context, builder: Builder, signature: Signature, args: Values, at: Value, column: Value
) -> list[Value]:
    """Return the addresses of the input factor rows of nonzero `at`, from `column` on."""
    (indices, factors), (index_values, factor_values) = signature.args[:2], args[:2]
    addresses = []
    for m, kind in enumerate(factors.types):
        array = array_of(context, builder, indices.types[m], builder.extract_value(index_values, m))
        index = context.cast(builder, builder.load(builder.gep(array.data, [at])), indices.types[m].dtype, types.intp)
        addresses.append(row_address(context, builder, kind, builder.extract_value(factor_values, m), index, column))
    return addresses


def load_piece(builder: Builder, address: Value, stored: ir.Type, kind: ir.Type) -> Value:
    """Load numbers of type `stored` as a vector of type `kind`, which may be wider."""
    narrow = ir.VectorType(stored, kind.count)
    loaded = builder.load(builder.bitcast(address, narrow.as_pointer()), align=4)
    return loaded if narrow == kind else builder.fpext(loaded, kind)


@operation
def zero(typing: Typing, factors: Type, lanes: Type) -> Operation:
    """Return a vector of zeros."""
    vector = vector_of(factors, lanes)

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        return ir.Constant(context.get_value_type(vector), None)

    return vector(factors, lanes), generate


def fused(builder: Builder, vector: Vector, a: Value, b: Value, c: Value) -> Value:
    """Return ``a * b + c``, rounded once (FMA)."""
    name, kind = f"llvm.fma.v{vector.count}f{vector.dtype.bitwidth}", a.type
    return builder.call(
        cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name), [a, b, c]
    )


def plus_nonzero(
    context: Context, builder: Builder, signature: Signature, args: Values, at: Value, column: Value, total: Value
) -> Value:
    """Return `total` plus a nonzero's value times its input factor rows, from `column` on.

    The first arguments of the operation are indices, factors and values; its return type is the type of `total`.
    """
    (_, factors, values), vector = signature.args[:3], signature.return_type
    stored = context.get_value_type(factors.types[0].dtype)
    array = array_of(context, builder, values, args[2])
    value = context.cast(builder, builder.load(builder.gep(array.data, [at])), values.dtype, vector.dtype)
    *others, last = input_rows(context, builder, signature, args, at, column)
    product = splat(builder, value, total.type)
    for address in others:
        product = builder.fmul(product, load_piece(builder, address, stored, total.type))
    return fused(builder, vector, product, load_piece(builder, last, stored, total.type), total)


@operation
def add_scaled(typing: Typing, factor: Type, row: Type, column: Type, scalar: Type, total: Type) -> Operation:
    """Return `total` plus a number times a row of a factor matrix, from `column` on."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        matrix, row, column, number, total_value = args
        address = row_address(context, builder, factor, matrix, row, column)
        stored, kind = context.get_value_type(factor.dtype), total_value.type
        number = splat(builder, context.cast(builder, number, scalar, total.dtype), kind)
        return fused(builder, total, number, load_piece(builder, address, stored, kind), total_value)

    return total(factor, types.intp, types.intp, scalar, total), generate


def prefetch_bytes(builder: Builder, address: Value, size: int) -> None:
    """Prefetch `size` bytes."""
    byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
    name, kind = "llvm.prefetch.p0i8", ir.FunctionType(ir.VoidType(), [byte, word, word, word])
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    read, near, data = (ir.Constant(word, n) for n in (0, 3, 1))
    start = builder.bitcast(address, byte)
    for offset in range(0, size, LINE):
        builder.call(function, [builder.gep(start, [ir.Constant(word, offset)]), read, near, data])


@operation
def prefetch(typing: Typing, indices: Type, factors: Type, at: Type, column: Type, lanes: Type) -> Operation:
    """Prefetch the input factor rows of a nonzero, from `column` on."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        for address in input_rows(context, builder, signature, args, args[2], args[3]):
            prefetch_bytes(builder, address, len(lanes) * LANE)
        return context.get_dummy_value()

    return types.none(indices, factors, types.intp, types.intp, lanes), generate


@operation
def read_line(typing: Typing, matrix: Type, at: Type) -> Operation:
    """Load a cache line of a contiguous matrix and discard it; sequential loads trigger the hardware prefetcher."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        address = builder.gep(array_of(context, builder, matrix, args[0]).data, [args[1]])
        builder.load_atomic(address, "monotonic", matrix.dtype.bitwidth // 8)  # atomic, so as not to be optimised away
        return context.get_dummy_value()

    return types.none(matrix, types.intp), generate


def write(builder: Builder, value: Value, address: Value, item: int, way: Value) -> None:
    """Write a vector to an address, widened if necessary; `item` is the bytes of a number, `way` STORE, ADD or PAST."""
    wide = address.type.pointee
    value = value if value.type == wide else builder.fpext(value, wide)
    end = builder.append_basic_block("put")
    choice = builder.switch(way, builder.append_basic_block("store"))
    with builder.goto_block(choice.default):
        builder.store(value, address, align=item)
        builder.branch(end)
    added, past = builder.append_basic_block("add"), builder.append_basic_block("past")
    choice.add_case(ir.Constant(way.type, ADD), added)
    with builder.goto_block(added):
        builder.store(builder.fadd(builder.load(address, align=item), value), address, align=item)
        builder.branch(end)
    choice.add_case(ir.Constant(way.type, PAST), past)
    with builder.goto_block(past):
        store = builder.store(value, address, align=min(LINE, item * wide.count))
        one = ir.Constant(ir.IntType(32), 1)
        store.set_metadata("nontemporal", builder.module.add_metadata([one]))
        builder.branch(end)
    builder.position_at_end(end)


def vector_address(
    context: Context, builder: Builder, out: Type, matrix: Value, row: Value, column: Value, count: int
) -> Value:
    """Return the address of `count` numbers of a contiguous matrix as a vector's address."""
    wide = ir.VectorType(context.get_value_type(out.dtype), count)
    return builder.bitcast(row_address(context, builder, out, matrix, row, column), wide.as_pointer())


@operation
def put(typing: Typing, out: Type, row: Type, column: Type, vector: Type, way: Type) -> Operation:
    """Write a vector to a row of a matrix of its type or float64, from `column` on; `way` is STORE, ADD or PAST."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        matrix, row, column, value, way = args
        address = vector_address(context, builder, out, matrix, row, column, vector.count)
        write(builder, value, address, out.dtype.bitwidth // 8, way)
        return context.get_dummy_value()

    return types.none(out, types.intp, types.intp, vector, types.intp), generate


@operation
def fence(typing: Typing) -> Operation:
    """Memory fence: orders all stores so far, non-temporal ones too, before later ones."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.none(), generate
