"""TTMc over nonzeros cut into pieces of output rows; see `amped.backend.ops.ttmc`.

A thread has a tree with one node per input mode. Node ``m`` accumulates, over the current run of equal indices, the
Kronecker products of the rows of the modes from `m` on. Rows of the last mode are padded to whole vectors, so that
every loop runs over a multiple of the vector length.

The code is compiled once for all orders: what depends on the input modes is in one array of numbers, `layout`, with a
row for each of `ROWS`. Loops that depend on types are written as instructions; see `simd.row_sums`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from partitioner.host.jit import inner, jit

from ..simd.thread_team import add, fork, join
from ..simd.vectors import Vector, address_of, array_of, fused, load_piece, operation, splat, vector_of
from .units import add_carries, clear_sums

if TYPE_CHECKING:
    from ..simd.vectors import Builder, Context, Operation, Signature, Type, Typing, Value, Values

SUMMED = 256  # nonzeros: longest sum accumulated in a tree
COLUMNS, MATRICES, STRIDES, RANKS, SIZES, NODES = ROWS = range(6)
"""Rows of a layout, by input mode: addresses of the index columns and of the factor matrices, row lengths and ranks of
these, sizes of the nodes, and their positions in a tree."""

_int64 = ir.IntType(64)


class _InputModes:
    """What instructions read of the input modes; `like` is the type of a pair of an index column and a matrix."""

    def __init__(self, context: Context, builder: Builder, like: Type, layout: Value, inputs: Value) -> None:
        self._context, self._builder, self._layout, self.inputs = context, builder, layout, inputs
        self._index, self._number = like.types[0].dtype, like.types[1].dtype

    def word(self, row: int, mode: Value) -> Value:
        """Return a number of the layout."""
        builder = self._builder
        at = builder.add(builder.mul(self.inputs, _int64(row)), mode)
        return builder.load(builder.gep(self._layout, [at]))

    def index(self, mode: Value, at: Value) -> Value:
        """Return the index of nonzero `at`."""
        loaded = self._builder.load(self._element(self.word(COLUMNS, mode), at, self._index))
        return self._context.cast(self._builder, loaded, self._index, types.intp)

    def number(self, matrix: Value, at: Value) -> Value:
        """Return the address of a number of the factor matrix at an address."""
        return self._element(matrix, at, self._number)

    def _element(self, base: Value, at: Value, kind: Type) -> Value:
        pointer = self._context.get_value_type(kind).as_pointer()
        return self._builder.gep(self._builder.inttoptr(base, pointer), [at])


def _vector(like: Type, lanes: Type) -> Vector:
    """Return the type of a piece of a row."""
    return vector_of(types.Tuple(like.types[1:]), lanes)


def _layout_of(context: Context, builder: Builder, layout: Type, value: Value) -> tuple[Value, Value]:
    """Return the address of a layout and the number of input modes."""
    array = array_of(context, builder, layout, value)
    return array.data, builder.extract_value(array.shape, 1)


def _add(builder: Builder, vector: Vector, number: Value, part: Value, address: Value) -> None:
    """Add a number times a vector to consecutive numbers of a tree."""
    place = builder.bitcast(address, part.type.as_pointer())
    wide = splat(builder, number, part.type)
    builder.store(fused(builder, vector, wide, part, builder.load(place, align=4)), place, align=4)


@operation
def _add_leaf(
    typing: Typing,
    like: Type,
    tree: Type,
    leaf: Type,
    column: Type,
    matrix: Type,
    stride: Type,
    values: Type,
    at: Type,
    lanes: Type,
) -> Operation:
    """Add nonzero `at` times its row of the last matrix to the leaf; column and matrix are addresses."""
    vector = _vector(like, lanes)

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        _, tree_value, leaf, column, matrix, stride, values_value, at, _ = args
        index_type, stored = context.get_value_type(like.types[0].dtype), context.get_value_type(like.types[1].dtype)
        index = builder.load(builder.gep(builder.inttoptr(column, index_type.as_pointer()), [at]))
        row = builder.mul(context.cast(builder, index, like.types[0].dtype, types.intp), stride)
        source = builder.gep(builder.inttoptr(matrix, stored.as_pointer()), [row])
        target = builder.gep(address_of(context, builder, tree, tree_value), [leaf])
        value = builder.load(builder.gep(address_of(context, builder, values, values_value), [at]))
        value = context.cast(builder, value, values.dtype, vector.dtype)
        zero, step = _int64(0), _int64(vector.count)
        with cgutils.for_range_slice(builder, zero, stride, step) as (k, _):
            part = load_piece(builder, builder.gep(source, [k]), stored, context.get_value_type(vector))
            _add(builder, vector, value, part, builder.gep(target, [k]))
        return context.get_dummy_value()

    places = types.intp, types.int64, types.int64, types.intp
    return types.none(like, tree, *places, values, types.intp, lanes), generate


@operation
def _first_change(typing: Typing, like: Type, layout: Type, at: Type) -> Operation:
    """Return the first input mode whose index differs from the previous nonzero's, or else the last one."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        modes = _InputModes(context, builder, like, *_layout_of(context, builder, layout, args[1]))
        last, before = builder.sub(modes.inputs, _int64(1)), builder.sub(args[2], _int64(1))
        found = cgutils.alloca_once_value(builder, last)
        with cgutils.for_range(builder, last) as loop:
            differs = builder.icmp_signed("!=", modes.index(loop.index, args[2]), modes.index(loop.index, before))
            with builder.if_then(differs):
                builder.store(loop.index, found)
                loop.do_break()
        return builder.load(found)

    return types.intp(like, layout, types.intp), generate


