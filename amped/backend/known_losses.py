"""The losses that amped knows by name, with their parameters.

Formulas follow Hong, Kolda and Duersch, Generalized canonical polyadic tensor decomposition, 2020, Table 1. `EPS` is
added to m in logarithms and quotients.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from ..errors import InputError
from .losses import BINARY, COUNTS, POSITIVE, Domain, Loss

EPS = "1e-10"
M = f"(m + {EPS})"
NUMBER = re.compile(r"[-+.\deE]+")  # what a parameter consists of


class LossFamily(NamedTuple):
    """A loss, or a family of losses with one parameter.

    Attributes
    ----------
    data : str
        The data that it suits.
    make : callable
        Returns the loss, from the parameter if there is one.
    default : float, optional
        The parameter.
    valid : callable
        Whether a parameter is valid, and what is expected.
    """

    data: str
    make: Callable[..., Loss]
    default: float | None = None
    expected: str = ""
    valid: Callable[[float], bool] = math.isfinite


def _number(parameter: float) -> str:
    """Return a parameter as text that reads as the same number."""
    return repr(int(parameter)) if parameter.is_integer() else repr(parameter)


ENTROPY = "where(x > 0, x - x * log(x), 0)"  # the lowest loss of a count


def _gaussian() -> Loss:
    return Loss(name="gaussian", value="(x - m)**2", first="2 * (m - x)", second="2", least="0", at_zero=(0.0, 1.0))


def _bernoulli_odds() -> Loss:
    return Loss(
        name="bernoulli-odds",
        value=f"log1p(m) - x * log{M}",
        first=f"1 / (1 + m) - x / {M}",
        second=f"x / {M}**2 - 1 / (1 + m)**2",
        least="0",
        mean="m / (1 + m)",
        lower=0.0,
        domain=BINARY,
    )


def _bernoulli_logit() -> Loss:
    return Loss(
        name="bernoulli-logit",
        value="0.5 * (m + abs(m)) + log1p(exp(-abs(m))) - x * m",  # log(exp(m) + 1) would overflow
        first="where(m < 0, exp(-abs(m)), 1) / (1 + exp(-abs(m))) - x",  # the exponential function of `value`
        second="exp(-abs(m)) / (1 + exp(-abs(m)))**2",
        least="0",
        mean="1 / (1 + exp(-m))",
        domain=BINARY,
    )


def _poisson() -> Loss:
    return Loss(
        name="poisson",
        value=f"m - x * log{M}",
        first=f"1 - x / {M}",
        second=f"x / {M} / {M}",
        least=ENTROPY,
        lower=0.0,
        at_zero=(1.0, 0.0),
        domain=POSITIVE,
    )


def _poisson_log() -> Loss:
    return Loss(
        name="poisson-log",
        value="exp(m) - x * m",
        first="exp(m) - x",
        second="exp(m)",
        least=ENTROPY,
        mean="exp(m)",
        domain=POSITIVE,
    )


def _rayleigh() -> Loss:
    quarter, half, root = (repr(number) for number in (math.pi / 4, math.pi / 2, math.sqrt(math.pi) / 2))
    return Loss(
        name="rayleigh",
        value=f"2 * log{M} + {quarter} * (x / {M})**2",
        first=f"2 / {M} - {half} * x**2 / {M}**3",
        second=f"3 * {half} * x**2 / {M}**4 - 2 / {M}**2",
        least=f"where(x > 0, 2 * log({root} * x) + 1, 2 * log({EPS}))",
        lower=0.0,
        domain=POSITIVE,
    )


def _gamma() -> Loss:
    return Loss(
        name="gamma",
        value=f"x / {M} + log{M}",
        first=f"1 / {M} - x / {M}**2",
        second=f"2 * x / {M}**3 - 1 / {M}**2",
        least=f"where(x > 0, log(x) + 1, log({EPS}))",
        lower=0.0,
        domain=POSITIVE,
    )


def _huber(delta: float) -> Loss:
    near, slope = f"abs(x - m) < {delta!r}", 2 * delta
    return Loss(
        name=f"huber:{_number(delta)}",
        value=f"where({near}, (x - m)**2, {slope!r} * abs(x - m) - {delta**2!r})",
        first=f"where({near}, 2 * (m - x), where(m > x, {slope!r}, {-slope!r}))",
        second=f"where({near}, 2, 0)",
        least="0",
    )


def _negative_binomial(failures: float) -> Loss:
    r = repr(failures)
    return Loss(  # the derivative in Tensor Toolbox and pyttb is wrong
        name=f"negative-binomial:{_number(failures)}",
        value=f"({r} + x) * log1p(m) - x * log{M}",
        first=f"({r} + x) / (1 + m) - x / {M}",
        second=f"x / {M}**2 - ({r} + x) / (1 + m)**2",
        least=f"where(x > 0, ({r} + x) * log1p(x / {r}) - x * log(x / {r}), 0)",
        mean=f"{r} * m",
        lower=0.0,
        domain=COUNTS,
    )


def _beta(beta: float) -> Loss:
    b, exact = repr(beta), f"(x + {EPS})"
    return Loss(
        name=f"beta:{_number(beta)}",
        value=f"{M}**{b} / {b} - x * {M}**({b} - 1) / ({b} - 1)",
        first=f"{M}**({b} - 1) - x * {M}**({b} - 2)",
        second=f"({b} - 1) * {M}**({b} - 2) - x * ({b} - 2) * {M}**({b} - 3)",
        least=f"{exact}**{b} / {b} - x * {exact}**({b} - 1) / ({b} - 1)",
        lower=0.0,
        domain=POSITIVE,
    )


def _zero_truncated_poisson() -> Loss:
    hit = f"({EPS} - expm1(-m))"  # the probability of a count above 0
    return Loss(
        name="zero-truncated-poisson",
        value=f"m - x * log{M} + log{hit}",
        first=f"1 - x / {M} + exp(-m) / {hit}",
        second=f"x / {M}**2 - exp(-m) / {hit} - (exp(-m) / {hit})**2",
        mean=f"(m + {EPS}) / {hit}",  # 1 at m = 0
        lower=0.0,
        domain=Domain(1.0, whole=True),
    )


KNOWN = {
    "gaussian": LossFamily("any numbers; the errors have one variance", _gaussian),
    "bernoulli-odds": LossFamily("0 and 1; m is the odds", _bernoulli_odds),
    "bernoulli-logit": LossFamily("0 and 1; m is the logarithm of the odds", _bernoulli_logit),
    "poisson": LossFamily("counts; m is the expected count", _poisson),
    "poisson-log": LossFamily("counts; m is the logarithm of the expected count", _poisson_log),
    "rayleigh": LossFamily("lengths of random vectors, at least 0; m is the mean", _rayleigh),
    "gamma": LossFamily("durations and amounts above 0; m is the mean, errors are proportional to it", _gamma),
    "huber": LossFamily(
        "numbers with outliers: errors above the parameter count by their magnitude", _huber, 1.0, "from 1e-9 to 1e9",
        lambda delta: 1e-9 <= delta <= 1e9,
    ),
    "negative-binomial": LossFamily(
        "counts that vary more than Poisson counts; m is the odds; the parameter is the number of failures",
        _negative_binomial, 1.0, "from 1e-3 to 1e9", lambda failures: 1e-3 <= failures <= 1e9,
    ),
    "beta": LossFamily(
        "amounts of at least 0, between Gaussian (2), Poisson (1) and gamma (0)", _beta, 0.5,
        "from -10 to 10, other than 0 and 1", lambda beta: -10 <= beta <= 10 and beta not in (0.0, 1.0),
    ),
    "zero-truncated-poisson": LossFamily("counts of at least 1; m is the rate", _zero_truncated_poisson),
}  # fmt: skip
"""The losses by name."""


@cache
def loss_of(name: str) -> Loss:
    """Return a loss by its name, which may end with a parameter: "huber:0.25".

    Raises
    ------
    InputError
        If there is no such loss, or the parameter is invalid.
    """
    head, colon, text = name.partition(":")
    known = KNOWN.get(head)
    if known is None:
        from difflib import get_close_matches

        nearest = "".join(get_close_matches(head, KNOWN, 1)).split("-")[0]
        near = [repr(each) for each in KNOWN if each.split("-")[0] == nearest]  # such as all for binary data
        advice = f"did you mean {' or '.join(near)}?" if near else f"expected {', '.join(KNOWN)}"
        raise InputError(f"loss {name!r} is unknown: {advice}")
    if known.default is None:
        if colon:
            raise InputError(f"loss {name!r}: {head!r} has no parameter")
        return known.make()
    try:
        parameter = (float(text) if NUMBER.fullmatch(text) else math.nan) if colon else known.default
    except ValueError:
        parameter = math.nan
    if not known.valid(parameter):
        raise InputError(f"loss {name!r}: expected a number {known.expected} after {head + ':'!r}")
    return known.make(parameter)
