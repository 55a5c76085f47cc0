"""Arrays in HDF5 and netCDF-4 files. What a file may lead to outside of it is refused: it may come from anyone."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any

from ...errors import InputError
from ...host.checksums import open_regular
from ...tensors.cf_attributes import NAMES, Packing
from ...tensors.dense import check_elements
from ...tensors.npy_file import FileElements
from ...tensors.sparse import MAX_ORDER
from ..pieces import cause_of
from .opened import MOST_NODES, FoundArray, Opened, chosen, library, shortened
from .watch import WatchedFile

ENDINGS = (".h5", ".hdf5", ".nc", ".nc4", ".netcdf")
OTHERS = {  # by the first bytes
    b"CDF": "a netCDF-3 file: nccopy -k nc4 OLD.nc NEW.nc makes it a netCDF-4 file, which can be read",
    b"\x0e\x03\x13\x01": "an HDF4 file: h4toh5 OLD.hdf NEW.h5 makes it an HDF5 file, which can be read",
}
MOST_LINKS = 16  # soft links on the way to an array: HDF5's own limit
MOST_NUMBERS = 64  # of an attribute
OF_THE_FILE = b"."  # where a virtual dataset has its elements from, if it is from its own file


def open_hdf5(file: str, name: str, path: Any) -> Opened:
    """Return an array of a file; raise `InputError` if there is none, or it is unsound."""
    h5py = library("h5py", "hdf5")
    with open_regular(file) as content:
        start = content.read(4)
        for magic, what in OTHERS.items():
            if start.startswith(magic):
                raise InputError(what)
        watched = WatchedFile(content)
        try:
            opened = h5py.File(file, "r")
        except OSError as error:
            raise InputError(f"cannot be read: {cause_of(error)}") from None
        watched.check_name(file)
        try:
            array = _resolved(h5py, opened, name) if name else chosen(list(_listed(h5py, opened)))
            if not isinstance(array, h5py.Dataset):
                raise InputError(f"holds no array {shortened(name)!r}")
            _check_sound(h5py, array)
            if array.shape is None:
                raise InputError("the array is empty: it has no shape")
            packing = _packing(h5py, array)
            plain = _as_it_lies(h5py, array, content, packing, path)
        except InputError:
            raise
        except Exception as error:  # of whatever kind h5py raises for a damaged file
            raise InputError(f"cannot be read: {cause_of(error)}") from None
    return Opened(array, packing, watched.check, array.chunks, plain)


def _listed(h5py: Any, opened: Any) -> Iterator[FoundArray]:
    """Yield the arrays of a file, each once, by one of its names. Links other than names are not followed."""
    seen, pending, count = set[Any](), deque([("", opened.id)]), 0
    while pending:
        before, group = pending.popleft()
        for raw in group:
            count += 1
            if count > MOST_NODES:
                raise InputError(f"holds more than {MOST_NODES:,} objects: give the array as FILE:NAME")
            if group.links.get_info(raw).type != h5py.h5l.TYPE_HARD:
                continue
            found = h5py.h5o.get_info(group, raw)
            if (found.fileno, found.addr) in seen:
                continue
            seen.add((found.fileno, found.addr))
            name = f"{before}{os.fsdecode(raw)}"
            with suppress(KeyError, OSError, RuntimeError, TypeError, ValueError):  # damaged: others can be read
                if found.type == h5py.h5o.TYPE_GROUP:
                    pending.append((f"{name}/", h5py.h5o.open(group, raw)))
                elif found.type == h5py.h5o.TYPE_DATASET:
                    array = h5py.Dataset(h5py.h5o.open(group, raw))
                    # Only to count the modes of a virtual one, HDF5 might open the files that it is made of.
                    yield FoundArray(name, MAX_ORDER if array.is_virtual else array.ndim, array)


def _resolved(h5py: Any, opened: Any, name: str) -> Any:
    """Return an object by its name, step by step: HDF5 itself would follow links to other files, and wait for pipes."""
    here, steps, followed = opened.id, deque(os.fsencode(name).split(b"/")), 0
    while steps:
        step = steps.popleft()
        if step in (b"", b"."):
            continue
        if not isinstance(here, h5py.h5g.GroupID) or not here.links.exists(step):
            raise InputError(f"holds no array {shortened(name)!r}")
        kind = here.links.get_info(step).type
        if kind == h5py.h5l.TYPE_SOFT:
            followed += 1
            if followed > MOST_LINKS:
                raise InputError(f"{shortened(name)!r} is a link that leads to too many others")
            target = here.links.get_val(step)
            here = opened.id if target.startswith(b"/") else here
            steps.extendleft(reversed(target.split(b"/")))
        elif kind == h5py.h5l.TYPE_HARD:
            here = h5py.h5o.open(here, step)
        elif kind == h5py.h5l.TYPE_EXTERNAL:
            file, inside = (os.fsdecode(each) for each in here.links.get_val(step))
            cause = (
                f"{shortened(name)!r} is a link to another file, which is not followed: give {file}:{inside.strip('/')}"
            )
            raise InputError(cause)
        else:
            raise InputError(f"{shortened(name)!r} is a link of an unknown kind, which is not followed")
    if isinstance(here, h5py.h5d.DatasetID):
        return h5py.Dataset(here)
    return h5py.Group(here) if isinstance(here, h5py.h5g.GroupID) else None


def _check_sound(h5py: Any, array: Any) -> None:
    """Refuse an array whose elements are in other files, or are compressed by what is not installed."""
    if array.is_virtual:
        for source in array.virtual_sources():
            if os.fsencode(source.file_name) != OF_THE_FILE:
                cause = f"a virtual dataset, made of {shortened(source.file_name)} among others, which are not opened"
                raise InputError(f"{cause}: read them, or copy the elements into a dataset of their own")
            inner = _resolved(h5py, array.file, source.dset_name)
            if not isinstance(inner, h5py.Dataset) or inner.is_virtual:
                raise InputError("a virtual dataset of virtual ones: copy the elements into a dataset of their own")
            _check_sound(h5py, inner)
        return
    if array.external:
        file = shortened(os.fsdecode(array.external[0][0]))
        raise InputError(f"has its elements in another file, {file}, which is not opened: copy them into this one")
    made = array.id.get_create_plist()
    for at in range(made.get_nfilters()):
        code, _, _, title = made.get_filter(at)
        if not h5py.h5z.filter_avail(code):
            cause = f"compressed by filter {code} ({shortened(os.fsdecode(title))}), which is not installed"
            raise InputError(f"{cause}: install hdf5plugin, and set HDF5_PLUGIN_PATH to hdf5plugin.PLUGIN_PATH")


def _packing(h5py: Any, array: Any) -> Packing:
    """Return what attributes say of the numbers; raise `InputError` if elements that were never written are missing."""
    attributes = {}
    for name in NAMES:
        if h5py.h5a.exists(array.id, name.encode()):
            count = h5py.h5a.open(array.id, name.encode()).get_space().get_simple_extent_npoints()
            if count > MOST_NUMBERS:
                raise InputError(f"attribute {name} has {count:,} values, expected one")
            attributes[name] = array.attrs[name]
    made = array.id.get_create_plist()
    own = made.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED
    packing = Packing(array.dtype, attributes, array.fillvalue if own else None)
    if packing.declares and (missing := _unwritten(array)):
        raise InputError(
            f"{missing} never written, and {packing.declares} says that such elements are missing: write them"
        )
    return packing


def _unwritten(array: Any) -> str:
    """Return which parts of an array have no place in the file, if any."""
    if array.is_virtual:
        return ""
    if array.chunks is None:
        return "its elements were" if not array.id.get_storage_size() and array.size else ""
    chunks = math.prod(-(length // -size) for length, size in zip(array.shape, array.chunks, strict=True))
    lacks = chunks - array.id.get_num_chunks()
    return f"{lacks:,} of its {chunks:,} chunks {'was' if lacks == 1 else 'were'}" if lacks else ""


def _as_it_lies(h5py: Any, array: Any, content: IO[bytes], packing: Packing, path: Any) -> FileElements | None:
    """Return the elements of an array that are in one part of the file, neither compressed nor in chunks."""
    if not packing.plain or array.chunks is not None or array.is_virtual:
        return None
    offset = array.id.get_offset()  # None, if nothing was written
    if offset is None or array.file.driver != "sec2" or array.file.userblock_size:
        return None
    check_elements(array.shape, array.dtype)
    if array.id.get_storage_size() != array.size * array.dtype.itemsize:
        return None
    if array.id.get_type() != h5py.h5t.py_create(array.dtype, logical=True):
        return None  # numbers of fewer bits than they take, which HDF5 converts
    return FileElements(content, offset, array.shape, array.dtype, path)
