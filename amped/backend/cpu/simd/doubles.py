"""Vectors of eight float64 numbers: arithmetic, and reading and writing the data of row problems.

LLVM does not vectorise a plain summation loop, because it must not reorder floating-point sums. Here eight partial sums
are computed in parallel, always in the same order. Arrays of a tensor are read through their addresses instead of as
typed arrays, so that the code is compiled only once, not for every order and type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from .thread_team import inlined
from .vectors import Vector, address_of, operation

if TYPE_CHECKING:
    from .vectors import Builder, Context, Operation, Signature, Type, Typing, Value, Values

EIGHT = 8
FOUR = 4  # entries of a factor row read at once; rows are padded to a multiple of it

LOG_TERMS = 10  # terms of the series of log after the first: 2 s^21 / 21 < 1e-17 s for s <= 0.172
LOG_BIAS = 0x3FE6A09E667F3BCD  # bits of sqrt(1/2): mantissas are in sqrt(1/2) to sqrt(2)
MANTISSA = 52

_double, _int64, _int32 = ir.DoubleType(), ir.IntType(64), ir.IntType(32)
_eight, _four = Vector(types.float64, EIGHT), Vector(types.float64, FOUR)
_doubles, _integers = ir.VectorType(_double, EIGHT), ir.VectorType(_int64, EIGHT)


def _all(value: float) -> Value:
    return ir.Constant(_doubles, [value] * EIGHT)


def _all_integers(value: int) -> Value:
    return ir.Constant(_integers, [value] * EIGHT)


def _shuffle(builder: Builder, a: Value, b: Value, which: Iterable[int]) -> Value:
    positions = [*which]
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_int32, len(positions)), positions))


def _library(builder: Builder, name: str, *arguments: Value) -> Value:
    kind = ir.FunctionType(arguments[0].type, [a.type for a in arguments])
    suffix = f"v{arguments[0].type.count}f64"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.{suffix}"), arguments)


def _at(context: Context, builder: Builder, kind: Type, array: Value, at: Value, vector: ir.Type) -> Value:
    """Return the address of an element of an array as the address of a vector."""
    address = builder.gep(address_of(context, builder, kind, array), [at])
    return builder.bitcast(address, vector.as_pointer())


@operation
def load(typing: Typing, array: Type, at: Type) -> Operation:
    """Load eight numbers of a float64 array."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        return builder.load(_at(context, builder, array, args[0], args[1], _doubles), align=8)

    return _eight(array, types.intp), generate


@operation
def store(typing: Typing, array: Type, at: Type, value: Type) -> Operation:
    """Store eight numbers to a float64 array."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        builder.store(args[2], _at(context, builder, array, args[0], args[1], args[2].type), align=8)
        return context.get_dummy_value()

    return types.none(array, types.intp, value), generate


@operation
def each(typing: Typing, value: Type) -> Operation:
    """Broadcast a number to a vector."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        first = builder.insert_element(ir.Constant(_doubles, ir.Undefined), args[0], _int32(0))
        return _shuffle(builder, first, first, [0] * EIGHT)

    return _eight(types.float64), generate


def _arithmetic(combine: Callable[[Builder, Value, Value], Value]) -> Callable[..., Any]:
    def define(typing: Typing, a: Type, b: Type) -> Operation:
        def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
            return combine(builder, *args)

        return a(a, b), generate

    return operation(define)


plus, minus = (
    _arithmetic(lambda builder, a, b: builder.fadd(a, b)),
    _arithmetic(lambda builder, a, b: builder.fsub(a, b)),
)
times, over = (
    _arithmetic(lambda builder, a, b: builder.fmul(a, b)),
    _arithmetic(lambda builder, a, b: builder.fdiv(a, b)),
)
larger = _arithmetic(lambda builder, a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b))
smaller = _arithmetic(lambda builder, a, b: builder.select(builder.fcmp_ordered("<", a, b), a, b))


@operation
def fused(typing: Typing, a: Type, b: Type, c: Type) -> Operation:
    """Return ``a * b + c``, rounded once."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        return _library(builder, "fma", *args)

    return _eight(_eight, _eight, _eight), generate


@operation
def choose(typing: Typing, test: Type, a: Type, b: Type) -> Operation:
    """Return `a` where `test` is negative, elsewhere `b`."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        return builder.select(builder.fcmp_ordered("<", args[0], _all(0.0)), args[1], args[2])

    return _eight(_eight, _eight, _eight), generate


def _folded(builder: Builder, vectors: list[Value]) -> Value:
    """Return the sums of eight vectors as one vector: add neighbours and merge pairs of vectors, until one is left."""
    for width in (1, 2, 4):
        low, high = list[int](), list[int]()
        for begin in range(0, EIGHT, 2 * width):
            for vector in (0, EIGHT):
                low += range(vector + begin, vector + begin + width)
                high += range(vector + begin + width, vector + begin + 2 * width)
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [builder.fadd(_shuffle(builder, a, b, low), _shuffle(builder, a, b, high)) for a, b in pairs]
    return vectors[0]


