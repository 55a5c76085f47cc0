"""Whether what is read piece by piece, perhaps several times, is still what it was when it was opened."""

from __future__ import annotations

import os
import stat
import weakref
from pathlib import Path
from typing import IO, Any

from ...errors import InputError

CHANGED = "changed while it was read"
MOST_FILES = 50_000_000

State = tuple[int, int, int]
"""A file's size, the time when it was written to, and its inode."""


class WatchedFile:
    """A file that another library reads by its name. The `file` may be closed afterwards."""

    def __init__(self, file: IO[bytes]) -> None:
        self._handle = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._handle)
        self._state = _state(os.fstat(self._handle))

    def check(self, _: Any = None) -> None:
        """Raise `InputError` if the file was written to. Whoever has it open is not hurt by a new one of its name."""
        if _state(os.fstat(self._handle)) != self._state:
            raise InputError(CHANGED)

    def check_name(self, path: str | os.PathLike[str]) -> None:
        """Raise `InputError` unless the file has this name: so what was opened by it, after this one, is the same."""
        try:
            found = _state(os.stat(path))
        except FileNotFoundError:
            found = None
        if found != self._state:
            raise InputError(CHANGED)


class WatchedFolder:
    """The files in a folder and in those within: what was written to, removed or added is noticed by name."""

    def __init__(self, folder: Path) -> None:
        self._folder = os.fspath(folder)
        self.files = dict[str, State]()
        pending, seen = [""], set[tuple[int, int]]()
        while pending:
            inside = pending.pop()
            with os.scandir(os.path.join(self._folder, inside)) as entries:
                for entry in entries:
                    self._add(f"{inside}/{entry.name}" if inside else entry.name, entry, pending, seen)

    def _add(self, name: str, entry: os.DirEntry[str], pending: list[str], seen: set[tuple[int, int]]) -> None:
        try:
            found = entry.stat()
        except FileNotFoundError:  # a link to nothing, or just removed: missing
            return
        if stat.S_ISDIR(found.st_mode):
            if (found.st_dev, found.st_ino) not in seen:  # links may lead back
                seen.add((found.st_dev, found.st_ino))
                pending.append(name)
        elif not stat.S_ISREG(found.st_mode):
            raise InputError(f"{name} is not a regular file")
        elif len(self.files) == MOST_FILES:
            raise InputError(f"holds more than {MOST_FILES:,} files")
        else:
            self.files[name] = _state(found)

    def check(self, name: str) -> None:
        """Raise `InputError` if a file was changed, removed or added."""
        try:
            found = _state(os.stat(os.path.join(self._folder, name)))
        except (FileNotFoundError, NotADirectoryError):
            found = None
        if found != self.files.get(name):
            what = CHANGED if found and name in self.files else "was removed" if found is None else "was added"
            raise InputError(f"{name} {what}{'' if what == CHANGED else ' while the array was read'}")


def _state(found: os.stat_result) -> State:
    return found.st_size, found.st_mtime_ns, found.st_ino
