"""MTTKRP over nonzeros sorted by output row: the kernel that ``cuda/segmented.cu`` is on the GPU."""

from __future__ import annotations

import numpy as np

from partitioner.jit import jit


@jit
def segmented(indices, values, factors, out, row_begin, begin, end, carried, carry):  # type: ignore[no-untyped-def]
    """Compute the output rows of the nonzeros `begin` to `end`, in double precision whatever the factors are in.

    `indices` is a tuple of the output index and the input modes' indices, `factors` a tuple of (I_m, R)
    matrices. Rows are stored to `out`; if `carried`, the first of them goes to `carry` instead.
    """
    rows = indices[0]
    rank = out.shape[1]
    total = np.empty(rank, np.float64)
    product = np.empty(rank, np.float64)
    p = begin
    while p < end:
        row = rows[p]
        total[:] = 0
        while p < end and rows[p] == row:
            value = np.float64(values[p])
            first = factors[0][indices[1][p]]
            for r in range(rank):
                product[r] = value * first[r]
            for m in range(1, len(factors)):
                other = factors[m][indices[m + 1][p]]
                for r in range(rank):
                    product[r] *= other[r]
            for r in range(rank):
                total[r] += product[r]
            p += 1
        if carried:
            carry[:] = total
            carried = False
        else:
            out[row - row_begin] = total
