"""TTMc over nonzeros cut into pieces of output rows; see `amped.backend.ops.ttmc`.

A thread has a tree with one node per input mode. Node ``m`` accumulates, over the current run of equal indices, the
Kronecker products of the rows of the modes from `m` on. Rows of the last mode are padded to whole vectors, so that
every loop runs over a multiple of the vector length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir
from numba import types

from partitioner.host.jit import jit

from ..simd.thread_team import add, fork, inlined, join
from ..simd.vectors import LANE, address_of, fused, load_piece, operation, splat, vector_of

if TYPE_CHECKING:
    from ..simd.vectors import Builder, Context, Operation, Signature, Type, Typing, Value, Values

SUMMED = 256  # nonzeros: longest sum accumulated in a tree


@operation
def _node(typing: Typing, factors: Type, tree: Type, at: Type, lanes: Type) -> Operation:
    """Return consecutive numbers of a tree as a vector."""
    vector = vector_of(factors, lanes)

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        kind, stored = context.get_value_type(vector), context.get_value_type(tree.dtype)
        return load_piece(builder, builder.gep(address_of(context, builder, tree, args[1]), [args[2]]), stored, kind)

    return vector(factors, tree, types.intp, lanes), generate


def _at(builder: Builder, base: Value, at: Value, kind: ir.Type) -> Value:
    """Return the address of element `at` of an array, given the array's address as an integer."""
    return builder.gep(builder.inttoptr(base, kind.as_pointer()), [at])


@operation
def _index(typing: Typing, indices: Type, base: Type, at: Type) -> Operation:
    """Return an index of the column at an address.

    Taking an array out of a tuple by a variable position would update its reference count, which takes longer than a
    load.
    """
    stored = indices.types[0].dtype

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        loaded = builder.load(_at(builder, args[1], args[2], context.get_value_type(stored)))
        return context.cast(builder, loaded, stored, types.intp)

    return types.intp(indices, types.int64, types.intp), generate


@operation
def _number(typing: Typing, factors: Type, base: Type, at: Type) -> Operation:
    """Return a number of the factor matrix at an address."""
    stored = factors.types[0].dtype

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        return builder.load(_at(builder, args[1], args[2], context.get_value_type(stored)))

    return stored(factors, types.int64, types.intp), generate


@operation
def _row(typing: Typing, factors: Type, base: Type, at: Type, lanes: Type) -> Operation:
    """Return a piece of a row, as a vector, of the factor matrix at an address."""
    vector = vector_of(factors, lanes)

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        kind, stored = context.get_value_type(vector), context.get_value_type(factors.types[0].dtype)
        return load_piece(builder, _at(builder, args[1], args[2], stored), stored, kind)

    return vector(factors, types.int64, types.intp, lanes), generate


@operation
def _add(typing: Typing, tree: Type, at: Type, scale: Type, part: Type) -> Operation:
    """Add `scale` times a vector to consecutive numbers of a tree."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        array, place, number, value = args
        address = builder.gep(address_of(context, builder, tree, array), [place])
        place = builder.bitcast(address, value.type.as_pointer())
        wide = splat(builder, context.cast(builder, number, scale, part.dtype), value.type)
        builder.store(fused(builder, part, wide, value, builder.load(place, align=4)), place, align=4)
        return context.get_dummy_value()

    return types.none(tree, types.intp, scale, part), generate


@operation
def _zero(typing: Typing, factors: Type, tree: Type, at: Type, lanes: Type) -> Operation:
    """Set consecutive numbers of a tree to zero."""
    vector = vector_of(factors, lanes)

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        kind = context.get_value_type(vector)
        address = builder.gep(address_of(context, builder, tree, args[1]), [args[2]])
        builder.store(ir.Constant(kind, None), builder.bitcast(address, kind.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.none(factors, tree, types.intp, lanes), generate


@inlined
def _fold(tree, nodes, sizes, ranks, inputs_of, at, level, step, lanes):  # type: ignore[no-untyped-def]
    """Fold the nodes below `level`, deepest first, into their parents; `at` is a nonzero of their runs."""
    indices, factors, columns, matrices, strides = inputs_of
    for m in range(ranks.size - 2, level - 1, -1):
        size, source, rank, matrix = sizes[m + 1], nodes[m + 1], ranks[m], matrices[m]
        row = _index(indices, columns[m], at) * strides[m]
        for k in range(0, size, step):
            part, to = _node(factors, tree, source + k, lanes), nodes[m] + k
            for r in range(rank):
                _add(tree, to, _number(factors, matrix, row + r), part)
                to += size
            _zero(factors, tree, source + k, lanes)


@inlined
def _write_root(tree, sums, row, store, groups, rank, stride):  # type: ignore[no-untyped-def]
    """Move the root node, (groups, stride), to a row of sums, (groups, rank) float64, and clear it."""
    for g in range(groups):
        for k in range(rank):
            value = np.float64(tree[g * stride + k])
            if store:
                sums[row, g * rank + k] = value
            else:
                sums[row, g * rank + k] += value
        for k in range(stride):
            tree[g * stride + k] = 0


@inlined
def _first_change(indices, columns, at):  # type: ignore[no-untyped-def]
    """Return the first input mode whose index differs from the previous nonzero's, or else the last one."""
    m = 0
    while m < columns.size - 1 and _index(indices, columns[m], at) == _index(indices, columns[m], at - 1):
        m += 1
    return m


