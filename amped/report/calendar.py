"""Labels that are days of the week or months: they have an order, and a picture shows all of them."""

from __future__ import annotations

from collections.abc import Sequence

from partitioner.array_types import HostArray

CALENDARS = (
    "monday tuesday wednesday thursday friday saturday sunday".split(),
    "january february march april may june july august september october november december".split(),
)
LONGEST_CALENDAR = 12  # labels
SHORTEST = 3  # characters of an abbreviation, such as "Mon" or "Sept"


def calendar_order(labels: Sequence[object]) -> list[int] | None:
    """Return the rows of labels in calendar order, if each label is a different day of the week, or month."""
    for calendar in CALENDARS:
        if len(labels) <= len(calendar):
            places = [_place(label, calendar) for label in labels]
            if len(places) > 1 and None not in places and len(set(places)) == len(places):
                return sorted(range(len(labels)), key=lambda row: places[row] or 0)
    return None


def _place(label: object, calendar: Sequence[str]) -> int | None:
    """Return the place of a name, or an abbreviation of it, in a calendar; None if it is not in it."""
    text = label.strip().rstrip(".").lower() if isinstance(label, str) else ""
    if len(text) < SHORTEST:
        return None
    return next((place for place, name in enumerate(calendar) if name.startswith(text)), None)


def calendar_rows(labels: HostArray | None) -> list[int] | None:
    """Return the rows of a mode's labels in calendar order; None if they are no calendar."""
    if labels is None or labels.dtype.kind != "T" or labels.size > LONGEST_CALENDAR:
        return None
    return calendar_order(labels.tolist())