@operation
def _fold(typing: Typing, like: Type, tree: Type, layout: Type, at: Type, level: Type, lanes: Type) -> Operation:
    """Fold the nodes below `level`, deepest first, into their parents; `at` is a nonzero of their runs."""
    vector = _vector(like, lanes)

    def write(context: Context, builder: Builder, args: Values) -> None:
        tree_data, layout_data, inputs, at, level = args
        modes, one = _InputModes(context, builder, like, layout_data, inputs), _int64(1)
        kind, stored = context.get_value_type(vector), context.get_value_type(like.types[1].dtype)
        deepest = builder.sub(inputs, _int64(2))
        with cgutils.for_range_slice(builder, deepest, builder.sub(level, one), _int64(-1), inc=False) as (m, _):
            below = builder.add(m, one)
            size, rank = modes.word(SIZES, below), modes.word(RANKS, m)
            source = builder.gep(tree_data, [modes.word(NODES, below)])
            target = builder.gep(tree_data, [modes.word(NODES, m)])
            row = builder.mul(modes.index(m, at), modes.word(STRIDES, m))
            numbers = modes.number(modes.word(MATRICES, m), row)
            with cgutils.for_range_slice(builder, _int64(0), size, _int64(vector.count)) as (k, _):
                place = builder.gep(source, [k])
                part = load_piece(builder, place, kind.element, kind)
                with cgutils.for_range(builder, rank) as loop:
                    number = builder.load(builder.gep(numbers, [loop.index]))
                    number = number if stored == kind.element else builder.fpext(number, kind.element)
                    to = builder.add(k, builder.mul(loop.index, size))
                    _add(builder, vector, number, part, builder.gep(target, [to]))
                builder.store(ir.Constant(kind, None), builder.bitcast(place, kind.as_pointer()), align=4)
        builder.ret_void()

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        values = [address_of(context, builder, tree, args[1]), *_layout_of(context, builder, layout, args[2])]
        values += args[3:5]
        function = _internal(builder, "fold", values, lambda inside, inner_args: write(context, inside, inner_args))
        builder.call(function, values)
        return context.get_dummy_value()

    return types.none(like, tree, layout, types.intp, types.intp, lanes), generate


def _internal(builder: Builder, name: str, values: Values, write: Callable[[Builder, Values], None]) -> ir.Function:
    """Return a function of the module that takes such values, and write its instructions at the first call."""
    module = builder.module
    if name in module.globals:
        return module.globals[name]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [value.type for value in values]), name)
    function.linkage = "internal"
    write(ir.IRBuilder(function.append_basic_block()), function.args)
    return function


