"""Loading of models from files of any supported kind."""

from __future__ import annotations

import os
import zipfile
from contextlib import suppress

from partitioner.host.checksums import open_regular
from partitioner.readers.arrays.npz import DAMAGED
from partitioner.tensors.labels import find
from partitioner.tensors.lowrank import factors_of

from ..errors import InputError
from ..files import factors_in, faults_of, read_npz
from .kruskal import MODEL, KruskalTensor
from .ktensor_text import is_ktensor, read_ktensor
from .labelled_matrices import LabelledMatrices
from .record import recorded
from .tucker import TuckerTensor


def load(path: str | os.PathLike[str]) -> KruskalTensor | TuckerTensor:
    """Load a model.

    Parameters
    ----------
    path : path
        An output folder of the commands ``cpd`` or ``tucker``, a file that a model's `save` wrote, or a ``ktensor``
        text of the Tensor Toolbox, as `KruskalTensor.export`, pyttb and GenTen write it.

    Returns
    -------
    KruskalTensor or TuckerTensor
        With the labels and the history of the run (``fits``, ``converged``, ``series``, ``run``), if stored.

    Raises
    ------
    InputError
        If the file is not a valid model.

    Examples
    --------
    >>> KruskalTensor(np.array([2.0]), [np.ones((3, 1)), np.ones((4, 1))]).save("model.npz")
    >>> load("model.npz").weights.tolist()
    [2.0]
    """
    model = _model_in(path)
    with suppress(InputError):
        model.run |= recorded(path)
    return model


def load_with_record(path: str | os.PathLike[str]) -> KruskalTensor | TuckerTensor:
    """Load a model; raise `InputError` if its record cannot be read, which `load` ignores."""
    model = _model_in(path)
    model.run |= recorded(path)
    return model


def _model_in(path: str | os.PathLike[str]) -> KruskalTensor | TuckerTensor:
    """Return the model in a file or an output folder, with the record in its file."""
    file = os.path.join(path, MODEL) if os.path.isdir(path) else path
    if file is not path and not os.path.exists(file):
        raise InputError(f"contains no {MODEL}: expected an output folder of cpd or tucker", path=path)
    if is_ktensor(file):
        return KruskalTensor(*read_ktensor(file))
    names = list[str]()
    with suppress(*DAMAGED), open_regular(file) as content, zipfile.ZipFile(content) as archive:
        names = archive.namelist()
    return TuckerTensor.load(file) if "core.npy" in names else KruskalTensor.load(file)


def cp_model(model: object, path: str | os.PathLike[str] | None, cause: str) -> KruskalTensor:
    """Return a model, of a file if there is a path; raise `InputError` with this cause if it is not a CP model."""
    if not isinstance(model, KruskalTensor):
        raise InputError(cause, path=path)
    return model


def matrices_in(path: str | os.PathLike[str]) -> LabelledMatrices:
    """Read the factor matrices of an initial guess, and the labels of a model, from a file or output folder.

    The arrays of an archive are ``factor_0 ...``. The weights of a ktensor text are multiplied into the first matrix.

    Raises
    ------
    InputError
        If there are no factor matrices.
    """
    inside = os.path.join(path, MODEL)
    file = inside if os.path.isfile(inside) else path
    if not os.path.lexists(file):
        raise InputError(
            "No such file or directory, and not a start such as 'nvecs'; random matrices are the default", path=path
        )
    if is_ktensor(file):
        return LabelledMatrices(factors_of(read_ktensor(file)) or [], None)
    arrays = read_npz(file)
    factors = factors_in(arrays, file)
    with faults_of(file):
        return LabelledMatrices(factors, find(arrays, len(factors)))
