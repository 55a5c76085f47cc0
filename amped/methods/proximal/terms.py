"""Constraints of a mode as text such as "l1:0.1", and what they mean together."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioner.flags import NUMBER
from partitioner.validate import real, whole

from ...errors import InputError
from .fixed import FixedElements, FixedMask, fixed_of_text

Prox = Callable[[NDArray[np.float64], float], NDArray[np.float64]]
"""A user's proximal operator: takes an (I_n, R) matrix and a step; see `ModeTerms.function`."""
ModeConstraints = str | Prox | Sequence[str]
"""The constraints of a mode as they are passed: one by name, a function, or several names."""

FORMS = {
    "nonnegative": "nonnegative", "bounds": "bounds:LOW:HIGH", "l1": "l1:X", "l2": "l2:X", "smooth": "smooth:X[:ORDER]",
    "unimodal": "unimodal", "monotone": "monotone[:decreasing]", "simplex": "simplex[:rows]",
    "orthonormal": "orthonormal", "sparse": "sparse:K", "ball": "ball", "fixed": "fixed:rows:0-4 or fixed:columns:0,2",
}  # fmt: skip
"""The names of constraints, and how they are written."""
SHAPES = "unimodal", "monotone", "simplex", "orthonormal", "sparse"
"""Of these a mode has at most one."""
CONES = "", "unimodal", "monotone", "sparse"
"""Shapes that multiples of a column keep."""


@dataclass(frozen=True)
class ModeTerms:
    """The constraints of one mode together.

    Attributes
    ----------
    names : tuple of str
        As they are written.
    low, high : float
        Bounds of all entries.
    l1, l2, smooth : float
        Factors of the penalties ``|U|_1``, ``|U|_F**2 / 2`` and ``|D U|_F**2 / 2``.
    order : int
        Of the differences D: 1 or 2.
    shape : str
        One of `SHAPES`, or empty.
    option : str
        "decreasing" or "rows", or empty.
    count : int
        Nonzeros of a column at most; of the shape "sparse".
    ball : bool
        Whether the 2-norm of a column is at most 1.
    fixed : FixedElements, optional
        Elements that keep their initial values.
    function : callable, optional
        A user's proximal operator: ``function(matrix, step)`` returns the Z that minimises
        ``g(Z) + |Z - matrix|_F**2 / (2 step)``. Its attribute ``penalty``, if it has one, returns g(Z); without it
        the function is the projection onto a set.
    """

    names: tuple[str, ...] = ()
    low: float = -math.inf
    high: float = math.inf
    l1: float = 0.0
    l2: float = 0.0
    smooth: float = 0.0
    order: int = 1
    shape: str = ""
    option: str = ""
    count: int = 0
    ball: bool = False
    fixed: FixedElements | None = None
    function: Prox | None = None

    @property
    def nonnegative(self) -> bool:
        """Whether no entry is negative."""
        return self.low >= 0 or self.shape == "simplex"

    @property
    def penalised(self) -> bool:
        """Whether smaller entries have a smaller penalty."""
        return bool(self.l1 or self.l2 or self.smooth)

    @property
    def scalable(self) -> bool:
        """Whether multiples of a column meet the constraints, except for penalties and the ball."""
        bounds = self.low in (-math.inf, 0.0) and self.high == math.inf
        return bounds and self.shape in CONES and self.function is None and self.fixed is None

    @property
    def fixes_scale(self) -> bool:
        """Whether all matrices that meet the constraints have the same size."""
        return self.shape in ("simplex", "orthonormal")

    @property
    def columnwise(self) -> bool:
        """Whether the rows of a matrix depend on each other."""
        row_shape = self.shape == "simplex" and self.option == "rows"
        return bool((self.shape and not row_shape) or self.smooth or self.ball or self.function)

    @property
    def takes_zero_rows(self) -> bool:
        """Whether a matrix that meets the constraints may get the row closest to zero in place of any of its rows."""
        return not (self.smooth or self.function) and (not self.columnwise or self.shape in ("", "sparse"))

    @property
    def zero_is_best(self) -> bool:
        """Whether rows of zeros, in any number, are best where a tensor has no nonzeros."""
        return self.low <= 0 <= self.high and not (self.shape or self.smooth or self.function or self.fixed)

    @property
    def only_orthonormal(self) -> bool:
        """Whether all matrices with orthonormal columns meet the constraints, with the same penalty."""
        return self.shape == "orthonormal" and not self.nonnegative and not self.smooth

    @property
    def free(self) -> bool:
        """Whether the rows are those of least squares, perhaps with a ridge."""
        return replace(self, names=(), l2=0.0) == ModeTerms()

    def in_ball(self) -> ModeTerms:
        """Return the same constraints with columns of a 2-norm of at most 1."""
        return self if self.ball else replace(self, names=(*self.names, "ball"), ball=True)