@operation
def total(typing: Typing, value: Type) -> Operation:
    """Return the sum of a vector's elements."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        value, count = args[0], EIGHT
        while count > 1:
            count //= 2
            low, high = (_shuffle(builder, value, value, range(k, k + count)) for k in (0, count))
            value = builder.fadd(low, high)
        return builder.extract_element(value, _int32(0))

    return types.float64(value), generate


@operation
def log_of_ratio(typing: Typing, change: Type) -> Operation:
    """Return ``log(1 + change)`` for ``change > -1``, with a relative error of a few units in the last place."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        change, one = args[0], _all(1.0)
        bits = builder.bitcast(builder.fadd(change, one), _integers)
        above = builder.sub(bits, _all_integers(LOG_BIAS))
        exponent = builder.ashr(above, _all_integers(MANTISSA))
        mantissa = builder.bitcast(builder.sub(bits, builder.shl(exponent, _all_integers(MANTISSA))), _doubles)
        near = builder.icmp_signed("==", exponent, _all_integers(0))
        rest = builder.select(near, change, builder.fsub(mantissa, one))
        s = builder.fdiv(rest, builder.fadd(rest, _all(2.0)))
        z, series = builder.fmul(s, s), _all(2 / (2 * LOG_TERMS + 1))
        for k in range(LOG_TERMS - 1, 0, -1):
            series = _library(builder, "fma", series, z, _all(2 / (2 * k + 1)))
        short = _library(builder, "fma", builder.fmul(series, z), s, builder.fadd(s, s))
        # The double with these bits is 1.5 * 2^52 + exponent; this conversion needs no special instruction.
        shifted = builder.add(exponent, builder.bitcast(_all(1.5 * 2.0**MANTISSA), _integers))
        whole = builder.fsub(builder.bitcast(shifted, _doubles), _all(1.5 * 2.0**MANTISSA))
        return _library(builder, "fma", whole, _all(math.log(2)), short)

    return _eight(_eight), generate


def _reader(kind: ir.Type, result: Type, count: int, convert: Callable[[Builder, Value], Value]) -> Callable[..., Any]:
    """Return an operation that reads `count` numbers of LLVM type `kind` at an address and converts them."""
    stored = ir.VectorType(kind, count) if count > 1 else kind

    def read(typing: Typing, address: Type, at: Type) -> Operation:
        def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
            place = builder.gep(builder.inttoptr(args[0], kind.as_pointer()), [args[1]])
            loaded = builder.load(builder.bitcast(place, stored.as_pointer()), align=_bytes(kind))
            return convert(builder, loaded)

        return result(types.int64, types.intp), generate

    return operation(read)


def _bytes(kind: ir.Type) -> int:
    """Return the size of an LLVM number type in bytes."""
    return {"i16": 2, "i32": 4, "float": 4, "double": 8}[str(kind)]


_widened = ir.VectorType(_double, FOUR)
_index16 = _reader(ir.IntType(16), types.int64, 1, lambda builder, n: builder.zext(n, _int64))
_index32 = _reader(_int32, types.int64, 1, lambda builder, n: builder.sext(n, _int64))
_number32 = _reader(ir.FloatType(), types.float64, 1, lambda builder, x: builder.fpext(x, _double))
_number64 = _reader(_double, types.float64, 1, lambda builder, x: x)
_piece32 = _reader(ir.FloatType(), _four, FOUR, lambda builder, v: builder.fpext(v, _widened))
_piece64 = _reader(_double, _four, FOUR, lambda builder, v: v)
_eight32 = _reader(ir.FloatType(), _eight, EIGHT, lambda builder, v: builder.fpext(v, _doubles))
_eight64 = _reader(_double, _eight, EIGHT, lambda builder, v: v)
_short64 = _reader(
    _double, _eight, FOUR, lambda builder, v: _shuffle(builder, v, ir.Constant(v.type, [0.0] * FOUR), range(EIGHT))
)


@inlined
def index(address, at, narrow):  # type: ignore[no-untyped-def]
    """Read an index at an address; `narrow`: 16 bits, otherwise 32."""
    return _index16(address, at) if narrow else _index32(address, at)


@inlined
def number(address, at, wide):  # type: ignore[no-untyped-def]
    """Read a value at an address; `wide`: float64, otherwise float32."""
    return _number64(address, at) if wide else _number32(address, at)


@inlined
def piece(address, at, wide):  # type: ignore[no-untyped-def]
    """Read four entries of a factor matrix as float64; `wide`: stored as float64, otherwise float32."""
    return _piece64(address, at) if wide else _piece32(address, at)


@inlined
def eight(address, at, wide, stride):  # type: ignore[no-untyped-def]
    """Read eight entries of a factor matrix as float64; zeros after those of rows of length 4."""
    if not wide:
        return _eight32(address, at)
    return _short64(address, at) if stride == FOUR else _eight64(address, at)


