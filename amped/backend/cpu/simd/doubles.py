"""Eight doubles at a time: arithmetic on vectors, and how a row problem's numbers are read and written.

LLVM adds up a plain loop one number after the other, as floating-point sums may not be reordered; here eight sums are
kept side by side, in the same order every time. Columns of a tensor are read by their addresses, not as typed arrays:
so code is compiled once, not for every order and type.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from .thread_team import inlined
from .vectors import Vector, address_of, operation

EIGHT = 8
FOUR = 4  # numbers of a factor row that are read at a time; rows are whole multiples in memory

LOG_TERMS = 10  # of the series of log, after the first: 2 s^21 / 21 < 1e-17 s for s <= 0.172
LOG_BIAS = 0x3FE6A09E667F3BCD  # bits of sqrt(1/2): mantissas are taken between it and sqrt(2)
MANTISSA = 52

_double, _int64, _int32 = ir.DoubleType(), ir.IntType(64), ir.IntType(32)
_eight, _four = Vector(types.float64, EIGHT), Vector(types.float64, FOUR)
_doubles, _integers = ir.VectorType(_double, EIGHT), ir.VectorType(_int64, EIGHT)


def _all(value: float) -> Any:
    return ir.Constant(_doubles, [value] * EIGHT)


def _all_integers(value: int) -> Any:
    return ir.Constant(_integers, [value] * EIGHT)


def _shuffle(builder: Any, a: Any, b: Any, which: Iterable[int]) -> Any:
    places = [*which]
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_int32, len(places)), places))


def _library(builder: Any, name: str, *arguments: Any) -> Any:
    kind = ir.FunctionType(arguments[0].type, [a.type for a in arguments])
    suffix = f"v{arguments[0].type.count}f64"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.{suffix}"), arguments)


def _at(context: Any, builder: Any, kind: Any, array: Any, at: Any, vector: Any) -> Any:
    """Return the address of numbers of an array as that of a vector."""
    address = builder.gep(address_of(context, builder, kind, array), [at])
    return builder.bitcast(address, vector.as_pointer())


@operation
def load(typing: Any, room: Any, at: Any) -> Any:
    """Return eight numbers of a float64 array."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_at(context, builder, room, args[0], args[1], _doubles), align=8)

    return _eight(room, types.intp), generate


@operation
def store(typing: Any, room: Any, at: Any, value: Any) -> Any:
    """Write eight numbers to a float64 array."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _at(context, builder, room, args[0], args[1], args[2].type), align=8)
        return context.get_dummy_value()

    return types.none(room, types.intp, value), generate


@operation
def each(typing: Any, value: Any) -> Any:
    """Return a vector of one number."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first = builder.insert_element(ir.Constant(_doubles, ir.Undefined), args[0], _int32(0))
        return _shuffle(builder, first, first, [0] * EIGHT)

    return _eight(types.float64), generate


