"""Loss functions f(x, m) of an element x and the model's value m.

A loss has formulas for f and its derivatives in m, which each device can evaluate (`Formula`)::

    delta = 0.5
    huber = Loss(
        value=f"where(abs(x - m) < {delta}, (x - m)**2, {2 * delta} * abs(x - m) - {delta**2})",
        first=f"where(abs(x - m) < {delta}, 2 * (m - x), where(m > x, {2 * delta}, {-2 * delta}))",
        second=f"where(abs(x - m) < {delta}, 2, 0)",
    )
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats

from ..errors import InputError
from .device import Array
from .formulas import Evaluated, Formula, NumpyFormula, formula_of

Text = str | Callable[..., Any]
"""A formula as text, or a NumPy function of x and m."""

SAMPLES = 0.25, 0.7, 1.0, 1.9, 3.0
"""Values of x and m, or with the opposite sign, at which derivatives are checked."""
BLOCK = 1 << 12  # rows whose moments are summed at a time, so that caches hold them
LIMITED = 0.999  # how much less a function with a finite limit at 0 changes within 1e-3 than within 1
STEP, AGREES, KINKS = 1e-6, 1e-4, 0.2  # of finite differences: their error, and the share of samples at kinks


class Maps(NamedTuple):
    """The formulas that a method evaluates at each nonzero and sums.

    Attributes
    ----------
    weight : Formula or NumpyFormula
        y of the mapped MTTKRP, the sum of y(x, m) v, where v is the product of the other modes' factor rows.
    curve : Formula or NumpyFormula, optional
        c of the row systems, the sum of c(x, m) v v^T.
    value : Formula or NumpyFormula, optional
        Summed directly.
    lower : float
        Lower bound to which the model's values are clamped.
    weighted : bool
        Whether elements have weights, by which the formulas are multiplied. The tensor then has one more mode, the
        last, which is not part of the model: column 0 of its factor matrix is the weight of each index.
    """

    weight: Evaluated
    curve: Evaluated | None
    value: Evaluated | None
    lower: float = -np.inf
    weighted: bool = False

    @property
    def formulas(self) -> dict[str, Formula | None]:
        """The formulas by name, for devices that compile them.

        Raises
        ------
        InputError
            If one is a NumPy function.
        """
        result = dict[str, Formula | None]()
        for name, formula in (("weight", self.weight), ("curve", self.curve), ("value", self.value)):
            if isinstance(formula, NumpyFormula):
                raise InputError("loss: NumPy functions cannot be compiled: write its formulas as text")
            result[name] = formula
        return result


class Moments(NamedTuple):
    """Column sums, (N, R), and Gram matrices, (N, R, R), of the factor matrices."""

    sums: Array
    grams: Array

    @classmethod
    def of(cls, factors: Sequence[Floats]) -> Moments:
        """Return the moments of factor matrices, or of some of their rows: moments of parts add up."""
        order, rank = len(factors), factors[0].shape[1]
        moments = cls(np.zeros((order, rank)), np.zeros((order, rank, rank)))
        for factor, sums, gram in zip(factors, *moments, strict=True):
            for begin in range(0, len(factor), BLOCK):
                exact = factor[begin : begin + BLOCK].astype(np.float64, copy=False)
                sums += exact.sum(axis=0)
                gram += exact.T @ exact
        return moments

    def others(self, xp: Any = np) -> Others:
        """Return for each mode the products over the other modes; `xp` is the array module."""
        return Others(_of_others(self.sums, xp), _of_others(self.grams, xp))


class Others(NamedTuple):
    """For each mode the products of the other modes' column sums, (N, R), and Gram matrices, (N, R, R)."""

    sums: Array
    grams: Array


def _of_others(each: Array, xp: Any) -> Array:
    """Return for each mode the product of the other modes' arrays, multiplied in cyclic order."""
    order, twice = len(each), xp.concatenate([each, each])
    result = twice[1 : order + 1]
    for k in range(2, order):
        result = result * twice[k : order + k]
    return result


