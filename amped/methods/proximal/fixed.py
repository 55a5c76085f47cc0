"""Elements of a factor matrix that keep their initial values."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.validate import whole

from ...errors import InputError

Mask = NDArray[np.bool_]
RANGES = r"\d+(-\d+)?(,\d+(-\d+)?)*"


class FixedElements:
    """Elements that are held fixed: whole rows, whole columns, and those of a mask.

    Parameters
    ----------
    rows, columns : tuple of int
        Numbers, from 0.
    mask : bool array, optional
        Broadcasts to the matrix: (I, R), (I, 1) for rows or (1, R) for columns.
    """

    def __init__(self, rows: tuple[int, ...] = (), columns: tuple[int, ...] = (), mask: Mask | None = None) -> None:
        self.rows, self.columns, self.mask = rows, columns, mask

    def joined(self, other: FixedElements) -> FixedElements:
        """Return the elements of both."""
        masks = [each.mask for each in (self, other) if each.mask is not None]
        mask = np.logical_or(*masks) if len(masks) == 2 else masks[0] if masks else None
        return FixedElements(self.rows + other.rows, self.columns + other.columns, mask)

    def of(self, mode: int, length: int, rank: int) -> Mask:
        """Return which elements of a (length, rank) matrix are held; raise `InputError` if some do not exist."""
        result = np.zeros((length, rank), bool)
        for name, numbers, size in (("row", self.rows, length), ("column", self.columns, rank)):
            if beyond := [number for number in numbers if number >= size]:
                raise InputError(f"fixed: mode {mode} has {name}s 0 to {size - 1}, not {beyond[0]}")
        result[list(self.rows)] = True
        result[:, list(self.columns)] = True
        if self.mask is not None:
            try:
                result |= self.mask
            except ValueError:
                cause = f"of shape {self.mask.shape}, which does not broadcast to {result.shape}"
                raise InputError(f"fixed: the mask of mode {mode} is {cause}") from None
        if result.all():
            raise InputError(f"fixed: all elements of mode {mode}: use fixed_modes")
        return result


def fixed_of_text(text: str, parts: list[str]) -> FixedElements:
    """Return the elements of a text such as "fixed:columns:0,2" or "fixed:rows:0-4"; raise `InputError`."""
    if len(parts) != 2 or parts[0] not in ("rows", "columns") or not re.fullmatch(RANGES, parts[1], re.ASCII):
        raise InputError(f"constraint {text!r}: write it as fixed:rows:0-4,7 or fixed:columns:0,2")
    numbers = tuple(number for part in parts[1].split(",") for number in _range(text, part))
    return FixedElements(rows=numbers) if parts[0] == "rows" else FixedElements(columns=numbers)


def _range(text: str, part: str) -> Iterable[int]:
    first, _, last = part.partition("-")
    begin, end = int(first), int(last or first)
    if not begin <= end < 1 << 31:
        raise InputError(f"constraint {text!r}: {part!r} is no range of numbers")
    return range(begin, end + 1)


class FixedMask(NamedTuple):
    """The fixed elements of a mode by a mask.

    Attributes
    ----------
    mode : int or str
    name : str
        For records.
    elements : FixedElements
    """

    mode: int | str
    name: str
    elements: FixedElements


def masks_of(name: str, value: object) -> tuple[FixedMask, ...]:
    """Return the fixed elements of all modes from a mapping of modes to masks; raise `InputError`."""
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise InputError(f"{name}: expected a mapping of modes to masks, such as {{1: mask}}")
    return tuple(
        _mask_of(mode if isinstance(mode, str) else whole(f"{name}: mode", mode, 0), mask)
        for mode, mask in value.items()
    )


def _mask_of(mode: int | str, value: Any) -> FixedMask:
    mask = np.asarray(value)
    if mask.dtype != np.bool_ or mask.ndim != 2:
        cause = "an array of True and False of shape (I, R), (I, 1) or (1, R)"
        raise InputError(f"fixed: mode {mode}: expected {cause}, not {mask.dtype} of shape {mask.shape}")
    if not mask.any():
        raise InputError(f"fixed: mode {mode}: the mask is False everywhere")
    name = f"fixed:mask:{int(mask.sum())}:{zlib.crc32(np.packbits(mask).data):08x}"
    return FixedMask(mode, name, FixedElements(mask=mask.copy()))


def masks_in(path: Path) -> tuple[FixedMask, ...]:
    """Return the masks ``mask_0``, ``mask_1``, ... in a file; raise `InputError`."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except OSError as error:
        raise InputError(f"masks cannot be read: {error.strerror or error}", path=path) from None
    except (ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"masks cannot be read: {error}", path=path) from None
    masks = {int(match[1]): found[name] for name in found if (match := re.fullmatch(r"mask_(\d+)", name, re.ASCII))}
    if not masks:
        raise InputError("there is no array mask_0, mask_1, ...", path=path)
    return masks_of("fixed", masks)
