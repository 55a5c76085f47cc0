"""Folders of checksummed arrays. The manifest has a checksum for each block of each file, and one for itself.

A folder is written under a temporary name, its manifest last, synced to disk and then renamed. Reading detects any byte
that has changed since.
"""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import zlib
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ..array_types import DType, HostArray
from ..errors import InputError
from .threads import parallel_map

MANIFEST = "manifest.json"
BLOCK = 1 << 24  # bytes under one checksum
PIECE = 1 << 20  # bytes of a block that a thread reads at a time
SYNC_BYTES, MAX_PENDING = 1 << 26, 3  # bytes synced to disk at a time; syncs that may be pending

Entry = dict[str, Any]
"""The manifest's entry for a file: its size in `bytes`, and the `crc32` of each block."""


def write_array(path: Path, array: HostArray) -> Entry:
    """Write an ``.npy`` file and sync it to disk. Return its entry in the manifest."""
    (entry,) = write_arrays([path], [array], 1)
    sync_files([path])
    return entry


def write_arrays(paths: Sequence[Path], arrays: Sequence[HostArray], threads: int) -> list[Entry]:
    """Write ``.npy`` files, blocks in parallel, without `sync_files`. Return their entries in the manifest."""
    with ExitStack() as opened:
        # "x" never follows a link or overwrites a file that someone else created.
        files = [opened.enter_context(open(path, "xb", buffering=0)) for path in paths]
        contents = [np.ascontiguousarray(array) for array in arrays]
        starts = [header(array.dtype, array.shape) for array in contents]
        sizes = [len(start) + array.nbytes for start, array in zip(starts, contents, strict=True)]
        # Blocks alternate between files, as threads that write to the same file block each other.
        blocks = sorted((at, k) for k, size in enumerate(sizes) for at in range(0, size, BLOCK))

        def write(block: tuple[int, int]) -> int:
            at, k = block
            begin, data = len(starts[k]), contents[k].reshape(-1).view(np.uint8).data
            part = data[max(0, at - begin) : max(0, at + BLOCK - begin)]
            return _write_at(files[k].fileno(), (starts[k] + bytes(part[: BLOCK - begin])) if not at else part, at)

        sums: list[list[int]] = [[] for _ in paths]
        for (_, k), checksum in zip(blocks, parallel_map(write, blocks, threads), strict=True):
            sums[k].append(checksum)
    return [{"bytes": size, "crc32": each} for size, each in zip(sizes, sums, strict=True)]


class ChecksumWriter:
    """Writes an ``.npy`` file piece by piece. A context manager; call `sync_files` afterwards.

    Parameters
    ----------
    path : Path
        File to create.
    dtype : dtype
        Type of the elements.
    size : int
        Number of elements.
    behind : Executor, optional
        Thread that syncs the file to disk in the meantime and drops it from the page cache. On virtual machines that
        return unused memory to their host, allocating new memory for the page cache can be far slower than the disk.
    """

    def __init__(self, path: Path, dtype: DType, size: int, behind: Executor | None = None) -> None:
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115 - closed by `__exit__`
        self._path, self._bytes, self._sums = path, 0, [0]
        self._behind, self._begun, self.pending = behind, 0, deque[Future[None]]()
        self._add(header(dtype, (size,)))

    def __enter__(self) -> ChecksumWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, array: HostArray) -> None:
        """Append elements, a contiguous array."""
        self._add(array.view(np.uint8).data)

    def _add(self, data: bytes | memoryview) -> None:
        left = memoryview(data)
        while left:
            if self._bytes == len(self._sums) * BLOCK:
                self._sums.append(0)
            room = len(self._sums) * BLOCK - self._bytes
            written = self._file.write(left[:room])
            self._sums[-1] = zlib.crc32(left[:written], self._sums[-1])
            self._bytes, left = self._bytes + written, left[written:]
        if self._behind is not None and self._bytes - self._begun >= SYNC_BYTES:
            self._begun = self._bytes
            self.pending.append(self._behind.submit(drop_from_cache, self._path))
            if len(self.pending) > MAX_PENDING:
                self.pending.popleft().result()

    def finish(self) -> Entry:
        """Return the file's entry in the manifest."""
        return {"bytes": self._bytes, "crc32": self._sums}


