"""Output files of a run: names are reserved before the work, and files are written atomically."""

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

from partitioner.array_types import DType, Floats, HostArray
from partitioner.host.checksums import MANIFEST, open_regular, sync_folder
from partitioner.readers.arrays.members import Member, check_sizes, read_header
from partitioner.readers.arrays.npz import DAMAGED
from partitioner.store.locks import MARK, BusyError, Claim
from partitioner.store.staging import draft_of, is_draft_of
from partitioner.tensors.npy_file import FileElements
from partitioner.tensors.stored import Stored

from .errors import InputError, OutputError

CHUNK = 1 << 20  # bytes
PACKED = ".gz", ".bz2", ".xz", ".zst"
OTHERS = (
    *(".csv", ".tsv", ".txt", ".json", ".jsonl", ".parquet", ".feather", ".arrow", ".tns", ".mat", ".npy"),
    *(".h5", ".hdf5", ".nc", ".zarr", ".pkl", ".pickle", ".pt", ".html"),
)
"""Extensions of formats other than NumPy's ``.npz``."""
KNOWN = *OTHERS, ".npz", ".htm", ".md", ".docx", ".pdf", ".png", ".svg", ".jpg", ".ktn"


@contextmanager
def faults_of(path: str | os.PathLike[str]) -> Iterator[None]:
    """Convert missing or invalid arrays inside the block to an `InputError` that names the file."""
    try:
        yield
    except KeyError as error:
        raise InputError(f"contains no {error}", path=path) from None
    except ValueError as error:
        raise InputError(getattr(error, "cause", str(error)), path=path) from None


class Outputs:
    """The files and folders that a run will write: names are reserved at the start and released at the end.

    Folders that were created for them and remain empty are removed.
    """

    def __init__(self) -> None:
        self._claims: list[Claim] = []
        self._created: list[Path] = []
        self.replaced: set[Path] = set()  # existing files that may be overwritten

    def close(self) -> None:
        """Release the names and remove created folders that are empty."""
        for claim in self._claims:
            claim.release()
        for folder in reversed(self._created):
            with suppress(OSError):  # not empty
                folder.rmdir()
        self._claims, self._created = [], []

    def folder(self, folder: Path) -> None:
        """Create a folder and its missing parents."""
        try:
            missing = [each for each in (folder, *folder.parents) if not each.exists()]
            for each in reversed(missing):
                with suppress(FileExistsError):  # another run has just created it, or it is not a folder
                    each.mkdir()
                    self._created.append(each)
            if not folder.is_dir():
                raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR))
        except OSError as error:
            lost = folder.is_symlink() and not folder.exists()
            cause = "is a broken symbolic link" if lost else f"cannot create the folder: {error.strerror}"
            raise InputError(cause, path=folder) from None

    def claim(self, target: Path) -> None:
        """Reserve a name in an existing folder; raise `InputError` if another run has it or the folder is read-only."""
        if not target.parent.is_dir():
            raise BusyError("its folder does not exist", path=target)
        self._claims.append(Claim(target))
        self._claims[-1].take()

    def file(self, target: Path, replace: bool, advice: str = "--force replaces it") -> None:
        """Reserve the name of a file that does not exist yet, or that the run may `replace`."""
        check_kind(target)
        self.claim(target)
        try:
            os.lstat(draft_of(target))  # the draft's name is longer, perhaps too long
        except FileNotFoundError:
            pass
        except OSError as error:
            raise InputError(f"cannot write: {error.strerror}", path=target) from None
        if os.path.lexists(target) and not replace:
            raise InputError(f"exists already; {advice}", path=target)
        self.replaced |= {target} if replace else set()
        for name in os.listdir(target.parent):
            if is_draft_of(name, target.name):  # of a run that was killed
                (target.parent / name).unlink(missing_ok=True)

    def fresh(self, preferred: Path, name: str) -> Path:
        """Create the folder `preferred`, or the first unused of ``preferred-2``, ``preferred-3``, ...; return it.

        The `name` of a file in it is reserved. An empty folder left by a killed run is reused.
        """
        number, folder = 1, preferred
        while not self._take(folder, name):
            number += 1
            folder = preferred.with_name(f"{preferred.name}-{number}")
        return folder

    def _take(self, folder: Path, name: str) -> bool:
        """Create or reuse an empty folder and reserve a name in it; return False if it is in use."""
        try:
            folder.mkdir()
        except FileExistsError:
            if folder.is_symlink() or _names(folder) - {MARK.format(name)}:
                return False
        except OSError as error:
            raise InputError(f"cannot create the folder: {error.strerror}", path=folder) from None
        self._created.append(folder)
        try:
            self.claim(folder / name)
        except BusyError:
            return False
        except InputError:
            if (folder / MARK.format(name)).exists():  # reserved by another user
                return False
            raise
        return True


