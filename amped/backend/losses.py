"""Loss functions f(x, m) of an element x and the model's value m, as formulas that each device can evaluate.

A formula is written once, as text in x and m. It becomes a NumPy function (`Formula.__call__`), compiled code on the
CPU (`Formula.scalar`) and a CUDA C++ expression (`Formula.cuda`). A new loss needs three formulas::

    delta = 0.5
    huber = Loss(
        "huber",
        value=f"where(abs(x - m) < {delta}, (x - m)**2, {2 * delta} * abs(x - m) - {delta**2})",
        first=f"where(abs(x - m) < {delta}, 2 * (m - x), where(m > x, {2 * delta}, {-2 * delta}))",
        second=f"where(abs(x - m) < {delta}, 2, 0)",
    )
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from types import CodeType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError

FUNCTIONS = "abs", "exp", "expm1", "log", "log1p", "sqrt", "tanh"
"""Functions of one argument. ``where(condition, a, b)`` is available too."""

_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_COMPARISONS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}


class _Dialect(NamedTuple):
    """Format strings for the constructs in which the target languages differ."""

    call: str
    absolute: str
    power: str
    where: str


_PYTHON = _Dialect("{0}({1})", "abs({0})", "({0} ** {1})", "({1} if {0} else {2})")
_CUDA = _Dialect("{0}({1})", "fabs({0})", "pow({0}, {1})", "({0} ? {1} : {2})")
_NUMPY = _Dialect("{0}({1})", "abs({0})", "({0} ** {1})", "where({0}, {1}, {2})")
_NAMESPACE = {"where": np.where} | {name: getattr(np, name) for name in FUNCTIONS}


@dataclass(frozen=True)
class Formula:
    """A formula in x, an element of the tensor, and m, the model's value there, evaluated in double precision.

    Parameters
    ----------
    text : str
        In Python syntax: numbers, ``+ - * / **``, comparisons, `FUNCTIONS` and ``where(condition, a, b)``, whose result
        does not depend on the other branch.
    """

    text: str
    _tree: ast.expr = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            tree = ast.parse(self.text.strip(), mode="eval").body
        except SyntaxError as error:
            raise InputError(f"formula {self.text!r}: {error.msg}") from None
        object.__setattr__(self, "_tree", tree)
        self._write(tree, _PYTHON)

    @property
    def scalar(self) -> str:
        """The formula as a Python expression of two numbers."""
        return self._write(self._tree, _PYTHON)

    @property
    def cuda(self) -> str:
        """The formula as a CUDA C++ expression of two doubles."""
        return self._write(self._tree, _CUDA)

    def __call__(self, x: NDArray[Any] | float, m: NDArray[Any] | float) -> NDArray[np.float64]:
        """Evaluate the formula with NumPy; the reference for all devices."""
        x, m = np.broadcast_arrays(np.asarray(x, np.float64), np.asarray(m, np.float64))
        with np.errstate(all="ignore"):
            result = eval(_code(self._write(self._tree, _NUMPY)), _NAMESPACE, {"x": x, "m": m})
        return np.broadcast_to(np.asarray(result, np.float64), x.shape)

    def _write(self, node: ast.expr, to: _Dialect) -> str:
        match node:
            case ast.Name(id="x" | "m" as name):
                return name
            case ast.Constant(value=bool()):
                pass
            case ast.Constant(value=int() | float() as number) if abs(number) <= sys.float_info.max:
                return repr(float(number))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return f"(-{self._write(operand, to)})"
            case ast.BinOp(op=ast.Pow(), left=left, right=right):
                return to.power.format(self._write(left, to), self._write(right, to))
            case ast.BinOp(op=op, left=left, right=right) if type(op) in _OPERATORS:
                return f"({self._write(left, to)} {_OPERATORS[type(op)]} {self._write(right, to)})"
            case ast.Call(func=ast.Name(id="abs"), args=[argument], keywords=[]):
                return to.absolute.format(self._write(argument, to))
            case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in FUNCTIONS:
                return to.call.format(name, self._write(argument, to))
            case ast.Call(func=ast.Name(id="where"), args=[test, a, b], keywords=[]):
                return to.where.format(self._test(test, to), self._write(a, to), self._write(b, to))
        known = f"x, m, numbers, + - * / **, where(a < b, ., .), {', '.join(FUNCTIONS)}"
        raise InputError(f"formula {self.text!r}: {ast.unparse(node)!r} is not supported; use {known}")

    def _test(self, node: ast.expr, to: _Dialect) -> str:
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
                return f"({self._write(left, to)} {_COMPARISONS[type(op)]} {self._write(right, to)})"
        raise InputError(f"formula {self.text!r}: {ast.unparse(node)!r} is not a comparison of two numbers")


@cache
def _code(expression: str) -> CodeType:
    return compile(expression, "<formula>", "eval")


class Maps(NamedTuple):
    """The formulas that a method evaluates at each nonzero and sums.

    Attributes
    ----------
    weight : Formula
        y of the mapped MTTKRP, the sum of y(x, m) v, where v is the product of the other modes' factor rows.
    curve : Formula, optional
        c of the row systems, the sum of c(x, m) v v^T.
    value : Formula
        Summed directly.
    lower : float
        Lower bound to which the model's values are clamped.
    """

    weight: Formula
    curve: Formula | None
    value: Formula
    lower: float = -np.inf


@dataclass(frozen=True)
class Loss:
    """A loss function f(x, m) of an element and the model's value.

    Parameters
    ----------
    name : str
    value, first, second : str
        f, and its first and second derivative in m; see `Formula`.
    lower : float, optional
        Lower end of the domain of f in m; the model's values are clamped to it.
    at_zero : (a, b), optional
        ``f(0, m) = a m + b m**2``. The sum over all absent elements then has a closed form in the factor matrices'
        column sums (a) and Gram matrices (b).

    Raises
    ------
    InputError
        If a formula is invalid, or `at_zero` contradicts `value`.
    """

    name: str
    value: str
    first: str
    second: str
    lower: float = -np.inf
    at_zero: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        for formula in (self.value, self.first, self.second):
            Formula(formula)
        if self.at_zero is None:
            return
        m = np.array([0.25, 1.0, 3.0])
        if not np.allclose(Formula(self.value)(0.0, m), self.at_zero[0] * m + self.at_zero[1] * m**2):
            raise InputError(f"loss {self.name!r}: value at x = 0 is not {self.at_zero[0]} m + {self.at_zero[1]} m**2")

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
            If absent elements are zeros and their sum has no closed form.
        """
        a, b = self._closed_form() if absent_are_zero else (0.0, 0.0)
        zero, zero_first = (f" - ({a!r} * m + {b!r} * m * m)", f" - ({a!r} + {2 * b!r} * m)") if a or b else ("", "")
        zero_second = f" - {2 * b!r}" if b else ""
        curve = Formula(f"({self.second}){zero_second}") if curved else None
        return Maps(Formula(f"({self.first}){zero_first}"), curve, Formula(f"({self.value}){zero}"), self.lower)

    def everywhere(self, factors: Sequence[NDArray[Any]]) -> float:
        """Return the sum of f(0, m) over all elements of a tensor."""
        a, b = self._closed_form()
        sums = np.prod([f.sum(axis=0, dtype=np.float64) for f in factors], axis=0).sum() if a else 0.0
        return float(a * sums + b * _products(factors).sum() if b else a * sums)

    def gradient_everywhere(self, factors: Sequence[NDArray[Any]], mode: int) -> NDArray[np.float64]:
        """Return the gradient of `everywhere` with respect to one mode's factor matrix."""
        (a, b), others = self._closed_form(), [f for n, f in enumerate(factors) if n != mode]
        ones = np.prod([f.sum(axis=0, dtype=np.float64) for f in others], axis=0)
        gradient = 2 * b * factors[mode].astype(np.float64) @ _products(others) + a * ones
        return np.asarray(gradient, np.float64)

    def curvature_everywhere(self, factors: Sequence[NDArray[Any]], mode: int) -> NDArray[np.float64]:
        """Return the second derivatives of `everywhere`, (R, R), with respect to any row of one factor matrix."""
        others = [f for n, f in enumerate(factors) if n != mode]
        return np.asarray(2 * self._closed_form()[1] * _products(others), np.float64)

    def _closed_form(self) -> tuple[float, float]:
        if self.at_zero is None:
            raise InputError(
                f"loss {self.name!r}: the sum over absent elements has no closed form: define at_zero=(a, b)"
            )
        return self.at_zero


def _products(factors: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
    """Return the elementwise product of the Gram matrices."""
    grams = [f.astype(np.float64).T @ f.astype(np.float64) for f in factors]
    return np.asarray(np.prod(grams, axis=0), np.float64)


GAUSSIAN = Loss("gaussian", "(x - m)**2", "2 * (m - x)", "2", at_zero=(0.0, 1.0))
POISSON = Loss("poisson", "m - x * log(m)", "1 - x / m", "x / m / m", lower=1e-10, at_zero=(1.0, 0.0))
LOSSES = {loss.name: loss for loss in (GAUSSIAN, POISSON)}
PHI = Formula("x / m")
"""Phi of CP-APR: the negative gradient of the Poisson loss restricted to nonzeros."""
RESIDUAL = Formula("x - m")