def _writer(kind: ir.Type, convert: Callable[[Builder, Value], Value]) -> Callable[..., Any]:
    """Return an operation that converts a number and writes it at an address."""

    def write(typing: Typing, address: Type, at: Type, value: Type) -> Operation:
        def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
            place = builder.gep(builder.inttoptr(args[0], kind.as_pointer()), [args[1]])
            builder.store(convert(builder, args[2]), place)
            return context.get_dummy_value()

        return types.none(types.int64, types.intp, types.float64), generate

    return operation(write)


_put32 = _writer(ir.FloatType(), lambda builder, x: builder.fptrunc(x, ir.FloatType()))
_put64 = _writer(_double, lambda builder, x: x)


@inlined
def put_number(address, at, value, wide):  # type: ignore[no-untyped-def]
    """Write a value at an address; `wide`: as float64, otherwise as float32."""
    if wide:
        _put64(address, at, value)
    else:
        _put32(address, at, value)


@operation
def times_four(typing: Typing, value: Type, array: Type, at: Type) -> Operation:
    """Multiply four numbers by those of a float64 array."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        loaded = builder.load(_at(context, builder, array, args[1], args[2], _widened), align=8)
        return builder.fmul(args[0], loaded)

    return _four(_four, array, types.intp), generate


@operation
def transpose(typing: Typing, tile: Type, at: Type, width: Type, out: Type, to: Type, step: Type) -> Operation:
    """Transpose four columns of eight rows of a tile: write them as four vectors.

    Row k of the tile begins at ``at + k * width``, vector c of the output at ``to + c * step``.
    """

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        tile_value, at, width, out_value, to, step = args
        rows = []
        for k in range(EIGHT):
            place = builder.add(at, builder.mul(width, ir.Constant(width.type, k)))
            rows.append(builder.load(_at(context, builder, tile, tile_value, place, _widened), align=8))
        pairs = [_shuffle(builder, rows[k], rows[k + 1], range(EIGHT)) for k in range(0, EIGHT, 2)]
        for c in (0, 2):  # two columns at a time: each vector has four numbers of one column, then four of the other
            which = [c, FOUR + c, EIGHT + c, EIGHT + FOUR + c]
            halves = [_shuffle(builder, pairs[k], pairs[k + 1], [*which, *(w + 1 for w in which)]) for k in (0, 2)]
            for d in (0, 1):
                column = [FOUR * d + i for i in range(FOUR)]
                vector = _shuffle(builder, halves[0], halves[1], [*column, *(EIGHT + i for i in column)])
                place = builder.add(to, builder.mul(step, ir.Constant(step.type, c + d)))
                builder.store(vector, _at(context, builder, out, out_value, place, _doubles), align=8)
        return context.get_dummy_value()

    return types.none(tile, types.intp, types.intp, out, types.intp, types.intp), generate


@operation
def fold(typing: Typing, a: Type, b: Type, c: Type, d: Type, e: Type, f: Type, g: Type, h: Type) -> Operation:
    """Return the sums of eight vectors as one vector."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        return _folded(builder, list(args))

    return _eight(*[_eight] * EIGHT), generate


@operation
def add_weighted(
    typing: Typing, out: Type, at: Type, scratch: Type, weights: Type, row: Type, width: Type
) -> Operation:
    """Add to four numbers of `out` the sums of a row of weights times each of four consecutive rows of `scratch`.

    `weights` and `row` are positions in `scratch`, whose rows have `width` numbers. Zero is added to four more numbers
    of `out`.
    """

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        out_value, at, scratch_value, weights, row, width = args
        rows = [builder.add(row, builder.mul(width, _int64(k))) for k in range(FOUR)]
        zero = _all(0.0)
        totals = [cgutils.alloca_once_value(builder, zero) for _ in rows]
        # LLVM knows the number of iterations, and unrolls the loop, only if each adds one.
        with cgutils.for_range(builder, builder.sdiv(width, _int64(EIGHT))) as loop:
            j = builder.mul(loop.index, _int64(EIGHT))

            def column(row: Value) -> Value:
                place = _at(context, builder, scratch, scratch_value, builder.add(row, j), _doubles)
                return builder.load(place, align=8)

            weight = column(weights)
            for each_row, so_far in zip(rows, totals, strict=True):
                sums = _library(builder, "fma", weight, column(each_row), builder.load(so_far))
                builder.store(sums, so_far)
        found = _folded(builder, [*(builder.load(so_far) for so_far in totals), *[zero] * (EIGHT - FOUR)])
        place = _at(context, builder, out, out_value, at, _doubles)
        builder.store(builder.fadd(builder.load(place, align=8), found), place, align=8)
        return context.get_dummy_value()

    return types.none(out, types.intp, scratch, types.intp, types.intp, types.intp), generate
