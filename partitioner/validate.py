"""Convert and check numbers that callers pass. Errors name the argument, its value and the valid range."""

from __future__ import annotations

import math
import operator
from typing import Any

from .errors import InputError


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return an integer of any type as `int`; raise `InputError` if `value` is not one from `least` to `most`."""
    expected = f"an integer from {least} to {most}" if most is not None else f"an integer of at least {least}"
    try:
        number = operator.index(value)
    except TypeError:
        raise InputError(f"{name} {_shown(value)}: expected {expected}") from None
    if isinstance(value, bool) or number < least or (most is not None and number > most):
        raise InputError(f"{name} {_shown(value)}: expected {expected}")
    return number


def real(name: str, value: Any, expected: str, least: float = 0.0, above: bool = False) -> float:
    """Return a finite number of at least `least` (greater than `least` if `above`).

    Otherwise raise `InputError`, whose message says what was `expected`.
    """
    try:
        number = math.nan if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (least < number or (number == least and not above)) or math.isinf(number):
        raise InputError(f"{name} {_shown(value)}: expected {expected}")
    return number


def _shown(value: object) -> str:
    """Return a value for a message, shortened if it is long."""
    number = value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value
    if isinstance(number, int) and abs(number) >= 10**20:  # Python refuses to print very long ones
        return f"of {number.bit_length()} bits"
    text = repr(number)
    return text if len(text) <= 60 else f"{text[:57]}..."
