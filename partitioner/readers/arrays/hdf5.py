"""Arrays in HDF5 and netCDF-4 files. As files may be untrusted, references to other files are not followed."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType
from typing import IO, Any

from ...errors import InputError
from ...host.checksums import open_regular
from ...tensors.cf_attributes import NAMES, Packing
from ...tensors.dense import check_elements
from ...tensors.ingest import MAX_ORDER
from ...tensors.npy_file import FileElements
from ..pieces import cause_of
from .opened import MAX_NODES, FoundArray, Opened, chosen, library, shortened
from .watch import WatchedFile

ENDINGS = (".h5", ".hdf5", ".nc", ".nc4", ".netcdf")
OTHERS = {  # by their first bytes
    b"CDF": "a netCDF-3 file: convert it to netCDF-4 with nccopy -k nc4 OLD.nc NEW.nc",
    b"\x0e\x03\x13\x01": "an HDF4 file: convert it to HDF5 with h4toh5 OLD.hdf NEW.h5",
}
MAX_LINKS = 16  # soft links in a path; HDF5's limit
MAX_NUMBERS = 64  # per attribute
SAME_FILE = b"."  # source of a virtual dataset in its own file


def open_hdf5(file: str, name: str, path: str | os.PathLike[str]) -> Opened:
    """Open an array in a file; raise `InputError` if it is missing or invalid."""
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
            plain = _contiguous(h5py, array, content, packing, path)
        except InputError:
            raise
        except Exception as error:  # h5py raises various exceptions for damaged files
            raise InputError(f"cannot be read: {cause_of(error)}") from None
    return Opened(array, packing, watched.check, array.chunks, plain)


def _listed(h5py: ModuleType, opened: Any) -> Iterator[FoundArray]:
    """Yield each array of a file once, by one of its names. Soft and external links are not followed."""
    seen, pending, count = set[Any](), deque([("", opened.id)]), 0
    while pending:
        prefix, group = pending.popleft()
        for raw in group:
            count += 1
            if count > MAX_NODES:
                raise InputError(f"holds more than {MAX_NODES:,} objects: select an array with FILE:NAME")
            if group.links.get_info(raw).type != h5py.h5l.TYPE_HARD:
                continue
            info = h5py.h5o.get_info(group, raw)
            if (info.fileno, info.addr) in seen:
                continue
            seen.add((info.fileno, info.addr))
            name = f"{prefix}{os.fsdecode(raw)}"
            # Ignore damaged objects, as other arrays may be readable.
            with suppress(KeyError, OSError, RuntimeError, TypeError, ValueError):
                if info.type == h5py.h5o.TYPE_GROUP:
                    pending.append((f"{name}/", h5py.h5o.open(group, raw)))
                elif info.type == h5py.h5o.TYPE_DATASET:
                    array = h5py.Dataset(h5py.h5o.open(group, raw))
                    # To count the modes of a virtual dataset HDF5 might open other files.
                    yield FoundArray(name, MAX_ORDER if array.is_virtual else array.ndim, array)


def _resolved(h5py: ModuleType, opened: Any, name: str) -> Any:
    """Return an object by its path, step by step, since HDF5 would follow links to other files and wait for pipes."""
    node, steps, followed = opened.id, deque(os.fsencode(name).split(b"/")), 0
    while steps:
        step = steps.popleft()
        if step in (b"", b"."):
            continue
        if not isinstance(node, h5py.h5g.GroupID) or not node.links.exists(step):
            raise InputError(f"holds no array {shortened(name)!r}")
        kind = node.links.get_info(step).type
        if kind == h5py.h5l.TYPE_SOFT:
            followed += 1
            if followed > MAX_LINKS:
                raise InputError(f"{shortened(name)!r} is a link that leads to too many others")
            target = node.links.get_val(step)
            node = opened.id if target.startswith(b"/") else node
            steps.extendleft(reversed(target.split(b"/")))
        elif kind == h5py.h5l.TYPE_HARD:
            node = h5py.h5o.open(node, step)
        elif kind == h5py.h5l.TYPE_EXTERNAL:
            file, inside = (os.fsdecode(each) for each in node.links.get_val(step))
            cause = (
                f"{shortened(name)!r} is a link to another file, which is not followed: use {file}:{inside.strip('/')}"
            )
            raise InputError(cause)
        else:
            raise InputError(f"{shortened(name)!r} is a link of an unknown kind, which is not followed")
    if isinstance(node, h5py.h5d.DatasetID):
        return h5py.Dataset(node)
    return h5py.Group(node) if isinstance(node, h5py.h5g.GroupID) else None


def _check_sound(h5py: ModuleType, array: Any) -> None:
    """Raise `InputError` for an array that is stored in other files, or compressed by a missing filter."""
    if array.is_virtual:
        for source in array.virtual_sources():
            if os.fsencode(source.file_name) != SAME_FILE:
                cause = f"a virtual dataset, made of {shortened(source.file_name)} among others, which are not opened"
                raise InputError(f"{cause}: read them, or copy the elements to a separate dataset")
            inner = _resolved(h5py, array.file, source.dset_name)
            if not isinstance(inner, h5py.Dataset) or inner.is_virtual:
                raise InputError("a virtual dataset of virtual ones: copy the elements to a separate dataset")
            _check_sound(h5py, inner)
        return
    if array.external:
        file = shortened(os.fsdecode(array.external[0][0]))
        raise InputError(f"has its elements in another file, {file}, which is not opened: copy them into this one")
    properties = array.id.get_create_plist()
    for at in range(properties.get_nfilters()):
        code, _, _, title = properties.get_filter(at)
        if not h5py.h5z.filter_avail(code):
            cause = f"compressed by filter {code} ({shortened(os.fsdecode(title))}), which is not installed"
            raise InputError(f"{cause}: install hdf5plugin, and set HDF5_PLUGIN_PATH to hdf5plugin.PLUGIN_PATH")


def _packing(h5py: ModuleType, array: Any) -> Packing:
    """Return the packing that attributes describe; raise `InputError` if missing elements were never written."""
    attributes = {}
    for name in NAMES:
        if h5py.h5a.exists(array.id, name.encode()):
            count = h5py.h5a.open(array.id, name.encode()).get_space().get_simple_extent_npoints()
            if count > MAX_NUMBERS:
                raise InputError(f"attribute {name} has {count:,} values, expected one")
            attributes[name] = array.attrs[name]
    properties = array.id.get_create_plist()
    user_defined = properties.fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED
    packing = Packing(array.dtype, attributes, array.fillvalue if user_defined else None)
    if packing.declares and (missing := _unwritten(array)):
        raise InputError(f"{missing} never written, and {packing.declares} declares such elements missing: write them")
    return packing


def _unwritten(array: Any) -> str:
    """Return which parts of an array have no storage in the file, or an empty string."""
    if array.is_virtual:
        return ""
    if array.chunks is None:
        return "its elements were" if not array.id.get_storage_size() and array.size else ""
    chunks = math.prod(-(length // -size) for length, size in zip(array.shape, array.chunks, strict=True))
    missing = chunks - array.id.get_num_chunks()
    return f"{missing:,} of its {chunks:,} chunks {'was' if missing == 1 else 'were'}" if missing else ""


def _contiguous(
    h5py: ModuleType, array: Any, content: IO[bytes], packing: Packing, path: str | os.PathLike[str]
) -> FileElements | None:
    """Return the elements of an array stored contiguously, uncompressed and unconverted; otherwise None."""
    if not packing.plain or array.chunks is not None or array.is_virtual:
        return None
    offset = array.id.get_offset()  # None if nothing was written
    if offset is None or array.file.driver != "sec2" or array.file.userblock_size:
        return None
    check_elements(array.shape, array.dtype)
    if array.id.get_storage_size() != array.size * array.dtype.itemsize:
        return None
    if array.id.get_type() != h5py.h5t.py_create(array.dtype, logical=True):
        return None  # padded numbers, which HDF5 converts
    return FileElements(content, offset, array.shape, array.dtype, path)
