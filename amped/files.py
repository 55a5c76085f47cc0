"""Files of a run: early checks that they can be written, and atomic writes."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from partitioner.checked import open_regular, sync_folder
from partitioner.readers.npz import DAMAGED, check_sizes, read_header

from .errors import InputError

CHUNK = 1 << 20  # bytes


def check_file(path: Path, force: bool, advice: str = "--force replaces it") -> None:
    """Raise `InputError` unless file `path` can be made, or with `force` replaced; leave no trace."""
    if path.is_dir():
        raise InputError("is a folder", path=path)
    if path.exists() and not force:
        raise InputError(f"exists already; {advice}", path=path)
    check_folder(path.parent, path)


def check_folder(folder: Path, named: Path | None = None) -> None:
    """Raise `InputError`, naming `named`, unless `folder` is writable or can be made; leave no trace."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    probe = there / f".amped-{os.getpid()}.probe"
    try:
        try:
            probe.write_bytes(b"amped")
        finally:
            probe.unlink(missing_ok=True)  # exists, empty, on a full disk too
    except OSError as error:
        raise InputError(f"cannot write there: {error.strerror}", path=named or folder) from None


def make_folders(folders: Iterable[Path]) -> None:
    """Make folders and their parents, where missing."""
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make the folder: {error.strerror}", path=folder) from None


def write_whole(path: str | os.PathLike[str], write: Callable[[IO[bytes]], object]) -> None:
    """Write a file atomically: `write` fills a draft, which is synced to disk and then renamed."""
    target = Path(path)
    draft = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with open(draft, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)
        sync_folder(target.parent)
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror or error}", path=target) from None
    finally:
        draft.unlink(missing_ok=True)


def write_npz(path: str | os.PathLike[str], arrays: dict[str, NDArray[Any]]) -> None:
    """Write arrays to an ``.npz`` file."""
    write_whole(path, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file."""
    write_whole(path, lambda file: file.write(text.encode()))


def read_npz(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """Read all arrays of an ``.npz`` file, verified against its checksums, without unpickling.

    Raises
    ------
    InputError
        If the file is invalid; memory stays bounded by the file's size.
    """
    try:
        with ExitStack() as files:
            file = files.enter_context(open_regular(path))
            if not zipfile.is_zipfile(file):
                raise InputError("damaged or not an .npz file", path=path)
            archive = files.enter_context(zipfile.ZipFile(file))
            check_sizes(archive, os.fstat(file.fileno()).st_size)
            return {member.filename.removesuffix(".npy"): _array(archive, member) for member in archive.infolist()}
    except InputError:
        raise
    except DAMAGED as error:
        told = error.strerror if isinstance(error, OSError) else None
        raise InputError(told or f"damaged or not an .npz file: {error}", path=path) from None


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(member) as file:
        return read_array(file, member.file_size)


def read_array(file: IO[bytes], size: int) -> NDArray[Any]:
    """Read the ``.npy`` array that fills a file of `size` bytes; raise `ValueError` if it does not."""
    shape, by_columns, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError("an array of objects")
    left = size - file.tell()
    if math.prod(shape) * dtype.itemsize != left or left < 0:  # else the checksum at the end would not be verified
        raise ValueError(f"{left} bytes for an array of {shape} {dtype}")
    data = np.empty(left, np.uint8)
    for begin in range(0, left, CHUNK):
        piece = file.read(min(CHUNK, left - begin))
        data[begin : begin + len(piece)] = np.frombuffer(piece, np.uint8)
    return data.view(dtype).reshape(shape, order="F" if by_columns else "C")


def factors_in(arrays: dict[str, NDArray[Any]], path: str | os.PathLike[str]) -> list[NDArray[Any]]:
    """Return the arrays ``factor_0``, ``factor_1``, ...; raise `InputError` if none or one is not a real matrix."""
    factors: list[NDArray[Any]] = []
    while (name := f"factor_{len(factors)}") in arrays:
        check_factor(arrays[name], name, path)
        factors.append(arrays[name])
    if not factors:
        raise InputError("holds no factor_0", path=path)
    return factors


def check_factor(factor: NDArray[Any], name: str, path: str | os.PathLike[str] | None) -> None:
    """Raise `InputError` unless `factor` is a real, finite matrix."""
    if factor.ndim != 2 or factor.dtype.kind not in "fiu":
        raise InputError(f"{name} is {factor.dtype} of shape {factor.shape}, not a real matrix", path=path)
    if not np.all(np.isfinite(factor)):
        raise InputError(f"{name} is not finite", path=path)
