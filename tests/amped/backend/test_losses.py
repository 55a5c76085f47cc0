"""Losses: formulas as text, their NumPy functions, and closed forms of sums over absent elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from losses import GAUSSIAN, POISSON
from oracle import random_factors

from amped.backend.formula_steps import TemporaryArrays
from amped.backend.formulas import Formula, evaluate, evaluate_sum
from amped.backend.known_losses import KNOWN, loss_of
from amped.backend.losses import Loss, Moments
from amped.errors import InputError
from amped.models.deviance import best_values

ORDER_3 = (4, 3, 5)
MIXED = Loss(name="mixed", value="(x-m)**2 + m", first="2*(m-x) + 1", second="2", at_zero=(1, 1))


def test_a_formula_is_a_numpy_function() -> None:
    x, m = np.array([0.0, 2.0, -3.0]), np.array([1.0, 0.5, 4.0])
    got = Formula("where(x < m, -x**2 / 2 + log1p(exp(m)), abs(x) - 1e-3 * sqrt(m))")(x, m)
    want = np.where(x < m, -(x**2) / 2 + np.log1p(np.exp(m)), abs(x) - 1e-3 * np.sqrt(m))
    np.testing.assert_allclose(got, want, rtol=1e-15)
    assert Formula("2")(x, m).tolist() == [2.0, 2.0, 2.0]


def expression(rng: np.random.Generator, depth: int) -> str:
    """Return a random formula; small ones occur several times in it."""
    if depth == 0:
        return str(rng.choice(["x", "m", "2", "0.5", "(x * m)", "exp(m)"]))
    a, b, c, d = (expression(rng, depth - int(rng.integers(1, depth + 1))) for _ in range(4))
    return str(rng.choice([f"({a} + {b})", f"({a} - {b})", f"({a} * {b})", f"-{a}", f"abs({a})", f"tanh({a})",
                           f"({a})**2", f"where({a} < {b}, {c}, {d})", f"{a} / (1 + ({b})**2)"]))  # fmt: skip


@pytest.mark.parametrize("precision", [np.float32, np.float64])
def test_formulas_that_share_expressions(precision: type) -> None:
    """No temporary array is overwritten while it is needed; neither the elements nor the model are."""
    rng = np.random.default_rng(0)
    x, m = (rng.standard_normal((3, 4)).astype(precision) for _ in range(2))
    names = {"x": x.astype(np.float64), "m": m.astype(np.float64), "exp": np.exp, "tanh": np.tanh, "where": np.where}
    before = x.copy(), m.copy()
    for _ in range(200):
        texts = [expression(rng, 4) for _ in range(3)]
        together = evaluate([Formula(text) for text in texts], x, m)
        for text, got in zip(texts, together, strict=True):
            want = np.broadcast_to(eval(text, {"abs": np.abs, **names}), x.shape)
            assert (got.dtype, got.shape) == (precision, x.shape)
            size = np.abs(want).max() + 1.0
            np.testing.assert_allclose(got, want, rtol=0, atol=1e3 * np.finfo(precision).eps * size, err_msg=text)
    assert np.array_equal(x, before[0])
    assert np.array_equal(m, before[1])


def test_as_other_languages_write_it() -> None:
    """Numbers are floating-point ones everywhere: 1/2 is no division of integers."""
    formula = Formula("where(x > 0, abs(m)**2, 1/2)")
    assert formula.scalar == "((abs(m) ** 2.0) if (x > 0.0) else (1.0 / 2.0))"
    assert formula.cuda_of("float") == ("((x > float(0.0)) ? (fabs(m) * fabs(m)) : (float(1.0) / float(2.0)))")


@pytest.mark.parametrize("loss", [loss_of(name) for name in KNOWN], ids=KNOWN)
def test_derivatives(loss: Loss) -> None:
    x, m, step = np.arange(4.0)[:, None], np.array([0.3, 1.1, 2.6]), 1e-5
    for function, derivative in ((loss.value, loss.first), (loss.first, loss.second)):
        slope = (Formula(function)(x, m + step) - Formula(function)(x, m - step)) / (2 * step)
        np.testing.assert_allclose(Formula(derivative)(x, np.broadcast_to(m, (4, 3))), slope, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("loss", [GAUSSIAN, POISSON, MIXED])
def test_the_sum_over_all_elements(loss: Loss) -> None:
    factors, step = random_factors(0, ORDER_3, 2), 1e-6
    model, moments = np.einsum("iz,jz,kz->ijk", *factors), Moments.of(factors)
    assert loss.everywhere(moments) == pytest.approx(float(loss.of(0.0, model).sum()), rel=1e-12)
    for mode in range(3):
        values, gradient = loss.rows_everywhere(moments.others(), mode, factors[mode])
        assert values.sum() == pytest.approx(loss.everywhere(moments), rel=1e-12)
        moved = [f.copy() for f in factors]
        moved[mode][1, 0] += step
        change = loss.everywhere(Moments.of(moved)) - loss.everywhere(moments)
        assert change / step == pytest.approx(gradient[1, 0], rel=1e-4)
        change = (loss.rows_everywhere(Moments.of(moved).others(), mode, moved[mode])[1] - gradient)[1] / step
        np.testing.assert_allclose(change, loss.curvature_everywhere(moments.others(), mode)[0], rtol=1e-6, atol=1e-6)


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
        Loss(name="wrong", value="(x - m)**2", first="2 * (m - x)", at_zero=(1.0, 0.0))
    odds = loss_of("bernoulli-odds")
    with pytest.raises(InputError, match=r"'bernoulli-odds': .* no closed form"):
        odds.maps(absent_are_zero=True)
    assert math.isinf(GAUSSIAN.lower)


def test_zero_truncated_counts_of_a_model_that_is_zero() -> None:
    mean = loss_of("zero-truncated-poisson").mean_of(1.0, np.array([0.0, 1e-12, 1e-4, 1.0, 50.0]))
    np.testing.assert_allclose(mean, [1, 1, 1 + 5e-5, 1 / (1 - np.exp(-1)), 50], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("poison", "did you mean 'poisson' or 'poisson-log'"),
        ("bernouli", "did you mean 'bernoulli-odds' or 'bernoulli-logit'"),
        ("gaussian:2", "no parameter"), ("huber:-1", "from 1e-9 to 1e9"),
        ("huber:1_0", "from 1e-9 to 1e9"), ("beta:1", "other than 0 and 1"),
        ("huber:1e200", "from 1e-9"), ("zzz", "expected gaussian, bernoulli-odds"),
    ],
)  # fmt: skip
def test_names_of_losses_that_are_unknown(name: str, what: str) -> None:
    with pytest.raises(InputError, match="loss") as error:
        loss_of(name)
    assert what in str(error.value)


@pytest.mark.parametrize(
    ("formulas", "what"),
    [
        ({"value": "x**2", "first": "0 * m"}, "must be a function of x and m"),
        ({"value": "(x - m)**2", "first": "m - x"}, "first is"),
        ({"value": "(x - m)**2", "first": "2 * (m - x)", "second": "1"}, "second is"),
        ({"value": "(x - m)**2", "first": "2 * (m - x)", "lower": -1.0}, "lower is -1.0"),
        ({"value": "(x - m)**2", "first": "2 * (m - x)", "lower": 1e-3}, "lower is 0.001"),
        ({"value": "(x - m)**2", "first": "2 * (m - x)", "lower": "0"}, "lower is '0'"),
        ({"value": "(x - m)**2", "first": "2 * (m - x)", "at_zero": 1}, "domain or at_zero"),
        ({"value": "(x - m)**2", "first": "2 * (m - x)", "mean": "x"}, "mean must be a function of m"),
        ({"value": 3, "first": "2 * (m - x)"}, "value is of type int"),
        ({"value": "sqrt(m - 5)", "first": "0.5 / sqrt(m - 5)"}, "not finite"),
        ({"value": lambda x, m: x[:2], "first": "1"}, "returns shape"),
    ],
)
def test_losses_of_users_that_are_invalid(formulas: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match="loss") as error:
        Loss(**formulas)
    assert what in str(error.value)


def test_a_loss_of_numpy_functions() -> None:
    loss = Loss(value=lambda x, m: np.cosh(x - m), first=lambda x, m: np.sinh(m - x))
    x, m = np.arange(3.0), np.array([0.5, 1.0, 4.0])
    np.testing.assert_allclose(loss.slope(x, m), np.sinh(m - x))
    assert not loss.compiled
    with pytest.raises(InputError, match="cannot be compiled"):
        loss.maps().formulas  # noqa: B018
    with pytest.raises(InputError, match="no second derivative"):
        loss.maps(curved=True)


def test_values_outside_a_domain() -> None:
    assert loss_of("bernoulli-logit").domain.outside(np.array([0.0, 1.0, 2.0])) == 2
    assert loss_of("negative-binomial").domain.outside(np.array([3.0, 0.5])) == 1
    assert loss_of("gamma").domain.outside(np.array([0.0, 0.5])) is None
    assert loss_of("gaussian").domain.outside(np.array([0.0, np.nan])) == 1
    assert str(loss_of("zero-truncated-poisson").domain) == "an integer of at least 1"


@pytest.mark.parametrize("name", ["huber:0.123456789", "negative-binomial:2", "beta:0.1"])
def test_a_name_has_the_whole_parameter(name: str) -> None:
    assert loss_of(loss_of(name).name) == loss_of(name)
    assert loss_of(name).name == name


@pytest.mark.parametrize("name", KNOWN)
def test_the_lowest_loss_of_a_value(name: str) -> None:
    loss = loss_of(name)
    values = np.array([1.0]) if loss.domain.high == 1 else np.array([1.0, 2.0, 5.0])
    scales = np.geomspace(1e-12, 1e7, 100001)
    model = scales if loss.nonnegative else np.concatenate([-scales[::-1], scales])
    searched = loss.of(values[:, None], model).min(axis=1)
    np.testing.assert_allclose(best_values(loss, values), searched, atol=1e-5)
    twice = Loss.of_formulas(loss.formulas or {})
    np.testing.assert_allclose(twice.of(values, 0.7), loss.of(values, 0.7))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log1p_is_as_accurate_as_that_of_numpy(dtype: type) -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([10 ** rng.uniform(-30, 30, 2000), -(10 ** rng.uniform(-30, -1e-3, 2000)), [0, -1, -2, np.inf]])
    given, units = x.astype(dtype), 3 * np.finfo(dtype).eps
    got = Formula("log1p(m)")(np.zeros_like(given), given)
    assert got.dtype == dtype
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(got, np.log1p(given.astype(np.float64)), rtol=units)


def test_results_stay_valid_until_the_next_evaluation_in_a_workspace() -> None:
    formulas, temporary = (Formula("exp(m) - x"), Formula("where(m < x, exp(m), 1)")), TemporaryArrays()
    rng = np.random.default_rng(0)
    for shape in ((40, 50), (3, 4), (100, 40)):
        x, m = rng.standard_normal(shape), rng.standard_normal(shape)
        for got, formula in zip(evaluate(formulas, x, m, temporary), formulas, strict=True):
            np.testing.assert_array_equal(got, formula(x, m))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_choices_are_exact(dtype: type) -> None:
    numbers = np.array([0.0, -0.0, 1.5, -2.0, np.inf, -np.inf, np.nan, 1e-40], dtype)
    x, m = (each.reshape(-1) for each in np.meshgrid(numbers, numbers))
    texts = {
        "where(m < x, m, x)": np.where(m < x, m, x), "where(m == x, 1, m)": np.where(m == x, 1, m),
        "where(m > 0, x, -2)": np.where(m > 0, x, -2), "where(m > x, 1, -1)": np.where(m > x, 1, -1),
        "where(1 < 2, m, x)": m, "where(1 > 2, m, x)": x,
    }  # fmt: skip
    for text, want in texts.items():
        got = Formula(text)(x, m)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, want.astype(dtype), text)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(want), text)


SUMS = {
    **{name: loss_of(name) for name in KNOWN},
    "cauchy": Loss(value="log1p((x - m)**2)", first="2 * (m - x) / (1 + (x - m)**2)"),
    "negative": Loss(value="m**2 - log1p(x**2) - log(1 + m**2) + 3", first="2 * m - 2 * m / (1 + m**2)"),
}


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("spread", [1e-6, 1.0, 30.0, 1e12])
def test_sums_of_logarithms(name: str, spread: float) -> None:
    """Whether products of them are in range or not, also of few elements; the other values are as usual."""
    loss, rng = SUMS[name], np.random.default_rng(0)
    for size in (1, 63, 64, 1000, 1 << 14):
        m = spread * (rng.random(size) if loss.nonnegative else rng.standard_normal(size))
        x = rng.integers(0, 2, size).astype(float)
        total, slopes = evaluate_sum(loss.of, loss.slope, x, m, TemporaryArrays())
        with np.errstate(all="ignore"):
            values = loss.of(x, m)
            want = math.fsum(values) if np.isfinite(values).all() else values.sum()
        size_of_terms = np.abs(values[np.isfinite(values)]).sum()
        assert total == pytest.approx(want, rel=1e-12, abs=1e-13 * size_of_terms, nan_ok=True)
        np.testing.assert_array_equal(slopes, loss.slope(x, m))


def test_sums_of_logarithms_are_not_finite_where_one_is_not() -> None:
    of = Formula("log(m)")
    for bad, want in ((-1.0, np.nan), (0.0, -np.inf), (np.inf, np.inf), (np.nan, np.nan)):
        m = np.full(200, 2.0)
        m[[3, 70]] = bad  # in one product, two negative numbers would be positive
        assert np.array_equal(evaluate_sum(of, of, m, m, TemporaryArrays())[0], want, equal_nan=True)
    tiny = np.full(1000, 1e-20)
    total = evaluate_sum(Formula("log1p(m)"), of, tiny, tiny, TemporaryArrays())[0]
    assert total == pytest.approx(1e-17, rel=1e-12)
