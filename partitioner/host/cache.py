"""What is kept on disk for later runs: compiled code, and which kernels were fastest.

Code runs with its user's rights, so nobody else may be able to write it. Trusted are files and folders of this user, or
of root, that no other user may write to. What is not is left alone and a line says so, once per process; then kernels
are compiled and timed anew. Whoever keeps something gives it a name that holds a digest of all it depends on: so a file
that is found is valid and never changes, and ranks and runs may keep the same one at once.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import time
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

SETTING = "NUMBA_CACHE_DIR"
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
PATIENCE, POLL = 60.0, 0.02  # seconds: to wait for another process that makes something, and between looks
CHECK = 32  # bytes of a digest before what is kept


def cache_folder() -> Path:
    """Return the cache folder: under ``NUMBA_CACHE_DIR`` if that is set, else under the user's cache."""
    given = os.environ.get(SETTING)
    return Path(given or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "amped"


def kept(name: str) -> bytes | None:
    """Return what was kept under a name; None if it is missing or damaged, or others could have written it."""
    with suppress(OSError, RuntimeError):  # RuntimeError: there is no home folder
        folder = cache_folder()
        stored = read_private(folder / name) if is_private(folder, SETTING) else None
        if stored is not None and sha256(stored[CHECK:]).digest() == stored[:CHECK]:
            return stored[CHECK:]
    return None


def keep(name: str, data: bytes) -> None:
    """Keep data under a name for later runs, whole or not at all; a disk that refuses it costs time alone."""
    with suppress(OSError, RuntimeError):
        folder = cache_folder()
        if is_private(folder, SETTING):
            write_private(folder / name, sha256(data).digest() + data)


class Reservation:
    """The right to make what is kept under a name, which one process has at a time: others wait, and find it made.

    It ends with `release`, or with the process. Where the disk has no locks, or after `PATIENCE`, it is given anyway:
    then two processes may make the same thing.
    """

    def __init__(self, name: str) -> None:
        self._file, self._path = -1, Path(name)
        with suppress(OSError, RuntimeError):
            folder = cache_folder()
            if is_private(folder, SETTING):
                self._path = folder / f".{name}.lock"
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                self._wait()

    def _wait(self) -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            with suppress(BlockingIOError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            time.sleep(POLL)
        os.close(self._file)  # the file is that of the process which holds the lock
        self._file = -1

    def release(self) -> None:
        """Let other processes make it, if they do not find it."""
        if self._file >= 0:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)  # who waits for this file then finds what was made
            os.close(self._file)
            self._file = -1


@cache
def is_private(folder: Path, setting: str, ours: bool = True) -> bool:
    """Return whether a folder's compiled code can be trusted; make it, for this user alone, where it is missing.

    `setting` is the environment variable that names another folder. Where others may write into a folder of `ours`,
    as versions made it that obeyed umask, they lose that right: files are looked at one by one when they are read.
    """
    try:
        _make(folder)
        found = os.stat(folder)
        if ours and found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & 0o077:
            with suppress(OSError):
                os.chmod(folder, 0o700)
                found = os.stat(folder)
    except OSError:  # the disk refuses it: that costs time alone
        return False
    if fault := _fault(found):
        _say(f"{folder} {fault}; remove it, or set {setting} to a folder of your own")
    return not fault


def read_private(path: Path) -> bytes | None:
    """Return the content of a file; None if it is missing or cannot be trusted."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(handle, "rb") as file:
        found = os.fstat(handle)
        if fault := _fault(found):
            _say(f"{path} {fault}")
        return file.read() if stat.S_ISREG(found.st_mode) and not fault else None


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only this user may read, atomically."""
    draft = path.with_name(f".{os.urandom(16).hex()}.part")
    try:
        with open(draft, "xb", opener=lambda name, how: os.open(name, how, 0o600)) as file:
            file.write(data)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _make(folder: Path) -> None:
    """Make a folder and those above it, where missing, with mode 0700 whatever umask says."""
    if not folder.is_dir():
        if folder != folder.parent:
            _make(folder.parent)
        with suppress(FileExistsError):  # another rank has just made it
            os.mkdir(folder, 0o700)
            os.chmod(folder, 0o700)


def _fault(found: os.stat_result) -> str:
    """Return why others may have written something, or an empty string."""
    if found.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user ({found.st_uid})"
    return "can be written to by others" if found.st_mode & OTHERS_WRITE else ""


@cache
def _say(cause: str) -> None:
    print(f"amped: kernels are compiled and timed anew: {cause}", file=sys.stderr, flush=True)
