"""Parallel writing of semi-sparse tensors: rank 0 collects the rows of all ranks block by block."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, NamedTuple

import numpy as np

from partitioner.array_types import DType, HostArray

from ..errors import InputError
from ..files import check_npz, write_whole
from ..parallel.mpi import Comm, together

FAILED = -1  # sent instead of a number of rows by a rank that has failed


class RankedRows(NamedTuple):
    """An array of a file whose rows are distributed over the ranks, in rank order."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    mine: Callable[
        [], Iterator[HostArray]
    ]  # yields this rank's rows in blocks; called after the rows of earlier arrays are sent


def write_parts(
    path: str | os.PathLike[str],
    arrays: Sequence[RankedRows],
    metadata: Mapping[str, HostArray],
    comm: Comm,
    replace: bool = True,
) -> None:
    """Write an ``.npz`` file on rank 0 from distributed arrays and from `metadata`, the arrays that rank 0 has.
    Collective.

    Each rank holds one block of rows at a time. If a rank fails, or the file cannot be written, every rank raises
    `InputError`.
    """
    fault, pending = None, list(arrays)
    try:
        if comm.rank == 0:
            check_npz(path)
            write_whole(path, lambda file: _write(file, pending, metadata, comm), replace)
        else:
            while pending:
                _send(pending.pop(0), comm)
    except InputError as error:
        fault = error
    for array in pending:  # otherwise the other ranks would wait, or their data be taken for another array
        if comm.rank == 0:
            for _ in _from_others(array, comm):
                pass
        else:
            _count(0, comm)

    def raise_error() -> None:
        if fault is not None:
            raise fault

    together(comm, raise_error)


def _write(file: IO[bytes], pending: list[RankedRows], metadata: Mapping[str, HostArray], comm: Comm) -> None:
    """Write all arrays. Each is removed from `pending` once the other ranks have sent all its rows."""
    fault: Exception | None = None
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, content in metadata.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, np.asanyarray(content), allow_pickle=False)
        while pending:
            array, descr = pending[0], np.lib.format.dtype_to_descr(pending[0].dtype)
            with archive.open(f"{array.name}.npy", "w", force_zip64=True) as member:
                form = {"descr": descr, "fortran_order": False, "shape": array.shape}
                np.lib.format.write_array_header_1_0(member, form)
                for rows in _received(array, comm):
                    if isinstance(rows, InputError):
                        fault = fault or rows
                    elif fault is None:
                        try:
                            member.write(np.ascontiguousarray(rows, array.dtype).reshape(-1).view(np.uint8).data)
                        except OSError as error:
                            fault = error
                pending.pop(0)
            if fault is not None:
                raise fault


def _received(array: RankedRows, comm: Comm) -> Iterator[HostArray | InputError]:
    """Yield the rows of all ranks in order, or the error of a rank that failed. On rank 0."""
    try:
        yield from array.mine()
    except InputError as error:
        yield error
    yield from _from_others(array, comm)


def _from_others(array: RankedRows, comm: Comm) -> Iterator[HostArray | InputError]:
    width, nothing = int(np.prod(array.shape[1:])), np.empty(0, array.dtype)
    for rank in range(1, comm.size):
        count = np.ones(1, np.int64)
        while True:
            comm.swap(np.empty(0, np.int64), rank, count, rank)
            if count[0] <= 0:
                break
            rows = np.empty(int(count[0]) * width, array.dtype)
            comm.swap(nothing, rank, rows, rank)
            yield rows
        if count[0] == FAILED:
            yield InputError(f"rank {rank} failed")


def _send(array: RankedRows, comm: Comm) -> None:
    """Send this rank's rows to rank 0."""
    try:
        for rows in array.mine():
            if len(rows):
                _count(len(rows), comm)
                comm.swap(np.ascontiguousarray(rows, array.dtype).reshape(-1), 0, np.empty(0, array.dtype), 0)
    except InputError:
        _count(FAILED, comm)
        raise
    _count(0, comm)


def _count(rows: int, comm: Comm) -> None:
    """Send rank 0 the number of rows of the next block."""
    comm.swap(np.array([rows], np.int64), 0, np.empty(0, np.int64), 0)
