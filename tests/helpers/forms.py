"""Which orders, ranks and precisions tests use: each combination has host kernels compiled, at three seconds each.

What a host kernel is compiled for are the order, the precision, the vectors that a row has (32 bytes each; a few ranks
share them), the type of indices (16 bits if a tensor is resident, else 32), and the kind of sums. `budget` counts such
variants, and fails a run that has more than it should. So tests that are not about shapes use `STANDARD`; those that
are use `COVERING`, or mark what goes beyond it `exhaustive`: that runs only with ``--exhaustive``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

ORDERS = (2, 3, 4, 6)
RANKS = (1, 7, 16, 33, 130)
PRECISIONS = ("fp32", "fp64")
KERNELS = ("plain", "fibre", "permuted", "phi", "phi permuted")
"""MTTKRP of nonzeros, of fibres, and of nonzeros in another mode's order; Phi of both orders."""

STANDARD = ((3, 3, "fp32"), (4, 5, "fp64"))
"""Order, rank and precision of tests that are not about shapes: a row of one vector and of two, both with padding."""

COVERING = (
    (2, 1, "fp32", "plain"), (2, 7, "fp32", "plain"), (2, 16, "fp64", "plain"), (2, 33, "fp64", "phi permuted"),
    (2, 130, "fp64", "phi permuted"), (3, 1, "fp32", "permuted"), (3, 1, "fp32", "phi"), (3, 7, "fp32", "fibre"),
    (3, 16, "fp64", "fibre"), (3, 33, "fp64", "plain"), (3, 130, "fp64", "plain"), (4, 1, "fp64", "fibre"),
    (4, 7, "fp64", "phi permuted"), (4, 16, "fp32", "plain"), (4, 33, "fp32", "plain"), (4, 130, "fp32", "plain"),
    (6, 1, "fp32", "plain"), (6, 7, "fp32", "plain"), (6, 16, "fp32", "phi permuted"), (6, 33, "fp64", "fibre"),
    (6, 130, "fp64", "fibre"),
)  # fmt: skip
"""Order, rank, precision and kernel: rows in which each pair of values occurs; permuted or not counts as one of them.

Of many such sets, one with few variants: ranks 1 to 8 in single precision share theirs, as do 33 and 130 in double.
"""

standard = pytest.mark.parametrize(("order", "rank", "precision"), STANDARD)

most_modes = 0  # of tensors that Hypothesis draws, 0 for three; conftest.py raises it for exhaustive runs


def exhaustive(*values: Any) -> Any:
    """Return values of a test's parameters with which it runs only with ``--exhaustive``."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def in_turn(values: Sequence[Any], others: Sequence[Any] = PRECISIONS) -> list[Any]:
    """Return all pairs as parameters of a test: each value with one of the others in turn, and the rest, marked."""
    due = {(k, k % len(others)) for k in range(len(values))}
    pairs = product(enumerate(values), enumerate(others))
    return [pytest.param(a, b) if (k, n) in due else exhaustive(a, b) for (k, a), (n, b) in pairs]


def some_of(rows: Sequence[tuple[Any, ...]], others: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return parameters of a test: some rows, and others that are exhaustive where they are not among them."""
    return [*(pytest.param(*row) for row in rows), *(exhaustive(*row) for row in others if row not in rows)]


def cases_of(*kernels: str) -> list[Any]:
    """Return parameters of a test of some of `KERNELS`: order, rank, precision and kernel.

    What is not in `COVERING` is exhaustive, as are further orders and ranks.
    """
    more = [*product((5, 7, 8), (1, 7, 16, 32, 33)), (3, 64), (3, 257), (4, 1023)]
    pairs = [*product(ORDERS, RANKS), *more]
    every = [(*pair, *rest) for pair, rest in product(pairs, product(PRECISIONS, kernels))]
    suited = [row for row in every if row[0] > 2 or row[3] != "fibre"]  # a matrix has no fibres beyond its rows
    return some_of([row for row in COVERING if row[3] in kernels], suited)
