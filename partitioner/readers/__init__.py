"""Read a file or store as a tensor, or a file's nonzeros in chunks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike, fsdecode, fspath, stat
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from ..host.memory import available_memory
from ..tensors.sparse import SparseTensor
from ..wording import parameter, setting
from .first_line import warn_of_header
from .form import PLAIN, ReadOptions, warn_of_keys
from .pieces import FilePart, Outcome, Progress, check_labelled, chunks, collect, settle

__all__ = [
    "PLAIN",
    "FilePart",
    "Outcome",
    "Progress",
    "ReadOptions",
    "check_labelled",
    "chunks",
    "collect",
    "file_name",
    "is_dense",
    "is_divisible",
    "is_semisparse",
    "is_table",
    "line_where",
    "open_dense",
    "open_part",
    "open_store",
    "read",
    "read_frame",
    "read_sparse",
    "settle",
    "warn_of_header",
    "warn_of_keys",
    "with_zeros",
]  # fmt: skip

if TYPE_CHECKING:
    from ..store.format import Store
    from ..tensors.dense import DenseTensor

# Readers are imported on demand, to save start-up time.


def read(
    path: str | PathLike[str],
    *,
    no_values: bool = False,
    compact: bool = False,
    dense: bool = False,
    shape: Sequence[int] | None = None,
    keys: Sequence[str] | Mapping[str, str] | str = (),
    value: str | None = None,
    where: str | None = None,
    missing: str = "drop",
    index_base: int | None = None,
    keep_zeros: bool = False,
    encoding: str | None = None,
    progress: Progress | None = None,
) -> SparseTensor | DenseTensor:
    """Read a tensor.

    Parameters
    ----------
    path : str or PathLike
        A folder is a store. The file name selects the format: ``.npz`` is a NumPy archive of a sparse tensor; ``.npy``,
        ``.h5``, ``.hdf5``, ``.nc`` (netCDF-4), ``.zarr`` and ``.zarr.zip`` are dense tensors, optionally with the name
        of an array (``FILE.h5:NAME``); ``.mat`` (MATLAB, ``FILE.mat:NAME``) and ``.mtx`` (Matrix Market) are dense or
        sparse; ``.csv``, ``.tsv``, ``.json`` and ``.parquet`` are tables, which require `keys`;
        any other file is text with one nonzero per line, plain or compressed by gzip.
    no_values : bool
        Lines contain only indices, as in an event log. Each line counts as 1, and repeated indices add up.
    compact : bool
        Renumber the used indices of each mode in ascending order; ``labels`` keep the original indices.
    dense : bool
        Convert a sparse tensor to a dense one.
    shape : sequence of int, optional
        Mode lengths; each must be larger than the mode's highest index.
    keys : sequence of str, or mapping
        For tables: one column, or expression in DuckDB's SQL, per mode. Its values become labels. ``"EXPR AS NAME"``,
        or a mapping from names to expressions, names the mode.
    value : str, optional
        For tables: expression that is summed over rows with equal keys, or an aggregate; by default rows are counted.
    where : str, optional
        For tables: SQL condition that selects rows.
    missing : {"drop", "keep"}
        For tables: whether rows without a key are dropped, or get a missing label.
    index_base : {0, 1}, optional
        Lowest index in the file. The default is 1 in text, unless a header declares it, and 0 in archives.
    keep_zeros : bool
        Keep explicit zeros, which are dropped by default: elements that are observed to be zero.
    encoding : str, optional
        For tables in text files: the encoding, such as "latin-1"; by default it is detected.
    progress : callable, optional
        Called from time to time while a file is read, with the bytes read so far and the file's size (None if unknown,
        as for a pipe); for tables with numbers of rows.

    Returns
    -------
    SparseTensor or DenseTensor
        The elements of a dense tensor stay in its file until they are used.

    Raises
    ------
    InputError
        If the tensor cannot be read. The message names the file, the line if any, and the cause.

    Warns
    -----
    InputWarning
        If the last column of a text file, which is read as values, may be another column of indices.

    Examples
    --------
    >>> from pathlib import Path
    >>> size = Path("tensor.tns").write_text("4 3 2 1.5")  # one nonzero; indices are counted from 1
    >>> X = read("tensor.tns")
    >>> X.shape, X.indices.tolist(), X.values.tolist()
    ((4, 3, 2), [[3, 2, 1]], [1.5])
    """
    try:
        lengths = None if shape is None else tuple(shape)
    except TypeError:
        raise InputError(f"shape {shape!r}: expected an integer for each mode") from None
    options = no_values, compact, dense, lengths, keys, value, where, missing, index_base, keep_zeros, encoding
    form = ReadOptions(*options)  # type: ignore[arg-type]
    path = file_name(path)
    _check_path(path)
    if is_dense(path):
        return open_dense(path, form)
    tensor = read_sparse(path, form, progress=progress)
    return with_zeros(tensor, path) if dense else tensor


def read_sparse(
    path: str | PathLike[str], form: ReadOptions = PLAIN, *, progress: Progress | None = None
) -> SparseTensor:
    """Read a sparse tensor; see `read`."""
    _check_path(path)
    if Path(path).is_dir():
        return open_store(path, form).tensor()
    part = open_part(path, progress=progress, form=form)
    nonzeros = collect(path, part)
    tensor = SparseTensor.from_columns(*nonzeros, part.lengths, path=path, keep_zeros=form.keep_zeros)
    tensor.labels = part.outcome.labels
    if form.shape is not None:
        check_labelled(path, tensor.labels, tensor.shape, form.shape)
        tensor.lengthen(form.shape)
    warn_of_header(path, part.outcome.first, part.outcome.nonzeros)
    if tensor.raw[1]:
        warn_of_keys(path, part.outcome, tensor.duplicates, tensor.value_range)
    elif part.outcome.doubtful:
        tensor.when_merged(partial(warn_of_keys, path, part.outcome))
    return tensor.compacted(part.outcome.base) if form.compact else tensor


def read_frame(frame: object, form: ReadOptions) -> SparseTensor:
    """Read a table in memory with the options `form`; raise `InputError` if `frame` is not a table."""
    from .tables.frames import is_frame, series_name
    from .tables.table import TablePart

    if not is_frame(frame):
        kinds = "a pandas, cuDF, Polars or Arrow table, or a DuckDB relation"
        lazy = "; frame.compute() returns one" if hasattr(frame, "compute") else ""
        raise InputError(f"frame is of type {type(frame).__name__}: expected {kinds}{lazy}")
    name = series_name(frame)
    if name is not None and form.value is None:
        form = replace(form, value=name)
    part = TablePart(frame, form)
    nonzeros = collect("the table", part)
    tensor = SparseTensor.from_columns(*nonzeros, part.lengths, path="the table", keep_zeros=form.keep_zeros)
    tensor.labels = part.outcome.labels
    return tensor


def is_table(path: str | PathLike[str], form: ReadOptions = PLAIN) -> bool:
    """Return whether a file is read as a table: by its name, or if keys are set and its name fits no format."""
    from .formats import reader_of

    return reader_of(path, form).kind == "table"


def is_dense(path: str | PathLike[str]) -> bool:
    """Return whether a file contains a dense tensor, according to its name."""
    from .formats import reader_of

    return reader_of(path).kind == "dense"


def is_divisible(path: str | PathLike[str], form: ReadOptions = PLAIN) -> bool:
    """Return whether each rank can read a part of a file; a pipe is not divisible."""
    from .formats import reader_of

    return Path(path).is_file() and reader_of(path, form).is_divisible(path)


def line_where(path: str | PathLike[str] | None, wrong: Callable[[float], bool]) -> int | None:
    """Return the line number, from 1, of the first value in a file that is `wrong`, if its format has lines."""
    from .formats import reader_of

    return None if path is None or not Path(path).is_file() else reader_of(path).line_where(path, wrong)


def is_semisparse(path: str | PathLike[str]) -> bool:
    """Return whether a file contains a semi-sparse tensor (sCOO), as written by ``ttm``."""
    from .arrays.semisparse import is_semisparse as holds

    return fspath(path).lower().endswith(".npz") and Path(path).is_file() and holds(path)


def open_dense(path: str | PathLike[str], form: ReadOptions = PLAIN) -> DenseTensor:
    """Open the file of a dense tensor; raise `InputError` if `form` has options that do not apply."""
    from .formats import reader_of, refuse_keys

    _check_path(path)
    refuse_keys(path, form)
    others = ("no_values", form.no_values), ("compact", form.compact), ("shape", form.shape)
    for name, is_set in (*others, ("index_base", form.index_base is not None)):
        if is_set:
            cause = f"a dense tensor has every element: {setting(name)} applies to sparse tensors"
            raise InputError(cause, path=path)
    return reader_of(path).dense(path)


def with_zeros(tensor: SparseTensor, path: str | PathLike[str] | None = None) -> DenseTensor:
    """Return a sparse tensor as a dense one; raise `InputError` if memory is insufficient."""
    from ..tensors.dense import DenseTensor

    if tensor.labels is not None:
        cause = f"a dense tensor has no labels: {setting('dense')} is for neither tables nor {setting('compact')}"
        raise InputError(cause, path=path)
    try:
        return DenseTensor.of_sparse(tensor, available_memory())
    except InputError as error:
        raise InputError(error.cause, path=path) from None


def open_store(path: str | PathLike[str], form: ReadOptions = PLAIN, verify: bool = True) -> Store:
    """Open a store; raise `InputError` if `form` has options that differ from those it was created with."""
    from ..store.format import Store
    from .formats import refuse_keys

    refuse_keys(path, form)
    store = Store(path, verify)
    if form.shape is not None and form.shape != store.shape:
        raise InputError(f"a store of shape {store.shape}: {parameter('shape')} applies to files", path=path)
    if form.index_base is not None:
        raise InputError(f"a store counts from 0: {parameter('index_base')} applies to files", path=path)
    if form.no_values:
        cause = f"a store has values: {setting('no_values')} applies to the file it was created from"
        raise InputError(cause, path=path)
    if form.compact and not store.labelled:
        raise InputError(f"a store created without {setting('compact')}: partition its file again with it", path=path)
    return store


def open_part(
    path: str | PathLike[str],
    part: int = 0,
    of: int = 1,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
    form: ReadOptions = PLAIN,
    **table: object,
) -> FilePart:
    """Open one part of a file (not a store), to read its nonzeros in chunks of bounded size.

    Each rank opens one part and shares its outcome::

        part = open_part(path, rank, ranks)  # raises if the file is missing or its header is wrong for columns, values,
        more in chunks(part, 10**6):  # (order, n) int32 and (n,) float64
            ...
        outcome = settle(path, comm.allgather(part.outcome))

    `settle` raises the error of the file's first wrong line on all ranks, or returns the whole file's order, declared
    mode lengths and number of nonzeros. Reading a part never raises: it ends at an error. A single process calls
    ``settle(path, [part.outcome])``.

    Parts of plain text are equal byte ranges; a line belongs to the part in which it begins. Gzip files, pipes and
    NumPy archives are read completely as part 0, and the other parts are empty. Parts 0, 1, ... in turn give the
    nonzeros in file order, unsorted, with duplicates and zeros. Each thread uses a few MB of buffers; the caller owns
    the arrays.

    Parameters
    ----------
    path : str or PathLike
        As for `read`, except stores.
    part, of : int
        Number of this part, from 0, and number of parts.
    threads : int, optional
        Number of reading threads; by default one per usable core, at most 16.
    progress : callable, optional
        As for `read`, for this part.
    form : ReadOptions
        Options.
    **table
        See `TablePart`.

    Returns
    -------
    FilePart
        The part, to be read by `chunks`.

    Raises
    ------
    InputError
        If the file cannot be opened, or a line before its first nonzero is wrong.
    """
    from .formats import reader_of

    for each in (path, *form.more):
        _check_path(each)
    return reader_of(path, form).part(path, form, part, of, threads=threads, progress=progress, **table)


def file_name(path: str | bytes | PathLike[str] | PathLike[bytes]) -> str:
    """Return a path as a string; raise `InputError` if it is not a valid path or cannot be accessed."""
    name = fsdecode(path)
    if not name:
        raise InputError("the file name is empty")
    if "\0" in name:
        raise InputError("the file name contains a null byte")
    try:
        stat(name)
    except (FileNotFoundError, NotADirectoryError):  # FILE.h5:NAME, or the reader raises the error
        pass
    except OSError as error:
        raise InputError(error.strerror or str(error), path=name) from None
    return name


def _check_path(path: str | PathLike[str]) -> None:
    """Raise `InputError` if a file does not exist or has an unsupported type."""
    from .formats import named_reader
    from .kinds import check_kind

    name = file_name(path)
    reader = named_reader(name)
    check_kind(name, name if reader is None else reader.file(name), reader is not None)