def _names(folder: Path) -> set[str]:
    """Return the names in a folder; its own name if it is not a folder or has just been removed."""
    try:
        return set(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return {folder.name}


class TakenError(OutputError):
    """A reserved name that another program has used in the meantime."""


def check_kind(target: Path) -> None:
    """Raise `InputError` if something other than a plain file exists at `target`."""
    if target.is_dir():
        raise InputError("is a folder", path=target)
    if target.is_symlink() and not target.exists():
        raise InputError("is a broken symbolic link", path=target)
    if target.exists() and not target.is_file():
        raise InputError("is not a plain file", path=target)


def check_apart(outputs: Mapping[str, Path | None], inputs: Mapping[str, Path | None]) -> None:
    """Raise `InputError` if two outputs, or an output and an input, are the same file. Keys are their flags.

    For an input that is a store (a folder), its files are checked.
    """
    known: dict[str, str] = {}
    for flag, path in inputs.items():
        for name in ("", *_store_files(path)) if path is not None else ():
            known[os.path.realpath(os.path.join(path or "", name))] = flag
    for flag, path in outputs.items():
        if path is not None:
            other = known.setdefault(os.path.realpath(path), flag)
            if other != flag:
                raise InputError(f"is both {other} and {flag}", path=path)


def _store_files(path: Path) -> list[str]:
    """Return the names of a store's files; an empty list if `path` is not a folder."""
    names = sorted(os.listdir(path)) if path.is_dir() else []
    return [name for name in names if name == MANIFEST or name.endswith(".npy")]


def relative(path: str | os.PathLike[str]) -> str:
    """Return a path, relative to the working folder if it is in it."""
    place, here = Path(path), Path.cwd()
    return str(place.relative_to(here)) if place.is_absolute() and place.is_relative_to(here) else str(place)


def write_whole(path: str | os.PathLike[str], write: Callable[[IO[bytes]], object], replace: bool = True) -> None:
    """Write a file atomically: `write` fills a draft, which is synced to disk and then renamed.

    Raises
    ------
    TakenError
        If the name exists and `replace` is False.
    OutputError
        If the file cannot be written.
    """
    target = Path(path)
    if not target.name:
        raise OutputError("cannot write: a folder, or no name", path=target)
    draft, created = draft_of(target), True
    try:
        try:
            # The draft must be new: neither an existing file nor a link.
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            with open(handle, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            _place(draft, target, replace)
            sync_folder(target.parent)
        except FileExistsError:
            created = False
            raise
        finally:
            if created:
                draft.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write: {error.strerror or error}", path=target) from None


def _place(draft: Path, target: Path, replace: bool) -> None:
    """Rename a draft to its final name."""
    if replace:
        os.replace(draft, target)
        return
    try:
        os.link(draft, target)
    except OSError:
        if os.path.lexists(target):
            raise TakenError("exists already, or another program has just written it", path=target) from None
        os.rename(draft, target)  # the file system has no hard links


def check_extension(path: str | os.PathLike[str], what: str, *own: str) -> None:
    """Reject names with the extension of another format than `own`; others are accepted. Errors begin with `what`."""
    plain = Path(path)
    while plain.suffix.lower() in PACKED:
        plain = plain.with_suffix("")
    if plain != Path(path) or (plain.suffix.lower() in KNOWN and plain.suffix.lower() not in own):
        raise InputError(f"{what}: name it {plain.with_suffix(own[0]).name}", path=path)


def check_npz(path: str | os.PathLike[str]) -> None:
    """See `check_extension`."""
    check_extension(path, "the output is an .npz file", ".npz")


def check_table(path: str | os.PathLike[str] | None) -> None:
    """See `check_extension`; accepts None."""
    if path is not None:
        check_extension(path, "the output is a .csv file", ".csv", ".txt")


def write_npz(path: str | os.PathLike[str], arrays: Mapping[str, HostArray], replace: bool = True) -> None:
    """Write arrays to an ``.npz`` file; see `check_npz` and `write_whole`."""
    check_npz(path)
    write_whole(path, lambda file: np.savez(file, **arrays), replace)  # type: ignore[arg-type]


def write_text(path: str | os.PathLike[str], text: str, replace: bool = True) -> None:
    """Write a text file; see `write_whole`. Undecodable bytes of file names are escaped."""
    write_whole(path, lambda file: file.write(text.encode("utf-8", "backslashreplace")), replace)


def read_npz(path: str | os.PathLike[str], in_file: Collection[str] = ()) -> dict[str, Any]:
    """Read all arrays of an ``.npz`` file, verified against its checksums, without unpickling.

    Uncompressed arrays whose names are in `in_file` remain in the file: they become a `Stored`, which is read on use.

    Raises
    ------
    InputError
        If the file is invalid. Memory use is bounded by the size of the file.
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
        raise InputError(f"its arrays do not fit into memory: {error}", path=path) from None
    except DAMAGED as error:
        message = error.strerror if isinstance(error, OSError) else None
        raise InputError(message or f"damaged or not an .npz file: {error}", path=path) from None


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> HostArray:
    with archive.open(member) as file:
        return read_array(file, member.file_size)


def _stored(file: IO[bytes], archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Any) -> Stored:
    """Return an array that remains in the file, after verifying its checksum."""
    with archive.open(member) as stream:
        shape, by_columns, dtype = _checked_header(stream, member.file_size)
        place = Member(file.fileno(), member).start + stream.tell()
        elements = FileElements(file, place, shape[::-1] if by_columns else shape, dtype, path)
        while stream.read(CHUNK):  # verifies the checksum; the file may not change afterwards
            pass
    modes = range(len(shape))
    return Stored(elements, tuple(reversed(modes) if by_columns else modes))


def read_array(file: IO[bytes], size: int) -> HostArray:
    """Read the ``.npy`` array that fills a file of `size` bytes; raise `ValueError` if it does not."""
    shape, by_columns, dtype = _checked_header(file, size)
    remaining = size - file.tell()
    data = np.empty(remaining, np.uint8)
    for begin in range(0, remaining, CHUNK):
        piece = file.read(min(CHUNK, remaining - begin))
        data[begin : begin + len(piece)] = np.frombuffer(piece, np.uint8)
    return data.view(dtype).reshape(shape, order="F" if by_columns else "C")


def _checked_header(file: IO[bytes], size: int) -> tuple[tuple[int, ...], bool, DType]:
    """Read a header; raise `ValueError` unless the data fills the rest of the file, which verifies its checksum."""
    shape, by_columns, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError("it has an array of Python objects")
    remaining = size - file.tell()
    if math.prod(shape) * dtype.itemsize != remaining or remaining < 0:
        raise ValueError(f"{remaining} bytes for an array of {shape} {dtype}")
    return shape, by_columns, dtype


def factors_in(arrays: dict[str, NDArray[Any]], path: str | os.PathLike[str]) -> list[Floats]:
    """Return the arrays ``factor_0``, ``factor_1``, ...; raise `InputError` if none or one is not a real matrix."""
    factors: list[Floats] = []
    while (name := f"factor_{len(factors)}") in arrays:
        check_factor(arrays[name], name, path)
        factors.append(arrays[name])
    if not factors:
        raise InputError("contains no factor_0", path=path)
    return factors


def check_factor(factor: Floats, name: str, path: str | os.PathLike[str] | None) -> None:
    """Raise `InputError` unless `factor` is a real, finite matrix."""
    if factor.ndim != 2 or factor.dtype.kind not in "fiu":
        raise InputError(f"{name} is {factor.dtype} of shape {factor.shape}: expected a real matrix", path=path)
    if not np.all(np.isfinite(factor)):
        raise InputError(f"{name} is not finite", path=path)
