"""Models in files, whatever kind they are of."""

from __future__ import annotations

import json
import os
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from partitioner.lowrank import factors_of

from ..errors import InputError
from ..files import factors_in, read_npz
from .kruskal import MODEL, KruskalTensor
from .ktensor_text import is_ktensor, read_ktensor
from .tucker import TuckerTensor

RUN = "run.json"  # beside `MODEL`: the record of the run that made it


def load(path: str | os.PathLike[str]) -> KruskalTensor | TuckerTensor:
    """Read a model.

    Parameters
    ----------
    path : path
        An output folder of the verbs ``cpd`` or ``tucker``, a file that a model's `save` wrote, or one of text: a
        ``ktensor`` of the Tensor Toolbox, as `KruskalTensor.export`, pyttb and GenTen write it.

    Returns
    -------
    KruskalTensor or TuckerTensor
        With labels, if the tensor had any, and what is known of its run (`fits`, `converged`, `series`, `run`).

    Raises
    ------
    InputError
        If the file is at fault.

    Examples
    --------
    >>> weights = load("nell-2-rank32").weights  # doctest: +SKIP
    """
    file = os.path.join(path, MODEL) if os.path.isdir(path) else path
    if file is not path and not os.path.exists(file):
        raise InputError(f"holds no {MODEL}: a model is a folder that cpd or tucker has written", path=path)
    if is_ktensor(file):
        return KruskalTensor(*read_ktensor(file))
    names = list[str]()
    with suppress(OSError, ValueError, zipfile.BadZipFile), zipfile.ZipFile(file) as archive:
        names = archive.namelist()
    if "core.npy" in names:
        model: KruskalTensor | TuckerTensor = TuckerTensor.load(file)
    else:
        model = KruskalTensor.load(file)
    with suppress(InputError):
        model.run |= recorded(path)
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


def matrices_in(path: str | os.PathLike[str]) -> list[NDArray[Any]]:
    """Return the factor matrices in a file to start from, or in an output folder; raise `InputError` if there are none.

    Of an archive they are ``factor_0 ...``; those of text have its weights in the first one.
    """
    inside = os.path.join(path, MODEL)
    file = inside if os.path.isfile(inside) else path
    if is_ktensor(file):
        return factors_of(read_ktensor(file)) or []
    return factors_in(read_npz(file), file)
