"""Arrays in Zarr folders and in zip archives. Their metadata is checked before the library uses it."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

from ...errors import InputError
from ...host.checksums import open_regular
from ...tensors.cf_attributes import NAMES, Packing, of_format_2
from ...tensors.dense import KINDS
from ..pieces import cause_of
from .opened import MAX_NODES, FoundArray, Opened, Place, chosen, library, shortened
from .watch import WatchedFile, WatchedFolder

FOLDERS, ARCHIVES = (".zarr",), (".zarr.zip",)
META, OLD_META, OLD_ATTRIBUTES = "zarr.json", ".zarray", ".zattrs"
MAX_METADATA = 1 << 26  # bytes
OBJECTS = frozenset("pickle json json2 msgpack msgpack2 vlen-utf8 vlen-bytes vlen-array categorize".split())
"""Codecs of Python objects; the first one can run code from the file."""

Metadata = Mapping[str, Any]


class _Tree:
    """A folder of arrays and groups, or a zip archive of one."""

    def __init__(self, file: str) -> None:
        self.file, self.archive = file, None  # type: tuple[str, zipfile.ZipFile | None]
        if os.path.isdir(file):
            return
        self.content = open_regular(file)
        self.watched = WatchedFile(self.content)
        if not zipfile.is_zipfile(self.content):
            raise InputError("neither a Zarr folder nor a zip archive of one")
        self.archive = zipfile.ZipFile(self.content)
        self._names = frozenset(self.archive.namelist())

    def has(self, name: str) -> bool:
        return name in self._names if self.archive else os.path.lexists(os.path.join(self.file, name))

    def read(self, name: str) -> bytes:
        """Return the content of a metadata file."""
        with io.BytesIO() as content:
            with self.archive.open(name) if self.archive else open_regular(os.path.join(self.file, name)) as file:
                content.write(file.read(MAX_METADATA + 1))
            if content.tell() > MAX_METADATA:
                raise InputError(f"{shortened(name)} is too long for metadata")
            return content.getvalue()

    def folders(self, name: str) -> Iterable[str]:
        """Return the names of the subfolders; links are not followed."""
        if self.archive:
            start = f"{name}/" if name else ""
            names = {
                each[len(start) :].split("/")[0]
                for each in self._names
                if each.startswith(start) and "/" in each[len(start) :]
            }
            return sorted(names)
        with os.scandir(os.path.join(self.file, name)) as entries:
            return sorted(each.name for each in entries if each.is_dir(follow_symlinks=False))


def open_zarr(file: str, name: str) -> Opened:
    """Open an array in a folder or archive; raise `InputError` if it is missing or invalid."""
    zarr = library("zarr", "zarr")
    try:
        tree = _Tree(file)
        if name and any(step in ("", ".", "..") for step in name.split("/")):
            raise InputError(f"holds no array {shortened(name)!r}")
        name, meta = (name, _metadata(tree, name)) if name else chosen(list(_listed(tree)))
        if meta is None:
            raise InputError(f"holds no array {shortened(name)!r}")
        _check_numbers(meta)
        grid, attributes = _Grid(meta), _attributes(tree, name, meta)
        watched = None if tree.archive else WatchedFolder(Path(file, name))
        array = _opened(zarr, tree, name, meta)
        packing = Packing(array.dtype, attributes, array.fill_value)
        check = _checking(tree, name, watched, grid, packing)
    except (InputError, OSError, MemoryError):
        raise
    except Exception as error:  # Zarr raises various exceptions for damaged metadata
        raise InputError(f"cannot be read: {cause_of(error)}") from None
    return Opened(array, packing, check, grid.lengths)


def _opened(zarr: ModuleType, tree: _Tree, name: str, meta: Metadata) -> Any:
    kind = meta["zarr_format"]
    if tree.archive:
        store = zarr.storage.ZipStore(tree.file, mode="r")
        array = zarr.open_array(store=store, path=name, mode="r", zarr_format=kind)
        tree.watched.check_name(tree.file)
        return array
    return zarr.open_array(store=os.path.join(tree.file, name), mode="r", zarr_format=kind)


def _checking(
    tree: _Tree, name: str, watched: WatchedFolder | None, grid: _Grid, packing: Packing
) -> Callable[[Place], None]:
    """Return a function that raises `InputError` if chunks have changed, or were never written and count as missing."""
    prefix = f"{name}/" if name else ""

    def check(place: Place) -> None:
        keys = grid.keys(place)
        if watched is None:
            tree.watched.check()
        else:
            for key in watched.files if keys is None else keys:
                watched.check(key)
        for key in keys if keys is not None and packing.declares else ():
            if key not in watched.files if watched else not tree.has(prefix + key):
                cause = f"chunk {key} was never written, and {packing.declares} declares such elements missing"
                raise InputError(f"{cause}: write it, for example with array.write_empty_chunks of zarr.config")

    return check


class _Grid:
    """The division of an array into chunks or shards, and the names of their files."""

    def __init__(self, meta: Metadata) -> None:
        self.lengths: tuple[int, ...] | None = None  # chunk shape, or None if unknown
        self._prefix, self._separator = "", "."
        if meta["zarr_format"] == 2:
            self.lengths = _lengths(meta["chunks"])
            self._separator = meta.get("dimension_separator", ".")
            return
        grid, naming = meta["chunk_grid"], meta.get("chunk_key_encoding") or {"name": "default"}
        kind, options = naming["name"], naming.get("configuration") or {}
        self._prefix, self._separator = ("c", "/") if kind == "default" else ("", ".")
        self._separator = options.get("separator", self._separator)
        if grid["name"] == "regular" and kind in ("default", "v2"):
            self.lengths = _lengths(grid["configuration"]["chunk_shape"])

    def keys(self, place: Place) -> list[str] | None:
        """Return the names of the chunk files for a position, existing or not; None if unknown."""
        if self.lengths is None:
            return None
        ranges = (range(r.start // n, -(r.stop // -n)) for r, n in zip(place, self.lengths, strict=True))
        start = [self._prefix] if self._prefix else []
        return [self._separator.join([*start, *map(str, at)]) for at in product(*ranges)]


def _lengths(chunk: Any) -> tuple[int, ...]:
    if not all(isinstance(each, int) and each > 0 for each in chunk):
        raise InputError(f"damaged metadata: chunks of {chunk}")
    return tuple(chunk)


def _listed(tree: _Tree) -> Iterator[FoundArray]:
    pending, count = [""], 0
    while pending:
        name, count = pending.pop(), count + 1
        if count > MAX_NODES:
            raise InputError(f"holds more than {MAX_NODES:,} folders: select an array with FILE:NAME")
        meta = _metadata(tree, name)
        if meta is None:
            pending += reversed([f"{name}/{each}" if name else each for each in tree.folders(name)])
        else:
            yield FoundArray(name, len(meta["shape"]), (name, meta))


def _metadata(tree: _Tree, name: str) -> Metadata | None:
    """Return the metadata of an array, or None if there is no array of this name."""
    for file in (META, OLD_META):
        place = f"{name}/{file}" if name else file
        if tree.has(place):
            meta = _json(tree, place)
            if meta.get("zarr_format") not in (2, 3):
                raise InputError(f"{shortened(place)} is of Zarr format {meta.get('zarr_format')!r}, expected 2 or 3")
            if file == OLD_META or meta.get("node_type") == "array":
                if not isinstance(meta.get("shape"), list):
                    raise InputError(f"damaged metadata: {shortened(place)} has no shape")
                return meta
    return None


def _json(tree: _Tree, place: str) -> dict[str, Any]:
    try:
        content = json.loads(tree.read(place))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"damaged metadata: {shortened(place)}: {cause_of(error)}") from None
    if not isinstance(content, dict):
        raise InputError(f"damaged metadata: {shortened(place)} is not an object")
    return content


def _attributes(tree: _Tree, name: str, meta: Metadata) -> dict[str, Any]:
    """Return the attributes of an array that describe its numbers.

    In format 2 the fill value is netCDF's ``_FillValue``, if netCDF wrote the array.
    """
    if meta["zarr_format"] == 3:
        attributes = meta.get("attributes") or {}
        return {each: attributes[each] for each in NAMES if each in attributes}
    place = f"{name}/{OLD_ATTRIBUTES}" if name else OLD_ATTRIBUTES
    attributes = _json(tree, place) if tree.has(place) else {}
    return {each: attributes[each] for each in NAMES if each in attributes} | of_format_2(
        attributes, meta.get("fill_value")
    )


def _check_numbers(meta: Metadata) -> None:
    """Raise `InputError` for arrays of objects before anything is decoded, as decoding can run code from the file."""
    pending: list[Any] = [meta.get(each) for each in ("compressor", "filters", "codecs", "data_type", "dtype")]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            for name in (each.get("id"), each.get("name")):
                if isinstance(name, str) and name.lower().rsplit(".", 1)[-1] in OBJECTS:
                    raise InputError(f"has the codec {name!r}, which stores Python objects: a tensor has real numbers")
            pending += each.values()
        elif isinstance(each, list):
            pending += each
    old = meta.get("dtype")
    if meta["zarr_format"] == 2 and not (isinstance(old, str) and old[1:2] in KINDS):
        raise InputError(f"elements are {shortened(str(old))}, expected real numbers")