def _arithmetic(combine: Any) -> Any:
    def define(typing: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
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
def fused(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """Return ``a * b + c``, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _library(builder, "fma", *args)

    return _eight(_eight, _eight, _eight), generate


@operation
def choose(typing: Any, test: Any, a: Any, b: Any) -> Any:
    """Return `a` where `test` is negative, else `b`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", args[0], _all(0.0)), args[1], args[2])

    return _eight(_eight, _eight, _eight), generate


def _folded(builder: Any, vectors: list[Any]) -> Any:
    """Return the sums of eight vectors: neighbours are added, and each two vectors share one, until one is left."""
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
def total(typing: Any, value: Any) -> Any:
    """Return the sum of a vector's numbers."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value, count = args[0], EIGHT
        while count > 1:
            count //= 2
            low, high = (_shuffle(builder, value, value, range(k, k + count)) for k in (0, count))
            value = builder.fadd(low, high)
        return builder.extract_element(value, _int32(0))

    return types.float64(value), generate


@operation
def log_of_ratio(typing: Any, change: Any) -> Any:
    """Return ``log(1 + change)``, exact to a few units in the last place for small changes too; ``change > -1``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
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
        # A double of these bits is 1.5 * 2^52 plus the exponent: no processor feature is needed to convert it.
        shifted = builder.add(exponent, builder.bitcast(_all(1.5 * 2.0**MANTISSA), _integers))
        whole = builder.fsub(builder.bitcast(shifted, _doubles), _all(1.5 * 2.0**MANTISSA))
        return _library(builder, "fma", whole, _all(math.log(2)), short)

    return _eight(_eight), generate


def _reader(kind: Any, result: Any, count: int, convert: Any) -> Any:
    """Return an operation that reads `count` numbers at an address, which are of that kind in memory."""
    stored = ir.VectorType(kind, count) if count > 1 else kind

    def read(typing: Any, address: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            place = builder.gep(builder.inttoptr(args[0], kind.as_pointer()), [args[1]])
            loaded = builder.load(builder.bitcast(place, stored.as_pointer()), align=_bytes(kind))
            return convert(builder, loaded)

        return result(types.int64, types.intp), generate

    return operation(read)


def _bytes(kind: Any) -> int:
    """Return the bytes of a number of an LLVM type."""
    return {"i16": 2, "i32": 4, "float": 4, "double": 8}[str(kind)]


_widened = ir.VectorType(_double, FOUR)
_index16 = _reader(ir.IntType(16), types.int64, 1, lambda builder, n: builder.zext(n, _int64))
_index32 = _reader(_int32, types.int64, 1, lambda builder, n: builder.sext(n, _int64))
_number32 = _reader(ir.FloatType(), types.float64, 1, lambda builder, x: builder.fpext(x, _double))
_number64 = _reader(_double, types.float64, 1, lambda builder, x: x)
_piece32 = _reader(ir.FloatType(), _four, FOUR, lambda builder, v: builder.fpext(v, _widened))
_piece64 = _reader(_double, _four, FOUR, lambda builder, v: v)


@inlined
def index(address, at, narrow):  # type: ignore[no-untyped-def]
    """Return an index of a column at an address; `narrow`: of 16 bits."""
    return _index16(address, at) if narrow else _index32(address, at)


@inlined
def number(address, at, wide):  # type: ignore[no-untyped-def]
    """Return a value; `wide`: in double precision."""
    return _number64(address, at) if wide else _number32(address, at)


@inlined
def piece(address, at, wide):  # type: ignore[no-untyped-def]
    """Return four numbers of a factor matrix, in double precision."""
    return _piece64(address, at) if wide else _piece32(address, at)


@operation
def times_four(typing: Any, value: Any, room: Any, at: Any) -> Any:
    """Return four numbers times those of a float64 array."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loaded = builder.load(_at(context, builder, room, args[1], args[2], _widened), align=8)
        return builder.fmul(args[0], loaded)

    return _four(_four, room, types.intp), generate


@operation
def turn(typing: Any, tile: Any, at: Any, width: Any, out: Any, to: Any, step: Any) -> Any:
    """Write four columns of eight rows of a tile as four vectors.

    Row k of the tile begins at ``at + k * width``, vector c of the output at ``to + c * step``.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        tile_value, at, width, out_value, to, step = args
        rows = []
        for k in range(EIGHT):
            place = builder.add(at, builder.mul(width, ir.Constant(width.type, k)))
            rows.append(builder.load(_at(context, builder, tile, tile_value, place, _widened), align=8))
        pairs = [_shuffle(builder, rows[k], rows[k + 1], range(EIGHT)) for k in range(0, EIGHT, 2)]
        for c in (0, 2):  # two columns at a time: each vector has four numbers of one, then four of the other
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
def fold(typing: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> Any:
    """Return the sums of eight vectors, as one."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _folded(builder, list(args))

    return _eight(*[_eight] * EIGHT), generate
