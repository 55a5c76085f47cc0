"""Files of semi-sparse tensors: how they are told from others, and how ranks write one in pieces."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..files import check_npz, write_whole
from ..parallel.mpi import Comm, together

FAILED = -1  # instead of a number of rows: this rank cannot go on


class RankedRows(NamedTuple):
    """An array of a file whose rows ranks 0, 1, ... have, in turn."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    mine: Callable[[], Iterator[NDArray[Any]]]  # this rank's rows, some at a time; called once the rows before are sent


def write_parts(
    path: str | os.PathLike[str],
    arrays: Sequence[RankedRows],
    facts: Mapping[str, NDArray[Any]],
    comm: Comm,
    replace: bool = True,
) -> None:
    """Write an ``.npz`` file on rank 0: arrays whose rows the ranks have, and others that are whole. Collective.

    Each rank holds some rows at a time. Every rank raises `InputError` if one cannot go on, or write the file.
    """
    fault, left = None, list(arrays)
    try:
        if comm.rank == 0:
            check_npz(path)
            write_whole(path, lambda file: _write(file, left, facts, comm), replace)
        else:
            while left:
                _send(left.pop(0), comm)
    except InputError as error:
        fault = error
    for array in left:  # the other ranks would wait, or what they send be taken for something else
        if comm.rank == 0:
            for _ in _from_others(array, comm):
                pass
        else:
            _count(0, comm)

    def tell() -> None:
        if fault is not None:
            raise fault

    together(comm, tell)


def _write(file: IO[bytes], left: list[RankedRows], facts: Mapping[str, NDArray[Any]], comm: Comm) -> None:
    """Write all arrays, and take each from the list once the other ranks have sent it, whatever happens to it."""
    fault: Exception | None = None
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, fact in facts.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, np.asanyarray(fact), allow_pickle=False)
        while left:
            array, descr = left[0], np.lib.format.dtype_to_descr(left[0].dtype)
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
                left.pop(0)
            if fault is not None:
                raise fault


def _received(array: RankedRows, comm: Comm) -> Iterator[NDArray[Any] | InputError]:
    """Yield the rows of rank 0, then those of each other rank, or what went wrong there. On rank 0."""
    try:
        yield from array.mine()
    except InputError as error:
        yield error
    yield from _from_others(array, comm)


def _from_others(array: RankedRows, comm: Comm) -> Iterator[NDArray[Any] | InputError]:
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
            yield InputError(f"rank {rank} cannot go on")


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
    """Tell rank 0 how many rows come next."""
    comm.swap(np.array([rows], np.int64), 0, np.empty(0, np.int64), 0)
