"""The store: a tensor partitioned once, on disk, for any number of later runs and ranks.

A store is a folder with ``manifest.json``; for each mode one ``.npy`` file per index column and one for the values,
sorted as in `ModeCopy`; and files of labels, if its indices have labels. Files are verified block by block against the
manifest's checksums, so a rank reads and verifies only its own nonzeros.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from ..array_types import DType, FloatDType, Floats, HostArray
from ..errors import InputError
from ..host import checksums
from ..host.checksums import MANIFEST
from ..host.threads import parallel_map, threads_for, usable_cores
from ..shards.partition import SortedTensor, mode_order
from ..sorting.sort import Sort, sort_nonzeros
from ..sorting.tables import DiskTable
from ..tensors.columns import IndexBounds, StoredColumn, StoredFile
from ..tensors.ingest import MAX_MODE_LENGTH, check_order
from ..tensors.labels import BYTES, INT64, KINDS, MISSING, OFFSETS, Labels, of_parts, query_of, to_parts
from ..tensors.sparse import SparseTensor
from ..tensors.value_range import ValueRange
from ..wording import setting

KIND = "store"
FORMAT, VERSION, OLDEST = "amped-store", 4, 2  # version 3 added labels, version 4 labels of any type
BLOCK = 1 << 20  # values cast together
SINGLE = np.dtype(np.float32)


class Store:
    """A store opened for reading.

    Parameters
    ----------
    path : path
        The folder.
    verify : bool
        Whether data is verified against the store's checksums when it is read; otherwise only the manifest and file
        sizes are checked.

    Attributes
    ----------
    path : Path
        The folder.
    shape : tuple of int
        Mode lengths.
    nnz : int
        Number of nonzeros.
    norm : float
        Frobenius norm.
    value_range : ValueRange
        Lowest and highest value, and their grain.
    value_dtype : dtype
        float32 or float64.
    duplicates, zeros : int
        Number of nonzeros merged, and of zero sums dropped, when the tensor was read.

    Raises
    ------
    InputError
        If `path` is not a complete store of a supported version.
    """

    def __init__(self, path: str | os.PathLike[str], verify: bool = True) -> None:
        self.path = Path(path)
        self._verify = verify
        manifest = checksums.read_manifest(self.path, KIND, FORMAT, VERSION, OLDEST)
        try:
            self._take(manifest)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"damaged manifest: {error!r}", path=self.path / MANIFEST) from None

    def _take(self, manifest: dict[str, Any]) -> None:
        """Parse the fields of the manifest. Raise if they are invalid, in spite of a correct checksum."""
        if manifest["block_bytes"] != checksums.BLOCK:
            raise ValueError(f"blocks of {manifest['block_bytes']} bytes")
        self.shape = tuple(int(s) for s in manifest["shape"])
        self.nnz = int(manifest["nnz"])
        self.norm = float(manifest["norm"])
        low, high, grain = (float(v) for v in manifest["value_range"])
        self.value_range = ValueRange(low, high, grain)
        self.duplicates, self.zeros = int(manifest["duplicates"]), int(manifest["zeros"])
        self.value_dtype = np.dtype(str(manifest["value_dtype"]))
        self._files: dict[str, dict[str, Any]] = {str(k): dict(v) for k, v in manifest["files"].items()}
        check_order(self.order)
        numbers = (self.norm, *self.value_range)
        if self.nnz < 1 or not np.all(np.isfinite(numbers)) or self.value_dtype.name not in ("float32", "float64"):
            raise ValueError(f"{self.nnz} nonzeros, norm and values {numbers} of {self.value_dtype}")
        if not all(1 <= length <= MAX_MODE_LENGTH for length in self.shape):
            raise ValueError(f"shape {self.shape}")
        self._labels = self._label_files(manifest)
        for name in [*(name for mode in range(self.order) for name in self.mode(mode).names), *self._labels]:
            entry = self._files[name]
            checksums.check_entry(self.path / name, entry, KIND)
            if self._header(name) < 0:
                raise ValueError(f"{entry['bytes']} bytes of {name} for {self._count(name)} numbers")

    def _label_files(self, manifest: dict[str, Any]) -> dict[str, tuple[DType, int]]:
        """Return the type and length of each file of labels."""
        entry, files = manifest.get("labels"), dict[str, tuple[DType, int]]()
        names = None if entry is None else entry["names"]
        self._names = None if names is None else [str(name) for name in names]
        query = None if entry is None else entry.get("query")
        self._query = None if query is None else query_of(query, self.order)
        if entry is None:  # before version 4 labels were original indices
            modes = range(self.order if label_name(0) in self._files else 0)
            return {label_name(mode): (INT64, self.shape[mode]) for mode in modes}
        if len(entry["modes"]) != self.order or len(self._names or self.shape) != self.order:
            raise ValueError(f"labels of {len(entry['modes'])} modes")
        for mode, kind in enumerate(entry["modes"]):
            dtype = np.dtype(str(kind["dtype"]))
            if dtype.kind not in KINDS or (OFFSETS in kind and dtype != BYTES):
                raise ValueError(f"labels are {dtype}")
            sizes = {"": int(kind["size"]), **{what: int(kind[what]) for what in (OFFSETS, MISSING) if what in kind}}
            if sizes.get(OFFSETS, sizes[""] + 1) != self.shape[mode] + 1 or min(sizes.values()) < 0:
                raise ValueError(f"labels of {sizes} for {self.shape[mode]} indices")
            files |= {label_name(mode, what): (INT64 if what else dtype, size) for what, size in sizes.items()}
        return files

    @property
    def labelled(self) -> bool:
        """Whether the indices have labels."""
        return bool(self._labels)

    @property
    def order(self) -> int:
        """The number of modes."""
        return len(self.shape)

    def mode(self, mode: int) -> StoredMode:
        """Open the sorted copy for `mode`."""
        return StoredMode(self, mode)

    def tensor(self) -> SparseTensor:
        """Read and verify the whole tensor."""
        columns = np.empty((self.order, self.nnz), np.int32)
        copy = self.mode(0)
        for k in range(self.order):
            columns[k] = copy.column(k).load(self.nnz)
        values = copy.values.load(self.nnz)  # zeros, if any, were kept on purpose
        tensor = SparseTensor.from_columns(columns, values, self.shape, path=self.path, keep_zeros=True)
        tensor.set_merge_counts(self.duplicates, self.zeros)
        tensor.labels = self.labels()
        return tensor

    def labels(self) -> Labels | None:
        """Read and verify the labels; None if the indices have none."""
        if not self.labelled:
            return None
        return Labels((self._labels_of(mode) for mode in range(self.order)), self._names, self._query)

    def _labels_of(self, mode: int) -> HostArray:
        names = {what: label_name(mode, what) for what in ("", OFFSETS, MISSING)}
        parts = {
            what: StoredColumn(self.file(name), 0, self._labels[name][1]).load(self._labels[name][1])
            for what, name in names.items()
            if name in self._labels
        }
        try:
            return of_parts(parts)
        except ValueError as error:
            raise InputError(f"damaged file of the store: {error}", path=self.path / names[""]) from None

    def file(self, name: str) -> StoredFile:
        """Open one file of the store."""
        # Type and length come from the manifest, as the file's header may be damaged.
        return StoredFile(self.path / name, self._dtype(name), self._header(name), self._files[name], self._verify)

    def _dtype(self, name: str) -> DType:
        if name in self._labels:
            return self._labels[name][0]
        return self.value_dtype if name.endswith("values.npy") else np.dtype(np.int32)

    def _count(self, name: str) -> int:
        """Return the number of elements of a file."""
        return self._labels[name][1] if name in self._labels else self.nnz

    def _header(self, name: str) -> int:
        """Return the size of a file's header in bytes."""
        return int(self._files[name]["bytes"]) - self._count(name) * self._dtype(name).itemsize


