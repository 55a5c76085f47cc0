"""File types that amped does not read, and what to use instead."""

from __future__ import annotations

import os
from os import PathLike, fspath
from stat import S_ISREG

from ..errors import InputError

START = 512  # bytes that are checked for text

_TABLE = "save it as .csv or .parquet; in Python, amped.from_frame(pandas.{}(path), keys=[...])"
_ARRAY = "in Python, pass the array: {}; or save it as .npy with numpy.save"
_UNPACK = "unpack it first"
REMEDIES = {
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".xlsb", ".ods"), ("a spreadsheet", _TABLE.format("read_excel"))),
    **dict.fromkeys((".sas7bdat", ".xpt"), ("a SAS table", _TABLE.format("read_sas"))),
    ".dta": ("a Stata table", _TABLE.format("read_stata")),
    ".sav": ("an SPSS table", _TABLE.format("read_spss")),
    ".orc": ("an ORC table", _TABLE.format("read_orc")),
    **dict.fromkeys(
        (".pkl", ".pickle"), ("a pickle", "in Python, pass what pickle.load returns, if you trust the file")
    ),
    **dict.fromkeys((".rds", ".rda", ".rdata"), ("an R file", "save it in R: write.csv, or arrow::write_parquet")),
    ".cdf": ("a NetCDF file", _ARRAY.format("xarray.open_dataset(path)['NAME']")),
    **dict.fromkeys((".pt", ".pth"), ("a PyTorch file", _ARRAY.format("torch.load(path)"))),
    **dict.fromkeys(
        (".db", ".sqlite", ".sqlite3", ".duckdb"), ("a database", "save a query result as .csv or .parquet")
    ),
    **dict.fromkeys((".avro", ".msgpack"), ("a table in another format", "save it as .csv or .parquet")),
    **dict.fromkeys(
        (".zip", ".7z", ".rar", ".tar", ".tgz", ".bz2", ".xz", ".lz4", ".zst"),
        ("a compressed file or an archive", _UNPACK),
    ),
}
"""File type and remedy by file name extension."""


def check_kind(path: str | PathLike[str], file: str | PathLike[str], known: bool) -> None:
    """Raise `InputError` if a file is missing or has an unsupported type. Text files may have any name.

    Parameters
    ----------
    path : path
        The path as specified by the user.
    file : path
        The path without the name of an array in the file.
    known : bool
        Whether a reader supports the file's extension.
    """
    try:
        status = os.stat(file)
        if known or not S_ISREG(status.st_mode):
            return
        kind = REMEDIES.get(os.path.splitext(fspath(file).lower())[1])
        if kind is None:
            return
        with open(file, "rb") as opened:
            start = opened.read(START)
    except FileNotFoundError:
        raise InputError("no such file", path=path) from None
    except OSError as error:
        raise InputError(error.strerror or str(error), path=path) from None
    if b"\0" in start or not _is_text(start):
        what, remedy = kind
        raise InputError(f"{what}, which amped does not read: {remedy}", path=path)


def _is_text(start: bytes) -> bool:
    """Return whether the first bytes of a file are text; the last character may be incomplete."""
    try:
        start.decode()
    except UnicodeDecodeError as error:
        return error.start >= len(start) - 4 and len(start) == START
    return True
