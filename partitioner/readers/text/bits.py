"""LLVM intrinsics that Numba lacks, for parsing text: word loads, a search for blanks in 64 bytes, bit counts."""

# Numba infers the types of the compiled functions.
# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .plain import NEWLINE

_inline: Callable[..., Any] = intrinsic  # decorates a function written in LLVM instructions


@_inline
def load_word(typing_context, text, at):
    """Return the eight bytes from `at` on as a little-endian word."""

    def generate(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        place = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(64).as_pointer())
        return builder.load(place, align=1)

    return types.uint64(text, types.int64), generate


@_inline
def find_blanks(typing_context, text, at):
    """Return two masks of 64 bytes: bit b is set if byte `at` + b is a blank or control byte; if it is a newline."""
    pair = types.UniTuple(types.uint64, 2)

    def generate(context, builder, signature, args):
        byte, bits = ir.IntType(8), ir.IntType(64)
        vector = ir.VectorType(byte, 64)
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        place = builder.bitcast(builder.gep(data, [args[1]]), vector.as_pointer())
        chunk = builder.load(place, align=1)
        blank = builder.icmp_unsigned("<=", chunk, ir.Constant(vector, [byte(32)] * 64))
        newline = builder.icmp_unsigned("==", chunk, ir.Constant(vector, [byte(NEWLINE)] * 64))
        masks = [builder.bitcast(blank, bits), builder.bitcast(newline, bits)]
        return context.make_tuple(builder, pair, masks)

    return pair(text, types.int64), generate


def _bit_count(name):
    """Return an intrinsic for LLVM's ctlz or cttz (64 for a zero word) or ctpop."""

    @_inline
    def count(typing_context, word):
        def generate(context, builder, signature, args):
            zero_is_defined = [] if name == "ctpop" else [ir.Constant(ir.IntType(1), 0)]
            return getattr(builder, name)(*args, *zero_is_defined)

        return types.uint64(types.uint64), generate

    return count


leading_zeros, trailing_zeros, count_ones = (_bit_count(name) for name in ("ctlz", "cttz", "ctpop"))


@_inline
def product_high(typing_context, a, b):
    """Return the upper 64 bits of the 128-bit product; ``a * b`` gives the lower ones."""

    def generate(context, builder, signature, args):
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


@_inline
def as_double(typing_context, bits):
    """Return the double with these bits."""

    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.uint64), generate
