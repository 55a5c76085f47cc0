"""Models in files, whatever kind they are of."""

from __future__ import annotations

import json
import os
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import InputError
from .kruskal import MODEL, KruskalTensor
from .tucker import TuckerTensor

RUN = "run.json"  # beside `MODEL`: the record of the run that made it


def load(path: str | os.PathLike[str]) -> KruskalTensor | TuckerTensor:
    """Read a model.

    Parameters
    ----------
    path : path
        An output folder of the verbs ``cpd`` or ``tucker``, or a file that a model's `save` wrote.

    Returns
    -------
    KruskalTensor or TuckerTensor
        With labels, if the tensor had any.

    Raises
    ------
    InputError
        If the file is at fault.

    Examples
    --------
    >>> weights = load("nell-2-rank32").weights  # doctest: +SKIP
    """
    file = os.path.join(path, MODEL) if os.path.isdir(path) else path
    names = list[str]()
    with suppress(OSError, ValueError, zipfile.BadZipFile), zipfile.ZipFile(file) as archive:
        names = archive.namelist()
    if "core.npy" in names:
        return TuckerTensor.load(file)
    model = KruskalTensor.load(file)
    with suppress(InputError):
        model.run = recorded(path)
    return model


def recorded(place: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the record of the run that made a model: that beside it; nothing where there is none.

    Raise `InputError` if it cannot be read.
    """
    file = Path(place, MODEL) if os.path.isdir(place) else Path(place)
    if file.name != MODEL:
        return {}
    try:
        found = json.loads(file.with_name(RUN).read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"no record of a run: {error}", path=file.with_name(RUN)) from None
    return found if isinstance(found, dict) else {}
