"""Formulas in x, an element of a tensor, and m, the model's value there, which each device can evaluate.

A formula is written once, as text. It becomes a NumPy function (`Formula.__call__`), compiled code on the CPU
(`Formula.scalar`) and a CUDA C++ expression (`Formula.cuda_of`). Its text is parsed, never executed as it is.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from partitioner.array_types import Floats

from ..errors import InputError
from .formula_steps import Steps, SumSteps, TemporaryArrays

FUNCTIONS = "abs", "exp", "expm1", "log", "log1p", "sqrt", "tanh"
"""Functions of one argument. ``where(condition, a, b)`` is available too."""

_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_COMPARISONS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}


class _Dialect(NamedTuple):
    """Format strings for the constructs in which the target languages differ."""

    call: str
    absolute: str
    power: str
    square: str
    where: str
    number: str


_PYTHON = _Dialect("{0}({1})", "abs({0})", "({0} ** {1})", "({0} ** 2.0)", "({1} if {0} else {2})", "{0}")
_CUDA = _Dialect("{0}({1})", "fabs({0})", "pow({0}, {1})", "({0} * {0})", "({0} ? {1} : {2})", "{0}")


@dataclass(frozen=True)
class Formula:
    """A formula in x, an element of the tensor, and m, the model's value there.

    Devices evaluate it in double precision, NumPy in single precision if both arrays are.

    Parameters
    ----------
    text : str
        In Python syntax: numbers, ``+ - * / **``, comparisons, `FUNCTIONS` and ``where(condition, a, b)``, whose result
        does not depend on the other branch.
    """

    text: str
    tree: ast.expr = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            tree = ast.parse(self.text.strip(), mode="eval").body
        except SyntaxError as error:
            raise InputError(f"formula {self.text!r}: {error.msg}") from None
        object.__setattr__(self, "tree", tree)
        self._write(tree, _PYTHON)

    @property
    def scalar(self) -> str:
        """The formula as a Python expression of two numbers."""
        return self._write(self.tree, _PYTHON)

    def cuda_of(self, kind: str) -> str:
        """Return the formula as a CUDA C++ expression of two numbers of a type: float or double."""
        return self._write(self.tree, _CUDA._replace(number=f"{kind}({{0}})"))

    def __call__(self, x: Floats | float, m: Floats | float) -> Floats:
        """Evaluate the formula with NumPy; the reference for all devices."""
        return _steps((self,))(*_floats(x, m))[0]

    def _write(self, node: ast.expr, to: _Dialect) -> str:
        match node:
            case ast.Name(id="x" | "m" as name):
                return name
            case ast.Constant(value=bool()):
                pass
            case ast.Constant(value=int() | float() as number) if abs(number) <= sys.float_info.max:
                return to.number.format(repr(float(number)))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return f"(-{self._write(operand, to)})"
            case ast.BinOp(op=ast.Pow(), left=left, right=ast.Constant(value=2)):
                return to.square.format(self._write(left, to))
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


class NumpyFormula:
    """A NumPy function of x and m; only the host can evaluate it.

    Parameters
    ----------
    function : callable
        Called with two arrays of one shape; returns an array of that shape, or a number.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, x: Floats | float, m: Floats | float) -> Floats:
        """Evaluate the function; see `Formula`."""
        x, m = _floats(x, m)
        with np.errstate(all="ignore"):
            result = np.asarray(self._function(x, m), x.dtype)
        try:
            return np.broadcast_to(result, x.shape)
        except ValueError:
            cause = f"returns shape {result.shape} for arrays of shape {x.shape}"
            raise InputError(f"function {getattr(self._function, '__name__', '?')!r} of a loss {cause}") from None


Evaluated = Formula | NumpyFormula


def evaluate(
    formulas: Sequence[Evaluated], x: Floats, m: Floats, temporary: TemporaryArrays | None = None
) -> list[Floats]:
    """Evaluate formulas at the same elements; they share their common subexpressions. See `Steps`."""
    texts = tuple(each for each in formulas if isinstance(each, Formula))
    if len(texts) < len(formulas):
        return [each(x, m) for each in formulas]
    return _steps(texts)(*_floats(x, m), temporary)


def evaluate_sum(
    value: Evaluated, other: Evaluated, x: Floats, m: Floats, temporary: TemporaryArrays
) -> tuple[float, Floats]:
    """Return the sum of a formula over some elements, and the values of another one. See `SumSteps`."""
    if isinstance(value, Formula) and isinstance(other, Formula):
        return _sum_steps(value, other)(*_floats(x, m), temporary)
    return float(value(x, m).sum(dtype=np.float64)), other(x, m)


@lru_cache(maxsize=256)
def _sum_steps(value: Formula, other: Formula) -> SumSteps:
    return SumSteps(value.tree, other.tree)


@lru_cache(maxsize=256)
def _steps(formulas: tuple[Formula, ...]) -> Steps:
    return Steps([each.tree for each in formulas])


def _floats(x: Floats | float, m: Floats | float) -> tuple[Floats, Floats]:
    """Return arrays of one shape and type: float32 if both are, otherwise float64."""
    single = all(getattr(each, "dtype", None) == np.float32 for each in (x, m))
    dtype = np.dtype(np.float32 if single else np.float64)
    one, other = np.asarray(x, dtype), np.asarray(m, dtype)
    if one.shape == other.shape:
        return one, other
    both = np.broadcast_arrays(one, other)
    return both[0], both[1]


def formula_of(given: str | Callable[..., Any]) -> Evaluated:
    """Return a formula from its text or a NumPy function."""
    return Formula(given) if isinstance(given, str) else NumpyFormula(given)
