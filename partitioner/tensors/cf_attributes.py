"""Attributes that describe the numbers of an array in a file: scale, offset, fill values (CF 1.11, 2.5 and 8.1)."""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..array_types import DType, HostArray
from ..errors import InputError

FILLS, SCALES = ("_FillValue", "missing_value"), ("scale_factor", "add_offset")
BOUNDS = ("valid_min", "valid_max", "valid_range")
NAMES = (*FILLS, *SCALES, *BOUNDS, "_Unsigned")
OWN_FILL = "the array's fill value"
MAX_NUMBERS = 64  # per attribute
MAX_BYTES = 8  # per number
REPLACE = "replace such elements first"

Number = int | float


class MissingRule(NamedTuple):
    """A rule for missing elements.

    Attributes
    ----------
    is_missing : callable
        Returns a mask of the missing elements of a block.
    why : str
        Reason; completes "element [...] is".
    remedy : str
        Advice for the error message.
    """

    is_missing: Callable[[HostArray], NDArray[np.bool_]]
    why: str
    remedy: str = f"{REPLACE}, or remove the attribute if they are data"


class Packing:
    """Converts the stored numbers of an array to elements: ``number * scale_factor + add_offset``.

    Parameters
    ----------
    dtype : dtype
        Type of the stored numbers.
    attributes : mapping
        Attributes of the array. Names other than `NAMES` are ignored.
    fill : number, optional
        Value of elements that were never written, according to the file format.

    Attributes
    ----------
    dtype : dtype
        Type of the elements.
    declares : str or None
        What declares a fill value: an attribute, the format, or nothing.
    plain : bool
        Whether the stored numbers are the elements.
    """

    def __init__(self, dtype: DType, attributes: Mapping[str, Any], fill: object = None) -> None:
        if dtype.kind not in "biuf" or dtype.itemsize > MAX_BYTES:
            attributes, fill = {}, None  # the caller raises the error
        numbers = {name: number for name in NAMES if (number := _numbers(name, attributes.get(name))) is not None}
        for name in SCALES:
            if name not in numbers and not _is_empty(attributes.get(name)):
                raise InputError(f"attribute {name} is not a number: correct it or remove it")
        self._gaps = False
        self._stored, self._view = dtype, _viewed(dtype, attributes.get("_Unsigned"))
        self._scale, self._offset = (_single(name, numbers.get(name)) for name in SCALES)
        self.dtype = self._unpacked(numbers) if self._is_scaled else self._view
        own_fill = [each for each in _numbers(OWN_FILL, fill) or () if each] if dtype.kind != "b" else []
        self.declares = next((name for name in FILLS if name in numbers), OWN_FILL if own_fill else None)
        self._number_rules, self._element_rules = list[MissingRule](), list[MissingRule]()
        if dtype.kind != "b":
            for name in FILLS:
                self._number_rules += self._fills(name, numbers.get(name, ()))
            if dtype.itemsize > 1:  # netCDF declares a fill value for bytes by default, but every byte may be data
                self._number_rules += self._fills(OWN_FILL, own_fill)
            self._add_bounds(numbers)

    @property
    def _is_scaled(self) -> bool:
        return self._scale is not None or self._offset is not None

    @property
    def plain(self) -> bool:
        return not (self._is_scaled or self._number_rules or self._element_rules or self._view != self._stored)

    def with_gaps(self) -> Packing:
        """Return a packing that converts missing elements to NaN, in a floating-point type."""
        packing = copy(self)
        packing._gaps = True
        packing.dtype = self.dtype if self.dtype.kind == "f" else np.dtype(np.float64)
        return packing

    def unpacked(self, numbers: NDArray[Any], place: tuple[slice, ...]) -> HostArray:
        """Return the elements of a block at `place`; raise `InputError` if one is missing, unless `with_gaps`."""
        numbers = numbers.astype(self._stored, copy=False).view(self._view)
        missing = self._missing(self._number_rules, numbers, place)
        if self._gaps:
            numbers = numbers.astype(self.dtype)
        if self._is_scaled:
            with np.errstate(over="ignore"):  # the caller rejects elements that are not finite
                numbers = numbers.astype(self.dtype)
                numbers *= 1.0 if self._scale is None else self._scale
                numbers += 0.0 if self._offset is None else self._offset
            missing |= self._missing(self._element_rules, numbers, place)
        if self._gaps:
            numbers[missing] = np.nan
        return numbers

    def _missing(self, rules: Sequence[MissingRule], block: HostArray, place: tuple[slice, ...]) -> Any:
        """Return which elements are missing; raise `InputError` if one is, unless `with_gaps`."""
        if not self._gaps:
            _check(rules, block, place)
            return False
        return np.logical_or.reduce([rule.is_missing(block) for rule in rules], axis=0) if rules else np.False_

    def all_unpacked(self, numbers: HostArray) -> HostArray:
        """Return all elements of an array from all its numbers; the same array if no conversion is needed."""
        return numbers if self.plain else self.unpacked(numbers, tuple(slice(0, n) for n in numbers.shape))

    def _unpacked(self, numbers: Mapping[str, HostArray]) -> DType:
        """Return the element type: float32 only if it represents the numbers and the attributes are float32."""
        single = all(numbers[name].dtype == np.float32 for name in SCALES if name in numbers)
        small = self._stored.itemsize <= (2 if self._stored.kind in "iu" else 4)
        return np.dtype(np.float32 if single and small else np.float64)

    def _fills(self, name: str, values: Sequence[Any] | HostArray) -> list[MissingRule]:
        """Return rules for the numbers that an attribute, or the file format, assigns to missing elements."""
        fills = [number for each in values if (number := self._as_stored(each)) is not None and np.isfinite(number)]
        rules = [MissingRule(partial(np.equal, number), f"{number}, a missing value ({name})") for number in fills]
        copy = f"{REPLACE}, or copy it to an array without a fill value if they are data"
        return [rule._replace(remedy=copy) for rule in rules] if name == OWN_FILL else rules

    def _as_stored(self, value: Number) -> Any:
        """Return an attribute's value as a number of the array's type, or None if it cannot be represented."""
        number = _as_type(value, self._stored)
        return _as_type(value, self._view) if number is None else number.reshape(1).view(self._view)[0]

    def _add_bounds(self, numbers: Mapping[str, HostArray]) -> None:
        """Add rules for the lowest and highest valid number.

        They apply to elements instead of stored numbers if they are floating-point and the stored numbers are integers.
        """
        bounds = [
            (name, each, side) for name, side in (("valid_min", 0), ("valid_max", 1)) for each in numbers.get(name, ())
        ]
        if len(numbers.get("valid_range", ())) == 2:
            bounds += [("valid_range", each, side) for side, each in enumerate(numbers["valid_range"])]
        for name, value, side in bounds:
            of_elements = self._is_scaled and numbers[name].dtype.kind == "f" and self._stored.kind in "iu"
            if not of_elements and self._view != self._stored and (stored := self._as_stored(value)) is not None:
                value = stored
            if not math.isnan(value):
                why = f"{'above' if side else 'below'} {value}, the {'largest' if side else 'least'} valid one ({name})"
                rule = MissingRule(partial(np.less if side else np.greater, value), why)
                (self._element_rules if of_elements else self._number_rules).append(rule)


