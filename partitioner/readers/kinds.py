"""Files that amped does not read, and what to do with them instead."""

from __future__ import annotations

import os
from os import PathLike, fspath
from stat import S_ISREG

from ..errors import InputError

START = 512  # bytes by which a text is known

_TABLE = "save it as .csv or .parquet; in Python, amped.from_frame(pandas.{}(path), keys=[...])"
_ARRAY = "in Python, pass the array: {}; or save it as .npy (numpy.save)"
_UNPACK = "unpack it first"
REMEDIES = {
    ".mat": (
        "a file of MATLAB",
        _ARRAY.format("scipy.io.loadmat(path)['NAME'] (h5py.File(path)['NAME'][...] from v7.3)"),
    ),
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".xlsb", ".ods"), ("a spreadsheet", _TABLE.format("read_excel"))),
    **dict.fromkeys((".sas7bdat", ".xpt"), ("a table of SAS", _TABLE.format("read_sas"))),
    ".dta": ("a table of Stata", _TABLE.format("read_stata")),
    ".sav": ("a table of SPSS", _TABLE.format("read_spss")),
    ".orc": ("an ORC table", _TABLE.format("read_orc")),
    **dict.fromkeys(
        (".pkl", ".pickle"), ("a pickle", "in Python, pass what pickle.load returns, if you trust the file")
    ),
    **dict.fromkeys((".rds", ".rda", ".rdata"), ("a file of R", "save it in R: write.csv, or arrow::write_parquet")),
    ".cdf": ("a NetCDF file", _ARRAY.format("xarray.open_dataset(path)['NAME']")),
    **dict.fromkeys((".pt", ".pth"), ("a file of PyTorch", _ARRAY.format("torch.load(path)"))),
    **dict.fromkeys(
        (".db", ".sqlite", ".sqlite3", ".duckdb"), ("a database", "save a query of it as .csv or .parquet")
    ),
    **dict.fromkeys((".avro", ".msgpack"), ("a table of another format", "save it as .csv or .parquet")),
    **dict.fromkeys((".zip", ".7z", ".rar", ".tar", ".tgz", ".bz2", ".xz", ".lz4", ".zst"), ("packed", _UNPACK)),
}
"""By the ending of a name: what the file is, and the remedy."""


def check_kind(path: str | PathLike[str], file: str | PathLike[str], known: bool) -> None:
    """Raise `InputError` if a file is missing, or of a kind that is not read; a text may have any name.

    Parameters
    ----------
    path : path
        As it was given.
    file : path
        Without the name of an array within it.
    known : bool
        Whether its name is that of a kind that is read.
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
    """Tell whether a file that begins so is text: a character may be cut off at the end."""
    try:
        start.decode()
    except UnicodeDecodeError as error:
        return error.start >= len(start) - 4 and len(start) == START
    return True
