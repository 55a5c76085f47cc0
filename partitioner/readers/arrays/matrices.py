"""Sparse matrices, which other libraries read as a whole, as parts of a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike

import numpy as np

from ...array_types import HostArray, Integers
from ...errors import InputError
from ...tensors.ingest import MAX_MODE_LENGTH
from ..form import ReadOptions
from ..pieces import ArrayPart, cause_of, naming


@contextmanager
def faults_of(path: str | PathLike[str]) -> Iterator[None]:
    """Convert any error of a library that reads a file to an `InputError` with the file's name."""
    with naming(path):
        try:
            yield
        except (InputError, OSError):
            raise
        except Exception as error:  # libraries raise various exceptions for damaged files
            raise InputError(f"cannot be read: {cause_of(error)}") from None


def check_options(form: ReadOptions) -> None:
    """Raise `InputError` for options that apply to formats without a description of their content."""
    for name, is_set in (("no_values", form.no_values), ("index_base", form.index_base is not None)):
        if is_set:
            raise InputError(f"the file itself defines values and indices: --{name.replace('_', '-')} does not apply")


def empty_part() -> ArrayPart:
    """Return a part other than 0, which has no nonzeros."""
    return ArrayPart(np.empty((2, 0), np.int32), np.empty(0))


def matrix_part(columns: Integers, values: HostArray, shape: tuple[int, ...]) -> ArrayPart:
    """Return part 0: the nonzeros of a matrix; raise `InputError` if they are invalid.

    Parameters
    ----------
    columns : (2, nnz) array of int
        Indices, counted from 0.
    values : (nnz,) array
        Values.
    shape : tuple of int
        Mode lengths.
    """
    if values.dtype.kind not in "biuf":
        raise InputError(f"values are {values.dtype}: expected real numbers")
    if not values.size:
        raise InputError("no nonzeros")
    for mode, (column, length) in enumerate(zip(columns, shape, strict=True)):
        if not 1 <= length <= MAX_MODE_LENGTH:
            raise InputError(f"length {length} of mode {mode} is outside 1..{MAX_MODE_LENGTH}")
        if column.min() < 0 or column.max() >= length:
            raise InputError(f"an index of mode {mode} is outside its length {length}")
    numbers = values.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise InputError(f"value {values[np.isfinite(numbers).argmin()]} is not finite")
    return ArrayPart(columns, numbers, shape)
