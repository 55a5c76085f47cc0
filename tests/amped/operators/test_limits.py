"""Numbers beyond a precision: refused in one line, or computed with; never a result that says nothing."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import run_amped
from forms import exhaustive
from oracle import PRECISIONS, coo_mttkrp, random_factors, random_nonzeros

import amped
from amped.errors import InputError
from amped.operators.limits import far, value_limits
from amped.options import DTYPES

SHAPE = (6, 7, 8)
COLUMNS, VALUES = random_nonzeros(3, SHAPE, 200)
TENSOR = amped.SparseTensor(COLUMNS.T, VALUES, SHAPE)
BEYOND = {"fp32": 30, "fp64": 180}  # powers of ten whose squares are no numbers


def scaled(power: float) -> list[np.ndarray]:
    return [f * 10.0**power for f in random_factors(2, SHAPE, 3)]


# The range of values


@pytest.mark.parametrize(
    ("order", "precision"),
    [case if case in ((3, "fp32"), (4, "fp64")) else exhaustive(*case) for case in product(range(2, 9), PRECISIONS)],
)
def test_values_just_inside_the_range(order: int, precision: str) -> None:
    shape = (5, 4, 3, 3, 2, 3, 2, 3)[:order]
    columns, values = random_nonzeros(order, shape, 150)
    values /= abs(amped.SparseTensor(columns.T, values, shape).values).max()
    options: dict[str, Any] = {"tol": 0, "max_iters": 6, "device": "cpu", "precision": precision}
    expected = amped.cp_als(amped.SparseTensor(columns.T, values, shape), 5, **options).fits
    for limit, inside in zip(value_limits(DTYPES[precision]), (1.0001, 0.9999), strict=True):
        tensor = amped.SparseTensor(columns.T, values * (limit * inside), shape)
        model = amped.cp_als(tensor, 5, **options)
        np.testing.assert_allclose(model.fits, expected, atol=1e-4)
        start = [900 * f for f in random_factors(0, shape, 5)]  # whose products overflow at high orders
        assert np.all(np.isfinite(amped.cp_als(tensor, 5, init=start, **options).fits))
        assert np.all(np.isfinite(model.weights))
        assert model.weights[0] > 0
        outside = amped.SparseTensor(columns.T, values * (limit / inside**2), shape)
        with pytest.raises(InputError, match="beyond the range"):
            amped.cp_als(outside, 5, **options)


def test_the_largest_products_of_stored_columns_are_alike_at_every_order() -> None:
    assert [far(order) ** (order - 1) for order in range(3, 9)] == pytest.approx([2.0**20] * 6)
    assert far(2) == 1024


# Starts


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("how", ["large", "small", "columns", "modes", "beyond single precision"])
def test_a_decomposition_does_not_depend_on_the_unit_of_its_start(device: str, precision: str, how: str) -> None:
    start, power = random_factors(2, SHAPE, 3), BEYOND[precision]
    factors = {
        "large": [10.0**power] * 3,
        "small": [10.0**-power] * 3,
        "columns": [np.array([1, 10.0**power, 10.0**-power])] * 3,
        "modes": [1, 10.0**power, 10.0**-power],
        "beyond single precision": [1e200, 1e-200, 1],
    }[how]
    options: dict[str, Any] = {"tol": 0, "max_iters": 5, "device": device, "precision": precision}
    given = [matrix * factor for matrix, factor in zip(start, factors, strict=True)]
    fits = amped.cp_als(TENSOR, 3, init=given, **options).fits
    np.testing.assert_allclose(fits, amped.cp_als(TENSOR, 3, init=start, **options).fits, atol=1e-5)


# MTTKRP


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_mttkrp_that_overflows_or_underflows_is_refused(device: str, precision: str) -> None:
    for power, what in ((BEYOND[precision], "not finite"), (-BEYOND[precision], "too small")):
        for mode in range(3):
            with pytest.raises(InputError, match=f"mode {mode}: .*{what}.*scale") as refused:
                amped.mttkrp(TENSOR, scaled(power), mode, device=device, precision=precision)
            assert ("use precision fp64" in str(refused.value)) == (precision == "fp32")
    mixed = random_factors(2, SHAPE, 3)
    mixed[1][:, 1] *= 10.0 ** -(1.2 * BEYOND[precision])  # one column only
    mixed[2][:, 1] *= 10.0 ** -(0.6 * BEYOND[precision])
    with pytest.raises(InputError, match="too small"):
        amped.mttkrp(TENSOR, mixed, 0, device=device, precision=precision)
    mixed[1][:, 1] *= 1e-20 if precision == "fp32" else 1e-95  # not a number of that precision
    with pytest.raises(InputError, match=r"factor_1 of the start has columns too small for float"):
        amped.mttkrp(TENSOR, mixed, 0, device=device, precision=precision)


@pytest.mark.parametrize("power", [-12, 12])
def test_small_and_large_results_are_right(device: str, power: int) -> None:
    factors = scaled(power)
    got = amped.mttkrp(TENSOR, factors, 1, device=device)
    want = coo_mttkrp(COLUMNS, VALUES, factors, 1)
    assert np.linalg.norm(got - want) <= 1e-6 * np.linalg.norm(want)


def test_zeros_are_results(device: str) -> None:
    """Of columns of zeros, and of values that cancel."""
    factors = random_factors(2, SHAPE, 3)
    factors[1][:, 2] = 0
    assert not np.any(amped.mttkrp(TENSOR, factors, 0, device=device)[:, 2])
    cancelling = amped.SparseTensor([[0, 0, 0], [0, 1, 0]], [1.0, -1.0])
    ones = [np.ones((n, 2)) for n in cancelling.shape]
    assert not np.any(amped.mttkrp(cancelling, ones, 0, device=device))


@pytest.mark.parametrize("power", [30, -30])
def test_the_command_refuses_and_writes_nothing(folder: Path, power: int) -> None:
    np.savez("x.npz", indices=TENSOR.indices, values=TENSOR.values, shape=SHAPE)
    np.savez("start.npz", **{f"factor_{n}": f for n, f in enumerate(scaled(power))})
    words = ("mttkrp", "x.npz", "--rank", "3", "--init", "start.npz", "--output", "out.npz", "--device", "cpu")
    done = run_amped(*words)
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "scale values or factors" in done.err
    assert "norm inf" not in done.out
    assert not Path("out.npz").exists()