def terms_of(value: object) -> ModeTerms:
    """Return the constraints of a mode from a text, a function, or a sequence of texts; raise `InputError`."""
    given = [value] if isinstance(value, str) or callable(value) else value
    if not isinstance(given, Sequence) or not given or not all(isinstance(g, str) or callable(g) for g in given):
        raise InputError(f"constraints: {value!r} is not a name, a function, or a list of names")
    if (functions := [each for each in given if callable(each)]) and len(given) > 1:
        raise InputError(f"constraints: the function {_name(functions[0])} must be the only constraint of its mode")
    if functions:
        return ModeTerms((_name(functions[0]),), function=functions[0])
    result = ModeTerms()
    for text in given:
        result = _with(result, text)
    _check(result)
    return result


def with_nonnegative(terms: ModeTerms) -> ModeTerms:
    """Return the same constraints of a mode with non-negative entries; raise `InputError` if that is impossible."""
    if terms.nonnegative:
        return terms
    if terms.function is not None:
        raise InputError(f"constraints: the function {terms.names[0]} must be the only constraint of its mode")
    result = replace(terms, names=(*terms.names, "nonnegative"), low=max(terms.low, 0.0))
    _check(result)
    return result


def with_masks(
    terms: tuple[tuple[int, ModeTerms], ...], masks: Sequence[FixedMask]
) -> tuple[tuple[int, ModeTerms], ...]:
    """Return the constraints of all modes with further fixed elements, of modes by number; raise `InputError`."""
    result = dict(terms)
    for mode, name, elements in masks:
        assert isinstance(mode, int)
        before = result.get(mode, ModeTerms())
        joined = elements if before.fixed is None else before.fixed.joined(elements)
        result[mode] = replace(before, names=(*before.names, name), fixed=joined)
        _check(result[mode])
    return tuple(sorted(result.items(), key=lambda each: each[0]))


def by_mode(name: str, value: object) -> tuple[tuple[int | str, ModeTerms], ...]:
    """Return the constraints of all modes from a mapping by number or name; raise `InputError`."""
    if not isinstance(value, Mapping):
        example = '{1: "unimodal", 0: ["nonnegative", "l1:0.1"]}'
        raise InputError(f"{name} {value!r}: expected a mapping such as {example}")
    return tuple((m if isinstance(m, str) else whole(f"{name}: mode", m, 0), terms_of(v)) for m, v in value.items())


def from_texts(texts: Sequence[str]) -> tuple[tuple[int | str, ModeTerms], ...]:
    """Return the constraints of all modes from texts such as "1:smooth:0.1"; raise `InputError`."""
    result = dict[int | str, list[str]]()
    for text in texts:
        mode, colon, rest = text.partition(":")
        if not mode or not colon:
            raise InputError(f"--constraint {text}: expected MODE:NAME, such as 1:unimodal or hour:l1:0.1")
        result.setdefault(int(mode) if mode.isdecimal() and mode.isascii() else mode, []).append(rest)
    return by_mode("--constraint", result)


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _with(terms: ModeTerms, text: str) -> ModeTerms:
    """Return constraints with a further one."""
    name, *parts = text.split(":")
    if name not in FORMS:
        from difflib import get_close_matches  # takes some milliseconds to import

        near = get_close_matches(name, FORMS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(FORMS)}"
        raise InputError(f"constraint {text!r}: unknown; {hint}")
    if any(other.partition(":")[0] == name for other in terms.names):
        raise InputError(f"constraint {text!r}: a mode has {name!r} only once")
    terms = replace(terms, names=(*terms.names, text))
    if name in SHAPES:
        if terms.shape:
            raise InputError(f"constraints {terms.shape!r} and {name!r} exclude each other in a mode")
        return _with_shape(terms, name, parts, text)
    if name == "fixed":
        return replace(terms, fixed=fixed_of_text(text, parts))
    if name in ("nonnegative", "ball"):
        _check_count(text, name, parts, 0, 0)
        return replace(terms, ball=True) if name == "ball" else replace(terms, low=max(terms.low, 0.0))
    if name == "bounds":
        _check_count(text, name, parts, 2, 2)
        low, high = (_number(text, part, infinite=True) for part in parts)
        if not low < high:
            raise InputError(f"constraint {text!r}: the lower bound must be below the upper one")
        return replace(terms, low=max(low, terms.low), high=high)
    _check_count(text, name, parts, 1, 2 if name == "smooth" else 1)
    number = real(f"constraint {text!r}:", _number(text, parts[0]), "a number above 0", above=True)
    if len(parts) == 2:
        if parts[1] not in ("1", "2"):
            raise InputError(f"constraint {text!r}: the order of the differences is 1 or 2")
        terms = replace(terms, order=int(parts[1]))
    changes: dict[str, Any] = {name: number}
    return replace(terms, **changes)


