"""Paths that differ between ranks; here each rank uses another path instead of another disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from amped.parallel.mpi import Comm, on_root
from partitioner.errors import InputError, OutputError
from partitioner.store.shared_fs import check_draft, check_same

pytestmark = pytest.mark.mpi
CASES = {
    "another size": ("a file of 9 bytes", "a file of 5 bytes"),
    "no file": ("a file of 9 bytes", r"nothing \(No such file or directory\)"),
    "a folder": ("a folder", "a file of 5 bytes"),
    "a pipe": ("a file of 9 bytes", "a special file"),
}


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("case", CASES)
def test_what_differs_is_named_on_every_rank(comm: Comm, tmp_path: Path, case: str) -> None:
    path, first, last = tmp_path / "tensor", comm.rank == 0, comm.rank == comm.size - 1
    if case == "a folder" and not last:
        path.mkdir()
    elif case == "a pipe" and last and not first:
        os.mkfifo(path)
    elif case != "no file" or not last:
        path.write_bytes(bytes(5 if last and case != "a pipe" else 9))
    if comm.size == 1:
        return check_same(comm, path)
    host, (mine, other) = os.uname().nodename, CASES[case]
    with pytest.raises(InputError, match=f"rank 0 on {host} sees {mine}, rank {comm.size - 1} on {host} {other}: put"):
        check_same(comm, path)
    return None


def test_what_all_see_is_no_fault(comm: Comm, tmp_path: Path) -> None:
    check_same(comm, tmp_path)
    check_same(comm, tmp_path / "missing")
    check_draft(comm, tmp_path, tmp_path)


@pytest.mark.ranks(2)
def test_a_draft_that_one_rank_does_not_see(comm: Comm, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^/target: rank 1 on .* does not see this folder of rank 0's"):
        check_draft(comm, tmp_path if comm.rank == 0 else tmp_path / "missing", Path("/target"))


@pytest.mark.parametrize("kind", [InputError, OutputError])
def test_on_several_hosts_an_error_of_rank_0_names_its_own(
    comm: Comm, monkeypatch: pytest.MonkeyPatch, kind: type[InputError]
) -> None:
    def fail() -> None:
        raise kind("cannot be read", path="f", line=3)

    monkeypatch.setattr(comm, "host", "here")
    with pytest.raises(kind, match=r"^f, line 3: cannot be read \(on here, rank 0's host\)$"):
        on_root(comm, fail)