class Domain(NamedTuple):
    """The values for which a loss is defined.

    Attributes
    ----------
    low, high : float
        Inclusive bounds.
    whole : bool
        Whether values are integers.
    """

    low: float = -np.inf
    high: float = np.inf
    whole: bool = False

    def __str__(self) -> str:
        if self == BINARY:
            return "0 or 1"
        noun = "an integer" if self.whole else "a number"
        return f"{noun} of at least {self.low:g}" if self.low > -np.inf else noun

    def outside(self, values: Floats) -> int | None:
        """Return the position of the first value outside the domain; None if there is none."""
        wrong = ~((values >= self.low) & (values <= self.high))  # NaN is outside
        if self.whole:
            wrong |= values != np.rint(values)
        return int(wrong.argmax()) if wrong.any() else None


REAL, POSITIVE, COUNTS, BINARY = Domain(), Domain(0.0), Domain(0.0, whole=True), Domain(0.0, 1.0, whole=True)


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A loss function f(x, m) of an element and the model's value.

    Parameters
    ----------
    value, first, second : str or callable
        f, and its first and second derivative in m: text in x, m, numbers, ``+ - * / **``, ``abs exp expm1 log log1p
        sqrt tanh`` and ``where(a < b, ..., ...)``, or NumPy functions of two arrays, which only a CPU can evaluate.
        The second derivative is only required for Newton steps.
    lower : float
        Lower end of the domain of f in m: minus infinity, or 0, which makes all factor matrices non-negative.
    name : str
        Its name in records.
    at_zero : (a, b), optional
        ``f(0, m) = a m + b m**2``. The sum over all absent elements then has a closed form in the factor matrices'
        column sums (a) and Gram matrices (b).
    domain : (low, high, whole)
        The values x for which f is defined: inclusive bounds, and whether they are integers.
    mean : str
        The expected value of an element as a formula in m.
    least : str, optional
        The lowest loss of an element over all m, as a formula in x. By default it is searched for.

    Raises
    ------
    InputError
        If a formula is invalid or does not depend on m, a derivative disagrees with finite differences, or ``at_zero``
        contradicts ``value``.

    Examples
    --------
    >>> cauchy = Loss(value="log1p((x - m)**2)", first="2 * (m - x) / (1 + (x - m)**2)")
    >>> float(cauchy.of(3.0, 3.0)), cauchy.nonnegative
    (0.0, False)
    """

    value: Text
    first: Text
    second: Text | None = None
    lower: float = -np.inf
    name: str = "custom"
    at_zero: tuple[float, float] | None = None
    domain: Domain = REAL
    mean: str = "m"
    least: str | None = None

    def __post_init__(self) -> None:
        self._check_types()
        if not np.any(self.slope(*self._samples())):
            raise self._error("its first derivative is 0: it must be a function of x and m")
        self._check_derivative("first", self.slope, "value", self.of)
        if self.second is not None:
            self._check_derivative("second", self.curvature, "first", self.slope)
        if self.at_zero is None:
            return
        a, b = self.at_zero
        m = np.array(SAMPLES)
        if not np.allclose(self.of(0.0, m), a * m + b * m**2):
            raise self._error(f"value at x = 0 is not {a} m + {b} m**2")

    def _check_types(self) -> None:
        """Raise `InputError` for an argument of another type; convert the domain."""
        if self.lower not in (0, -np.inf):
            raise self._error(f"lower is {self.lower!r}: expected 0 or minus infinity")
        texts = {"value": self.value, "first": self.first, "second": self.second or "", "mean": self.mean}
        for name, given in texts.items():
            if not (isinstance(given, str) or (callable(given) and name != "mean")):
                raise self._error(f"{name} is of type {type(given).__name__}: expected a formula")
        if np.any(self.mean_of(1.0, np.array(SAMPLES)) != self.mean_of(2.0, np.array(SAMPLES))):
            raise self._error("mean must be a function of m")
        try:
            object.__setattr__(self, "domain", Domain(*self.domain))
            a, b = self.at_zero or (0.0, 0.0)
            object.__setattr__(self, "at_zero", self.at_zero and (float(a), float(b)))
        except (TypeError, ValueError) as error:
            raise self._error(f"domain or at_zero: {error}") from None

    def _check_derivative(self, name: str, derivative: Evaluated, of: str, function: Evaluated) -> None:
        """Raise `InputError` unless a derivative agrees with finite differences, except at a few points: kinks."""
        x, m = self._samples()
        change = (function(x, m + STEP) - function(x, m - STEP)) / (2 * STEP)
        given = derivative(x, m)
        wrong = ~(np.abs(given - change) <= AGREES * (1 + np.abs(change)))
        if np.count_nonzero(wrong) > KINKS * wrong.size:
            at = int(wrong.argmax())
            place = f"at x = {x[at]:g}, m = {m[at]:g}"
            if not np.isfinite(change[at]):
                raise self._error(
                    f"{of} is not finite {place}: it must be defined for all m of at least {self.lower:g}"
                )
            raise self._error(f"{name} is {given[at]:g} {place}, but finite differences of {of} give {change[at]:g}")

    def _samples(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return pairs of a value in the domain and a value of the model."""
        numbers = np.array(SAMPLES)
        if self.domain.whole:
            values = np.arange(self.domain.low, min(self.domain.high, self.domain.low + 4) + 1)
        else:
            values = numbers if self.domain.low >= 0 else np.concatenate([-numbers, numbers])
        model = self.lower + numbers if self.nonnegative else np.concatenate([-numbers, numbers])
        x, m = np.meshgrid(values, model)
        return x.reshape(-1), m.reshape(-1)

    def _error(self, cause: str) -> InputError:
        return InputError(f"loss {self.name!r}: {cause}")

    @cached_property
    def of(self) -> Evaluated:
        """The function f(x, m)."""
        return formula_of(self.value)

    @cached_property
    def slope(self) -> Evaluated:
        """Its first derivative in m."""
        return formula_of(self.first)

    @cached_property
    def curvature(self) -> Evaluated:
        """Its second derivative in m; raises `InputError` if the loss has none."""
        if self.second is None:
            raise self._error("it has no second derivative")
        return formula_of(self.second)

    @cached_property
    def mean_of(self) -> Formula:
        """The expected value of an element."""
        return Formula(self.mean)

    @property
    def formulas(self) -> dict[str, str] | None:
        """The formulas as text, from which `of_formulas` makes the loss again; None if one is a NumPy function."""
        names = "value", "first", "second", "mean", "least"
        texts = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if not self.compiled:
            return None
        return {"name": self.name, "lower": "0" if self.nonnegative else "-inf", **texts}

    @classmethod
    def of_formulas(cls, formulas: Mapping[str, str]) -> Loss:
        """Return a loss from its `formulas`; raise `InputError` if they are invalid."""
        known = {"name", "value", "first", "second", "mean", "least"}
        texts: dict[str, Any] = {name: text for name, text in formulas.items() if name in known}
        if not {"value", "first"} <= texts.keys():
            raise InputError("loss: its formulas are incomplete")
        return cls(**texts, lower=0.0 if formulas.get("lower") == "0" else -np.inf)

    @property
    def nonnegative(self) -> bool:
        """Whether the model's values, and therefore all factor matrices, must not be negative."""
        return self.lower >= 0

    @property
    def keeps_unit(self) -> bool:
        """Whether the model's values have the unit of the elements: they are the expected ones."""
        return self.mean.strip() == "m"

    @cached_property
    def fits_zeros(self) -> bool:
        """Whether the zero model fits data that are all zero: f(0, m) has a finite minimum at m = 0."""
        small, m = np.array([0.0, 1e-6, 1e-3, 1.0]), np.array(SAMPLES)
        near, others = self.of(np.zeros(4), small), m if self.nonnegative else np.concatenate([-m, m])
        drops = np.abs(np.diff(near[1:]))  # of a logarithm or a pole they do not shrink
        lowest = bool(np.all(self.of(np.zeros(others.size), others) >= near[0]))
        return lowest and bool(np.isfinite(near[0]) and drops[0] <= LIMITED * drops[1])

    @property
    def squares_zeros(self) -> bool:
        """Whether the loss of zeros has a term in m**2, so that its sum needs Gram matrices."""
        return self.at_zero is not None and self.at_zero[1] != 0

    @property
    def compiled(self) -> bool:
        """Whether all formulas are text, which devices compile."""
        return not any(callable(each) for each in (self.value, self.first, self.second))

    def maps(self, *, curved: bool = False, absent_are_zero: bool = False) -> Maps:
        """Return the formulas to sum over the nonzeros for the objective, its gradient and its curvature.

        Parameters
        ----------
        curved : bool
            Whether to include second derivatives.
        absent_are_zero : bool
            If True, absent elements are zeros. Add `everywhere`, which treats all elements as zeros: the formulas
            returned here give the difference for nonzeros. If False, absent elements are unknown and do not count.

        Raises
        ------
        InputError
            If absent elements are zeros and their sum has no closed form, or the loss lacks second derivatives.
        """
        a, b = self._closed_form() if absent_are_zero else (0.0, 0.0)
        value = _less(self.value, f"{a!r} * m + {b!r} * m * m" if a or b else "")
        first = _less(self.first, f"{a!r} + {2 * b!r} * m" if a or b else "")
        if not curved:
            return Maps(first, None, value, self.lower)
        if self.second is None:
            raise self._error("it has no second derivative")
        return Maps(first, _less(self.second, f"{2 * b!r}" if b else ""), value, self.lower)

    def everywhere(self, moments: Moments) -> float:
        """Return the sum of f(0, m) over all elements of a tensor."""
        a, b = self._closed_form()
        return float(a * moments.sums.prod(axis=0).sum() + b * moments.grams.prod(axis=0).sum())

    def rows_everywhere(
        self, others: Others, mode: int, rows: Floats
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the shares (n,) of n `rows` of a mode's factor matrix in `everywhere`, and their gradients (n, R)."""
        exact = rows.astype(np.float64, copy=False)
        gradient = np.broadcast_to(self.gradient_everywhere(others, mode, exact), exact.shape)
        constant = self._closed_form()[0] * others.sums[mode]
        return np.einsum("ir,ir->i", gradient + constant, exact) / 2, gradient

    def gradient_everywhere(self, others: Others, mode: int, rows: Array) -> Array:
        """Return the gradient of `everywhere` with respect to n `rows` of a mode's factor matrix, (n, R) or (R,).

        It is (R,) if it is the same for all rows. Arrays may be in the memory of a GPU.
        """
        a, b = self._closed_form()
        if not b:
            return a * others.sums[mode]
        gradient = rows.astype(np.float64, copy=False) @ self.curvature_everywhere(others, mode)
        return gradient + a * others.sums[mode] if a else gradient

    def curvature_everywhere(self, others: Others, mode: int) -> Array:
        """Return the second derivatives of `everywhere`, (R, R), with respect to any row of one factor matrix."""
        return 2 * self._closed_form()[1] * others.grams[mode]

    def _closed_form(self) -> tuple[float, float]:
        if self.at_zero is None:
            raise InputError(
                f"loss {self.name!r}: the sum over absent elements has no closed form: define at_zero=(a, b)"
            )
        return self.at_zero


def _less(text: Text, zero: str) -> Evaluated:
    """Return a formula minus another one."""
    if not zero:
        return formula_of(text)
    if isinstance(text, str):
        return Formula(f"({text}) - ({zero})")
    given, other = text, Formula(zero)
    return NumpyFormula(lambda x, m: given(x, m) - other(x, m))


PHI = Formula("x / m")
"""Phi of CP-APR: the negative gradient of the Poisson loss restricted to nonzeros."""
RESIDUAL = Formula("x - m")
