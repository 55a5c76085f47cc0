"""Formulas in x, an element of a tensor, and m, the model's value there, which each device can evaluate.

A formula is written once, as text. It becomes a NumPy function (`Formula.__call__`), compiled code on the CPU
(`Formula.scalar`) and a CUDA C++ expression (`Formula.cuda`). Its text is parsed, never executed as it is.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
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


class NumpyFormula:
    """A NumPy function of x and m, evaluated in double precision; only the host can evaluate it.

    Parameters
    ----------
    function : callable
        Called with two arrays of one shape; returns an array of that shape, or a number.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, x: NDArray[Any] | float, m: NDArray[Any] | float) -> NDArray[np.float64]:
        """Evaluate the function; see `Formula`."""
        x, m = np.broadcast_arrays(np.asarray(x, np.float64), np.asarray(m, np.float64))
        with np.errstate(all="ignore"):
            result = np.asarray(self._function(x, m), np.float64)
        try:
            return np.broadcast_to(result, x.shape)
        except ValueError:
            cause = f"returns shape {result.shape} for arrays of shape {x.shape}"
            raise InputError(f"function {getattr(self._function, '__name__', '?')!r} of a loss {cause}") from None


Evaluated = Formula | NumpyFormula


def formula_of(given: str | Callable[..., Any]) -> Evaluated:
    """Return a formula from its text or a NumPy function."""
    return Formula(given) if isinstance(given, str) else NumpyFormula(given)