def unpacked(array: object, numbers: HostArray) -> HostArray:
    """Return the elements of an h5py dataset or a Zarr array from its numbers; numbers of other arrays unchanged."""
    if type(array).__module__.partition(".")[0] not in ("h5py", "zarr") or not hasattr(array, "attrs"):
        return numbers
    attrs = array.attrs
    attributes = {name: attrs[name] for name in NAMES if name in attrs}
    fill = getattr(array, "fill_value", getattr(array, "fillvalue", None))
    if getattr(getattr(array, "metadata", None), "zarr_format", 0) == 2:
        attributes |= of_format_2(attrs, fill)
    return Packing(numbers.dtype, attributes, fill).all_unpacked(numbers)


def of_format_2(attributes: Mapping[str, Any], fill: object) -> dict[str, Any]:
    """Return the fill value of a Zarr format 2 array as ``_FillValue``, if netCDF wrote the array."""
    return {FILLS[0]: fill} if "_ARRAY_DIMENSIONS" in attributes and fill is not None else {}


def _check(rules: Sequence[MissingRule], block: HostArray, place: tuple[slice, ...]) -> None:
    for rule in rules:
        missing = rule.is_missing(block)
        if missing.any():
            at = np.unravel_index(int(missing.argmax()), block.shape)
            index = [each.start + int(k) for each, k in zip(place, at, strict=True)]
            raise InputError(f"element {index} is {rule.why}: {rule.remedy}")


def _numbers(name: str, value: object) -> HostArray | None:
    """Return the numbers of an attribute; None if it has none. Text may hold one, also as xarray writes it to Zarr."""
    if _is_empty(value):
        return None
    try:
        array = np.asarray(value).reshape(-1)
    except ValueError:  # lists of unequal lengths
        return None
    if array.size > MAX_NUMBERS:
        raise InputError(f"attribute {name} has {array.size:,} values, expected one")
    if array.dtype.kind in "iuf":
        return array if array.size else None
    numbers = [number for each in array.tolist() if (number := _parsed(each)) is not None]
    return np.array(numbers, None if all(abs(each) < 1 << 63 for each in numbers) else np.float64) if numbers else None


def _is_empty(value: object) -> bool:
    return value is None or type(value).__name__ == "Empty"  # h5py's


def _parsed(value: object) -> Number | None:
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
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


def _single(name: str, numbers: HostArray | None) -> Number | None:
    if numbers is None:
        return None
    value: Number = numbers[0].item()
    if numbers.size > 1 or not math.isfinite(value) or (name == SCALES[0] and not value):
        shown = value if numbers.size == 1 else f"{numbers.size} numbers"
        raise InputError(
            f"attribute {name} is {shown}: expected one finite number{' other than 0' * (name == SCALES[0])}"
        )
    return value


def _as_type(value: Number, dtype: DType) -> HostArray | None:
    """Return a number converted to a type, or None if it cannot be represented."""
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return np.asarray(value).astype(dtype)
    if not math.isfinite(value) or value != int(value):
        return None
    limits = np.iinfo(dtype.str)
    return np.asarray(int(value), dtype) if limits.min <= int(value) <= limits.max else None


def _viewed(dtype: DType, unsigned: object) -> DType:
    """Return the type to view integers as: netCDF-3 has no unsigned types, but an attribute that declares them."""
    text = unsigned.decode(errors="replace") if isinstance(unsigned, bytes) else str(unsigned)
    kind = {"true": "u", "false": "i"}.get(text.strip("\0 ").lower())
    return dtype if kind is None or dtype.kind not in "iu" else np.dtype(f"{dtype.byteorder}{kind}{dtype.itemsize}")
