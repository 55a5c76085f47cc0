"""What opening an array in a file of another library gives, and how one of several is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from ...errors import InputError
from ...tensors.cf_attributes import Packing
from ...tensors.npy_file import FileElements

MOST_NODES = 10_000  # groups and arrays in a file that are listed
SHOWN, LONGEST = 5, 80  # names of arrays in a message, and characters of each

Place = tuple[slice, ...]


class Opened(NamedTuple):
    """An array, what its numbers mean, and what raises `InputError` if those at a place are not as they were then."""

    array: Any
    packing: Packing
    check: Callable[[Place], None]
    chunk: tuple[int, ...] | None  # lengths of what the library reads as a whole
    plain: FileElements | None = None  # the elements, where they are in the file as they are


class FoundArray(NamedTuple):
    """An array in a file: its name there, its number of modes, and what opens it."""

    name: str
    order: int
    array: Any


def chosen(arrays: Sequence[FoundArray]) -> Any:
    """Return the only array that may be a tensor; vectors, such as netCDF's coordinates, only count by themselves."""
    found = [each for each in arrays if each.order > 1] or arrays
    if len(found) == 1:
        return found[0].array
    names = ", ".join([*(shortened(each.name) for each in found[:SHOWN]), *["..."] * (len(found) > SHOWN)]) or "none"
    raise InputError(f"holds {len(found)} arrays ({names}): give one as FILE:NAME")


def shortened(name: str) -> str:
    """Return a name that a message may have."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 3]}..."


def library(name: str, extra: str) -> Any:
    """Import a library; `InputError` says how to install it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(f"such files need {name} ({error}): install amped[{extra}]") from None
