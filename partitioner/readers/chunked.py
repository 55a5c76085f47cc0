"""Dense tensors in HDF5 and Zarr files, through their own libraries: elements are read where they are used."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from ..checked import open_regular
from ..dense import DenseTensor, Stored, check_elements
from ..errors import InputError
from ..filed import FileElements
from .pieces import naming

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
        array = _array(file, name)
        return DenseTensor(Stored(_as_it_lies(array, path) or array), path)


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
        if not name and hasattr(opened, "ndim"):  # a Zarr array by itself
            return opened
        arrays = {each: array for each, array in _arrays(opened) if not name or each == name.strip("/")}
    except OSError:
        raise
    except Exception as error:  # of whatever kind these libraries raise for a damaged file
        cause = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"cannot be read: {cause}") from None
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
