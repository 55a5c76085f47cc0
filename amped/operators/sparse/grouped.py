"""Sums over groups of nonzeros on the host, for spectra of an unfolded tensor.

The nonzeros of a group share the indices of all modes except the unfolded one, whose indices are `rows`, and the
compressed ones. Each nonzero has a *weight*: the Kronecker product of its rows of the compressed modes' factor
matrices. Thus a group is a block of columns of the unfolded tensor, ``A_g = sum x e_row weight^T``.
"""

from __future__ import annotations

import numpy as np

from partitioner.host.jit import inner, jit

LARGE = 64  # size of a group's block above which a matrix product by BLAS is faster


@inner
def _weigh(columns, factors, at, weight):  # type: ignore[no-untyped-def]
    """Write the Kronecker product of a nonzero's rows of the factor matrices to `weight`."""
    weight[0] = 1.0
    size = 1
    for m in range(len(columns)):
        row, rank = np.int64(columns[m][at]), factors[m].shape[1]
        for k in range(size - 1, -1, -1):
            known = weight[k]
            for r in range(rank):
                weight[k * rank + r] = known * factors[m][row, r]
        size *= rank


@jit
def add_products(begin, end, starts, rows, values, columns, factors, width, basis, out):  # type: ignore[no-untyped-def]
    """Add ``A_g A_g^T basis`` for the groups from `begin` to `end` to `out`, (rows, columns)."""
    weight, across = np.empty(width), np.empty((width, basis.shape[1]))
    for g in range(begin, end):
        start, stop = starts[g], starts[g + 1]
        across[:] = 0.0
        for q in range(start, stop):
            _weigh(columns, factors, q, weight)
            row = np.int64(rows[q])
            for p in range(width):
                part = values[q] * weight[p]
                for k in range(basis.shape[1]):
                    across[p, k] += part * basis[row, k]
        for q in range(start, stop):
            if stop - start > 1:
                _weigh(columns, factors, q, weight)
            row = np.int64(rows[q])
            for p in range(width):
                part = values[q] * weight[p]
                for k in range(basis.shape[1]):
                    out[row, k] += part * across[p, k]


@jit
def add_grams(begin, end, starts, rows, values, columns, factors, width, out):  # type: ignore[no-untyped-def]
    """Add ``A_g A_g^T`` for the groups from `begin` to `end` to `out`, (rows, rows)."""
    length = out.shape[0]
    longest = 1
    for g in range(begin, end):
        longest = max(longest, min(starts[g + 1] - starts[g], length))
    block, where, place = np.zeros((longest, width)), np.empty(longest, np.int64), np.full(length, -1)
    weight = np.empty(width)
    for g in range(begin, end):
        count = 0
        for q in range(starts[g], starts[g + 1]):
            _weigh(columns, factors, q, weight)
            row = np.int64(rows[q])
            if place[row] < 0:
                place[row], where[count] = count, row
                block[count] = 0.0
                count += 1
            for p in range(width):
                block[place[row], p] += values[q] * weight[p]
        if count * width > LARGE:
            products = np.dot(block[:count], block[:count].T)
            for a in range(count):
                for b in range(count):
                    out[where[a], where[b]] += products[a, b]
        else:
            for a in range(count):
                for b in range(count):
                    total = 0.0
                    for p in range(width):
                        total += block[a, p] * block[b, p]
                    out[where[a], where[b]] += total
        for a in range(count):
            place[where[a]] = -1


@jit
def add_rows(begin, end, rows, values, columns, factors, width, first, out):  # type: ignore[no-untyped-def]
    """Add each nonzero's weight times its value to its row of `out`, in which row 0 is row `first`."""
    weight = np.empty(width)
    for q in range(begin, end):
        _weigh(columns, factors, q, weight)
        row = np.int64(rows[q]) - first
        for p in range(width):
            out[row, p] += values[q] * weight[p]


@jit
def group_starts(columns):  # type: ignore[no-untyped-def]
    """Return the start of each group of nonzeros with equal (sorted) indices, and the end."""
    nonzeros = columns[0].size
    starts = np.empty(nonzeros + 1, np.int64)
    count = 0
    for q in range(nonzeros):
        same = q > 0
        for m in range(len(columns)):
            if same and columns[m][q] != columns[m][q - 1]:
                same = False
        if not same:
            starts[count] = q
            count += 1
    starts[count] = nonzeros
    return starts[: count + 1].copy()
