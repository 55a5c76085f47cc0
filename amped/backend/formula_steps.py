"""Formulas as NumPy operations in the order of evaluation: each common subexpression once, in few temporary arrays."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from partitioner.array_types import Floats


class _Constant(NamedTuple):
    number: float


Operand = int | _Constant
"""The number of a value, or a constant, which no number of a value equals."""

X, M = 0, 1  # the numbers of the given values
FURTHEST = 1e4  # factors of a product are at most this, and at least its inverse
PRODUCTS = {4: (8, 5e-2), 8: (64, 1e-3)}
"""The numbers of a product, and the least mean of logarithms that are computed from products, by bytes of a number."""
_UFUNCS: dict[type[ast.AST], np.ufunc] = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.divide, ast.Pow: np.power,
    ast.Lt: np.less, ast.LtE: np.less_equal, ast.Gt: np.greater, ast.GtE: np.greater_equal, ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}  # fmt: skip
_TESTS = {function for kind, function in _UFUNCS.items() if issubclass(kind, ast.cmpop)}


def _bits(number: Any, dtype: np.dtype[Any]) -> Any:
    """Return the bits of numbers of a type as integers."""
    return np.asarray(number, dtype).view(f"i{dtype.itemsize}")


def _mask(test: Any, out: Any) -> Any:
    """Set all bits where a test holds."""
    np.negative(test.view(np.int8), out=_bits(out, out.dtype), dtype=f"i{out.itemsize}")
    return out


def _differing(a: Any, b: Any, out: Any) -> Any:
    """Set the bits that differ. With `_common` it chooses numbers without branches, and allocates nothing."""
    np.bitwise_xor(_bits(a, out.dtype), _bits(b, out.dtype), out=_bits(out, out.dtype))
    return out


def _common(a: Any, b: Any, out: Any) -> Any:
    """Set the bits that are set in both."""
    np.bitwise_and(_bits(a, out.dtype), _bits(b, out.dtype), out=_bits(out, out.dtype))
    return out


def _put_zeros(x: Any, out: Any) -> Any:
    """Store x with zeros in place of NaN, which are few; the result may take the place of x."""
    if out is not x:
        np.copyto(out, x)
    if np.isnan(out.sum()):
        out[np.isnan(out)] = 0
    return out


class TemporaryArrays:
    """Arrays that evaluations of one thread use again. Their results are valid until the next evaluation."""

    def __init__(self) -> None:
        self._arrays = dict[tuple[int, np.dtype[Any]], NDArray[Any]]()

    def array(self, number: int, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """Return array `number`; its contents are undefined."""
        key, size = (number, np.dtype(dtype)), math.prod(shape)
        flat = self._arrays.get(key)
        if flat is None or flat.size < size:
            flat = self._arrays[key] = np.empty(size, dtype)
        return flat[:size].reshape(shape)


class _Operation(NamedTuple):
    """An operation, its operands, and the temporary array of its result."""

    function: Callable[..., Any]
    operands: tuple[Operand, ...]
    place: int


class Steps:
    """The operations of some formulas.

    Parameters
    ----------
    trees : sequence of expressions
        Of `Formula`, which has checked them.
    """

    def __init__(self, trees: Sequence[ast.expr]) -> None:
        found = _Numbering()
        self._results = [found.number(tree) for tree in trees]
        self._operations, self._is_test = _placed(list(found.operations), self._results)

    def __call__(self, x: Floats, m: Floats, temporary: TemporaryArrays | None = None) -> list[Floats]:
        """Return the values of the formulas, given two arrays of one shape and type.

        If `temporary` is given, the next call overwrites them.
        """
        arrays = temporary or TemporaryArrays()
        places = [arrays.array(k, x.shape, bool if test else x.dtype) for k, test in enumerate(self._is_test)]
        values: list[Any] = [x, m]
        with np.errstate(all="ignore"):
            for function, operands, place in self._operations:
                arguments = [each.number if isinstance(each, _Constant) else values[each] for each in operands]
                values.append(function(*arguments, out=places[place]))
        results = [each.number if isinstance(each, _Constant) else values[each] for each in self._results]
        return [np.broadcast_to(np.asarray(each, x.dtype), x.shape) for each in results]


class _Logarithm(NamedTuple):
    """A term of a formula: the sign, and what the logarithm is of, ``u`` or, by log1p, ``1 + e``."""

    sign: float
    u: ast.expr
    e: ast.expr | None


class SumSteps:
    """The sum of a formula over some elements, and another formula.

    The sum of logarithms is the logarithm of a product, of a few numbers at a time, which takes less time.

    Parameters
    ----------
    value, other : expression
        See `Steps`.
    """

    def __init__(self, value: ast.expr, other: ast.expr) -> None:
        rest, self._logarithms = _without_logarithms(value)
        found = [each for term in self._logarithms for each in (term.u, term.e or term.u)]
        self._steps = Steps([rest, other, *found])

    def __call__(self, x: Floats, m: Floats, temporary: TemporaryArrays) -> tuple[float, Floats]:
        """Return the sum, and the values of the other formula, which the next call with `temporary` overwrites."""
        rest, other, *found = self._steps(x, m, temporary)
        total = float(rest.sum(dtype=np.float64))
        with np.errstate(all="ignore"):
            for (sign, _, e), one, less_one in zip(self._logarithms, found[::2], found[1::2], strict=True):
                total += sign * _sum_of_logarithms(one, None if e is None else less_one)
        return total, other


def _without_logarithms(node: ast.expr) -> tuple[ast.expr, list[_Logarithm]]:
    """Return an expression without the logarithms among its terms, and those."""
    match node:
        case ast.BinOp(op=ast.Add() | ast.Sub() as op, left=left, right=right):
            (first, some), (second, others) = _without_logarithms(left), _without_logarithms(right)
            if isinstance(op, ast.Sub):
                others = [each._replace(sign=-each.sign) for each in others]
            return first if _is_zero(second) else ast.BinOp(first, op, second), some + others
        case ast.Call(func=ast.Name(id="log"), args=[u]):
            return ast.Constant(0.0), [_Logarithm(1.0, u, None)]
        case ast.Call(func=ast.Name(id="log1p"), args=[e]):
            return ast.Constant(0.0), [_Logarithm(1.0, ast.BinOp(ast.Constant(1), ast.Add(), e), e)]
    return node, []


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0


def _sum_of_logarithms(u: Floats, e: Floats | None) -> float:
    """Return the sum of log(u), where u is 1 + e if `e` is given; e may be too small to be seen in u."""
    together, least = PRODUCTS[u.dtype.itemsize]
    flat, whole = u.reshape(-1), u.size // together * together
    if whole and flat.min() > 1 / FURTHEST and flat.max() < FURTHEST:
        products = np.multiply.reduce(flat[:whole].reshape(together, -1), axis=0)
        total = sum(float(np.log(each).sum(dtype=np.float64)) for each in (products, flat[whole:]))
        if abs(total) > least * u.size:  # otherwise rounding to 1 may matter
            return total
    return float((np.log(u) if e is None else np.log1p(e)).sum(dtype=np.float64))


class _Numbering:
    """Numbers for the values of expressions: equal expressions have the same number, constants are computed."""

    def __init__(self) -> None:
        self.operations = dict[tuple[Callable[..., Any], tuple[Operand, ...]], int]()

    def number(self, node: ast.expr) -> Operand:
        """Return the number of an expression's value."""
        match node:
            case ast.Name(id=name):
                return X if name == "x" else M
            case ast.Constant(value=int() | float() as constant):
                return _Constant(float(constant))
            case ast.UnaryOp(operand=operand):
                return self._of(np.negative, operand)
            case ast.BinOp(op=ast.Pow(), left=left, right=ast.Constant(value=2)):
                return self._of(np.square, left)
            case ast.BinOp(op=op, left=left, right=right):
                return self._of(_UFUNCS[type(op)], left, right)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._of(_UFUNCS[type(op)], left, right)
            case ast.Call(func=ast.Name(id="where"), args=[test, a, b]):
                return self._where(self.number(test), a, b)
            case ast.Call(func=ast.Name(id="log1p"), args=[argument]):
                return self._log1p(argument)
            case ast.Call(func=ast.Name(id=name), args=[argument]):
                return self._of(getattr(np, name), argument)
        raise AssertionError(ast.dump(node))  # formulas are checked when they are made

    def _where(self, test: Operand, a: ast.expr, b: ast.expr) -> Operand:
        """Return the number of `a` where a test holds, otherwise of `b`: ``((a xor b) and mask) xor b``."""
        if isinstance(test, _Constant):
            return self.number(a if test.number else b)
        one, other = self.number(a), self.number(b)
        differs = self._operation(_differing, one, other)
        return self._operation(_differing, self._operation(_common, differs, self._operation(_mask, test)), other)

    def _log1p(self, node: ast.expr) -> Operand:
        """Return the number of log(1 + x), as accurate as `numpy.log1p`, and several times as fast without AVX-512.

        With u = 1 + x as it is rounded, it is log(u) + (x - (u - 1)) / u, and both differences are exact. At -1 and
        infinity, the quotient is NaN.
        """
        one, x = _Constant(1.0), self.number(node)
        whole = self._operation(np.add, one, x)
        error = self._operation(np.subtract, x, self._operation(np.subtract, whole, one))
        error = self._operation(_put_zeros, self._operation(np.divide, error, whole))
        return self._operation(np.add, self._operation(np.log, whole), error)

    def _of(self, function: Callable[..., Any], *nodes: ast.expr) -> Operand:
        """Return the number of an operation's value."""
        return self._operation(function, *(self.number(node) for node in nodes))

    def _operation(self, function: Callable[..., Any], *operands: Operand) -> Operand:
        constants = [each.number for each in operands if isinstance(each, _Constant)]
        if isinstance(function, np.ufunc) and len(constants) == len(operands):
            with np.errstate(all="ignore"):
                return _Constant(float(function(*constants)))
        return self.operations.setdefault((function, operands), len(self.operations) + M + 1)


def _placed(
    operations: Sequence[tuple[Callable[..., Any], tuple[Operand, ...]]], results: Sequence[Operand]
) -> tuple[list[_Operation], list[bool]]:
    """Return operations with places for their results, and for each place whether it holds a test.

    A place is taken again once the last operation that needs its value has read it.
    """
    last = {each: at for at, (_, operands) in enumerate(operations) for each in operands if isinstance(each, int)}
    last |= {each: len(operations) for each in results if isinstance(each, int)}
    placed, is_test, free, places = list[_Operation](), list[bool](), list[int](), dict[int, int]()
    for at, (function, operands) in enumerate(operations):
        ending = {each for each in operands if isinstance(each, int) and each > M and last[each] == at}
        free += [places[each] for each in ending]
        test = function in _TESTS
        place = next((each for each in free if is_test[each] == test), len(is_test))
        if place == len(is_test):
            is_test.append(test)
        else:
            free.remove(place)
        places[at + M + 1] = place
        placed.append(_Operation(function, operands, place))
    return placed, is_test
