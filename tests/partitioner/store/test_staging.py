"""Drafts of stores: one run at a time writes a target, and files of others are never replaced."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from partitioner.errors import InputError
from partitioner.store import locks
from partitioner.store.format import Store, write_files
from partitioner.store.staging import draft_of, drafted
from partitioner.tensors.sparse import SparseTensor

RUN = """
import sys, time
from pathlib import Path
from partitioner.store.staging import drafted
with drafted(Path(sys.argv[1]), force=True) as draft:
    (draft / "half").write_text("")
    print("ready", flush=True)
    time.sleep(60)
"""


@contextmanager
def running(target: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that has a draft of `target`."""
    run = subprocess.Popen([sys.executable, "-c", RUN, target], stdout=subprocess.PIPE)
    try:
        assert run.stdout is not None
        assert run.stdout.readline() == b"ready\n"
        yield run
    finally:
        run.kill()
        run.communicate()


def write(target: Path, nonzeros: int = 1, force: bool = False) -> None:
    with drafted(target, force) as draft:
        write_files(SparseTensor([[k, k] for k in range(nonzeros)], [1.0] * nonzeros), draft)


@pytest.mark.parametrize("force", [False, True])
def test_of_two_runs_with_one_target_the_second_is_refused(tmp_path: Path, force: bool) -> None:
    target = tmp_path / "store"
    if force:
        write(target)
    with running(target) as run:
        before = sorted(os.listdir(tmp_path))
        with pytest.raises(InputError, match=f"process {run.pid} on {os.uname().nodename}, writes there"):
            write(target, 2, force)
        assert sorted(os.listdir(tmp_path)) == before


def test_what_a_killed_run_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    target, other = tmp_path / "store", tmp_path / "other"
    with running(target) as run, running(other):
        run.kill()
        run.wait()
        left = set(os.listdir(tmp_path))
        mine = {name for name in left if name.startswith(".store.")}
        assert len(mine) == 2  # the claim and the draft
        draft_of(target).mkdir()  # by such a name, but not the claim's
        kept = (set(os.listdir(tmp_path)) - mine) | {"store"}
        write(target)
        assert set(os.listdir(tmp_path)) == kept
    assert Store(target).nnz == 1


def test_a_run_that_was_killed_while_it_replaced_a_store_has_lost_none(tmp_path: Path) -> None:
    target = tmp_path / "store"
    write(target)
    with running(target) as run:
        draft = next(tmp_path.glob(".store.*.part"))
        run.kill()
        run.wait()
        target.rename(draft.with_suffix(".old"))
        with pytest.raises(InputError, match="exists already"):
            write(target, 2)
    assert os.listdir(tmp_path) == ["store"]
    assert Store(target).nnz == 1


@pytest.mark.parametrize("made", ["store", "empty folder", "file", "link"])
@pytest.mark.parametrize("force", [False, True])
def test_what_was_made_meanwhile_stays(tmp_path: Path, made: str, force: bool) -> None:
    target, whole = tmp_path / "store", tmp_path / "whole"
    write(whole)

    def make() -> None:
        match made:
            case "store":
                whole.rename(target)
            case "empty folder":
                target.mkdir()
            case "file":
                target.write_text("data")
            case "link":
                target.symlink_to("nowhere")

    def write_late() -> int:
        with drafted(target, force) as draft:
            write_files(SparseTensor([[0, 0], [1, 1]], [1.0, 1.0]), draft)
            make()
            return target.lstat().st_ino

    if force and made == "store":
        assert write_late() != target.lstat().st_ino
    else:
        with pytest.raises(InputError, match=f"{target}: "):
            write_late()
        assert os.path.lexists(target)
        assert not (made == "store" and Store(target).nnz > 1)
    assert not list(tmp_path.glob(".*"))


def test_a_store_that_somebody_put_a_file_into_meanwhile_stays(tmp_path: Path) -> None:
    target = tmp_path / "store"
    write(target)

    def replace_it() -> None:
        with drafted(target, force=True) as draft:
            write_files(SparseTensor([[0, 0], [1, 1]], [1.0, 1.0]), draft)
            (target / "notes").write_text("data")

    with pytest.raises(InputError, match="holds notes"):
        replace_it()
    assert (target / "notes").read_text() == "data"
    assert Store(target).nnz == 1
    assert os.listdir(tmp_path) == ["store"]


def test_a_draft_is_its_user_s_alone_until_it_is_complete(tmp_path: Path) -> None:
    old = os.umask(0o002)
    try:
        with drafted(tmp_path / "store") as draft:
            assert draft.stat().st_mode & 0o777 == 0o700
            write_files(SparseTensor([[0, 0]], [1.0]), draft)
        assert (tmp_path / "store").stat().st_mode & 0o777 == 0o775
    finally:
        os.umask(old)


@pytest.mark.parametrize("kind", ["link", "dangling link", "folder", "pipe"])
def test_a_claim_is_no_link_and_no_special_file(tmp_path: Path, kind: str) -> None:
    claim, precious = tmp_path / ".store.claim", tmp_path / "precious"
    if kind == "folder":
        claim.mkdir()
    elif kind == "pipe":
        os.mkfifo(claim)
    else:
        claim.symlink_to(precious)
        if kind == "link":
            precious.write_text("data")
    with pytest.raises(InputError, match=f"remove {claim}"):
        write(tmp_path / "store")
    assert os.path.lexists(claim)
    assert not precious.exists() or precious.read_text() == "data"


def test_without_locks_a_claim_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(locks.fcntl, "flock", no_locks)
    target = tmp_path / "store"
    with drafted(target) as draft:
        with pytest.raises(InputError, match=f"process {os.getpid()} .*if it has ended, remove"):
            write(target)
        write_files(SparseTensor([[0, 0]], [1.0]), draft)
    assert os.listdir(tmp_path) == ["store"]
