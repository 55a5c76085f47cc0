"""Models in files, whatever kind they are of."""

from __future__ import annotations

import os
import zipfile
from contextlib import suppress
from typing import Any

from numpy.typing import NDArray

from partitioner.host.checksums import open_regular
from partitioner.readers.arrays.npz import DAMAGED
from partitioner.tensors.lowrank import factors_of

from ..errors import InputError
from ..files import factors_in, read_npz
from .history import AnyModel
from .kruskal import MODEL, KruskalTensor
from .ktensor_text import is_ktensor, read_ktensor
from .record import recorded
from .tucker import TuckerTensor


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
        With the labels of the tensor, and the history of the run (``fits``, ``converged``, ``series``, ``run``), if
        the file has them.

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
    with suppress(*DAMAGED), open_regular(file) as content, zipfile.ZipFile(content) as archive:
        names = archive.namelist()
    if "core.npy" in names:
        model: KruskalTensor | TuckerTensor = TuckerTensor.load(file)
    else:
        model = KruskalTensor.load(file)
    with suppress(InputError):
        model.run |= recorded(path)
    return model


def cp_model(model: AnyModel, path: str | os.PathLike[str], cause: str) -> KruskalTensor:
    """Return the model in a file as a CP model; raise `InputError` with this cause if it is of another kind."""
    if not isinstance(model, KruskalTensor):
        raise InputError(cause, path=path)
    return model


def matrices_in(path: str | os.PathLike[str]) -> list[NDArray[Any]]:
    """Return the factor matrices in a file to start from, or in an output folder; raise `InputError` if there are none.

    Of an archive they are ``factor_0 ...``; those of text have its weights in the first one.
    """
    inside = os.path.join(path, MODEL)
    file = inside if os.path.isfile(inside) else path
    if is_ktensor(file):
        return factors_of(read_ktensor(file)) or []
    return factors_in(read_npz(file), file)