@jit
def ttmc(  # type: ignore[no-untyped-def]
    number,
    team,
    threads,
    turn,
    nonzeros,
    factors,
    addresses,
    ranks,
    out,
    row_begin,
    new,
    parts,
    carries,
    trees,
    lanes,
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
        See `segmented`.
    factors : tuple of (I_m, stride) arrays
    addresses : tuple
        Addresses of the index columns and of the factor matrices, (inputs,) int64 arrays.
    ranks : (inputs,) int64 array
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
    starts, rows, indices, values = nonzeros
    columns, matrices = addresses
    strides = np.empty(ranks.size, np.int64)
    for m in range(ranks.size):
        strides[m] = factors[m].shape[1]
    inputs_of = indices, factors, columns, matrices, strides
    bounds, shared, firsts = parts
    inputs, count, step = len(factors), shared.size, len(lanes) * (LANE // factors[0].itemsize)
    if number == 0:
        turn[0] = 0
    called = fork(team, number, threads)
    sizes, nodes = np.empty(inputs, np.int64), np.empty(inputs, np.int64)
    stride, rank = factors[inputs - 1].shape[1], ranks[inputs - 1]
    size = stride
    for m in range(inputs - 1, -1, -1):
        size *= 1 if m == inputs - 1 else ranks[m]
        sizes[m] = size
    at = 0
    for m in range(inputs):
        nodes[m] = at
        at += sizes[m]
    tree, leaf, column, last = trees[number], nodes[inputs - 1], columns[inputs - 1], matrices[inputs - 1]
    groups = sizes[0] // stride
    for k in range(tree.size):
        tree[k] = 0
    part = add(turn, 0, 1)
    while part < count:
        low = new[0] if part == 0 else firsts[part] - row_begin  # cleared by this part if they have no nonzeros
        high = new[1] if part == count - 1 else firsts[part + 1] - row_begin
        _clear(carries, part, part + 1)
        begin, end = bounds[part], bounds[part + 1]
        summed, stored = 0, False
        for c in range(begin, end):
            start, stop, row = np.int64(starts[c]), np.int64(starts[c + 1]), np.int64(rows[c])
            carried = row == shared[part]
            if c == begin or rows[c - 1] != row:
                stored = carried
                if not carried:
                    _clear(out, low, row - row_begin)
                low = max(low, row - row_begin + 1)
            for q in range(start, stop):
                if summed and inputs > 1:
                    level = _first_change(indices, columns, q)
                    if level < inputs - 1:
                        _fold(tree, nodes, sizes, ranks, inputs_of, q - 1, level, step, lanes)
                value, index = values[q], _index(indices, column, q) * stride
                for k in range(0, stride, step):
                    _add(tree, leaf + k, value, _row(factors, last, index + k, lanes))
                summed += 1
            if summed >= SUMMED or c + 1 == end or rows[c + 1] != row:
                _fold(tree, nodes, sizes, ranks, inputs_of, stop - 1, 0, step, lanes)
                if carried:
                    _write_root(tree, carries, part, False, groups, rank, stride)
                else:
                    _write_root(tree, out, row - row_begin, not stored, groups, rank, stride)
                    stored = True
                summed = 0
        _clear(out, max(low, 0), high)
        part = add(turn, 0, 1)
    faults = join(team, called)
    if number == 0:
        for t in range(count):
            if shared[t] >= 0:
                for k in range(out.shape[1]):
                    out[shared[t] - row_begin, k] += carries[t, k]
    return faults


@inlined
def _clear(sums, begin, end):  # type: ignore[no-untyped-def]
    for row in range(begin, end):
        for k in range(sums.shape[1]):
            sums[row, k] = 0.0
