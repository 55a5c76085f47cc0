"""An array in a file that another library opened, and the choice of one of several arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from ...errors import InputError
from ...tensors.cf_attributes import Packing
from ...tensors.npy_file import FileElements

MAX_NODES = 10_000  # groups and arrays listed per file
SHOWN, LONGEST = 5, 80  # array names in a message, and characters per name

Place = tuple[slice, ...]


class Opened(NamedTuple):
    """An open array.

    Attributes
    ----------
    array : HDF5 or Zarr array
        The array.
    packing : Packing
        Converts its numbers to elements.
    check : callable
        Raises `InputError` if the numbers at a position have changed since the file was opened.
    chunk : tuple of int or None
        Shape of the units that the library reads.
    plain : FileElements or None
        The elements, if the file stores them contiguously and unconverted.
    """

    array: Any
    packing: Packing
    check: Callable[[Place], None]
    chunk: tuple[int, ...] | None  # shape of the units that the library reads
    plain: FileElements | None = None  # the elements, if the file stores them contiguously and unconverted


class FoundArray(NamedTuple):
    """An array in a file: its name, number of modes, and a handle to open it."""

    name: str
    order: int
    array: Any


def chosen(arrays: Sequence[FoundArray]) -> Any:
    """Return the only array that can be a tensor. Vectors, such as coordinates, count only without other arrays."""
    candidates = [each for each in arrays if each.order > 1] or arrays
    if len(candidates) == 1:
        return candidates[0].array
    names = (
        ", ".join([*(shortened(each.name) for each in candidates[:SHOWN]), *["..."] * (len(candidates) > SHOWN)])
        or "none"
    )
    raise InputError(f"holds {len(candidates)} arrays ({names}): select one with FILE:NAME")


def shortened(name: str) -> str:
    """Return a name for a message, shortened if it is long."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 3]}..."


def library(name: str, extra: str) -> Any:
    """Import a library; raise an `InputError` with installation advice if it is missing."""
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(f"such files need {name} ({error}): install amped[{extra}]") from None
