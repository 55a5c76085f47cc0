"""The record of the run that made a model, `run.json`: anyone may have written it, so that its parts are checked."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partitioner.host.checksums import open_regular

from ..errors import InputError

MODEL = "model.npz"  # in an output folder
RUN = "run.json"  # beside `MODEL`
LONGEST = 1 << 26  # bytes

NUMBER = float | int
SOUND: tuple[tuple[Any, str], ...] = (  # what parts of a record are: a type, or what a list or a dict holds
    ([NUMBER], "fits objectives loglikelihood kkt ridge"),
    ([int], "nonnegative fixed_modes shape"),
    ([str], "key more"),
    ({"": NUMBER}, "seconds_by_kind stages"),
    ([{"": NUMBER}], "seconds_by_rank"),
    ([[int]], "nonzeros_by_rank"),
    ({"": str}, "versions"),
    (bool, "converged no_values compact dense"),
    (int, "nonzeros duplicates zeros iterations ranks seed index_base"),
    (NUMBER, "seconds seconds_an_iteration"),
    (str, "command tensor init method value where missing precision device_description tensor_kind"),
)
KINDS = {name: kind for kind, names in SOUND for name in names.split()}


def recorded(place: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the record of the run that made a model: that beside it; nothing where there is none.

    Parts that are not of their kind are left out. Raise `InputError` if it cannot be read.
    """
    file = Path(place, MODEL) if os.path.isdir(place) else Path(place)
    if file.name != MODEL:
        return {}
    path = file.with_name(RUN)
    try:
        with open_regular(path) as content:
            text = content.read(LONGEST + 1)
        if len(text) > LONGEST:
            raise ValueError(f"it has more than {LONGEST:,} bytes")
        found = json.loads(text.decode())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        cause = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"no record of a run: {cause}", path=path) from None
    return sound(found) if isinstance(found, dict) else {}


def sound(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a record that are of their kind, and those of which nobody here makes use."""
    return {name: each for name, each in record.items() if each is None or name not in KINDS or is_sound(name, each)}


def is_sound(name: str, given: Any) -> bool:
    """Return whether a part of a record, one of `KINDS`, is of the kind that it should be; None is not."""
    return _is_of(given, KINDS[name])


def _is_of(given: Any, kind: Any) -> bool:
    if isinstance(kind, list):
        return isinstance(given, list) and all(_is_of(each, kind[0]) for each in given)
    if isinstance(kind, dict):
        return isinstance(given, dict) and all(_is_of(each, kind[""]) for each in given.values())
    if kind in (int, NUMBER):
        return isinstance(given, kind) and not isinstance(given, bool) and _is_finite(given)
    return isinstance(given, kind)


def _is_finite(number: float) -> bool:
    """Return whether a number, perhaps an integer of any length, is one in double precision."""
    try:
        return math.isfinite(float(number))
    except OverflowError:
        return False
