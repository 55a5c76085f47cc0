"""Where a model fits a tensor worst: elements, absent elements, slices, and groups of these."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.labels import Labels, mode_names
from partitioner.tensors.sparse import SparseTensor

from .absent import absent_elements
from .dataframe import dataframe, unused_name
from .explained import LEAST, Item, blocks_of, is_ordered, label_of, tops_of, values_at
from .slices import MAD, SliceResiduals, leverage, robust_z, slice_squares, slice_sums

KINDS = "deviance", "pearson"  # of residuals of Poisson models
PEERS = 64  # least number of elements among which groups are formed
LEAST_SCALE = 0.3  # least robust standard deviation of the logarithm of a residual
ALIKE = 3.0  # largest ratio of the residuals of neighbours
DENSE = 0.5  # least share of a group's elements among all combinations of its labels
FEW = 8  # elements that may be the cause of an unusual slice
NO_FINDING = 1 << 30
UNUSUAL = 3.0  # least z-score of a slice that is a finding

COLUMNS = "value", "expected", "residual", "standardised", "absent", "finding"  # of a table of elements

Places = NDArray[np.int64]


class _Element(NamedTuple):
    labels: tuple[Any, ...]
    value: float
    expected: float


class Entry(_Element):
    """An element of a tensor, and the model's value there: ``labels, value, expected = entry`` unpacks it.

    Attributes
    ----------
    labels : tuple
        One label per mode; indices if the tensor has no labels.
    value, expected : float
        The tensor's value and the model's value.
    standardised : float
        The residual in standard deviations of the loss; see `Residuals`.
    finding : int or None
        Number of the finding that includes the element, counted from 0.
    """

    standardised: float
    finding: int | None

    def __new__(
        cls,
        labels: tuple[Any, ...],
        value: float,
        expected: float,
        standardised: float = math.nan,
        finding: int | None = None,
    ) -> Self:
        entry = super().__new__(cls, labels, value, expected)
        entry.standardised, entry.finding = standardised, finding
        return entry

    def __repr__(self) -> str:
        facts = f"value={self.value:g}, expected={self.expected:g}, standardised={self.standardised:g}"
        return f"Entry(labels={self.labels}, {facts}, finding={self.finding})"


class Finding(NamedTuple):
    """One lack of fit: an element, neighbouring elements, or a slice.

    Attributes
    ----------
    kind : {"element", "absent", "group", "slice"}
        A stored element, an absent element, neighbouring elements, or all elements of one label or consecutive labels.
    labels : tuple of tuples
        For each mode the labels of the elements; empty if all labels take part.
    elements : int
        Number of elements; of a slice its unusual ones that are among the largest residuals.
    value, expected : float
        Sums of the tensor and of the model over the elements.
    score : float
        How unusual the residual is: a robust z-score of its logarithm, among the largest residuals of stored or of
        absent elements, or among the slices of a mode.
    """

    kind: str
    labels: tuple[tuple[Any, ...], ...]
    elements: int
    value: float
    expected: float
    score: float


class Residuals(NamedTuple):
    """Where a model fits a tensor worst. `print` shows the findings.

    Residuals are standardised by the loss. For least squares they are divided by their root mean square; for a Poisson
    model they are deviance residuals, or Pearson residuals, ``(x - m) / sqrt(m)``.

    Attributes
    ----------
    entries : tuple of Entry
        Stored elements with the largest standardised residuals, the largest first.
    labels : tuple
        For each mode the pairs (label, share of `squared`), the largest first.
    squared : float
        Sum of the squared residuals over all stored elements.
    names : tuple of str
        Names of the modes.
    absent : tuple of Entry
        Absent elements of a sparse tensor for which the model expects the largest values.
    slices : tuple of SliceResiduals
        For each mode the misfit, leverage and z-score of each label.
    findings : tuple of Finding
        The most unusual elements, groups and slices, the most unusual first.

    Examples
    --------
    >>> X = np.outer(np.arange(1.0, 9), np.arange(1.0, 7))
    >>> model = KruskalTensor(np.ones(1), [np.arange(1.0, 9)[:, None], np.arange(1.0, 7)[:, None]])
    >>> X[2, 3] += 50
    >>> print(model.residuals(X, count=1))
    1. mode 0 2, mode 1 3: 62, expected 12; score inf
    """

    entries: tuple[Entry, ...]
    labels: tuple[tuple[Item, ...], ...]
    squared: float
    names: tuple[str, ...]
    absent: tuple[Entry, ...]
    slices: tuple[SliceResiduals, ...]
    findings: tuple[Finding, ...]

    def to_frame(self) -> Any:
        """Return the stored and absent elements as a pandas DataFrame.

        Returns
        -------
        pandas.DataFrame
            One row per element, the largest standardised residual first: its label in each mode, ``value``,
            ``expected``, ``residual``, ``standardised``, ``absent``, and ``finding``, the number of the finding that
            includes it, counted from 0 (missing if none does).

        Raises
        ------
        InputError
            If pandas is not installed.
        """
        return dataframe(self.columns())

    def columns(self, first_finding: int = 0, names: Sequence[str] = COLUMNS) -> dict[str, list[Any]]:
        """Return the labels and the columns `names` of `to_frame`; findings are counted from `first_finding`."""
        rows = [(entry, False) for entry in self.entries] + [(entry, True) for entry in self.absent]
        rows.sort(key=lambda row: -abs(row[0].standardised))
        columns: dict[str, list[Any]] = {}
        for mode, name in enumerate(self.names):
            columns[unused_name(name, columns)] = [entry.labels[mode] for entry, _ in rows]
        numbers: dict[str, list[Any]] = {
            "value": [entry.value for entry, _ in rows],
            "expected": [entry.expected for entry, _ in rows],
            "residual": [entry.value - entry.expected for entry, _ in rows],
            "standardised": [entry.standardised for entry, _ in rows],
            "absent": [absent for _, absent in rows],
            "finding": [None if entry.finding is None else entry.finding + first_finding for entry, _ in rows],
        }
        return columns | {unused_name(name, columns): numbers[name] for name in names}

    def slice_columns(self) -> dict[str, list[Any]]:
        """Return all slices as one table: the name of the mode, and the columns of its slices."""
        columns: dict[str, list[Any]] = {"mode": []}
        for each in self.slices:
            columns["mode"] += [each.name] * each.misfit.size
            for name, values in each.columns().items():
                columns.setdefault(name, []).extend(values)
        return columns

    def plot(self, mode: int | str, path: str | os.PathLike[str] | None = None, *, ax: Any = None) -> Any:
        """Draw the slices of a mode: misfit over leverage, with the labels of the most unusual ones.

        Slices with a large misfit are not described by the model; slices with a large leverage determine it.

        Parameters
        ----------
        mode : int or str
            Number or name.
        path : path, optional
            ``.png``, ``.svg`` or ``.pdf``.
        ax : Axes, optional
            Where to draw.

        Returns
        -------
        matplotlib.figure.Figure
            The figure, which notebooks display.

        Raises
        ------
        InputError
            If Matplotlib is not installed, or the file cannot be written.
        """
        from ..report.pictures import draw_slices, mode_number

        return draw_slices(self.slices[mode_number(self.names, mode)], path, ax)

    def __repr__(self) -> str:
        return f"Residuals(entries={len(self.entries)}, absent={len(self.absent)}, findings={len(self.findings)})"

    def __str__(self) -> str:
        from ..report.residuals import text

        return text(self)

    def _repr_html_(self) -> str:
        from ..report.notebook import residuals_table

        return residuals_table(self)


class Standard(NamedTuple):
    """How residuals are standardised: by the Poisson loss or not, and as deviance or Pearson residuals."""

    poisson: bool = False
    pearson: bool = False

    def of(self, values: NDArray[Any], expected: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return standardised residuals; for least squares they still lack the common scale."""
        difference = values - expected
        if not self.poisson:
            return np.asarray(difference, np.float64)
        mean = np.maximum(expected, LEAST)
        if self.pearson:
            return np.asarray(difference / np.sqrt(mean), np.float64)
        return np.asarray(np.sign(difference) * np.sqrt(self.deviances(values, mean)), np.float64)

    def misfit(self, values: NDArray[Any], expected: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what each element adds to the loss: its squared residual, or its deviance."""
        return self.deviances(values, expected) if self.poisson else np.square(values - expected)

    def size(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the squares of values, or for a Poisson model the values."""
        return values if self.poisson else np.square(values)

    @staticmethod
    def deviances(values: NDArray[Any], expected: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the Poisson deviance of each value."""
        mean = np.maximum(expected, LEAST)
        counts = np.maximum(values, 0).astype(np.float64)
        logs = np.where(counts > 0, counts * np.log(np.where(counts > 0, counts, 1) / mean), 0.0)
        return np.asarray(np.maximum(0.0, 2 * (logs - counts + mean)), np.float64)


class Elements(NamedTuple):
    """Elements of a tensor: coordinates (order, n), values, expected values and standardised residuals."""

    places: Places
    values: NDArray[np.float64]
    expected: NDArray[np.float64]
    standardised: NDArray[np.float64]

    @classmethod
    def empty(cls, order: int) -> Elements:
        """Return no elements of a tensor of this order."""
        return cls(np.empty((order, 0), np.int64), np.empty(0), np.empty(0), np.empty(0))

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.values.size

    def entries(
        self, labels: Sequence[NDArray[Any] | None], count: int, numbers: NDArray[np.intp]
    ) -> tuple[Entry, ...]:
        """Return the first elements with their labels; `numbers` are those of their findings, or too large."""
        return tuple(
            Entry(
                tuple(label_of(own, int(row)) for own, row in zip(labels, self.places[:, at], strict=True)),
                float(self.values[at]), float(self.expected[at]), float(self.standardised[at]),
                int(numbers[at]) if numbers[at] < count else None,
            )
            for at in range(min(count, self.size))
        )  # fmt: skip

    def largest(self, count: int) -> Elements:
        """Return the elements with the largest standardised residuals, the largest first."""
        sizes = np.abs(self.standardised)
        rows = np.argpartition(-sizes, count - 1)[:count] if count < sizes.size else np.arange(sizes.size)
        rows = rows[np.lexsort((*self.places[::-1][:, rows], -sizes[rows]))]
        return Elements(self.places[:, rows], self.values[rows], self.expected[rows], self.standardised[rows])

    def joined(self, other: Elements) -> Elements:
        """Return these and other elements."""
        return Elements(*(np.concatenate(pair, axis=-1) for pair in zip(self, other, strict=True)))


def residuals(
    weights: NDArray[np.float64],
    factors: Sequence[NDArray[Any]],
    tensor: SparseTensor | DenseTensor,
    labels: Labels | None,
    count: int,
    standard: Standard,
    partial: bool = False,
) -> Residuals:
    """Return where a model fits a tensor worst; see `KruskalTensor.residuals`.

    If it is `partial`, elements that a sparse tensor does not store are missing.
    """
    sparse = isinstance(tensor, SparseTensor) and not partial
    order, peers = len(tensor.shape), max(PEERS, count)
    sums, largest = [SliceSums.empty(length) for length in tensor.shape], Elements.empty(order)
    total = tensor.nnz if isinstance(tensor, SparseTensor) else math.prod(tensor.shape)
    for columns, values in blocks_of(tensor):
        expected = values_at(weights, factors, columns)
        places = np.array([np.asarray(column, np.int64) for column in columns])
        block = Elements(places, values.astype(np.float64), expected, standard.of(values, expected))
        misfit = standard.misfit(block.values, expected)
        for each, column in zip(sums, columns, strict=True):
            each.add(column, block, misfit, standard)
        largest = largest.joined(block.largest(peers)).largest(peers)
    squared = float(sums[0].squares.sum())
    scale = 1.0 if standard.poisson else math.sqrt(squared / max(1, total)) or 1.0
    absent = _absent(weights, factors, tensor, peers, standard) if sparse else Elements.empty(order)
    largest, absent = (each._replace(standardised=each.standardised / scale) for each in (largest, absent))
    names = tuple(mode_names(labels, order))
    by_mode = [None] * order if labels is None else labels
    slices = [
        each.residuals(name, own, weights, factors, mode, standard, sparse)
        for mode, (each, name, own) in enumerate(zip(sums, names, by_mode, strict=True))
    ]
    found, numbers = findings(largest.joined(absent), slices, by_mode, standard, largest.size)
    shares = (each.squares[:, None] / (squared or 1.0) for each in sums)
    tops = tuple(tops_of(share, own, count)[0] for share, own in zip(shares, by_mode, strict=True))
    entries = largest.entries(by_mode, count, numbers[: largest.size])
    others = absent.entries(by_mode, count, numbers[largest.size :])
    return Residuals(entries, tops, squared, names, others, tuple(each for each, _ in slices), tuple(found[:count]))


def _absent(
    weights: NDArray[np.float64],
    factors: Sequence[NDArray[Any]],
    tensor: SparseTensor | DenseTensor,
    count: int,
    standard: Standard,
) -> Elements:
    """Return the absent elements with the largest expected values; none of a dense tensor."""
    if not isinstance(tensor, SparseTensor) or not weights.size:
        return Elements.empty(len(tensor.shape))
    places, expected, _ = absent_elements(weights, factors, tensor, count)
    zeros = np.zeros(expected.size)
    return Elements(places, zeros, expected, standard.of(zeros, expected))


class SliceSums(NamedTuple):
    """Sums over the stored elements of each slice: number, values, squared residuals, misfit, size, and model's size.

    The size of an element is its square, or for a Poisson model the count.
    """

    number: NDArray[np.float64]
    value: NDArray[np.float64]
    squares: NDArray[np.float64]
    misfit: NDArray[np.float64]
    size: NDArray[np.float64]
    model: NDArray[np.float64]

    @classmethod
    def empty(cls, length: int) -> SliceSums:
        """Return sums that are 0."""
        return cls(*np.zeros((6, length)))

    def add(self, column: NDArray[Any], block: Elements, misfit: NDArray[np.float64], standard: Standard) -> None:
        """Add elements, whose indices in this mode are `column`."""
        parts = (
            np.ones(block.size), block.values, np.square(block.values - block.expected), misfit,
            standard.size(block.values), standard.size(block.expected),
        )  # fmt: skip
        for total, part in zip(self, parts, strict=True):
            total += np.bincount(column, part, total.size)

    def residuals(
        self,
        name: str,
        labels: NDArray[Any] | None,
        weights: NDArray[np.float64],
        factors: Sequence[NDArray[Any]],
        mode: int,
        standard: Standard,
        sparse: bool,
    ) -> tuple[SliceResiduals, NDArray[np.float64]]:
        """Return the slices of a mode, and the usual misfit of each."""
        expected = slice_sums(weights, factors, mode)
        model = expected if standard.poisson else slice_squares(weights, factors, mode)
        missing = np.maximum(0.0, model - self.model) if sparse else np.zeros(model.size)
        misfit = self.misfit + (2 if standard.poisson else 1) * missing
        z, usual = robust_z(misfit, self.size + np.maximum(0.0, model), self.number)
        return SliceResiduals(name, labels, misfit, leverage(factors[mode]), z, self.value, expected), usual


def findings(
    elements: Elements,
    slices: Sequence[tuple[SliceResiduals, NDArray[np.float64]]],
    labels: Sequence[NDArray[Any] | None],
    standard: Standard,
    stored: int,
) -> tuple[list[Finding], NDArray[np.intp]]:
    """Return the most unusual elements, groups and slices, the most unusual first, and each element's finding.

    `elements` are those with the largest residuals: first `stored` stored ones, then absent ones. Both are scored among
    their peers. A slice is a finding unless one element or group causes its misfit; its elements are then no findings.
    Consecutive slices of an ordered mode are one finding.
    """
    groups = [rows for rows in neighbours(elements) if np.any(elements.standardised[rows])]
    misfit = standard.misfit(elements.values, elements.expected)

    def causes(rows: NDArray[np.intp], mode: int, row: int) -> bool:
        """Return whether a few elements are most of a slice's excess, or it would not be unusual without them."""
        each, usual = slices[mode][0], slices[mode][1][row]
        inside = rows[elements.places[mode, rows] == row]
        part = float(misfit[inside].sum())
        if inside.size <= FEW and part >= (each.misfit[row] - usual) / 2:
            return True
        left = each.misfit[row] - part
        least = math.log(each.misfit[row] / usual) * UNUSUAL / each.z[row]
        return bool(left <= 0 or math.log(left / usual) < least)

    found, taken = list[tuple[Finding, NDArray[np.intp]]](), np.zeros(elements.size, bool)
    for mode, (each, _) in enumerate(slices):
        unusual = [int(row) for row in each.top() if each.z[row] >= UNUSUAL]
        unusual = [row for row in unusual if not any(causes(rows, mode, row) for rows in groups)]
        for run in _runs(sorted(unusual), is_ordered(labels[mode])):
            members = np.flatnonzero(np.isin(elements.places[mode], run))
            taken[members] = True
            found.append((_slice(each, mode, run, len(labels), members.size), members))
    sizes = np.abs(elements.standardised)
    scores = _scores(sizes[:stored]), _scores(sizes[stored:])
    for rows in groups:
        if not taken[rows].all():
            score = scores[int(rows[0] >= stored)](float(np.sqrt(np.square(sizes[rows]).sum())))
            found.append((_group(elements, rows, labels, score, stored), rows))
    found.sort(key=lambda pair: -pair[0].score)
    numbers = np.full(elements.size, NO_FINDING)
    for number, (_, rows) in reversed([*enumerate(found)]):
        numbers[rows] = number
    return [finding for finding, _ in found], numbers


def _runs(rows: Sequence[int], ordered: bool) -> list[list[int]]:
    """Return runs of consecutive slices; each slice by itself if the mode is not ordered."""
    runs = list[list[int]]()
    for row in rows:
        if ordered and runs and row == runs[-1][-1] + 1:
            runs[-1].append(row)
        else:
            runs.append([row])
    return runs


def _scores(peers: NDArray[np.float64]) -> Callable[[float], float]:
    """Return a function from the magnitude of a residual to the robust z-score of its logarithm among its peers."""
    logs = np.log(peers[peers > 0])
    if 2 * logs.size < peers.size or not logs.size:  # most elements are fitted exactly
        return lambda size: math.inf
    middle = float(np.median(logs))
    spread = max(LEAST_SCALE, MAD * float(np.median(np.abs(logs - middle))))
    return lambda size: (math.log(size) - middle) / spread


def neighbours(elements: Elements) -> list[NDArray[np.intp]]:
    """Return groups of elements: those of one sign and similar size that differ in one coordinate are neighbours.

    Groups are merged, the largest residuals first, as long as they fill their range of coordinates densely.
    """
    group_of, groups = list(range(elements.size)), {row: [row] for row in range(elements.size)}

    def merge(first: int, second: int) -> None:
        if first == second:
            return
        rows = groups[first] + groups[second]
        lengths = [len(set(places)) for places in elements.places[:, rows].tolist()]
        if len(rows) >= DENSE * math.prod(lengths):
            groups[first] = rows
            for row in groups.pop(second):
                group_of[row] = first

    links = list[tuple[float, int, int]]()
    signs, sizes = np.sign(elements.standardised), np.abs(elements.standardised)
    for mode in range(len(elements.places)):
        others = np.delete(elements.places, mode, 0).T.tolist()
        last = dict[tuple[Any, ...], int]()
        for row in np.argsort(-sizes, kind="stable").tolist():
            key = (signs[row], *others[row])
            if key in last and sizes[last[key]] <= ALIKE * sizes[row]:
                links.append((-sizes[row], last[key], row))
            last[key] = row
    for _, first, second in sorted(links):
        merge(group_of[first], group_of[second])
    return [np.array(sorted(rows)) for rows in groups.values()]


def _group(
    elements: Elements, rows: NDArray[np.intp], labels: Sequence[NDArray[Any] | None], score: float, stored: int
) -> Finding:
    parts = tuple(
        tuple(label_of(own, row) for row in np.unique(places))
        for own, places in zip(labels, elements.places[:, rows], strict=True)
    )
    kind = "group" if rows.size > 1 else "element" if rows[0] < stored else "absent"
    value, expected = float(elements.values[rows].sum()), float(elements.expected[rows].sum())
    return Finding(kind, parts, int(rows.size), value, expected, score)


def _slice(each: SliceResiduals, mode: int, rows: list[int], order: int, count: int) -> Finding:
    own = tuple(label_of(each.labels, row) for row in rows)
    parts = tuple(own if m == mode else () for m in range(order))
    value, expected = float(each.value[rows].sum()), float(each.expected[rows].sum())
    return Finding("slice", parts, count, value, expected, float(each.z[rows].max()))
