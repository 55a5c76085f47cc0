"""Normal equations of several runs without compiled code: a run does not depend on the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from amped.backend.ops.equations import (
    NOT_FINITE,
    SINGULAR,
    ConstraintBounds,
    EquationsCase,
    EquationsStatus,
    RunStart,
    Terms,
)
from amped.backend.plain.batch import SeveralEquations

ORDER, ROWS, RANKS = 3, 40, (3, 1, 2)
COLUMNS = (slice(2, 5), slice(0, 1), slice(5, 7))  # column 1 has no run
WIDTH = 8


def equations(bounds: ConstraintBounds) -> SeveralEquations:
    terms = Terms(ORDER, max(RANKS), 1, 0, 5.0, 1e30, False)
    return SeveralEquations(EquationsCase(terms, np.dtype(np.float64), (ROWS,) * ORDER, bounds, len(RANKS)))


def start(rank: int, seed: int, singular: bool = False) -> RunStart:
    rng = np.random.default_rng(seed)
    factors = rng.random((ORDER, ROWS, rank))
    if singular:
        factors = np.ones_like(factors)
    grams = factors.swapaxes(1, 2) @ factors
    ones = np.ones((ORDER, rank))
    return RunStart(EquationsStatus(0, 0, np.nan, ones, ones), 0.0, grams)


def solved(
    runs: Sequence[int], source: NDArray[np.float64], bounds: ConstraintBounds, singular: int | None = None
) -> tuple[NDArray[np.float64], list[EquationsStatus]]:
    """Return the rows of mode 0 that `runs` solve together, and the status of each run."""
    batch, target = equations(bounds), np.full((ROWS, WIDTH), 7.0)
    for run in runs:
        batch.put(run, COLUMNS[run], start(RANKS[run], run, run == singular))
    batch.prepare(0)
    batch.solve(0, source, target)
    return target, batch.status()


@pytest.mark.parametrize(
    "bounds", [ConstraintBounds.none(ORDER), ConstraintBounds((0.1,) * ORDER, (0,), 0, 2)], ids=["plain", "nonnegative"]
)
def test_a_run_does_not_depend_on_the_others(bounds: ConstraintBounds) -> None:
    source = np.random.default_rng(9).standard_normal((ROWS, WIDTH))
    rows, status = solved(range(3), source, bounds)
    for run, columns in enumerate(COLUMNS):
        alone, alone_status = solved([run], source, bounds)
        np.testing.assert_allclose(rows[:, columns], alone[:, columns], rtol=1e-12)
        np.testing.assert_allclose(status[run].norms, alone_status[run].norms, rtol=1e-12)
    assert (rows[:, [1, 7]] == 7).all()


def test_rows_are_those_of_least_squares() -> None:
    source = np.random.default_rng(9).standard_normal((ROWS, WIDTH))
    rows, _ = solved(range(3), source, ConstraintBounds.none(ORDER))
    for run, columns in enumerate(COLUMNS):
        grams = start(RANKS[run], run).grams
        np.testing.assert_allclose(rows[:, columns] @ (grams[1] * grams[2]), source[:, columns], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("wrong", range(3))
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_run_that_is_not_finite_leaves_the_others_alone(wrong: int, value: float) -> None:
    source = np.random.default_rng(9).standard_normal((ROWS, WIDTH))
    expected, _ = solved(range(3), source, ConstraintBounds.none(ORDER))
    source[4, COLUMNS[wrong].start] = value
    source[5, 1] = np.nan
    rows, status = solved(range(3), source, ConstraintBounds.none(ORDER))
    for run, columns in enumerate(COLUMNS):
        assert status[run].flags == (NOT_FINITE if run == wrong else 0)
        np.testing.assert_array_equal(rows[:, columns], 7 if run == wrong else expected[:, columns])


def test_an_exactly_singular_run_leaves_the_others_alone() -> None:
    source = np.random.default_rng(9).standard_normal((ROWS, WIDTH))
    expected, _ = solved(range(3), source, ConstraintBounds.none(ORDER))
    rows, status = solved(range(3), source, ConstraintBounds.none(ORDER), singular=2)
    assert [each.flags for each in status] == [0, 0, SINGULAR]
    for columns in COLUMNS[:2]:
        np.testing.assert_allclose(rows[:, columns], expected[:, columns], rtol=1e-12)