def _with_shape(terms: ModeTerms, name: str, parts: list[str], text: str) -> ModeTerms:
    """Return constraints with a further one of `SHAPES`."""
    if name == "sparse":
        _check_count(text, name, parts, 1, 1)
        if not (parts[0].isdecimal() and parts[0].isascii() and int(parts[0])):
            raise InputError(f"constraint {text!r}: the number of nonzeros of a column is at least 1")
        return replace(terms, shape=name, count=int(parts[0]))
    known: dict[str, tuple[str, ...]] = {"monotone": ("increasing", "decreasing"), "simplex": ("columns", "rows")}
    choices = known.get(name, ())
    _check_count(text, name, parts, 0, bool(choices))
    if parts and parts[0] not in choices:
        raise InputError(f"constraint {text!r}: expected {name}:{choices[0]} or {name}:{choices[1]}")
    return replace(terms, shape=name, option=parts[0] if parts and parts[0] == choices[1] else "")


def _check_count(text: str, name: str, parts: list[str], least: int, most: int) -> None:
    if not least <= len(parts) <= most:
        raise InputError(f"constraint {text!r}: write it as {FORMS[name]}")


def _number(text: str, part: str, infinite: bool = False) -> float:
    number = float(part) if re.fullmatch(NUMBER, part) else math.nan
    if math.isnan(number) or (math.isinf(number) and not infinite):
        raise InputError(f"constraint {text!r}: {part!r} is not a number")
    return number


def _check(terms: ModeTerms) -> None:
    """Raise `InputError` for constraints whose proximal operator together is not known."""
    shape, bounded = terms.shape, not (terms.low in (-math.inf, 0.0) and terms.high == math.inf)
    if terms.function is not None and terms.fixed is not None:
        raise InputError(f"constraints: the function {terms.names[0]} must be the only constraint of its mode")
    if terms.fixed is not None:
        _check_fixed(terms)
    if terms.low >= terms.high:
        raise InputError(f"constraints {', '.join(terms.names)}: no matrix meets them")
    if bounded and shape in ("simplex", "orthonormal"):
        raise InputError(f"constraints {shape!r} and 'bounds' exclude each other in a mode")
    if shape == "sparse" and not terms.low <= 0 <= terms.high:
        raise InputError("constraint 'sparse': the bounds of its mode must include 0")
    if terms.ball and (bounded or terms.fixes_scale):
        raise InputError(f"constraint 'ball': not together with {shape or 'bounds'!r}")
    if terms.l1 and (shape == "simplex" or (shape not in ("", "sparse") and terms.low != 0)):
        needs = "a constant" if shape == "simplex" else "only supported with 'nonnegative'"
        raise InputError(f"constraint 'l1' together with {shape!r}: {needs}")


def _check_fixed(terms: ModeTerms) -> None:
    """Raise `InputError` unless the projection with fixed elements is that of the others."""
    fixed, shape = terms.fixed, terms.shape
    assert fixed is not None
    mask = fixed.mask
    if shape == "orthonormal":
        raise InputError("constraints 'orthonormal' and 'fixed' exclude each other in a mode")
    by_rows = shape == "simplex" and terms.option == "rows"
    if by_rows and (fixed.columns or (mask is not None and mask.shape[1] != 1)):
        raise InputError("constraint 'simplex:rows': only whole rows can be fixed")
    if (terms.ball or (shape and not by_rows)) and (fixed.rows or (mask is not None and len(mask) != 1)):
        raise InputError(f"constraint {shape or 'ball'!r}: only whole columns can be fixed")
