"""What callers give: numbers are converted and checked, or refused in a line that names them."""

from __future__ import annotations

import math
import operator
from typing import Any

from .errors import InputError


def whole(name: str, given: Any, least: int, most: int | None = None) -> int:
    """Return an integer of any type (Python's, NumPy's) as Python's; raise `InputError` if it is none, or outside."""
    wanted = f"an integer from {least} to {most}" if most is not None else f"an integer of at least {least}"
    try:
        number = operator.index(given)
    except TypeError:
        raise InputError(f"{name} {_shown(given)}: expected {wanted}") from None
    if isinstance(given, bool) or number < least or (most is not None and number > most):
        raise InputError(f"{name} {_shown(given)}: expected {wanted}")
    return number


def real(name: str, given: Any, wanted: str, least: float = 0.0, above: bool = False) -> float:
    """Return a finite number of at least, or `above`, `least`; raise `InputError` with what is `wanted` otherwise."""
    try:
        number = math.nan if isinstance(given, (str, bytes)) else float(given)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (least < number or (number == least and not above)) or math.isinf(number):
        raise InputError(f"{name} {_shown(given)}: expected {wanted}")
    return number


def _shown(given: Any) -> str:
    """Return a value as a message shows it, in a few words."""
    number = given.item() if hasattr(given, "item") and getattr(given, "ndim", 0) == 0 else given
    if isinstance(number, int) and abs(number) >= 10**20:  # Python refuses to write very long ones
        return f"of {number.bit_length()} bits"
    text = repr(number)
    return text if len(text) <= 60 else f"{text[:57]}..."
