"""Files of a run: names that are claimed before the work, and atomic writes."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from errno import ENOTDIR
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from partitioner.host.checksums import MANIFEST, open_regular, sync_folder
from partitioner.readers.arrays.headers import check_sizes, read_header
from partitioner.readers.arrays.members import Member
from partitioner.readers.arrays.npz import DAMAGED
from partitioner.store.locks import MARK, BusyError, Claim
from partitioner.store.staging import draft_of, is_draft_of
from partitioner.tensors.dense import Stored
from partitioner.tensors.npy_file import FileElements

from .errors import InputError, OutputError

CHUNK = 1 << 20  # bytes
PACKED = ".gz", ".bz2", ".xz", ".zst"
OTHERS = (
    *(".csv", ".tsv", ".txt", ".json", ".jsonl", ".parquet", ".feather", ".arrow", ".tns", ".mat", ".npy"),
    *(".h5", ".hdf5", ".nc", ".zarr", ".pkl", ".pickle", ".pt", ".html"),
)
"""Endings of files in other formats than NumPy's ``.npz``."""


@contextmanager
def faults_of(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name the file whose arrays are missing or at fault, in an `InputError`."""
    try:
        yield
    except KeyError as error:
        raise InputError(f"holds no {error}", path=path) from None
    except ValueError as error:
        raise InputError(getattr(error, "cause", str(error)), path=path) from None


class Outputs:
    """The files and folders that a run will write: claimed when it starts, let go when it ends.

    A folder that was made for them and is empty in the end is removed.
    """

    def __init__(self) -> None:
        self._claims: list[Claim] = []
        self._made: list[Path] = []
        self.replaced: set[Path] = set()  # files that may be there already when they are written

    def close(self) -> None:
        """Let the names go, and remove folders that were made in vain."""
        for claim in self._claims:
            claim.release()
        for folder in reversed(self._made):
            with suppress(OSError):  # it holds something
                folder.rmdir()
        self._claims, self._made = [], []

    def folder(self, folder: Path) -> None:
        """Make a folder, and its parents, where missing."""
        try:
            missing = [each for each in (folder, *folder.parents) if not each.exists()]
            for each in reversed(missing):
                with suppress(FileExistsError):  # another run has just made it, or it is no folder
                    each.mkdir()
                    self._made.append(each)
            if not folder.is_dir():
                raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR))
        except OSError as error:
            lost = folder.is_symlink() and not folder.exists()
            cause = "is a link to nothing" if lost else f"cannot make the folder: {error.strerror}"
            raise InputError(cause, path=folder) from None

    def claim(self, target: Path) -> None:
        """Claim a name in a folder that exists; raise `InputError` if another run has it, or none can write there."""
        if not target.parent.is_dir():
            raise BusyError("its folder does not exist", path=target)
        self._claims.append(Claim(target))
        self._claims[-1].take()

    def file(self, target: Path, replace: bool, advice: str = "--force replaces it") -> None:
        """Claim the name of a file that does not exist, or is a file that the run may `replace`."""
        check_kind(target)
        self.claim(target)
        try:
            os.lstat(draft_of(target))  # its name is longer, perhaps too long
        except FileNotFoundError:
            pass
        except OSError as error:
            raise InputError(f"cannot write there: {error.strerror}", path=target) from None
        if os.path.lexists(target) and not replace:
            raise InputError(f"exists already; {advice}", path=target)
        self.replaced |= {target} if replace else set()
        for left in os.listdir(target.parent):
            if is_draft_of(left, target.name):  # of a run that was killed
                (target.parent / left).unlink(missing_ok=True)

    def fresh(self, wanted: Path, name: str) -> Path:
        """Make the folder `wanted`, or the first of ``wanted-2``, ``wanted-3``, ... that is not there; return it.

        The `name` of a file in it is claimed. A folder that a killed run left empty is taken.
        """
        number, folder = 1, wanted
        while not self._take(folder, name):
            number += 1
            folder = wanted.with_name(f"{wanted.name}-{number}")
        return folder

    def _take(self, folder: Path, name: str) -> bool:
        """Make or take an empty folder and claim a name in it; return False if it is in use."""
        try:
            folder.mkdir()
        except FileExistsError:
            if folder.is_symlink() or _names(folder) - {MARK.format(name)}:
                return False
        except OSError as error:
            raise InputError(f"cannot make the folder: {error.strerror}", path=folder) from None
        self._made.append(folder)
        try:
            self.claim(folder / name)
        except BusyError:
            return False
        except InputError:
            if (folder / MARK.format(name)).exists():  # another user's
                return False
            raise
        return True


def _names(folder: Path) -> set[str]:
    """Return what is in a folder; its own name if it is none, or has just been removed."""
    try:
        return set(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return {folder.name}


class TakenError(OutputError):
    """A name that something else has taken since it was claimed."""


def check_kind(target: Path) -> None:
    """Raise `InputError` if there is something at `target` that is no plain file, and so is never to be replaced."""
    if target.is_dir():
        raise InputError("is a folder", path=target)
    if target.is_symlink() and not target.exists():
        raise InputError("is a link to nothing", path=target)
    if target.exists() and not target.is_file():
        raise InputError("is not a plain file", path=target)


def check_apart(outputs: Mapping[str, Path | None], inputs: Mapping[str, Path | None]) -> None:
    """Raise `InputError` if two outputs, or an output and an input, given by their flags, are the same file.

    Of an input that is a folder, a store, these are the files that stores are made of.
    """
    known: dict[str, str] = {}
    for flag, path in inputs.items():
        for name in ("", *_read_of(path)) if path is not None else ():
            known[os.path.realpath(os.path.join(path or "", name))] = flag
    for flag, path in outputs.items():
        if path is not None:
            other = known.setdefault(os.path.realpath(path), flag)
            if other != flag:
                raise InputError(f"is both {other} and {flag}", path=path)


def _read_of(path: Path) -> list[str]:
    """Return the names of a store's files; nothing if it is no folder."""
    names = sorted(os.listdir(path)) if path.is_dir() else []
    return [name for name in names if name == MANIFEST or name.endswith(".npy")]


def write_whole(path: str | os.PathLike[str], write: Callable[[IO[bytes]], object], replace: bool = True) -> None:
    """Write a file atomically: `write` fills a draft, which is synced to disk and then takes the name.

    Raises
    ------
    TakenError
        If something has the name, and the file is not to `replace` it.
    OutputError
        If it cannot be written.
    """
    target = Path(path)
    if not target.name:
        raise OutputError("cannot write: a folder, or no name", path=target)
    draft, is_ours = draft_of(target), True
    try:
        try:
            # A draft is never one that is there already, nor a link to what it would overwrite.
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            with open(handle, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            _place(draft, target, replace)
            sync_folder(target.parent)
        except FileExistsError:
            is_ours = False
            raise
        finally:
            if is_ours:
                draft.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write: {error.strerror or error}", path=target) from None


def _place(draft: Path, target: Path, replace: bool) -> None:
    """Give a draft its name."""
    if replace:
        os.replace(draft, target)
        return
    try:
        os.link(draft, target)
    except OSError:
        if os.path.lexists(target):
            raise TakenError("was written by something else meanwhile", path=target) from None
        os.rename(draft, target)  # a file system without hard links


def check_npz(path: str | os.PathLike[str]) -> None:
    """Refuse the name of a file in another format for an ``.npz`` file; any other name may be one's."""
    plain = Path(path)
    while plain.suffix.lower() in PACKED:
        plain = plain.with_suffix("")
    if plain != Path(path) or plain.suffix.lower() in OTHERS:
        raise InputError(f"what is written is an .npz file: name it {plain.with_suffix('.npz').name}", path=path)


def write_npz(path: str | os.PathLike[str], arrays: dict[str, NDArray[Any]], replace: bool = True) -> None:
    """Write arrays to an ``.npz`` file; see `check_npz` and `write_whole`."""
    check_npz(path)
    write_whole(path, lambda file: np.savez(file, **arrays), replace)  # type: ignore[arg-type]


def write_text(path: str | os.PathLike[str], text: str, replace: bool = True) -> None:
    """Write a text file; see `write_whole`. Bytes of a file name that are no text are escaped."""
    write_whole(path, lambda file: file.write(text.encode("utf-8", "backslashreplace")), replace)


def read_npz(path: str | os.PathLike[str], in_file: Collection[str] = ()) -> dict[str, Any]:
    """Read all arrays of an ``.npz`` file, verified against its checksums, without unpickling.

    Those whose names are `in_file` stay there, if they are not compressed: each is a `Stored`, read where it is used.

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
            arrays = {}
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                stays = name in in_file and member.compress_type == zipfile.ZIP_STORED
                arrays[name] = _stored(file, archive, member, path) if stays else _array(archive, member)
            return arrays
    except InputError:
        raise
    except MemoryError as error:
        raise InputError(f"memory has no room for its arrays: {error}", path=path) from None
    except DAMAGED as error:
        told = error.strerror if isinstance(error, OSError) else None
        raise InputError(told or f"damaged or not an .npz file: {error}", path=path) from None


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(member) as file:
        return read_array(file, member.file_size)


def _stored(file: IO[bytes], archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Any) -> Stored:
    """Return an array that stays in the file, once all of it was verified."""
    with archive.open(member) as stream:
        shape, by_columns, dtype = _checked_header(stream, member.file_size)
        place = Member(file.fileno(), member).start + stream.tell()
        elements = FileElements(file, place, shape[::-1] if by_columns else shape, dtype, path)
        while stream.read(CHUNK):  # after which it may not change
            pass
    modes = range(len(shape))
    return Stored(elements, tuple(reversed(modes) if by_columns else modes))


def read_array(file: IO[bytes], size: int) -> NDArray[Any]:
    """Read the ``.npy`` array that fills a file of `size` bytes; raise `ValueError` if it does not."""
    shape, by_columns, dtype = _checked_header(file, size)
    left = size - file.tell()
    data = np.empty(left, np.uint8)
    for begin in range(0, left, CHUNK):
        piece = file.read(min(CHUNK, left - begin))
        data[begin : begin + len(piece)] = np.frombuffer(piece, np.uint8)
    return data.view(dtype).reshape(shape, order="F" if by_columns else "C")


def _checked_header(file: IO[bytes], size: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read a header; raise `ValueError` unless its numbers fill the rest: or no checksum would be verified."""
    shape, by_columns, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError("an array of objects")
    left = size - file.tell()
    if math.prod(shape) * dtype.itemsize != left or left < 0:
        raise ValueError(f"{left} bytes for an array of {shape} {dtype}")
    return shape, by_columns, dtype


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
