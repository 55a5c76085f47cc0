"""Matrix Market files, plain or compressed by gzip: sparse matrices (coordinate), and dense ones (array)."""

from __future__ import annotations

import gzip
import zlib
from os import PathLike, fspath

import numpy as np

from ...host.checksums import open_regular
from ...host.imports import scipy_module
from ...tensors.dense import DenseTensor, check_elements
from ...tensors.stored import Stored
from ..form import ReadOptions
from ..pieces import ArrayPart
from .matrices import check_options, empty_part, faults_of, matrix_part

ENDINGS = ".mtx", ".mtx.gz"
HEADER = 1024  # bytes


def is_array(path: str | PathLike[str]) -> bool:
    """Return whether a file contains a dense matrix, according to its first line."""
    try:
        with open_regular(path) as file:
            head = gzip.GzipFile(fileobj=file) if fspath(path).lower().endswith(".gz") else file
            words = head.read(HEADER).split(b"\n", 1)[0].lower().split()
    except (OSError, EOFError, zlib.error):
        return False  # the reader raises the error
    return words[:3] == [b"%%matrixmarket", b"matrix", b"array"]


def read_array(path: str | PathLike[str]) -> DenseTensor:
    """Read a dense matrix; raise `InputError` if the file is invalid."""
    with faults_of(path):
        open_regular(path).close()
        matrix = scipy_module("io").mmread(fspath(path))
        check_elements(matrix.shape, matrix.dtype)
        return DenseTensor(Stored(matrix), path)


def market_part(path: str | PathLike[str], form: ReadOptions, part: int) -> ArrayPart:
    """Read a sparse matrix, whose symmetric elements are stored once; elements of a pattern count 1."""
    with faults_of(path):
        check_options(form)
        if part:
            return empty_part()
        open_regular(path).close()
        matrix = scipy_module("io").mmread(fspath(path))
        return matrix_part(np.array([matrix.row, matrix.col]), matrix.data, matrix.shape)
