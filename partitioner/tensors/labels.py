"""Labels of indices: one array per mode.

Numbers, bools, dates, times and durations are plain arrays; strings are NumPy's `StringDType`. A missing label is NaN,
NaT or None. In files, strings are UTF-8 bytes and offsets, as in Arrow, so nothing is unpickled.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from ..array_types import HostArray, Integers
from ..errors import InputError
from ..validate import whole

TEXT = np.dtypes.StringDType(na_object=None)
KINDS = "biufMmT"  # bools, numbers, times, durations, strings
OFFSETS, MISSING = "offsets", "missing"
BYTES = np.dtype(np.uint8)
INT64 = np.dtype(np.int64)


class TableQuery(NamedTuple):
    """How a table was read, in addition to its keys. Further tables are read for a model in the same way.

    Attributes
    ----------
    value : str or None
        SQL expression that was summed, or an aggregate; None if rows were counted.
    where : str or None
        SQL condition that selected rows; None if all rows were read.
    missing : {"drop", "keep"}
        Treatment of rows without a key.
    keys : tuple of str
        The keys, one per mode; empty if they are the names of the modes.
    """

    value: str | None = None
    where: str | None = None
    missing: str = "drop"
    keys: tuple[str, ...] = ()

    def fields(self) -> list[str | None]:
        """Return the query as a list of texts, for files."""
        return [self.value, self.where, self.missing, *self.keys]

    def taken(self, modes: Sequence[int]) -> TableQuery:
        """Return the query with its keys in the order of selected modes."""
        return self._replace(keys=tuple(self.keys[mode] for mode in modes if self.keys))


class Labels(tuple[HostArray, ...]):
    """Labels of the indices of each mode: a tuple of arrays.

    Parameters
    ----------
    arrays : sequence of (I_n,) arrays
        Numbers, dates, times, durations, or strings in NumPy's StringDType.
    names : sequence of str, optional
        Name of each mode: a table column, or an expression of columns.
    query : TableQuery, optional
        How the table was read, if the labels come from a table.
    units : sequence of str or None, optional
        Unit of each mode's labels, such as "nm", for pictures.
    """

    names: tuple[str, ...] | None
    query: TableQuery | None
    units: tuple[str | None, ...] | None

    def __new__(
        cls,
        arrays: Iterable[HostArray],
        names: Sequence[str] | None = None,
        query: TableQuery | None = None,
        units: Sequence[str | None] | None = None,
    ) -> Labels:
        labels = super().__new__(cls, arrays)
        labels.names = None if names is None else tuple(names)
        labels.query = query
        labels.units = None if units is None or not any(units) else tuple(units)
        return labels

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (tuple(self), self.names, self.query, self.units)

    @classmethod
    def of(cls, labels: Iterable[ArrayLike] | Mapping[str, ArrayLike] | None, shape: Sequence[int]) -> Labels | None:
        """Return labels in canonical form; raise `InputError` unless each index of each mode has one."""
        if labels is None:
            return None
        arrays = [as_labels(each) for each in (labels.values() if isinstance(labels, Mapping) else labels)]
        if [each.shape for each in arrays] != [(length,) for length in shape]:
            raise InputError(f"labels of shapes {[each.shape for each in arrays]} for a tensor of shape {tuple(shape)}")
        if isinstance(labels, Mapping):
            if not all(isinstance(name, str) for name in labels):
                raise InputError(f"labels: the names of modes are {', '.join(map(repr, labels))}: expected text")
            return cls(arrays, list(labels))
        return cls(arrays, *(getattr(labels, name, None) for name in ("names", "query", "units")))

    @property
    def keys(self) -> tuple[str, ...] | None:
        """The keys of the table, one per mode: columns or expressions. None if the modes have no names."""
        return (self.query.keys if self.query is not None else ()) or self.names

    def replaced(self, arrays: Iterable[HostArray]) -> Labels:
        """Return other labels with the same names, query and units."""
        return Labels(arrays, self.names, self.query, self.units)

    def taken(self, used: Iterable[Integers]) -> Labels:
        """Return the labels of selected indices of each mode."""
        return self.replaced(known[indices] for known, indices in zip(self, used, strict=True))

    def checksum(self) -> int:
        """Return a CRC-32 checksum of the labels."""
        data = b"".join(part.tobytes() for each in self for part in to_parts(each).values())
        return zlib.crc32(data)


class Labelled:
    """An object with a shape and optional labels of its indices."""

    if TYPE_CHECKING:  # some subclasses have an attribute, others a property

        @property
        def shape(self) -> tuple[int, ...]:
            """The mode lengths."""

    _labels: Labels | None = None

    @property
    def labels(self) -> Labels | None:
        """Labels of the indices, one array per mode, or None. Assign sequences of numbers, times or strings."""
        return self._labels

    @labels.setter
    def labels(self, labels: Iterable[ArrayLike] | Mapping[str, ArrayLike] | None) -> None:
        self._labels = Labels.of(labels, self.shape)

    def labelled(self, labels: Iterable[ArrayLike] | Mapping[str, ArrayLike] | None) -> Self:
        """Set the labels of this tensor in place.

        Parameters
        ----------
        labels : sequence of (I_n,) arrays, mapping, or None
            One array per mode. The keys of a mapping, such as ``{"sample": samples, "emission": wavelengths}``, are the
            names of the modes. Raises `InputError` if the number or lengths of arrays do not match the shape.

        Returns
        -------
        the tensor
            The same object, not a copy.

        Examples
        --------
        >>> X = SparseTensor([[0, 1], [1, 0]], [1.0, 2.0]).labelled({"user": ["Ann", "Bob"], "item": ["tea", "jam"]})
        >>> X.labels.names, X.labels[1].tolist()
        (('user', 'item'), ['tea', 'jam'])
        """
        self.labels = labels
        return self


def mode_names(labels: Labels | None, order: int) -> Sequence[str]:
    """Return the name of each mode: its table key, or "mode N"."""
    return (labels.names if labels is not None else None) or [f"mode {mode}" for mode in range(order)]


def mode_number(names: Sequence[str], mode: object, parameter: str = "mode") -> int:
    """Return the number of a mode, given by number or name; raise `InputError`, which names the parameter."""
    if isinstance(mode, str):
        if mode not in names:
            raise InputError(f"{parameter}: {mode!r} is none of {', '.join(map(repr, names))}")
        return list(names).index(mode)
    return whole(parameter, mode, 0, len(names) - 1)


def as_labels(labels: ArrayLike) -> HostArray:
    """Return the labels of a mode in canonical form; raise `InputError` if their type is not supported."""
    try:
        array = np.asarray(labels)
    except ValueError:  # sequences of different lengths
        raise InputError("labels: expected one number, time or text per index") from None
    if array.dtype.kind == "O" and array.ndim == 1:
        array = plain_objects(array)
    if array.dtype.kind in "OU":
        try:
            return array.astype(TEXT)
        except (TypeError, ValueError) as error:
            raise InputError(f"labels: {error}") from None
    if array.dtype.kind not in KINDS:
        raise InputError(f"labels are {array.dtype}: expected numbers, times or strings")
    return plain_times(array) if array.dtype.kind == "M" else array


def plain_objects(objects: HostArray) -> HostArray:
    """Return dates, times, durations or numbers that are Python objects as a plain array, other objects as they are.

    Times with a time zone are converted to UTC.
    """
    listed = objects.tolist()
    present = [each for each in listed if each is not None]
    if present and all(isinstance(each, date) for each in present):
        zones = [getattr(each, "tzinfo", None) is not None for each in present if each == each]
        if any(zones) and not all(zones):
            return objects
        return np.array([_in_utc(each) for each in listed], "M8[us]")
    if present and all(isinstance(each, timedelta) for each in present):
        return np.array(listed, "m8[us]")
    if all(isinstance(each, int | float) and not isinstance(each, bool) for each in listed):
        return np.asarray(listed)
    return objects


def _in_utc(time: date | None) -> date | None:
    """Return a date, or a time without a zone: in UTC if it has one. None if it is missing."""
    if isinstance(time, datetime) and time.tzinfo is not None:
        return time.astimezone(UTC).replace(tzinfo=None)
    return time if time == time else None  # NaT of pandas


def plain_times(labels: HostArray) -> HostArray:
    """Return times as dates or in seconds, if that is exact; dates, weeks, months and years as they are."""
    if np.datetime_data(labels.dtype.str)[0] in ("D", "W", "M", "Y"):
        return labels
    for unit in ("M8[D]", "M8[s]"):
        if np.array_equal(labels.astype(unit), labels, equal_nan=True):
            return labels.astype(unit)
    return labels


def to_parts(array: HostArray) -> dict[str, HostArray]:
    """Return plain arrays that represent labels: "" for the numbers or the bytes of strings, offsets, missing ones."""
    if array.dtype.kind != "T":
        return {"": array}
    texts = [b"" if each is None else each.encode() for each in array.tolist()]
    offsets = np.zeros(array.size + 1, INT64)
    np.cumsum(np.fromiter(map(len, texts), INT64, array.size), out=offsets[1:])
    parts: dict[str, HostArray] = {"": np.frombuffer(b"".join(texts), BYTES), OFFSETS: offsets}
    missing = np.flatnonzero([each is None for each in array.tolist()])
    return {**parts, MISSING: missing.astype(INT64)} if missing.size else parts


def of_parts(parts: Mapping[str, HostArray]) -> HostArray:
    """Return labels from the arrays of `to_parts`; raise `ValueError` if they are invalid."""
    data = parts[""]
    if data.ndim != 1 or data.dtype.kind not in KINDS:
        raise ValueError(f"labels are {data.dtype} of {data.ndim} dimensions")
    if OFFSETS not in parts:
        return data
    offsets, missing = parts[OFFSETS], parts.get(MISSING, np.empty(0, INT64))
    if data.dtype != BYTES or offsets.dtype != INT64 or missing.dtype != INT64:
        raise ValueError(f"text labels are {data.dtype} with offsets {offsets.dtype}")
    if offsets.ndim != 1 or not offsets.size or offsets[0] != 0 or offsets[-1] != data.size:
        raise ValueError("offsets of text labels do not fit the text")
    if np.any(np.less(offsets[1:], offsets[:-1])) or not all(0 <= at < offsets.size - 1 for at in missing.tolist()):
        raise ValueError("offsets of text labels are not ascending")
    text, ends = data.tobytes(), offsets.tolist()
    absent = set(missing.tolist())
    strings = (None if at in absent else text[begin:end].decode() for at, (begin, end) in enumerate(pairwise(ends)))
    labels: HostArray = np.array(list(strings), TEXT)
    return labels


def named(labels: Labels | None) -> dict[str, HostArray]:
    """Return labels as plain arrays by their names in an archive."""
    if labels is None:
        return {}
    arrays = dict[str, HostArray]()
    query = None if labels.query is None else labels.query.fields()
    for mode, each in enumerate(labels):
        arrays |= {"_".join(filter(None, ("labels", str(mode), what))): part for what, part in to_parts(each).items()}
    for name, texts in (("names", labels.names), ("query", query), ("units", labels.units)):
        if texts is not None:
            parts = to_parts(np.array(texts, TEXT))
            arrays |= {"_".join(filter(None, (name, what))): part for what, part in parts.items()}
    return arrays


def find(arrays: Mapping[str, HostArray], order: int) -> Labels | None:
    """Return the labels in an archive that `named` wrote, or None if there are none.

    Raises
    ------
    KeyError
        If the labels of a mode are missing.
    ValueError
        If the arrays are not labels.
    """
    if "labels_0" not in arrays:
        return None
    each = [of_parts(_parts(arrays, f"labels_{mode}")) for mode in range(order)]
    stored = (name in arrays and of_parts(_parts(arrays, name)).tolist() for name in ("names", "query", "units"))
    names, query, units = (texts or None for texts in stored)
    if units is not None and len(units) != order:
        raise ValueError(f"{len(units)} units for {order} modes")
    return Labels(each, names, None if query is None else query_of(query, order), units)


def query_of(fields: Sequence[Any], order: int) -> TableQuery:
    """Return the query stored in a file, of a tensor of `order` modes; raise `ValueError` if it is invalid."""
    value, where, missing, *keys = fields if len(fields) in (3, 3 + order) else (None, None, None)
    optional = all(each is None or isinstance(each, str) for each in (value, where))
    if missing not in ("drop", "keep") or not optional or not all(isinstance(each, str) for each in keys):
        raise ValueError("not the query of a table")
    return TableQuery(value, where, missing, tuple(keys))


def _parts(arrays: Mapping[str, HostArray], name: str) -> dict[str, HostArray]:
    known = {"": name, OFFSETS: f"{name}_{OFFSETS}", MISSING: f"{name}_{MISSING}"}
    return {what: arrays[key] for what, key in known.items() if not what or key in arrays}
