"""Which orders, ranks and precisions tests use: each combination has host kernels compiled, at three seconds each.

Tests of kernels take the combinations of `covering`, in which each pair of values occurs; the others are marked
`exhaustive` and run only with ``--exhaustive``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest

ORDERS = (2, 3, 4, 6)
RANKS = (1, 7, 16, 33, 130)
PRECISIONS = ("fp32", "fp64")
KERNELS = ("plain", "fibre", "permuted", "phi", "phi permuted")
"""What has forms of its own: MTTKRP of nonzeros, of fibres, and of nonzeros in another mode's order; Phi of both."""

STANDARD = ((3, 16, "fp32"), (4, 5, "fp64"))
"""Order, rank and precision of tests that are not about shapes."""

most_modes = 4  # of tensors that Hypothesis draws; conftest.py raises it for exhaustive runs


def covering(rows: Collection[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return some rows, such that each pair of values of two columns is in one of them."""
    pairs = {row: set(combinations(enumerate(row), 2)) for row in rows}
    left = set[Any]().union(*pairs.values())
    chosen = []
    while left:
        best = max(pairs, key=lambda row: len(pairs[row] & left))
        left -= pairs[best]
        chosen.append(best)
    return chosen


def exhaustive(*values: Any) -> Any:
    """Return values of a test's parameters with which it runs only with ``--exhaustive``."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def in_turn(values: Sequence[Any], others: Sequence[Any] = PRECISIONS) -> list[Any]:
    """Return all pairs as parameters of a test: each value with one of the others in turn, and the rest, marked."""
    due = {(k, k % len(others)) for k in range(len(values))}
    pairs = product(enumerate(values), enumerate(others))
    return [pytest.param(a, b) if (k, n) in due else exhaustive(a, b) for (k, a), (n, b) in pairs]


def cases_of(*kernels: str) -> list[Any]:
    """Return parameters of a test of some of `KERNELS`: order, rank, precision and kernel.

    Together, tests of all kernels have each pair of values. Further orders and ranks are exhaustive.
    """
    chosen = covering(_rows(product(ORDERS, RANKS)))
    more = [*product((5, 7, 8), (1, 7, 16, 32, 33)), (3, 64), (3, 257), (4, 1023)]
    others = [row for row in _rows([*product(ORDERS, RANKS), *more]) if row not in chosen]
    every = [*(pytest.param(*row) for row in chosen), *(exhaustive(*row) for row in others)]
    return [case for case in every if case.values[3] in kernels]


def _rows(pairs: Iterable[tuple[int, int]]) -> list[tuple[Any, ...]]:
    """Return orders and ranks with all precisions and kernels; a matrix has no fibres beyond its rows."""
    rows = [(*pair, *more) for pair, more in product(pairs, product(PRECISIONS, KERNELS))]
    return [row for row in rows if row[0] > 2 or row[3] != "fibre"]
