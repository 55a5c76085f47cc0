"""MATLAB files: arrays and sparse matrices of version 7.3 (HDF5) by h5py, and of earlier versions by SciPy."""

from __future__ import annotations

from os import PathLike
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...array_types import HostArray
from ...errors import InputError
from ...host.checksums import open_regular
from ...host.imports import scipy_module
from ...tensors.dense import DenseTensor, check_elements
from ...tensors.stored import Stored
from ..form import ReadOptions
from ..pieces import ArrayPart
from .chunked import split, stored
from .hdf5 import open_hdf5
from .matrices import check_options, empty_part, faults_of, matrix_part
from .opened import FoundArray, chosen, library, shortened

ENDINGS = (".mat",)
SIGNATURE, OFFSETS = b"\x89HDF", (0, 512)  # of HDF5, after the header of MATLAB
NUMBERS = "double single int8 int16 int32 int64 uint8 uint16 uint32 uint64 logical sparse".split()
"""MATLAB's classes of arrays of numbers."""
ROWS = "MATLAB_sparse"
"""The attribute of a sparse matrix in HDF5: its number of rows."""


class Variable(NamedTuple):
    """An array of numbers in a file."""

    name: str
    shape: tuple[int, ...]
    sparse: bool
    in_hdf5: bool


def is_full(path: str | PathLike[str]) -> bool:
    """Return whether the variable that a path selects is a dense array."""
    try:
        with faults_of(path):
            return not _selected(*_parts(path)).sparse
    except InputError:
        return False  # the reader raises the error


def read_full(path: str | PathLike[str]) -> DenseTensor:
    """Open a dense array; raise `InputError` if it is invalid. Version 7.3 stores modes in reverse order."""
    file, name = _parts(path)
    with faults_of(path):
        variable = _selected(file, name)
        if variable.in_hdf5:
            elements = stored(open_hdf5(file, variable.name, path), path)
        else:
            array = _loaded(file, variable.name)
            check_elements(array.shape, array.dtype)
            elements = Stored(array.T)
        return DenseTensor(elements.transpose(tuple(reversed(range(len(elements.shape))))), path)


def matlab_part(path: str | PathLike[str], form: ReadOptions, part: int) -> ArrayPart:
    """Read a sparse matrix; raise `InputError` if it is invalid."""
    file, name = _parts(path)
    with faults_of(path):
        check_options(form)
        if part:
            return empty_part()
        variable = _selected(file, name)
        if variable.in_hdf5:
            return matrix_part(*_compressed_columns(file, variable, path), variable.shape)
        matrix = _loaded(file, variable.name).tocoo()
        return matrix_part(np.array([matrix.row, matrix.col]), matrix.data, matrix.shape)


def _parts(path: str | PathLike[str]) -> tuple[str, str]:
    """Return the file and the name of the variable, which may be empty."""
    parts = split(path, ENDINGS)
    assert parts is not None
    return parts


def _selected(file: str, name: str) -> Variable:
    """Return the variable of a name, or the only one that can be a tensor."""
    variables = _variables(file)
    if not name:
        longer = [FoundArray(each.name, sum(n > 1 for n in each.shape), each) for each in variables]
        selected: Variable = chosen(longer)
        return selected
    found = next((each for each in variables if each.name == name), None)
    if found is None:
        raise InputError(f"holds no array of numbers {shortened(name)!r}")
    return found


def _variables(file: str) -> list[Variable]:
    """Return the arrays of numbers in a file."""
    with open_regular(file) as opened:
        for offset in OFFSETS:
            opened.seek(offset)
            if opened.read(len(SIGNATURE)) == SIGNATURE:
                return _variables_of_hdf5(file)
        opened.seek(0)
        found = scipy_module("io").whosmat(opened)
    return [Variable(name, tuple(shape), kind == "sparse", False) for name, shape, kind in found if kind in NUMBERS]


def _variables_of_hdf5(file: str) -> list[Variable]:
    """Return the arrays of numbers in a file of version 7.3; links are not followed."""
    h5py, variables = library("h5py", "hdf5"), list[Variable]()
    with h5py.File(file, "r") as opened:
        for name in opened:
            if name.startswith("#") or not isinstance(opened.get(name, getlink=True), h5py.HardLink):
                continue
            entry = opened[name]
            kind = entry.attrs.get("MATLAB_class", b"double")
            if (kind.decode() if isinstance(kind, bytes) else str(kind)) not in NUMBERS:
                continue
            if isinstance(entry, h5py.Dataset) and entry.shape and "MATLAB_empty" not in entry.attrs:
                variables.append(Variable(name, entry.shape[::-1], False, True))
            elif isinstance(entry, h5py.Group) and ROWS in entry.attrs and "jc" in entry:
                shape = int(entry.attrs[ROWS]), entry["jc"].size - 1
                variables.append(Variable(name, shape, True, True))
    return variables


def _loaded(file: str, name: str) -> Any:
    """Return a variable of a file before version 7.3."""
    with open_regular(file) as opened:
        return scipy_module("io").loadmat(opened, variable_names=[name])[name]


def _compressed_columns(
    file: str, variable: Variable, path: str | PathLike[str]
) -> tuple[NDArray[np.int64], HostArray]:
    """Return the indices, (2, nnz), and values of a sparse matrix of version 7.3."""

    def vector(part: str) -> HostArray:
        return np.asarray(open_hdf5(file, f"{variable.name}/{part}", path).array[...]).reshape(-1)

    starts = vector("jc").astype(np.int64)
    if not starts[-1]:
        raise InputError("no nonzeros")
    rows, values, counts = vector("ir").astype(np.int64), vector("data"), np.diff(starts)
    if starts[0] != 0 or counts.min() < 0 or not starts[-1] == rows.size == values.size:
        raise InputError("damaged sparse matrix: its vectors do not fit together")
    return np.array([rows, np.repeat(np.arange(counts.size), counts)]), values
