"""What a reader of a file format is: `formats.READERS` lists all of them."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..errors import InputError
from .form import ReadOptions
from .pieces import FilePart

if TYPE_CHECKING:
    from ..tensors.dense import DenseTensor

Kind = Literal["sparse", "dense", "table"]


class Reader:
    """A file format. A new one is a subclass in a file of its own, and an entry in `formats.READERS`.

    A reader of sparse tensors or tables has `part`, one of dense tensors has `dense`. Readers import other libraries
    only when they open a file.
    """

    name: ClassVar[str]
    extensions: ClassVar[tuple[str, ...]] = ()
    """Lower-case endings of file names, with the dot."""
    kind: ClassVar[Kind] = "sparse"

    def recognizes(self, path: str | PathLike[str]) -> bool:
        """Return whether a path is that of a file in this format, by its name."""
        return fspath(path).lower().endswith(self.extensions) and not Path(path).is_dir()

    def file(self, path: str | PathLike[str]) -> str:
        """Return the path of the file itself, without the name of an array in it."""
        return fspath(path)

    def is_divisible(self, path: str | PathLike[str]) -> bool:
        """Return whether each rank reads a part of a file; otherwise rank 0 reads all of it."""
        return False

    def negative_line(self, path: str | PathLike[str]) -> int | None:
        """Return the number, from 1, of the first line with a negative value, if the format has lines."""
        return None

    def part(self, path: str | PathLike[str], form: ReadOptions, part: int, of: int, **how: Any) -> FilePart:
        """Open part number `part` of `of` parts of a file's nonzeros.

        `how` has `threads` and `progress` (see `open_part`), and for tables what `TablePart` takes. Where the file is
        not divisible, parts other than 0 are empty.
        """
        raise InputError("a dense tensor: it has no nonzeros to sort or to store, and is used as it is", path=path)

    def dense(self, path: str | PathLike[str]) -> DenseTensor:
        """Open a dense tensor, whose elements stay in the file until they are used."""
        raise InputError(f"{self.name}: not a file of a dense tensor", path=path)
