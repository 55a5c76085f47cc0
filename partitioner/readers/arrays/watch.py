"""Detect changes of files that are read piece by piece, possibly several times."""

from __future__ import annotations

import os
import stat
import weakref
from pathlib import Path
from typing import IO

from ...errors import InputError

CHANGED = "changed while it was read"
MAX_FILES = 50_000_000

State = tuple[int, int, int]
"""A file's size, modification time and inode."""


class WatchedFile:
    """A file that another library reads by its name. The `file` may be closed afterwards."""

    def __init__(self, file: IO[bytes]) -> None:
        self._handle = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._handle)
        self._state = _state(os.fstat(self._handle))

    def check(self, _: object = None) -> None:
        """Raise `InputError` if the file was modified. Replacing it by a new file of the same name is harmless."""
        if _state(os.fstat(self._handle)) != self._state:
            raise InputError(CHANGED)

    def check_name(self, path: str | os.PathLike[str]) -> None:
        """Raise `InputError` unless `path` names this file, so a library that opened it by name has the same file."""
        try:
            state = _state(os.stat(path))
        except FileNotFoundError:
            state = None
        if state != self._state:
            raise InputError(CHANGED)


class WatchedFolder:
    """The files in a folder and its subfolders; `check` detects modified, removed and added files."""

    def __init__(self, folder: Path) -> None:
        self._folder = os.fspath(folder)
        self.files = dict[str, State]()
        pending, seen = [""], set[tuple[int, int]]()
        while pending:
            subfolder = pending.pop()
            with os.scandir(os.path.join(self._folder, subfolder)) as entries:
                for entry in entries:
                    self._add(f"{subfolder}/{entry.name}" if subfolder else entry.name, entry, pending, seen)

    def _add(self, name: str, entry: os.DirEntry[str], pending: list[str], seen: set[tuple[int, int]]) -> None:
        try:
            status = entry.stat()
        except FileNotFoundError:  # dangling link, or just removed
            return
        if stat.S_ISDIR(status.st_mode):
            if (status.st_dev, status.st_ino) not in seen:  # links may form cycles
                seen.add((status.st_dev, status.st_ino))
                pending.append(name)
        elif not stat.S_ISREG(status.st_mode):
            raise InputError(f"{name} is not a regular file")
        elif len(self.files) == MAX_FILES:
            raise InputError(f"holds more than {MAX_FILES:,} files")
        else:
            self.files[name] = _state(status)

    def check(self, name: str) -> None:
        """Raise `InputError` if a file was modified, removed or added."""
        try:
            state = _state(os.stat(os.path.join(self._folder, name)))
        except (FileNotFoundError, NotADirectoryError):
            state = None
        if state != self.files.get(name):
            change = CHANGED if state and name in self.files else "was removed" if state is None else "was added"
            raise InputError(f"{name} {change}{'' if change == CHANGED else ' while the array was read'}")


def _state(status: os.stat_result) -> State:
    return status.st_size, status.st_mtime_ns, status.st_ino