class StoredMode:
    """A mode copy (`ModeCopy`) in a store."""

    def __init__(self, store: Store, mode: int) -> None:
        self._store, self.names = store, file_names(store.order, mode)
        lengths = [store.shape[m] for m in mode_order(store.order, mode)]
        self._bounds = [*(IndexBounds(0, length, ascending=k == 0) for k, length in enumerate(lengths)), None]

    def column(self, k: int) -> StoredColumn:
        """See `ModeCopy`."""
        return StoredColumn(self._store.file(self.names[k]), 0, self._store.nnz, self._bounds[k])

    @property
    def values(self) -> StoredColumn:
        """See `ModeCopy`."""
        return self.column(len(self.names) - 1)

    def share(self, start: int, stop: int, rows: range, keep: int, dtype: DType | None = None) -> list[Any]:
        """Return the columns and values of nonzeros `start` to `stop`; raise `InputError` if they fail verification.

        Their output indices must lie in `rows`. At most `keep` nonzeros are read into memory, with values cast to
        `dtype`; if there are more, columns are returned as `StoredColumn`.
        """
        first = IndexBounds(rows.start, rows.stop, ascending=True)
        columns = [self.column(k).part(start, stop, None if k else first) for k in range(len(self.names))]
        return [*(column.load(keep) for column in columns[:-1]), columns[-1].load(keep, dtype)]


def check_target(target: Path, force: bool) -> None:
    """Raise `InputError`, before any work, if no store can be written at `target`.

    With `force` it may be an existing store that contains no other files.
    """
    if os.path.lexists(target):
        if not force:
            raise InputError(f"exists already; {setting('force')} replaces it", path=target)
        if not target.is_dir():
            raise InputError("exists and is not a store: not replaced", path=target)
        if target in (Path.cwd(), *Path.cwd().parents):
            raise InputError("is the current folder, or contains it: not replaced", path=target)
        try:
            files_to_replace(target)
        except InputError as error:
            raise InputError(f"{setting('force')} replaces only stores: {error.cause}", path=target) from None
    if not target.parent.is_dir():
        raise InputError("its parent folder does not exist; create it first", path=target)
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise InputError("its parent folder is not writable", path=target)