def drop_from_cache(path: Path) -> None:
    """Sync a file to disk and drop it from the page cache."""
    with open(path, "rb") as file:
        sync(file)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _write_at(handle: int, data: bytes | memoryview, at: int) -> int:
    """Write bytes at an offset of an open file; return their checksum."""
    left = memoryview(data)
    while left:
        written = os.pwrite(handle, left, at)
        left, at = left[written:], at + written
    return zlib.crc32(data)


def header(dtype: DType, shape: tuple[int, ...]) -> bytes:
    """Return the header bytes of an ``.npy`` file."""
    start = io.BytesIO()
    fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(start, fields)
    return start.getvalue()


def count_blocks(path: Path) -> int:
    """Return the number of blocks of a file, each of which has a checksum."""
    return -(path.stat().st_size // -BLOCK)


def checksum(path: Path, block: int) -> int:
    """Return the checksum of one block of a file."""
    found, left = 0, BLOCK
    with open(path, "rb", buffering=0) as file:
        file.seek(block * BLOCK)
        while left and (piece := file.read(min(left, PIECE))):
            found, left = zlib.crc32(piece, found), left - len(piece)
    return found


def write_manifest(folder: Path, body: dict[str, Any]) -> None:
    """Write the manifest, the last file of a folder, and sync it to disk."""
    with open(folder / MANIFEST, "wb", opener=lambda path, how: os.open(path, how | os.O_NOFOLLOW, 0o666)) as file:
        file.write(_text({**body, "crc32": zlib.crc32(_text(body).encode())}).encode())
        sync(file)
    sync_folder(folder)


def open_regular(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a regular file for reading. Raise `OSError` for a pipe, which could block, or a device."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    return os.fdopen(handle, "rb")


def read_manifest(folder: Path, kind: str, form: str, version: int, oldest: int | None = None) -> dict[str, Any]:
    """Return the body that `write_manifest` wrote.

    Parameters
    ----------
    folder : Path
        The folder.
    kind : str
        What the folder is, for messages: "store", say.
    form : str
        Name of the format, as in the manifest.
    version, oldest : int
        Newest and oldest version to accept; by default only `version`.

    Raises
    ------
    InputError
        If the manifest is damaged or has another format or version.
    """
    path = folder / MANIFEST
    text, manifest = _parsed(folder, kind, form)
    if manifest.get("version") not in range(version if oldest is None else oldest, version + 1):
        known = f"this amped reads versions {oldest or version} to {version}"
        raise InputError(f"{kind} of version {manifest.get('version')}; {known}", path=path)
    # The checksum covers the text as `_text` writes it, so any other white space is damage, too.
    body = {key: value for key, value in manifest.items() if key != "crc32"}
    if _text(manifest) != text or zlib.crc32(_text(body).encode()) != manifest.get("crc32"):
        raise InputError("damaged manifest: fails its checksum", path=path)
    return body


def _parsed(folder: Path, kind: str, form: str) -> tuple[str, dict[str, Any]]:
    """Return a manifest as text and parsed. Check its format and file names, but not its checksum."""
    path = folder / MANIFEST
    try:
        with open_regular(path) as file:
            text = file.read().decode()
        manifest = json.loads(text)
    except FileNotFoundError:
        model = (folder / "model.npz").exists()
        cause = "it is a model; see `amped show`" if model and kind == "store" else f"it has no {MANIFEST}"
        raise InputError(f"not a {kind}: {cause}", path=folder) from None
    except OSError as error:
        raise InputError(f"not a {kind}: {MANIFEST}: {error.strerror}", path=folder) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"damaged manifest: {error}", path=path) from None
    if not isinstance(manifest, dict) or manifest.get("format") != form:
        raise InputError(f"not the manifest of a {kind}", path=path)
    files = manifest.get("files")
    for name in files if isinstance(files, dict) else ():
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise InputError(f"damaged manifest: {name!r} is not a plain file name", path=path)
    return text, manifest


def check_holds_nothing_else(folder: Path, kind: str, form: str) -> list[Path]:
    """Return the files of a folder. Raise `InputError` if its manifest does not list one of them.

    Only folders that amped wrote are removed: a folder of another program, or one to which somebody added files, stays.
    Checksums are not verified, since damage is a reason to replace a folder.
    """
    _, manifest = _parsed(folder, kind, form)
    files = manifest.get("files")
    listed = {MANIFEST, *(files if isinstance(files, dict) else ())}
    with os.scandir(folder) as scan:
        entries = sorted(scan, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name not in listed or entry.is_dir(follow_symlinks=False):
            raise InputError(
                f"holds {entry.name}, which the {kind} does not list: not replaced; move it away first", path=folder
            )
    return [Path(entry.path) for entry in entries]


def remove(files: list[Path], folder: Path) -> None:
    """Remove `files` and then `folder`, which must be empty by then."""
    for file in files:
        file.unlink(missing_ok=True)
    folder.rmdir()


def check_entry(file: Path, entry: Entry, kind: str) -> None:
    """Raise `InputError` if a file is missing or has the wrong size, or its entry lacks checksums."""
    size, sums = entry["bytes"], entry["crc32"]
    if not (isinstance(size, int) and isinstance(sums, list) and len(sums) == -(size // -BLOCK)):
        raise InputError(f"damaged manifest: {len(sums)} checksums for {size} bytes", path=file)
    try:
        with open_regular(file) as content:
            actual = os.fstat(content.fileno()).st_size
    except (OSError, ValueError) as error:
        raise InputError(getattr(error, "strerror", None) or str(error), path=file) from None
    if actual != size:
        raise InputError(f"damaged file of the {kind}: {actual} bytes, expected {size}", path=file)


def verify(path: Path, entry: Entry, kind: str, begin: int = 0, end: int | None = None) -> None:
    """Verify the checksums of all blocks of a file that overlap bytes `begin` to `end` (default: to the end)."""
    first, last = begin // BLOCK, -((entry["bytes"] if end is None else end) // -BLOCK)
    with open_regular(path) as file:
        file.seek(first * BLOCK)
        for block in range(first, last):
            if zlib.crc32(file.read(BLOCK)) != entry["crc32"][block]:
                raise InputError(f"damaged file of the {kind}: block {block} fails its checksum", path=path)


def read_bytes(handle: int, data: NDArray[np.uint8], begin: int) -> None:
    """Fill `data` with bytes of an open file from offset `begin` on; raise `ValueError` if it is too short."""
    at = 0
    while at < data.size:
        count = os.preadv(handle, [data[at:].data], begin + at)
        if not count:
            raise ValueError("truncated while it was in use")
        at += count


def read_blocks(handle: int, data: NDArray[np.uint8], begin: int, entry: Entry) -> None:
    """Like `read_bytes`, but verify the checksum of each block in memory; raise `ValueError` if one fails."""
    end, size = begin + data.size, entry["bytes"]
    for block in range(begin // BLOCK, -(end // -BLOCK)):
        start, stop = block * BLOCK, min((block + 1) * BLOCK, size)
        whole = data[max(0, start - begin) : stop - begin]
        if start < begin or stop > end:  # only part of the block is requested
            whole = np.empty(stop - start, np.uint8)
        read_bytes(handle, whole, start)
        if zlib.crc32(whole.data) != entry["crc32"][block]:
            raise ValueError(f"block {block} fails its checksum")
        if start < begin or stop > end:
            low, high = max(start, begin), min(stop, end)
            data[low - begin : high - begin] = whole[low - start : high - start]


def sync_files(paths: Sequence[Path]) -> None:
    """Sync files to disk that are already written and closed."""
    for path in paths:
        with open(path, "rb") as file:
            sync(file)


def sync(file: IO[Any]) -> None:
    """Flush an open file and sync it to disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Sync a folder's entries to disk, so that its file names survive a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _text(manifest: dict[str, Any]) -> str:
    return json.dumps(manifest, indent=1, sort_keys=True) + "\n"
