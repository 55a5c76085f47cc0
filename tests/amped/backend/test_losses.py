"""Losses: formulas as text, their NumPy functions, and closed forms of sums over absent elements."""

from __future__ import annotations

import math

import numpy as np
import pytest
from oracle import random_factors

from amped.backend.losses import GAUSSIAN, LOSSES, POISSON, Formula, Loss
from amped.errors import InputError

ORDER_3 = (4, 3, 5)


def test_a_formula_is_a_numpy_function() -> None:
    x, m = np.array([0.0, 2.0, -3.0]), np.array([1.0, 0.5, 4.0])
    got = Formula("where(x < m, -x**2 / 2 + log1p(exp(m)), abs(x) - 1e-3 * sqrt(m))")(x, m)
    want = np.where(x < m, -(x**2) / 2 + np.log1p(np.exp(m)), abs(x) - 1e-3 * np.sqrt(m))
    np.testing.assert_allclose(got, want, rtol=1e-15)
    assert Formula("2")(x, m).tolist() == [2.0, 2.0, 2.0]


def test_as_other_languages_write_it() -> None:
    """Numbers are floating-point ones everywhere: 1/2 is no division of integers."""
    formula = Formula("where(x > 0, abs(m)**2, 1/2)")
    assert formula.scalar == "((abs(m) ** 2.0) if (x > 0.0) else (1.0 / 2.0))"
    assert formula.cuda == "((x > 0.0) ? pow(fabs(m), 2.0) : (1.0 / 2.0))"


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_derivatives(loss: Loss) -> None:
    x, m, step = np.arange(4.0)[:, None], np.array([0.3, 1.0, 2.5]), 1e-5
    for function, derivative in ((loss.value, loss.first), (loss.first, loss.second)):
        slope = (Formula(function)(x, m + step) - Formula(function)(x, m - step)) / (2 * step)
        np.testing.assert_allclose(Formula(derivative)(x, np.broadcast_to(m, (4, 3))), slope, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("loss", [GAUSSIAN, POISSON, Loss("mixed", "(x-m)**2 + m", "2*(m-x) + 1", "2", at_zero=(1, 1))])
def test_the_sum_over_all_elements(loss: Loss) -> None:
    factors, step = random_factors(0, ORDER_3, 2), 1e-6
    model = np.einsum("iz,jz,kz->ijk", *factors)
    assert loss.everywhere(factors) == pytest.approx(float(Formula(loss.value)(0.0, model).sum()), rel=1e-12)
    for mode in range(3):
        gradient, curvature = loss.gradient_everywhere(factors, mode), loss.curvature_everywhere(factors, mode)
        moved = [f.copy() for f in factors]
        moved[mode][1, 0] += step
        change = loss.everywhere(moved) - loss.everywhere(factors)
        assert change / step == pytest.approx(gradient[1, 0], rel=1e-4)
        change = (loss.gradient_everywhere(moved, mode) - gradient)[1] / step
        np.testing.assert_allclose(change, curvature[0], rtol=1e-6, atol=1e-6)


def test_nonzeros_count_beyond_zeros() -> None:
    x, m = np.array([1.0, 4.0]), np.array([0.5, 3.0])
    maps = GAUSSIAN.maps(curved=True, absent_are_zero=True)
    assert maps.curve
    np.testing.assert_allclose(maps.value(x, m), (x - m) ** 2 - m**2)
    np.testing.assert_allclose(maps.weight(x, m), -2 * x)
    np.testing.assert_allclose(maps.curve(x, m), 0, atol=1e-15)
    assert GAUSSIAN.maps().curve is None
    np.testing.assert_allclose(POISSON.maps(absent_are_zero=True).value(x, m), -x * np.log(m))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("x +", "invalid syntax"), ("y + 1", "'y'"), ("x.real", "'x.real'"), ("__import__('os')", "__import__"),
        ("where(x, 1, 2)", "not a comparison"), ("where(0 < x < 1, 1, 2)", "not a comparison"), ("x @ m", "'x @ m'"),
        ("exp(x, m)", "not supported"), ("True", "'True'"), ("1e999", "not supported"), ("x < m", "not supported"),
        ("x if m else 1", "not supported"), ("1" + 400 * "0", "not supported"),
    ],
)  # fmt: skip
def test_formulas_that_are_not_understood(text: str, what: str) -> None:
    with pytest.raises(InputError, match="formula") as error:
        Formula(text)
    assert what in str(error.value)
    assert "\n" not in str(error.value)


def test_losses_that_cannot_be() -> None:
    with pytest.raises(InputError, match=r"is not 1\.0 m"):
        Loss("wrong", "(x - m)**2", "2 * (m - x)", "2", at_zero=(1.0, 0.0))
    odds = Loss("odds", "log1p(m) - x * log(m)", "1 / (1 + m) - x / m", "x / m**2 - 1 / (1 + m)**2", lower=0.0)
    with pytest.raises(InputError, match=r"'odds': .* no closed form"):
        odds.maps(absent_are_zero=True)
    assert math.isinf(GAUSSIAN.lower)