def files_to_replace(folder: Path) -> list[Path]:
    """Return the files of a store of any version, damaged or not. Raise `InputError` if it contains other files."""
    return checksums.check_holds_nothing_else(folder, KIND, FORMAT)


def write_files(tensor: SparseTensor, folder: Path, sort: Sort = sort_nonzeros) -> None:
    """Partition `tensor` and write all files of its store."""
    files = dict[str, checksums.Entry]()
    narrow, threads = exact_dtype(tensor.values), usable_cores()
    with ThreadPoolExecutor(1) as disk:  # syncs a mode's files while the next mode is sorted
        synced = list[Future[None]]()
        for mode in range(tensor.order):
            copy, names = SortedTensor(tensor, mode, narrow, sort), file_names(tensor.order, mode)
            arrays, paths = [*(copy.column(k) for k in range(tensor.order)), copy.values], [folder / n for n in names]
            files |= dict(zip(names, checksums.write_arrays(paths, arrays, threads), strict=True))
            synced.append(disk.submit(checksums.sync_files, paths))
            del copy, arrays  # free them before the next mode
        for each in synced:
            each.result()
    label_files, kinds = write_labels(folder, tensor.labels)
    files |= label_files
    facts = {"nnz": tensor.nnz, "norm": tensor.norm(), "value_range": tensor.value_range()}
    counts = {"duplicates": tensor.duplicates, "zeros": tensor.zeros}
    write_manifest(folder, files, narrow, shape=tensor.shape, labels=kinds, **facts, **counts)


def write_manifest(folder: Path, files: dict[str, checksums.Entry], value_dtype: FloatDType, **facts: object) -> None:
    """Write the manifest of a store whose files are synced to disk. `facts` are attributes of `Store`."""
    form = {"format": FORMAT, "version": VERSION, "block_bytes": checksums.BLOCK, "value_dtype": value_dtype.name}
    checksums.write_manifest(folder, {**form, **facts, "files": files})


def write_labels(folder: Path, labels: Labels | None) -> tuple[dict[str, checksums.Entry], dict[str, Any] | None]:
    """Write the labels of all modes; return the files' entries, and their description for the manifest."""
    if labels is None:
        return {}, None
    entries, kinds = dict[str, checksums.Entry](), list[dict[str, Any]]()
    for mode, each in enumerate(labels):
        parts = to_parts(each)
        for what, part in parts.items():
            name = label_name(mode, what)
            entries[name] = checksums.write_array(folder / name, part)
        kinds.append({"dtype": parts[""].dtype.str, **{what or "size": part.size for what, part in parts.items()}})
    return entries, {"names": labels.names, "query": labels.query and labels.query.fields(), "modes": kinds}


def label_name(mode: int, what: str = "") -> str:
    """Return the name of a file of a mode's labels; `what` is "" for the labels, or the part of them it holds."""
    return f"mode{mode}.labels{'-' * bool(what)}{what}.npy"


def file_names(order: int, mode: int) -> list[str]:
    """Return the file names of a mode copy: its index columns in `mode_order`, then its values."""
    return [*(f"mode{mode}.index{m}.npy" for m in mode_order(order, mode)), f"mode{mode}.values.npy"]


def make_files(folder: Path, order: int, nnz: int, value_dtype: FloatDType) -> None:
    """Create the files of a store with their headers and full lengths, to be filled later."""
    for mode in range(order):
        for name in file_names(order, mode):
            dtype = value_dtype if name.endswith("values.npy") else np.dtype(np.int32)
            start = checksums.header(dtype, (nnz,))
            with open(folder / name, "xb") as file:
                file.write(start)
                file.truncate(len(start) + nnz * dtype.itemsize)


def stored_nonzeros(folder: Path, order: int, mode: int, nnz: int, value_dtype: FloatDType) -> DiskTable:
    """Open the files of a mode copy, columns in `mode_order`, for reading and writing."""
    names = file_names(order, mode)
    return DiskTable([folder / name for name in names], value_dtype, len(checksums.header(value_dtype, (nnz,))))


def exact_dtype(values: Floats) -> FloatDType:
    """Return float32 if it represents every value exactly, else float64."""

    def is_exact(begin: int) -> bool:
        block = values[begin : begin + BLOCK]
        with np.errstate(over="ignore"):
            return np.array_equal(block.astype(np.float32), block)

    begins = range(0, values.size, BLOCK)  # the first block rules out most inexact tensors
    threads = threads_for(len(begins))
    exact = values.dtype == SINGLE or (is_exact(0) and all(parallel_map(is_exact, begins, threads)))
    return SINGLE if exact else np.dtype(np.float64)
