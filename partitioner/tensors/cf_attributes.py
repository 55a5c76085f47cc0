"""What the attributes of an array in a file say of its numbers: scale, offset, fill values (CF 1.11, 2.5 and 8.1)."""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError

FILLS, SCALES = ("_FillValue", "missing_value"), ("scale_factor", "add_offset")
BOUNDS = ("valid_min", "valid_max", "valid_range")
NAMES = (*FILLS, *SCALES, *BOUNDS, "_Unsigned")
OWN_FILL = "the array's fill value"
MOST = 64  # numbers of an attribute
WIDEST = 8  # bytes of a number
REPLACE = "replace such elements first"

Number = int | float


class MissingRule(NamedTuple):
    """Which numbers of an array are no data: those that `is_missing` of a block; `why` completes "element [...] is"."""

    is_missing: Callable[[NDArray[Any]], NDArray[np.bool_]]
    why: str
    remedy: str = f"{REPLACE}, or remove the attribute if they are data"


class Packing:
    """How the numbers of an array are turned into elements: ``number * scale_factor + add_offset``.

    Parameters
    ----------
    dtype : dtype
        Of the numbers in the file.
    attributes : mapping
        Those of the array; names other than `NAMES` do not count.
    fill : number, optional
        The value that the container gives elements that were never written.

    Attributes
    ----------
    dtype : dtype
        Of the elements.
    declares : str or None
        What declares a fill value, if anything does: an attribute, or the container.
    plain : bool
        Whether the numbers are the elements.
    """

    def __init__(self, dtype: np.dtype[Any], attributes: Mapping[str, Any], fill: Any = None) -> None:
        if dtype.kind not in "biuf" or dtype.itemsize > WIDEST:
            attributes, fill = {}, None  # whoever takes it says what is wrong
        given = {name: found for name in NAMES if (found := _numbers(name, attributes.get(name))) is not None}
        for name in SCALES:
            if name not in given and not _is_empty(attributes.get(name)):
                raise InputError(f"attribute {name} is no number: correct it, or remove it")
        self._stored, self._seen = dtype, _viewed(dtype, attributes.get("_Unsigned"))
        self._scale, self._offset = (_single(name, given.get(name)) for name in SCALES)
        self.dtype = self._unpacked(given) if self._is_scaled else self._seen
        own = [each for each in _numbers(OWN_FILL, fill) or () if each] if dtype.kind != "b" else []
        self.declares = next((name for name in FILLS if name in given), OWN_FILL if own else None)
        self._packed, self._whole = list[MissingRule](), list[MissingRule]()  # rules for numbers, and for elements
        if dtype.kind != "b":
            for name in FILLS:
                self._packed += self._fills(name, given.get(name, ()))
            if dtype.itemsize > 1:  # every value of one byte may be data: netCDF gives them a fill value by default
                self._packed += self._fills(OWN_FILL, own)
            self._add_bounds(given)

    @property
    def _is_scaled(self) -> bool:
        return self._scale is not None or self._offset is not None

    @property
    def plain(self) -> bool:
        return not (self._is_scaled or self._packed or self._whole or self._seen != self._stored)

    def unpacked(self, numbers: NDArray[Any], place: tuple[slice, ...]) -> NDArray[Any]:
        """Return the elements at a place; raise `InputError` if one is missing."""
        numbers = numbers.astype(self._stored, copy=False).view(self._seen)
        _check(self._packed, numbers, place)
        if self._is_scaled:
            with np.errstate(over="ignore"):  # what is not finite is refused by whoever takes it
                numbers = numbers.astype(self.dtype)
                numbers *= 1.0 if self._scale is None else self._scale
                numbers += 0.0 if self._offset is None else self._offset
            _check(self._whole, numbers, place)
        return numbers

    def all_unpacked(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Return all elements of an array from all of its numbers; the same array if it holds plain numbers."""
        return numbers if self.plain else self.unpacked(numbers, tuple(slice(0, n) for n in numbers.shape))

    def _unpacked(self, given: Mapping[str, NDArray[Any]]) -> np.dtype[Any]:
        """Return the type of elements: single precision only if it holds the numbers, and the attributes have it."""
        single = all(given[name].dtype == np.float32 for name in SCALES if name in given)
        small = self._stored.itemsize <= (2 if self._stored.kind in "iu" else 4)
        return np.dtype(np.float32 if single and small else np.float64)

    def _fills(self, name: str, values: Sequence[Any] | NDArray[Any]) -> list[MissingRule]:
        """Return the rules for numbers that an attribute, or the container, gives elements that are missing."""
        found = [number for each in values if (number := self._as_seen(each)) is not None and np.isfinite(number)]
        rules = [MissingRule(partial(np.equal, number), f"{number}, a missing value ({name})") for number in found]
        copy = f"{REPLACE}, or copy it to an array without a fill value if they are data"
        return [rule._replace(remedy=copy) for rule in rules] if name == OWN_FILL else rules

    def _as_seen(self, value: Any) -> Any:
        """Return a value of an attribute as a number of the array; None if it has none like that."""
        number = _as_type(value, self._stored)
        return _as_type(value, self._seen) if number is None else number.reshape(1).view(self._seen)[0]

    def _add_bounds(self, given: Mapping[str, NDArray[Any]]) -> None:
        """Take the least and the largest valid number.

        They are of elements, not of packed numbers, if they are of a floating-point type and those are integers.
        """
        bounds = [
            (name, each, side) for name, side in (("valid_min", 0), ("valid_max", 1)) for each in given.get(name, ())
        ]
        if len(given.get("valid_range", ())) == 2:
            bounds += [("valid_range", each, side) for side, each in enumerate(given["valid_range"])]
        for name, value, side in bounds:
            whole = self._is_scaled and given[name].dtype.kind == "f" and self._stored.kind in "iu"
            if not whole and self._seen != self._stored and (own := self._as_seen(value)) is not None:
                value = own
            if not math.isnan(value):
                why = f"{'above' if side else 'below'} {value}, the {'largest' if side else 'least'} valid one ({name})"
                rule = MissingRule(partial(np.less if side else np.greater, value), why)
                (self._whole if whole else self._packed).append(rule)


def unpacked(array: Any, numbers: NDArray[Any]) -> NDArray[Any]:
    """Return the elements of a dataset of h5py's, or an array of Zarr's, from its numbers; other arrays as they are."""
    if type(array).__module__.partition(".")[0] not in ("h5py", "zarr") or not hasattr(array, "attrs"):
        return numbers
    given = array.attrs
    attributes = {name: given[name] for name in NAMES if name in given}
    fill = getattr(array, "fill_value", getattr(array, "fillvalue", None))
    if getattr(getattr(array, "metadata", None), "zarr_format", 0) == 2:
        attributes |= of_format_2(given, fill)
    return Packing(numbers.dtype, attributes, fill).all_unpacked(numbers)


def of_format_2(attributes: Mapping[str, Any], fill: Any) -> dict[str, Any]:
    """Return what Zarr's format 2 has instead of ``_FillValue``, if the array was written by netCDF's conventions."""
    return {FILLS[0]: fill} if "_ARRAY_DIMENSIONS" in attributes and fill is not None else {}


def _check(rules: Sequence[MissingRule], block: NDArray[Any], place: tuple[slice, ...]) -> None:
    for rule in rules:
        missing = rule.is_missing(block)
        if missing.any():
            at = np.unravel_index(int(missing.argmax()), block.shape)
            index = [each.start + int(k) for each, k in zip(place, at, strict=True)]
            raise InputError(f"element {index} is {rule.why}: {rule.remedy}")


def _numbers(name: str, given: Any) -> NDArray[Any] | None:
    """Return the numbers of an attribute; None if it has none. Text may hold one, also as xarray writes it to Zarr."""
    if _is_empty(given):
        return None
    try:
        array = np.asarray(given).reshape(-1)
    except ValueError:  # lists of unequal lengths
        return None
    if array.size > MOST:
        raise InputError(f"attribute {name} has {array.size:,} values, expected one")
    if array.dtype.kind in "iuf":
        return array if array.size else None
    found = [number for each in array.tolist() if (number := _parsed(each)) is not None]
    return np.array(found, None if all(abs(each) < 1 << 63 for each in found) else np.float64) if found else None


def _is_empty(given: Any) -> bool:
    return given is None or type(given).__name__ == "Empty"  # h5py's


def _parsed(given: Any) -> Number | None:
    text = given.decode(errors="replace") if isinstance(given, bytes) else given
    if not isinstance(text, str):
        return None
    for kind in (int, float):
        try:
            return kind(text.strip().rstrip("\0"))
        except ValueError:
            continue
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return float(struct.unpack("<d", content)[0]) if len(content) == 8 else None


def _single(name: str, given: NDArray[Any] | None) -> Number | None:
    if given is None:
        return None
    value: Number = given[0].item()
    if given.size > 1 or not math.isfinite(value) or (name == SCALES[0] and not value):
        shown = value if given.size == 1 else f"{given.size} numbers"
        raise InputError(
            f"attribute {name} is {shown}: expected one finite number{' other than 0' * (name == SCALES[0])}"
        )
    return value


def _as_type(value: Any, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return a number as one of a type, or None if that has none like it."""
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return np.asarray(value).astype(dtype)
    if not math.isfinite(value) or value != int(value):
        return None
    limits = np.iinfo(dtype)
    return np.asarray(int(value), dtype) if limits.min <= int(value) <= limits.max else None


def _viewed(dtype: np.dtype[Any], unsigned: Any) -> np.dtype[Any]:
    """Return the type that integers are taken for: netCDF-3 has no unsigned ones, but an attribute that says so."""
    text = unsigned.decode(errors="replace") if isinstance(unsigned, bytes) else str(unsigned)
    kind = {"true": "u", "false": "i"}.get(text.strip("\0 ").lower())
    return dtype if kind is None or dtype.kind not in "iu" else np.dtype(f"{dtype.byteorder}{kind}{dtype.itemsize}")
