"""Ranks read a file together, each its own range of bytes, and agree on what is wrong with it."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from amped.parallel.mpi import Comm, together
from partitioner.errors import InputError
from partitioner.readers import Outcome, chunks, open_part, read, settle

pytestmark = pytest.mark.mpi
LINES = [f"{1 + k % 7} {1 + k} {k / 3!r}" for k in range(3000)]


@pytest.fixture
def folder(comm: Comm, tmp_path: Path) -> Path:
    """A folder that all ranks see."""
    return comm.bcast(tmp_path)


def write(comm: Comm, path: Path, data: bytes) -> None:
    if comm.rank == 0:
        path.write_bytes(data)
    comm.allgather(None)


def read_together(comm: Comm, path: Path) -> tuple[Outcome, np.ndarray, np.ndarray]:
    """The outcome of all, and this rank's nonzeros."""
    part = together(comm, lambda: open_part(path, comm.rank, comm.size, threads=1))
    pieces = [chunk[:2] for chunk in chunks(part, 500)]
    whole = settle(path, comm.allgather(part.outcome))
    none = np.empty((whole.order, 0), np.int32), np.empty(0)
    columns, values = zip(none, *pieces, strict=True)
    return whole, np.hstack(columns), np.hstack(values)


@pytest.mark.parametrize("header", ["", "# of\n\n", "sptensor\n2\n7 3000\n3000\n"])
def test_the_parts_are_the_file_in_its_order(comm: Comm, folder: Path, header: str) -> None:
    for name, pack in (("x.tns", bytes), ("x.tns.gz", gzip.compress)):
        write(comm, folder / name, pack((header + "\n".join(LINES)).encode()))
        whole, columns, values = read_together(comm, folder / name)
        assert (whole.order, whole.nonzeros, whole.lines) == (2, 3000, 3000 + header.count("\n"))
        assert whole.lengths == ((7, 3000) if "sptensor" in header else None)
        np.testing.assert_array_equal(np.hstack(comm.allgather(columns)), [np.arange(3000) % 7, np.arange(3000)])
        np.testing.assert_array_equal(np.hstack(comm.allgather(values)), np.arange(3000) / 3)
        if name == "x.tns":  # about as much for each
            assert max(comm.allgather(values.size)) < 1.2 * 3000 / comm.size


@pytest.mark.parametrize("wrongs", [(0, 1), (1, 2), (2999,), (1499, 1500, 2000), (700, 2500), (1, 500, 900, 2900)])
def test_all_ranks_name_the_first_wrong_line_of_the_file(comm: Comm, folder: Path, wrongs: tuple[int, ...]) -> None:
    lines = list(LINES)
    for number, wrong in enumerate(wrongs):
        lines[wrong] = ["1 0 1", "1 1 x", "1 1 1 1", "1 1 1e999"][number]
    write(comm, folder / "x.tns", ("# a\n" + "\n".join(lines)).encode())
    for path in (folder / "x.tns", folder / "none.tns"):
        with pytest.raises(InputError) as alone:
            read(path)
        with pytest.raises(InputError) as caught:
            read_together(comm, path)
        assert set(comm.allgather(str(caught.value))) == {str(alone.value)}
        assert caught.value.line == (wrongs[0] + 2 if path.exists() else None)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_all_ranks_find_a_header_on_one_line(comm: Comm, folder: Path, pack: Callable[[bytes], bytes]) -> None:
    for header, beyond in (("7 3000 3000", "8 1 1"), ("2 7 3000", "1 3001 1")):
        write(comm, folder / "x.tns", pack("\n".join([header, *LINES]).encode()))
        with pytest.raises(InputError, match="line 1: looks like a header on one line"):
            read_together(comm, folder / "x.tns")
        write(comm, folder / "x.tns", pack("\n".join([header, *LINES, beyond]).encode()))
        assert read_together(comm, folder / "x.tns")[0].nonzeros == 3002


def test_the_declared_number_is_that_of_all_ranks(comm: Comm, folder: Path) -> None:
    path = folder / "x.tns"
    write(comm, path, ("sptensor\n2\n7 3000\n2999\n" + "\n".join(LINES)).encode())
    with pytest.raises(InputError, match="line 4: the header declares 2999 nonzeros, the file holds 3000"):
        read_together(comm, path)
