"""Dense tensors in HDF5 and Zarr files, through their own libraries: elements are read where they are used."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checked import open_regular
from ..dense import DenseTensor, Stored, check_elements
from ..errors import InputError
from ..filed import FileElements
from .pieces import cause_of, naming

HDF5, ZARR = (".h5", ".hdf5"), (".zarr",)
SHOWN = 5  # names of arrays in a message


def split(path: str | PathLike[str]) -> tuple[str, str] | None:
    """Return the file, or folder, and the array's name in it, which may be empty; None if it is no such file."""
    text = fspath(path)
    for ending in (*HDF5, *ZARR):
        if text.lower().endswith(ending):
            return text, ""
        at = text.lower().rfind(f"{ending}:")
        if at >= 0:
            at += len(ending)
            return text[:at], text[at + 1 :]
    return None


def read_chunked(path: str | PathLike[str]) -> DenseTensor:
    """Return the tensor in an HDF5 or Zarr file: ``FILE``, if it holds one array, or ``FILE:NAME``."""
    found = split(path)
    assert found is not None
    file, name = found
    if not Path(file).exists():
        raise InputError("no such file", path=path)
    with naming(path):
        if file.lower().endswith(HDF5):
            open_regular(file).close()  # a pipe would be waited for
        array = _array(file, name.strip("/"))
        if array.shape is None:
            raise InputError("the array is empty: it has no shape")
        return DenseTensor(Stored(_as_it_lies(array, path) or Chunked(array, path)), path)


class Chunked:
    """The elements of an array that its library reads: whatever it raises is an `InputError` that names the file."""

    def __init__(self, array: Any, path: str | PathLike[str]) -> None:
        self.shape, self.dtype, self._array, self._path = tuple(array.shape), array.dtype, array, path

    def __getitem__(self, place: tuple[slice, ...]) -> NDArray[Any]:
        try:
            return np.asarray(self._array[place])
        except MemoryError:
            raise
        except Exception as error:
            raise InputError(f"elements cannot be read: {cause_of(error)}", path=self._path) from None


def _as_it_lies(array: Any, path: Any) -> FileElements | None:
    """Return the elements of an HDF5 dataset that are in one part of the file, neither compressed nor in chunks."""
    if not hasattr(array, "id") or array.chunks is not None or array.is_virtual or array.external:
        return None
    offset = array.id.get_offset()  # None, if nothing was written
    if offset is None or array.file.driver != "sec2" or array.file.userblock_size:
        return None
    check_elements(array.shape, array.dtype)
    if array.id.get_storage_size() != array.size * array.dtype.itemsize:
        return None
    if array.id.get_type() != _library("h5py", "hdf5").h5t.py_create(array.dtype, logical=True):
        return None  # numbers of fewer bits than they take, which HDF5 converts
    with open_regular(array.file.filename) as opened:  # another file, where a link leads there
        return FileElements(opened, offset, array.shape, array.dtype, path)


def _array(file: str, name: str) -> Any:
    hdf5 = file.lower().endswith(HDF5)
    library = _library("h5py" if hdf5 else "zarr", "hdf5" if hdf5 else "zarr")
    try:
        opened = library.File(file, "r") if hdf5 else library.open(file, mode="r")
        if hasattr(opened, "ndim"):  # a Zarr array by itself
            arrays = {"": opened} if not name else {}
        elif name:
            arrays = {name: opened[name]} if name in opened and hasattr(opened[name], "ndim") else {}
        else:
            arrays = dict(_arrays(opened))
    except OSError:
        raise
    except Exception as error:  # of whatever kind these libraries raise for a damaged file
        raise InputError(f"cannot be read: {cause_of(error)}") from None
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    if name:
        raise InputError(f"holds no array {name!r}")
    names = ", ".join([*list(arrays)[:SHOWN], *["..."] * (len(arrays) > SHOWN)]) or "none"
    raise InputError(f"holds {len(arrays)} arrays ({names}): give one as FILE:NAME")


def _arrays(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all arrays of a group, and of the groups in it, with their names."""
    for name in sorted(group):
        each = group[name]
        if hasattr(each, "ndim"):
            yield f"{before}{name}", each
        elif hasattr(each, "keys"):
            yield from _arrays(each, f"{before}{name}/")


def _library(name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(f"such files need {name} ({error}): install amped[{extra}]") from None
