"""Tensors in NumPy archives: ``indices`` (nnz, order) from 0 on, ``values`` (nnz,), and perhaps ``shape``."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from os import PathLike
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from ..coo import MAX_MODE_LENGTH, SparseTensor, check_order
from ..errors import InputError

# What zipfile and NumPy raise for a member that is damaged or of another kind.
DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    tokenize.TokenError,
    EOFError,
    KeyError,
    MemoryError,
    OSError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


def read_npz(path: str | PathLike[str]) -> SparseTensor:
    """Read a tensor from a NumPy archive.

    Parameters
    ----------
    path : str or PathLike
        A file with the arrays ``indices`` (nnz, order), integers counted from 0; ``values`` (nnz,), numbers;
        and optionally ``shape`` (order,). Nothing in it is unpickled.

    Raises
    ------
    InputError
        If the file cannot be read, or an array is missing or is not as above.
    """
    try:
        indices, values, shape = _load(path)
        columns = _columns(indices, shape)
        values = _real(values, len(indices))
        del indices  # or both would be in memory while the nonzeros are sorted
    except InputError as error:
        raise InputError(error.cause, path=path) from None
    return SparseTensor.from_columns(columns, values, shape, path=path)


def _load(path: str | PathLike[str]) -> tuple[NDArray[Any], NDArray[Any], tuple[int, ...] | None]:
    try:
        with open(path, "rb") as file:
            if not zipfile.is_zipfile(file):
                raise InputError("not an .npz archive, or one cut short")
            file.seek(0)
            try:
                archive = np.load(file, allow_pickle=False)
            except DAMAGED as error:
                raise InputError(f"damaged archive: {_said(error)}") from None
            with archive:
                indices, values = _array(archive, "indices"), _array(archive, "values")
                shape = _array(archive, "shape") if "shape" in archive.files else None
    except FileNotFoundError:
        raise InputError("no such file") from None
    except OSError as error:
        raise InputError(error.strerror or str(error)) from None
    return indices, values, None if shape is None else _lengths(shape)


def _array(archive: NpzFile, name: str) -> NDArray[Any]:
    if name not in archive.files:
        found = ", ".join(archive.files) or "nothing"
        raise InputError(f"no array '{name}' in the archive, which holds {found}")
    try:
        array = archive[name]
    except DAMAGED as error:
        raise InputError(f"cannot read '{name}': {_said(error)}") from None
    if not isinstance(array, np.ndarray):
        raise InputError(f"'{name}' is not an array")
    return array


def _said(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _lengths(shape: NDArray[Any]) -> tuple[int, ...]:
    if shape.ndim != 1 or shape.dtype.kind not in "iu":
        raise InputError(f"'shape' is {_form(shape)}, expected (order,) integers")
    lengths = tuple(int(length) for length in shape)
    for mode, length in enumerate(lengths):
        if not 1 <= length <= MAX_MODE_LENGTH:
            raise InputError(f"length {length} of mode {mode} is outside 1..{MAX_MODE_LENGTH}")
    return lengths


def _columns(indices: NDArray[Any], shape: tuple[int, ...] | None) -> NDArray[np.int32]:
    if indices.ndim != 2 or indices.dtype.kind not in "iu":
        raise InputError(f"'indices' is {_form(indices)}, expected (nnz, order) integers")
    nonzeros, order = indices.shape
    if not nonzeros:
        raise InputError("no nonzeros")
    check_order(order)
    if shape is not None and len(shape) != order:
        raise InputError(f"'shape' has {len(shape)} modes, 'indices' has {order}")
    columns = np.empty((order, nonzeros), np.int32)
    for mode in range(order):
        length = MAX_MODE_LENGTH if shape is None else shape[mode]
        given = indices[:, mode]
        low, high = int(given.min()), int(given.max())
        if low < 0:
            raise InputError(f"index {low} of mode {mode} in nonzero {int(given.argmin())}: indices count from 0")
        if high >= length:
            raise InputError(
                f"index {high} of mode {mode} in nonzero {int(given.argmax())} is outside its length {length}"
            )
        columns[mode] = given
    return columns


def _real(values: NDArray[Any], nonzeros: int) -> NDArray[np.floating]:
    if values.ndim != 1 or values.dtype.kind not in "iuf":
        raise InputError(f"'values' is {_form(values)}, expected (nnz,) real numbers")
    if len(values) != nonzeros:
        raise InputError(f"{len(values)} values for {nonzeros} rows of indices")
    if values.dtype not in (np.float32, np.float64):
        with np.errstate(over="ignore"):
            values = values.astype(np.float64)
    finite = np.isfinite(values)
    if not finite.all():
        first = int(finite.argmin())
        raise InputError(f"value {values[first]} of nonzero {first} is not finite")
    return values


def _form(array: NDArray[Any]) -> str:
    return f"a {array.shape} array of {array.dtype}"
