"""Non-negative rows by HALS, in compiled code; see `nonnegative`."""

from __future__ import annotations

import numpy as np

from partitioner.host.jit import jit

from ...normal_equations.hals import SETTLED


@jit
def solve(source, gram, right, begin, sweeps, target, rows, largest, dots):  # type: ignore[no-untyped-def]
    """Update the rows of `target` in place; see `NonnegativeSolver.run`.

    `rows` receives the stored rows in double precision. `largest` and `dots`, which is empty if it is not needed, are
    accumulated here, the Gram matrix by the caller. The gradient of a row is kept up to date, so that an entry that
    does not change costs nothing.
    """
    count, rank = source.shape
    gradient, over = np.empty(rank), np.zeros(rank)
    for r in range(rank):
        if gram[r, r] > 0:
            over[r] = 1 / gram[r, r]
    for i in range(count):
        row, empty = rows[i], True
        for r in range(rank):
            row[r] = target[i, r] * begin[r]
            gradient[r] = source[i, r] * right[r]
            empty &= source[i, r] == 0
        for r in range(rank):
            if empty and over[r] > 0:
                row[r] = 0.0
            if row[r] != 0:
                for s in range(rank):
                    gradient[s] -= row[r] * gram[r, s]
        for _ in range(0 if empty else sweeps):
            change = size = 0.0
            for r in range(rank):
                new = row[r] + gradient[r] * over[r]
                if new < 0:  # NaN propagates
                    new = 0.0
                step = new - row[r]
                if step != 0:
                    row[r] = new
                    change = max(change, abs(step))
                    for s in range(rank):
                        gradient[s] -= step * gram[r, s]
                size = max(size, abs(new))
            if change <= SETTLED * size:
                break
        for r in range(rank):
            exact = row[r]
            if exact > largest[r] or exact != exact:
                largest[r] = exact
            target[i, r] = exact
            row[r] = target[i, r]
        if dots.size:
            for r in range(rank):
                dots[r] += source[i, r] * row[r]
