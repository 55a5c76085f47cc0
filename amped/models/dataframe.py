"""Tables of results as pandas DataFrames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InputError


def pandas(what: str) -> Any:
    """Return the module pandas; raise `InputError`, which begins with `what`, if it is not installed."""
    try:
        import pandas
    except ImportError:
        raise InputError(f"{what}: pandas is not installed") from None
    return pandas


def dataframe(columns: Mapping[str, Sequence[Any]]) -> Any:
    """Return a DataFrame with columns by name; raise `InputError` if pandas is not installed."""
    return pandas("to_frame()").DataFrame({name: list(values) for name, values in columns.items()})
