"""Cache on disk for later runs: compiled code and kernel timings.

Cached code runs with the user's rights, so nobody else may be able to write it. Files and folders are trusted if they
belong to this user or root and no other user may write to them. An untrusted cache is not used: one line per process
says so, and kernels are compiled and timed again. A cache entry's name contains a digest of everything that the entry
depends on, so an entry never changes, and several ranks and runs may write the same one at once.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

SETTING = "NUMBA_CACHE_DIR"
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
LOCK_TIMEOUT, POLL_INTERVAL = 60.0, 0.02  # seconds
DIGEST = 32  # bytes; an entry starts with the digest of its data


def cache_folder() -> Path:
    """Return the cache folder: under ``NUMBA_CACHE_DIR`` if that is set, else under the user's cache."""
    configured = os.environ.get(SETTING)
    return Path(configured or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "amped"


def new_digest(data: bytes = b"") -> Hash:
    """Return a SHA-256 object. OpenSSL, which it uses, is loaded only now, as that takes milliseconds."""
    from hashlib import sha256

    return sha256(data)


def load_entry(name: str) -> bytes | None:
    """Return the data of a cache entry; None if it is missing, damaged, or writable by other users."""
    with suppress(OSError, RuntimeError):  # RuntimeError: no home folder
        folder = cache_folder()
        stored = read_private(folder / name) if is_private(folder, SETTING) else None
        if stored is not None and new_digest(stored[DIGEST:]).digest() == stored[:DIGEST]:
            return stored[DIGEST:]
    return None


def save_entry(name: str, data: bytes) -> None:
    """Save data as a cache entry, atomically. Ignore errors of the disk."""
    with suppress(OSError, RuntimeError):
        folder = cache_folder()
        if is_private(folder, SETTING):
            write_private(folder / name, new_digest(data).digest() + data)


class Reservation:
    """Exclusive right to compute a cache entry. Other processes wait, and then find the entry.

    It ends with `release` or with the process. If the file system has no locks, or after `LOCK_TIMEOUT`, the
    reservation is not exclusive: two processes may compute the same entry.
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
        end = time.monotonic() + LOCK_TIMEOUT
        while time.monotonic() < end:
            with suppress(BlockingIOError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            time.sleep(POLL_INTERVAL)
        os.close(self._file)  # another process still holds the lock
        self._file = -1

    def release(self) -> None:
        """End the reservation."""
        if self._file >= 0:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)  # waiting processes then find the entry
            os.close(self._file)
            self._file = -1


@cache
def is_private(folder: Path, setting: str, ours: bool = True) -> bool:
    """Return whether files in a folder can be trusted. Create the folder, for this user only, if it is missing.

    Parameters
    ----------
    folder : Path
        The folder.
    setting : str
        Environment variable that selects another folder, for the warning.
    ours : bool
        Whether amped creates the folder. Older versions created it with the umask's permissions; other users'
        permissions are removed. The files in it are checked when they are read.
    """
    try:
        _create(folder)
        status = os.stat(folder)
        if ours and status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) & 0o077:
            with suppress(OSError):
                os.chmod(folder, 0o700)
                status = os.stat(folder)
    except OSError:  # without a cache runs are slower
        return False
    if reason := _distrust(status):
        _warn(f"{folder} {reason}; remove it, or set {setting} to your own folder")
    return not reason


def read_private(path: Path) -> bytes | None:
    """Return the content of a file; None if it is missing or cannot be trusted."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(handle, "rb") as file:
        status = os.fstat(handle)
        if reason := _distrust(status):
            _warn(f"{path} {reason}")
        return file.read() if stat.S_ISREG(status.st_mode) and not reason else None


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only this user may read, atomically."""
    draft = path.with_name(f".{os.urandom(16).hex()}.part")
    try:
        with open(draft, "xb", opener=lambda name, how: os.open(name, how, 0o600)) as file:
            file.write(data)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _create(folder: Path) -> None:
    """Create a folder and its missing parents with mode 0700, whatever the umask."""
    if not folder.is_dir():
        if folder != folder.parent:
            _create(folder.parent)
        with suppress(FileExistsError):  # another rank has just created it
            os.mkdir(folder, 0o700)
            os.chmod(folder, 0o700)


def _distrust(status: os.stat_result) -> str:
    """Return why a file or folder is not trusted, or an empty string."""
    if status.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user ({status.st_uid})"
    return "can be written to by others" if status.st_mode & OTHERS_WRITE else ""


@cache
def _warn(cause: str) -> None:
    print(f"amped: cache not used, kernels are compiled and timed again: {cause}", file=sys.stderr, flush=True)
