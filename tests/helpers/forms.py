"""Orders, ranks and precisions of tests. Host kernels are compiled for each combination, which takes three seconds.

A host kernel is compiled for an order, a precision, a number of 32-byte vectors per row (a few ranks share it), a type
of indices (16 bits if a tensor is resident, else 32), and a kind of sums. `budget` counts these variants, and fails a
run that has too many. So tests that are not about shapes use `STANDARD`. Tests of shapes use `COVERING`, and mark other
combinations `exhaustive`: these run only with ``--exhaustive``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    (2, 1, "fp32", "plain"), (2, 7, "fp32", "plain"), (2, 16, "fp32", "phi permuted"), (2, 33, "fp64", "phi permuted"),
    (2, 130, "fp64", "phi permuted"), (3, 1, "fp32", "permuted"), (3, 1, "fp32", "phi"), (3, 7, "fp32", "fibre"),
    (3, 16, "fp64", "fibre"), (3, 33, "fp64", "fibre"), (3, 130, "fp64", "fibre"), (3, 130, "fp64", "plain"),
    (4, 1, "fp64", "fibre"), (4, 7, "fp64", "phi permuted"), (4, 16, "fp32", "plain"), (4, 33, "fp32", "plain"),
    (4, 130, "fp32", "plain"), (6, 7, "fp32", "plain"),
)  # fmt: skip
"""Orders, ranks, precisions and kernels: a pairwise covering array, in which being permuted is one more property.

Order 6 has one row, as kernels treat all modes beyond the third alike. The array has few variants: ranks 1 to 8 in
single precision share theirs, and so do 33 and 130 in double.
"""

standard = pytest.mark.parametrize(("order", "rank", "precision"), STANDARD)

most_modes = 0  # of tensors that Hypothesis draws, 0 for three; conftest.py raises it for exhaustive runs


def exhaustive(*values: Any) -> Any:
    """Return parameters of a test that runs only with ``--exhaustive``."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def in_turn(values: Sequence[Any], others: Sequence[Any] = PRECISIONS) -> list[Any]:
    """Return all pairs as parameters of a test: each value with one of the others in turn; the rest is exhaustive."""
    due = {(k, k % len(others)) for k in range(len(values))}
    pairs = product(enumerate(values), enumerate(others))
    return [pytest.param(a, b) if (k, n) in due else exhaustive(a, b) for (k, a), (n, b) in pairs]


def standard_with(name: str, values: Iterable[str]) -> pytest.MarkDecorator:
    """Return a mark like `standard`, with each value of one more parameter; half of the pairs are exhaustive."""
    parameters = []
    for k, value in enumerate(values):
        for n, row in enumerate(STANDARD):
            parameters.append(pytest.param(value, *row) if k % len(STANDARD) == n else exhaustive(value, *row))
    return pytest.mark.parametrize((name, "order", "rank", "precision"), parameters)


def some_of(rows: Sequence[tuple[Any, ...]], others: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return parameters of a test: `rows`, then `others`, which are exhaustive."""
    return [*(pytest.param(*row) for row in rows), *(exhaustive(*row) for row in others if row not in rows)]


def cases_of(*kernels: str) -> list[Any]:
    """Return parameters of a test of some of `KERNELS`: order, rank, precision and kernel.

    Combinations that are not in `COVERING` are exhaustive, and so are other orders and ranks.
    """
    more = [*product((5, 7, 8), (1, 7, 16, 32, 33)), (3, 64), (3, 257), (4, 1023)]
    pairs = [*product(ORDERS, RANKS), *more]
    every = [(*pair, *rest) for pair, rest in product(pairs, product(PRECISIONS, kernels))]
    suited = [row for row in every if row[0] > 2 or row[3] != "fibre"]  # a matrix has no fibres beyond its rows
    return some_of([row for row in COVERING if row[3] in kernels], suited)
