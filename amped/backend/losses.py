"""Losses: how far a model's value m is from an element x, as formulas that each device computes.

A formula is written once, as text in x and m. It becomes a NumPy function (`Formula.__call__`), compiled code of the
host (`Formula.scalar`) and an expression of CUDA C++ (`Formula.cuda`). A loss of your own is three formulas::

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
"""Functions of one argument; beside them there is ``where(condition, a, b)``."""

_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_COMPARISONS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}


class _Dialect(NamedTuple):
    """How a language writes what differs; each is a format."""

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
    """A formula in x, an element of the tensor, and m, the model's value there; all numbers are in double precision.

    Parameters
    ----------
    text : str
        In the syntax of Python: numbers, ``+ - * / **``, comparisons, `FUNCTIONS` and ``where(condition, a, b)``, of
        which only the chosen branch counts.
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
        """The formula as an expression of CUDA C++ of two doubles."""
        return self._write(self._tree, _CUDA)

    def __call__(self, x: NDArray[Any] | float, m: NDArray[Any] | float) -> NDArray[np.float64]:
        """Return the formula's values: the reference of what devices compute."""
        x, m = np.broadcast_arrays(np.asarray(x, np.float64), np.asarray(m, np.float64))
        with np.errstate(all="ignore"):
            found = eval(_code(self._write(self._tree, _NUMPY)), _NAMESPACE, {"x": x, "m": m})
        return np.broadcast_to(np.asarray(found, np.float64), x.shape)

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
        raise InputError(f"formula {self.text!r}: {ast.unparse(node)!r} is not known; use {known}")

    def _test(self, node: ast.expr, to: _Dialect) -> str:
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
                return f"({self._write(left, to)} {_COMPARISONS[type(op)]} {self._write(right, to)})"
        raise InputError(f"formula {self.text!r}: {ast.unparse(node)!r} is no comparison of two numbers")


@cache
def _code(expression: str) -> CodeType:
    return compile(expression, "<formula>", "eval")


class Maps(NamedTuple):
    """What is computed of each nonzero: the sums that a method needs are of these.

    Attributes
    ----------
    weight : Formula
        y of the mapped MTTKRP, the sum of y(x, m) v; v is the product of the other modes' factor rows.
    curve : Formula, optional
        c of the row systems, the sum of c(x, m) v v^T.
    value : Formula
        Summed as it is.
    lower : float
        The model's values are taken for at least that.
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
        f and its derivatives in m, once and twice; see `Formula`.
    lower : float, optional
        The least m for which f is defined: smaller values of a model are taken for that one.
    at_zero : (a, b), optional
        ``f(0, m) = a m + b m**2``: the sum over all absent elements then has a closed form, by the factor matrices'
        column sums (a) and Gram matrices (b).

    Raises
    ------
    InputError
        If a formula is not understood, or `at_zero` does not agree with `value`.
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
        """Return what is to be summed over the nonzeros for the objective, its gradient and curvature.

        Parameters
        ----------
        curved : bool
            Second derivatives too.
        absent_are_zero : bool
            Elements that are absent are zeros, and `everywhere` counts all elements as such: nonzeros count with what
            their loss differs from that of a zero. Otherwise absent elements are unknown, and do not count.

        Raises
        ------
        InputError
            If absent elements are zeros, and there is no closed form for them.
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
        """Return the gradient of `everywhere` in one mode's factor matrix."""
        (a, b), others = self._closed_form(), [f for n, f in enumerate(factors) if n != mode]
        ones = np.prod([f.sum(axis=0, dtype=np.float64) for f in others], axis=0)
        found = 2 * b * factors[mode].astype(np.float64) @ _products(others) + a * ones
        return np.asarray(found, np.float64)

    def curvature_everywhere(self, factors: Sequence[NDArray[Any]], mode: int) -> NDArray[np.float64]:
        """Return the (R, R) second derivatives of `everywhere` in any row of one mode's factor matrix."""
        others = [f for n, f in enumerate(factors) if n != mode]
        return np.asarray(2 * self._closed_form()[1] * _products(others), np.float64)

    def _closed_form(self) -> tuple[float, float]:
        if self.at_zero is None:
            raise InputError(f"loss {self.name!r}: no closed form of the sum over absent elements; give at_zero=(a, b)")
        return self.at_zero


def _products(factors: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
    """Return the elementwise product of Gram matrices."""
    grams = [f.astype(np.float64).T @ f.astype(np.float64) for f in factors]
    return np.asarray(np.prod(grams, axis=0), np.float64)


GAUSSIAN = Loss("gaussian", "(x - m)**2", "2 * (m - x)", "2", at_zero=(0.0, 1.0))
POISSON = Loss("poisson", "m - x * log(m)", "1 - x / m", "x / m / m", lower=1e-10, at_zero=(1.0, 0.0))
LOSSES = {loss.name: loss for loss in (GAUSSIAN, POISSON)}
PHI = Formula("x / m")
"""CP-APR's Phi: the part of the Poisson loss's gradient that nonzeros have, negated."""
RESIDUAL = Formula("x - m")
