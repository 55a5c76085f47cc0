"""Time bins: the labels between those that occur, so that empty bins have rows, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...array_types import HostArray

CYCLES: dict[str, Sequence[Any]] = {
    "hour": range(24), "minute": range(60), "second": range(60),
    "dayofweek": range(7), "weekday": range(7), "dow": range(7), "isodow": range(1, 8),
    "day": range(1, 32), "dayofmonth": range(1, 32), "dayofyear": range(1, 367), "doy": range(1, 367),
    "week": range(1, 54), "weekofyear": range(1, 54), "month": range(1, 13), "quarter": range(1, 5),
    "dayname": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split(),
    "monthname": "January February March April May June July August September October November December".split(),
}  # fmt: skip
"""Values of the SQL functions that return a part of a date or time."""
YEARS = "year", "isoyear"
UNITS = {
    "microsecond": 1, "millisecond": 10**3, "second": 10**6, "minute": 60 * 10**6, "hour": 3600 * 10**6,
    "day": 86_400 * 10**6, "week": 7 * 86_400 * 10**6,
}  # fmt: skip
"""Microseconds per unit of ``date_trunc``, except those in `MONTHS`."""
MONTHS = {"month": 1, "quarter": 3, "year": 12, "decade": 120, "century": 1200, "millennium": 12_000}
FEW = 10_000  # number of bins up to which empty bins are always added
SPARSE = 4  # bins per label above which, beyond `FEW` bins, no empty bins are added
COARSE = UNITS["hour"]  # minimum step of times that are bins even if most of them are empty
MIN_LABELS = 8  # number of labels from which on their common step is that of the bins


class Filled(NamedTuple):
    """The labels of a mode, and the positions of those that occur."""

    labels: HostArray
    places: NDArray[np.int32]


def filled(used: HostArray, function: str | None, unit: str | None) -> Filled:
    """Return the used labels with empty bins between them; only the used ones if there are no regular bins.

    Parameters
    ----------
    used : array
        Distinct labels in ascending order.
    function, unit : str or None
        The SQL function that computed them, and the unit it was called with, if any.
    """
    unfilled = Filled(used, np.arange(used.size, dtype=np.int32))
    if not used.size:
        return unfilled
    if function == "date_part" and unit is not None:
        function = unit
    if function in CYCLES:
        return _among(np.array(CYCLES[function], None if used.dtype.kind in "iu" else used.dtype), used) or unfilled
    if function in YEARS and used.dtype.kind in "iu":
        return _among(_steps(int(used[0]), int(used[-1]), 1, used.size), used) or unfilled
    if used.dtype.kind not in "Mm":
        return unfilled
    return _of_times(used, unit if function == "date_trunc" else None, function == "time_bucket") or unfilled


def _among(labels: HostArray, used: HostArray) -> Filled | None:
    """Return labels and the positions of the used ones; None if some used labels are not among them."""
    positions = {label: place for place, label in enumerate(labels.tolist())}
    places = [positions.get(label) for label in used.tolist()]
    if None in places:
        return None
    return Filled(labels.astype(used.dtype, copy=False), np.array(places, np.int32))


def _of_times(used: HostArray, unit: str | None, bucket: bool) -> Filled | None:
    months = _whole_months(used) if used.dtype.kind == "M" else None
    if months is not None and (unit is None or unit in MONTHS) and not bucket:
        step = MONTHS.get(unit or "") or _common_step(months, list(MONTHS.values()), False)
        labels = _steps(int(months[0]), int(months[-1]), step, used.size).astype("M8[M]").astype(used.dtype)
        return _among_times(labels, used)
    moments = used.astype(f"{used.dtype.kind}8[us]")
    if not np.array_equal(moments.astype(used.dtype), used):
        return None  # nanoseconds are not binned
    ticks = moments.astype(np.int64)
    step = UNITS.get(unit or "") or _common_step(ticks, list(UNITS.values()), bucket)
    few = FEW if unit or bucket or step >= COARSE else 0
    labels = _steps(int(ticks[0]), int(ticks[-1]), step, used.size, few).astype(moments.dtype).astype(used.dtype)
    return _among_times(labels, used)


def _among_times(labels: HostArray, used: HostArray) -> Filled | None:
    places = np.minimum(np.searchsorted(labels, used), labels.size - 1)
    if not np.array_equal(labels[places], used):
        return None
    return Filled(labels, places.astype(np.int32))


def _whole_months(used: HostArray) -> NDArray[np.int64] | None:
    """Return months since 1970 if all times are the beginning of a month, else None."""
    months = used.astype("M8[M]")
    return months.astype(np.int64) if np.array_equal(months.astype(used.dtype), used) else None


def _common_step(ticks: NDArray[np.int64], units: Sequence[int], exact: bool) -> int:
    """Return the width of bins: of many labels the largest common divisor, of few the largest unit that divides it."""
    step = int(np.gcd.reduce(np.diff(ticks))) if ticks.size > 1 else 1
    if exact or ticks.size >= MIN_LABELS:
        return step
    return max((unit for unit in units if step % unit == 0), default=step)


def _steps(low: int, high: int, step: int, used: int, few: int = FEW) -> NDArray[np.int64]:
    """Return the bins from `low` to `high`; only the first if most would be empty and there are more than `few`."""
    count = (high - low) // max(1, step) + 1
    if count > max(few, SPARSE * used):
        return np.array([low], np.int64)
    return np.arange(low, high + 1, max(1, step), dtype=np.int64)
