"""TTMc over nonzeros cut into pieces of output rows; see `amped.backend.ops.ttmc`.

A thread has a node of the tree for each input mode: node ``m`` holds the sum, over the nonzeros since its run of equal
indices began, of the Kronecker products of the rows of the modes from `m` on. Rows of the last mode are padded to whole
vectors, so that every loop is over a multiple of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from partitioner.host.jit import jit

from ..simd.thread_team import add, fork, inlined, join
from ..simd.vectors import LANE, address_of, fused, load_piece, operation, splat, vector_of

SUMMED = 256  # nonzeros; the longest sum of a tree


@operation
def _node(typing: Any, factors: Any, tree: Any, at: Any, lanes: Any) -> Any:
    """Return numbers of a tree as a vector."""
    vector = vector_of(factors, lanes)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind, stored = context.get_value_type(vector), context.get_value_type(tree.dtype)
        return load_piece(builder, builder.gep(address_of(context, builder, tree, args[1]), [args[2]]), stored, kind)

    return vector(factors, tree, types.intp, lanes), generate


def _at(builder: Any, base: Any, at: Any, kind: Any) -> Any:
    """Return the address of the element `at` elements after an address, both as numbers."""
    return builder.gep(builder.inttoptr(base, kind.as_pointer()), [at])


@operation
def _index(typing: Any, indices: Any, base: Any, at: Any) -> Any:
    """Return an index of the column at an address.

    To take an array out of a tuple by a number counts a reference up and down, which takes longer than to load from it.
    """
    stored = indices.types[0].dtype

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loaded = builder.load(_at(builder, args[1], args[2], context.get_value_type(stored)))
        return context.cast(builder, loaded, stored, types.intp)

    return types.intp(indices, types.int64, types.intp), generate


@operation
def _number(typing: Any, factors: Any, base: Any, at: Any) -> Any:
    """Return a number of the factor matrix at an address."""
    stored = factors.types[0].dtype

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_at(builder, args[1], args[2], context.get_value_type(stored)))

    return stored(factors, types.int64, types.intp), generate


@operation
def _row(typing: Any, factors: Any, base: Any, at: Any, lanes: Any) -> Any:
    """Return a piece of a row of the factor matrix at an address as a vector."""
    vector = vector_of(factors, lanes)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind, stored = context.get_value_type(vector), context.get_value_type(factors.types[0].dtype)
        return load_piece(builder, _at(builder, args[1], args[2], stored), stored, kind)

    return vector(factors, types.int64, types.intp, lanes), generate


@operation
def _add(typing: Any, tree: Any, at: Any, scale: Any, part: Any) -> Any:
    """Add `scale` times a vector to numbers of a tree."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array, place, number, value = args
        address = builder.gep(address_of(context, builder, tree, array), [place])
        place = builder.bitcast(address, value.type.as_pointer())
        wide = splat(builder, context.cast(builder, number, scale, part.dtype), value.type)
        builder.store(fused(builder, part, wide, value, builder.load(place, align=4)), place, align=4)
        return context.get_dummy_value()

    return types.none(tree, types.intp, scale, part), generate


@operation
def _zero(typing: Any, factors: Any, tree: Any, at: Any, lanes: Any) -> Any:
    """Set numbers of a tree to zero."""
    vector = vector_of(factors, lanes)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = context.get_value_type(vector)
        address = builder.gep(address_of(context, builder, tree, args[1]), [args[2]])
        builder.store(ir.Constant(kind, None), builder.bitcast(address, kind.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.none(factors, tree, types.intp, lanes), generate


@inlined
def _close(tree, nodes, sizes, ranks, given, at, level, step, lanes):  # type: ignore[no-untyped-def]
    """Add the nodes below `level`, deepest first, to those above them; `at` is a nonzero of their runs."""
    indices, factors, columns, matrices, strides = given
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
def _put(tree, sums, row, store, groups, rank, stride):  # type: ignore[no-untyped-def]
    """Bring the topmost node, (groups, stride), to a row of sums, (groups, rank) doubles; clear it."""
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
    """Return the first input mode, but the last, whose index is another one than that of the nonzero before."""
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
    """Compute pieces of output rows, with the threads of a team; sums of parts have the same order every time.

    Parameters
    ----------
    number, team : int, array
        See `team`.
    threads : int
    turn : (1,) int64 array
    nonzeros : tuple
        See `segmented`.
    factors : tuple of (I_m, stride) arrays
    addresses : tuple
        Of the columns of indices, and of the factor matrices, (inputs,) int64 arrays.
    ranks : (inputs,) int64 array
    out : (rows, width) float64 array
    row_begin : int
        The output index of row 0.
    new : tuple of int
        The first of the output's rows that have no sums so far, and the end.
    parts : tuple
        The arrays of `layout.Parts`.
    carries : (parts, width) float64 array
        For the row that a part shares with an earlier one.
    trees : (threads, nodes) array
        Of the factors' type, or in double precision.
    lanes : tuple
        Size of the pieces in which rows are computed, and whether that is in double precision; see `vectors`.

    Returns
    -------
    int
        How many threads failed.
    """
    starts, rows, indices, values = nonzeros
    columns, matrices = addresses
    strides = np.empty(ranks.size, np.int64)
    for m in range(ranks.size):
        strides[m] = factors[m].shape[1]
    given = indices, factors, columns, matrices, strides
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
        low = new[0] if part == 0 else firsts[part] - row_begin  # rows that this part clears if they have no nonzeros
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
                        _close(tree, nodes, sizes, ranks, given, q - 1, level, step, lanes)
                value, index = values[q], _index(indices, column, q) * stride
                for k in range(0, stride, step):
                    _add(tree, leaf + k, value, _row(factors, last, index + k, lanes))
                summed += 1
            if summed >= SUMMED or c + 1 == end or rows[c + 1] != row:
                _close(tree, nodes, sizes, ranks, given, stop - 1, 0, step, lanes)
                if carried:
                    _put(tree, carries, part, False, groups, rank, stride)
                else:
                    _put(tree, out, row - row_begin, not stored, groups, rank, stride)
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
