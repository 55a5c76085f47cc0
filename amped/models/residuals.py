"""Where a model fits a tensor worst: elements, absent elements, slices, and groups of these."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import HostArray, Integers
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.labels import Labels, mode_names, mode_number
from partitioner.tensors.sparse import SparseTensor

from .absent import absent_elements
from .dataframe import dataframe, unused_name
from .elements import Elements, Entry, Factors, ModeLabels, Residual, blocks_with_model
from .explained import Item, tops_of
from .findings import Finding, findings
from .slices import ModelSlices, SliceResiduals, model_slices, robust_z

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

KINDS = "deviance", "pearson"  # of residuals of Poisson models
PEERS = 64  # least number of elements among which groups are formed
COLUMNS = "value", "expected", "residual", "standardised", "absent", "finding"  # of a table of elements


class Residuals(NamedTuple):
    """Where a model fits a tensor worst. `print` shows the findings.

    Residuals are standardised by the loss. For least squares they are divided by their root mean square, of a sparse
    tensor over its nonzeros; for a Poisson model they are deviance residuals, or Pearson residuals,
    ``(x - m) / sqrt(m)``.

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

    def to_frame(self) -> DataFrame:
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

    def columns(self, first_finding: int = 0, names: Sequence[str] = COLUMNS) -> dict[str, list[object]]:
        """Return columns of `to_frame`.

        Parameters
        ----------
        first_finding : int
            The number of the first finding.
        names : sequence of str
            The columns after the labels.

        Returns
        -------
        dict
            The columns by name.
        """
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

    def slice_columns(self) -> dict[str, list[object]]:
        """Return all slices as one table: the name of the mode, and the columns of its slices."""
        columns: dict[str, list[Any]] = {"mode": []}
        for each in self.slices:
            columns["mode"] += [each.name] * each.misfit.size
            for name, values in each.columns().items():
                columns.setdefault(name, []).extend(values)
        return columns

    def plot(self, mode: int | str, path: str | os.PathLike[str] | None = None, *, ax: Axes | None = None) -> Figure:
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
        from ..report.maps import draw_slices

        return draw_slices(self.slices[mode_number(self.names, mode)], path, ax)

    def __repr__(self) -> str:
        return f"Residuals(entries={len(self.entries)}, absent={len(self.absent)}, findings={len(self.findings)})"

    def __str__(self) -> str:
        from ..report.residuals import text

        return text(self)

    def _repr_html_(self) -> str:
        from ..report.notebook import residuals_table

        return residuals_table(self)


def residuals(
    weights: NDArray[np.float64],
    factors: Factors,
    tensor: SparseTensor | DenseTensor,
    labels: Labels | None,
    count: int,
    standard: Residual,
    partial: bool = False,
) -> Residuals:
    """Return where a model fits a tensor worst; see `KruskalTensor.residuals`.

    If it is `partial`, elements that a sparse tensor does not store are missing.
    """
    order, peers = len(tensor.shape), max(PEERS, count)
    names, by_mode = tuple(mode_names(labels, order)), [None] * order if labels is None else labels
    sums, largest = [SliceSums.empty(length) for length in tensor.shape], Elements.empty(order)
    for block in blocks_with_model(weights, factors, tensor, standard):
        misfit = standard.misfit(block)
        for each, column in zip(sums, block.places, strict=True):
            each.add(column, block, misfit, standard)
        largest = largest.joined(block.largest(peers)).largest(peers)
    has_absent, absent = False, Elements.empty(order)
    if isinstance(tensor, SparseTensor) and not partial:
        has_absent, absent = True, _absent(weights, factors, tensor, peers, standard)
    squared = float(sums[0].squares.sum())
    scale = math.sqrt(squared / max(1.0, sums[0].number.sum())) or 1.0 if standard.scaled else 1.0
    largest, absent = (each._replace(standardised=each.standardised / scale) for each in (largest, absent))
    models = list(model_slices(weights, factors, standard.poisson))
    if not standard.linear:  # sums over the elements that were evaluated
        pairs = zip(models, sums, strict=True)
        models = [model._replace(expected=each.expected, size=np.zeros(each.number.size)) for model, each in pairs]
    slices = [
        each.residuals(name, own, model, standard, has_absent)
        for each, name, own, model in zip(sums, names, by_mode, models, strict=True)
    ]
    found, numbers = findings(largest.joined(absent), slices, by_mode, standard, largest.size)
    entries = largest.entries(by_mode, count, numbers[: largest.size])
    others = absent.entries(by_mode, count, numbers[largest.size :])
    misfits = tuple(each for each, _ in slices)
    return Residuals(entries, _shares(sums, by_mode, count), squared, names, others, misfits, tuple(found[:count]))


def _absent(
    weights: NDArray[np.float64], factors: Factors, tensor: SparseTensor, count: int, standard: Residual
) -> Elements:
    """Return the absent elements with the largest expected values."""
    if not weights.size:
        return Elements.empty(len(tensor.shape))
    places, expected, _ = absent_elements(weights, factors, tensor, count)
    zeros = np.zeros(expected.size)
    return Elements(places, zeros, expected, standard.of(zeros, expected))


def _shares(sums: Sequence[SliceSums], labels: ModeLabels, count: int) -> tuple[tuple[Item, ...], ...]:
    """Return for each mode the labels with the largest shares of the squared residuals."""
    shares = (each.squares[:, None] / (each.squares.sum() or 1.0) for each in sums)
    return tuple(tops_of(share, own, count)[0] for share, own in zip(shares, labels, strict=True))


class SliceSums(NamedTuple):
    """Sums over the stored elements of each slice, also of the model's sizes and expected values.

    The size of an element is its square, for a Poisson model the count; see `Residual`.
    """

    number: NDArray[np.float64]
    value: NDArray[np.float64]
    squares: NDArray[np.float64]
    misfit: NDArray[np.float64]
    size: NDArray[np.float64]
    model: NDArray[np.float64]
    expected: NDArray[np.float64]

    @classmethod
    def empty(cls, length: int) -> SliceSums:
        """Return sums that are 0."""
        return cls(*np.zeros((7, length)))

    def add(self, column: Integers, block: Elements, misfit: NDArray[np.float64], standard: Residual) -> None:
        """Add elements, whose indices in this mode are `column`."""
        parts = (
            np.ones(block.size), block.values, np.square(block.values - block.expected), misfit,
            standard.size(block.values), standard.size(block.expected), block.expected,
        )  # fmt: skip
        for total, part in zip(self, parts, strict=True):
            total += np.bincount(column, part, total.size)

    def residuals(
        self, name: str, labels: HostArray | None, model: ModelSlices, standard: Residual, has_absent: bool
    ) -> tuple[SliceResiduals, NDArray[np.float64]]:
        """Return the slices of a mode, and the usual misfit of each."""
        missing = np.maximum(0.0, model.size - self.model) if has_absent else np.zeros(model.size.size)
        misfit = self.misfit + (2 if standard.poisson else 1) * missing
        z, usual = robust_z(misfit, self.size + np.maximum(0.0, model.size), self.number)
        return SliceResiduals(name, labels, misfit, model.leverage, z, self.value, model.expected), usual
