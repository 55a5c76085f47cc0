"""Models in files, whatever kind they are of."""

from __future__ import annotations

import os
import zipfile
from contextlib import suppress

from .kruskal import MODEL, KruskalTensor
from .tucker import TuckerTensor


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
    return (TuckerTensor if "core.npy" in names else KruskalTensor).load(file)