@inner
def _write_root(tree, sums, row, replace, groups, rank, stride):  # type: ignore[no-untyped-def]
    """Move the root node, (groups, stride), to a row of sums, (groups, rank) float64, and clear it."""
    for g in range(groups):
        for k in range(rank):
            value = np.float64(tree[g * stride + k])
            if replace:
                sums[row, g * rank + k] = value
            else:
                sums[row, g * rank + k] += value
        for k in range(stride):
            tree[g * stride + k] = 0


@jit
def ttmc(  # type: ignore[no-untyped-def]
    number, team, threads, turn, nonzeros, like, layout, out, row_begin, new, parts, carries, trees, lanes
):
    """Compute pieces of output rows with the threads of a team; the additions of a part always have the same order.

    Parameters
    ----------
    number, team : int, array
        See `thread_team`.
    threads : int
    turn : (1,) int64 array
        Counter from which threads take parts.
    nonzeros : tuple
        The starts of the pieces and the end, (pieces + 1,); their output indices, (pieces,); the values, (nnz,).
    like : tuple
        An index column and a factor matrix, which have the types of all.
    layout : (rows, inputs) int64 array
        See `ROWS`.
    out : (rows, width) float64 array
    row_begin : int
        Output index of row 0.
    new : tuple of int
        Range of the output's rows that have no sums yet.
    parts : tuple
        The arrays of `layout.Parts`.
    carries : (parts, width) float64 array
        Sums of the row that a part shares with an earlier one.
    trees : (threads, nodes) array
        In the factors' precision or in double precision.
    lanes : tuple
        Size of the column pieces of a row, and whether they are computed in double precision; see `vectors`.

    Returns
    -------
    int
        The number of threads that failed.
    """
    starts, rows, values = nonzeros
    bounds, shared, firsts = parts
    inputs, count, columns = layout.shape[1], shared.size, out.shape[1]
    if number == 0:
        turn[0] = 0
    called = fork(team, number, threads)
    tree, stride, rank = trees[number], layout[STRIDES, inputs - 1], layout[RANKS, inputs - 1]
    leaf, column, last = layout[NODES, inputs - 1], layout[COLUMNS, inputs - 1], layout[MATRICES, inputs - 1]
    groups = layout[SIZES, 0] // stride
    for k in range(tree.size):
        tree[k] = 0
    part = add(turn, 0, 1)
    while part < count:
        low = new[0] if part == 0 else firsts[part] - row_begin  # cleared by this part if they have no nonzeros
        high = new[1] if part == count - 1 else firsts[part + 1] - row_begin
        clear_sums(carries, part, part + 1, 0, columns)
        begin, end = bounds[part], bounds[part + 1]
        summed, stored = 0, False
        for c in range(begin, end):
            start, stop, row = np.int64(starts[c]), np.int64(starts[c + 1]), np.int64(rows[c])
            carried = row == shared[part]
            if c == begin or rows[c - 1] != row:
                stored = carried
                if not carried:
                    clear_sums(out, low, row - row_begin, 0, columns)
                low = max(low, row - row_begin + 1)
            for q in range(start, stop):
                if summed and inputs > 1:
                    level = _first_change(like, layout, q)
                    if level < inputs - 1:
                        _fold(like, tree, layout, q - 1, level, lanes)
                _add_leaf(like, tree, leaf, column, last, stride, values, q, lanes)
                summed += 1
            if summed >= SUMMED or c + 1 == end or rows[c + 1] != row:
                _fold(like, tree, layout, stop - 1, 0, lanes)
                replace = not stored
                if carried:
                    _write_root(tree, carries, part, replace, groups, rank, stride)
                else:
                    _write_root(tree, out, row - row_begin, replace, groups, rank, stride)
                    stored = True
                summed = 0
        clear_sums(out, max(low, 0), high, 0, columns)
        part = add(turn, 0, 1)
    faults = join(team, called)
    if number == 0:
        add_carries(out, carries, shared, row_begin, 0, columns)
    return faults
