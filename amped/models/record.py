"""The record of the run that made a model, `run.json`. It is untrusted input: each entry's type is checked."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partitioner.host.checksums import open_regular

from ..errors import InputError

MODEL = "model.npz"  # file name in an output folder
RUN = "run.json"  # file name, next to `MODEL`
LONGEST = 1 << 26  # largest size of a record, in bytes

NUMBER = float | int
SOUND: tuple[tuple[Any, str], ...] = (  # expected types of the entries; [T] is a list of T, {"": T} a dict of T
    ([NUMBER], "fits objectives rmse loglikelihood kkt gradient evaluations ridge rate"),
    ([NUMBER], "holdout_rmse holdout_deviance holdout_loss"),
    ([int], "nonnegative fixed_modes shape"),
    ([str], "key more"),
    ({"": NUMBER}, "seconds_by_kind stages"),
    ([{"": NUMBER}], "seconds_by_rank"),
    ([[int]], "nonzeros_by_rank exchange_bytes"),
    ({"": str}, "versions formulas"),
    (bool, "converged no_values compact dense"),
    (int, "nonzeros duplicates zeros iterations best_iteration held_out ranks seed index_base steps samples"),
    (NUMBER, "seconds seconds_an_iteration"),
    (
        str,
        "command tensor init method value where missing encoding precision device_description tensor_kind mask holdout",
    ),
    (str, "loss sampling distribution"),
)
KINDS = {name: kind for kind, names in SOUND for name in names.split()}


def model_file(place: Path) -> Path:
    """Return the file of the model in an output folder; `place` itself if it is a file."""
    return place / MODEL if place.is_dir() else place


def recorded(place: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the record `run.json` next to a model; return an empty dict if there is none.

    `place` is an output folder or its `MODEL` file. Entries of an unexpected type are dropped.

    Raises
    ------
    InputError
        If the record cannot be read.
    """
    file = model_file(Path(place))
    if file.name != MODEL:
        return {}
    path = file.with_name(RUN)
    try:
        with open_regular(path) as content:
            text = content.read(LONGEST + 1)
        if len(text) > LONGEST:
            raise ValueError(f"it has more than {LONGEST:,} bytes")
        record = json.loads(text.decode())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        cause = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"not a valid record of a run: {cause}", path=path) from None
    return sound(record) if isinstance(record, dict) else {}


def sound(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a record that have the expected type, and all entries of unknown name."""
    return {name: each for name, each in record.items() if each is None or name not in KINDS or is_sound(name, each)}


def is_sound(name: str, value: object) -> bool:
    """Return whether an entry, one of `KINDS`, has the expected type; None has not."""
    return _is_of(value, KINDS[name])


def _is_of(value: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return isinstance(value, list) and all(_is_of(each, expected[0]) for each in value)
    if isinstance(expected, dict):
        return isinstance(value, dict) and all(_is_of(each, expected[""]) for each in value.values())
    if expected in (int, NUMBER):
        return isinstance(value, expected) and not isinstance(value, bool) and _is_finite(value)
    return isinstance(value, expected)


def _is_finite(number: float) -> bool:
    """Return whether a number, possibly an integer of any size, is finite in double precision."""
    try:
        return math.isfinite(float(number))
    except OverflowError:
        return False
