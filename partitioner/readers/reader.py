"""Base class of file readers; `formats.READERS` lists them."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from ..errors import InputError
from .form import ReadOptions
from .pieces import FilePart

if TYPE_CHECKING:
    from ..tensors.dense import DenseTensor

Kind = Literal["sparse", "dense", "table"]


class Reader:
    """A file format. To add one, write a subclass in a new file and add it to `formats.READERS`.

    A reader of sparse tensors or tables implements `part`; a reader of dense tensors implements `dense`. Readers import
    other libraries only when they open a file.
    """

    name: ClassVar[str]
    extensions: ClassVar[tuple[str, ...]] = ()
    """Lower-case file name extensions, including the dot."""
    kind: ClassVar[Kind] = "sparse"

    def recognizes(self, path: str | PathLike[str]) -> bool:
        """Return whether the name of a file indicates this format."""
        return fspath(path).lower().endswith(self.extensions) and not Path(path).is_dir()

    def file(self, path: str | PathLike[str]) -> str:
        """Return the path of the file, without the name of an array in it."""
        return fspath(path)

    def is_divisible(self, path: str | PathLike[str]) -> bool:
        """Return whether each rank can read a part of the file; otherwise rank 0 reads all of it."""
        return False

    def line_where(self, path: str | PathLike[str], wrong: Callable[[float], bool]) -> int | None:
        """Return the line number, from 1, of the first value that is `wrong`, if the format has lines."""
        return None

    def part(self, path: str | PathLike[str], form: ReadOptions, part: int, of: int, **options: object) -> FilePart:
        """Open part number `part` of `of` parts of a file's nonzeros.

        `options` contains `threads` and `progress` (see `open_part`), and for tables further arguments of `TablePart`.
        If the file is not divisible, parts other than 0 are empty.
        """
        raise InputError("a dense tensor cannot be partitioned: use the file directly", path=path)

    def dense(self, path: str | PathLike[str]) -> DenseTensor:
        """Open a dense tensor, whose elements stay in the file until they are used."""
        raise InputError(f"{self.name}: not a dense tensor", path=path)
