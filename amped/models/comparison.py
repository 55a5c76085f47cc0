"""Comparison of two CP models: matched components, and the labels that gained or lost."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats, HostArray
from partitioner.tensors.labels import Labels, mode_names
from partitioner.tensors.relabel import mode_order, places
from partitioner.validate import whole

from ..errors import InputError
from .dataframe import dataframe, unused_name
from .explained import label_of, shares
from .matching import assigned, cosines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

SAME, SIMILAR = 0.95, 0.85  # least congruence in each mode (Lorenzo-Seva and ten Berge 2006)
RELATED = 0.5  # least mean congruence over the modes of two components that are compared at all
TIE = 1e-3  # weight of the mean congruence, which decides where products are 0
SHOWN = 5  # labels per mode that gained or lost most

Factors = Sequence[Floats]


class LabelChange(NamedTuple):
    """A label of a component in two models.

    Attributes
    ----------
    label : object
        The label; an index if the mode has no labels.
    before, after : float
        Its entry in the column of the first and the second model, 0 where the model lacks the label. If no entry is
        negative, columns have unit sum, otherwise unit 2-norm and the same sign.
    """

    label: object
    before: float
    after: float


class ComponentPair(NamedTuple):
    """A component of the first model and the one of the second model that matches it.

    Attributes
    ----------
    first, second : int
        Numbers of the components, counted from 0.
    status : {"same", "similar", "changed"}
        By the smallest congruence of a mode: at least 0.95, at least 0.85, or less.
    congruence : float
        Product of ``by_mode``.
    by_mode : tuple of float
        Magnitude of the cosine between the columns in each compared mode.
    shares : tuple of float
        Shares of the component in both models.
    changes : tuple
        For each compared mode the labels whose entries differ most, the largest difference first.
    """

    first: int
    second: int
    status: str
    congruence: float
    by_mode: tuple[float, ...]
    shares: tuple[float, float]
    changes: tuple[tuple[LabelChange, ...], ...]


class CommonMode(NamedTuple):
    """A mode of two models over the labels of both.

    Attributes
    ----------
    name : str
    labels : array or None
        The labels of the first model, then those that only the second model has. If one model has no labels, those of
        the other one; None if none has.
    columns : tuple of two arrays
        The factor matrices over these labels, in float64; rows of labels that a model lacks are 0.
    only : tuple of two lists
        Labels that only the first, or only the second, model has.
    """

    name: str
    labels: HostArray | None
    columns: tuple[NDArray[np.float64], NDArray[np.float64]]
    only: tuple[list[Any], list[Any]]


class Comparison(NamedTuple):
    """The comparison of two CP models. `print` shows it as ``amped compare`` does.

    Attributes
    ----------
    pairs : tuple of ComponentPair
        Matched components, in the order of the first model.
    only : tuple of two tuples of int
        Components of the first model without a match in the second, and the reverse.
    match : float
        Factor match score: the mean congruence over the components of the smaller model, 0 for those without a match.
    modes : tuple of CommonMode
        The compared modes.
    skipped : tuple of str
        The modes that cannot be compared, and why.

    Examples
    --------
    >>> first = KruskalTensor(np.ones(1), [np.array([[0.5], [0.5], [0]]), np.ones((2, 1))])
    >>> second = KruskalTensor(np.ones(1), [np.array([[0], [0.5], [0.5]]), np.ones((2, 1))])
    >>> print(first.compare(second))  # doctest: +ELLIPSIS
    factor match 0.500; components: 0 the same, 0 similar, 1 changed, ...
    component 1 and 1: changed, congruence 0.50 (mode 0 0.50, mode 1 1.00); 100.0% -> 100.0% of the model
        mode 0: gained 2 0.0% -> 50%; lost 0 50% -> 0.0%
    """

    pairs: tuple[ComponentPair, ...]
    only: tuple[tuple[int, ...], tuple[int, ...]]
    match: float
    modes: tuple[CommonMode, ...]
    skipped: tuple[str, ...]

    def to_frame(self) -> DataFrame:
        """Return the matched components as a pandas DataFrame.

        Returns
        -------
        pandas.DataFrame
            One row per pair: ``first`` and ``second`` (numbers of the components, counted from 0), ``status``,
            ``congruence``, ``share_first``, ``share_second``, and the congruence in each compared mode under its name.

        Raises
        ------
        InputError
            If pandas is not installed.
        """
        return dataframe(self.columns())

    def changes_to_frame(self) -> DataFrame:
        """Return the labels that gained or lost as a pandas DataFrame.

        Returns
        -------
        pandas.DataFrame
            One row per pair, mode and label: ``first``, ``second``, ``status``, ``congruence``, ``mode`` (its name),
            ``mode_congruence``, ``label``, ``before`` and ``after``.

        Raises
        ------
        InputError
            If pandas is not installed.
        """
        return dataframe(self.change_columns())

    def columns(self) -> dict[str, list[object]]:
        """Return the columns of `to_frame`."""
        columns: dict[str, list[Any]] = {
            "first": [pair.first for pair in self.pairs],
            "second": [pair.second for pair in self.pairs],
            "status": [pair.status for pair in self.pairs],
            "congruence": [pair.congruence for pair in self.pairs],
            "share_first": [pair.shares[0] for pair in self.pairs],
            "share_second": [pair.shares[1] for pair in self.pairs],
        }
        for at, mode in enumerate(self.modes):
            columns[unused_name(mode.name, columns)] = [pair.by_mode[at] for pair in self.pairs]
        return columns

    def change_columns(self) -> dict[str, list[object]]:
        """Return the columns of `changes_to_frame`."""
        heads = "first second status congruence mode mode_congruence label before after".split()
        rows = list(self._change_rows())
        return {head: [row[at] for row in rows] for at, head in enumerate(heads)}

    def _change_rows(self) -> Iterator[tuple[object, ...]]:
        for pair in self.pairs:
            for mode, congruence, changes in zip(self.modes, pair.by_mode, pair.changes, strict=True):
                for change in changes:
                    yield (*pair[:4], mode.name, congruence, *change)

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        top: int = 6,
        *,
        ax: Axes | NDArray[np.object_] | None = None,
        modes: Sequence[int | str] | None = None,
    ) -> Figure:
        """Draw the columns of both models over each other: one row of panels per pair, one panel per mode.

        Parameters
        ----------
        path : path, optional
            ``.png``, ``.svg`` or ``.pdf``.
        top : int
            Maximum number of bars.
        ax, modes : optional
            See `KruskalTensor.plot`; modes are numbered as in ``Comparison.modes``.

        Returns
        -------
        matplotlib.figure.Figure
            The figure, which notebooks display.

        Raises
        ------
        InputError
            If Matplotlib is not installed, or the file cannot be written.
        """
        from ..report.pictures import draw_comparison

        return draw_comparison(self, path, whole("top", top, 1), ax=ax, modes=modes)

    def __repr__(self) -> str:
        return f"Comparison(pairs={len(self.pairs)}, match={self.match:.3f})"

    def __str__(self) -> str:
        from ..report.comparison import text

        return text(self)

    def _repr_html_(self) -> str:
        from ..report.notebook import comparison_table

        return comparison_table(self)


class Comparable(NamedTuple):
    """What is compared of a model."""

    weights: NDArray[np.float64]
    factors: Factors
    labels: Labels | None


def compared(first: Comparable, second: Comparable, count: int = SHOWN) -> Comparison:
    """Compare two CP models; see `KruskalTensor.compare`."""
    modes, skipped = common_modes(first, second)
    if not modes:
        raise InputError(f"the models have no mode in common: {'; '.join(skipped)}")
    by_mode = np.array([np.abs(cosines(*mode.columns)) for mode in modes])
    congruence, mean = by_mode.prod(axis=0), by_mode.mean(axis=0)
    related = mean >= RELATED  # others do not compete for a match
    matched = [(r, s) for r, s in assigned(np.where(related, congruence + TIE * mean, 0)) if related[r, s]]
    parts = shares(first.weights, first.factors), shares(second.weights, second.factors)
    pairs = tuple(
        ComponentPair(
            r, s, _status(by_mode[:, r, s].min()), float(congruence[r, s]), tuple(by_mode[:, r, s].tolist()),
            (float(parts[0][r]), float(parts[1][s])), tuple(_changes(mode, r, s, count) for mode in modes),
        )
        for r, s in matched
    )  # fmt: skip
    unmatched = (
        tuple(r for r in range(first.weights.size) if r not in {pair.first for pair in pairs}),
        tuple(s for s in range(second.weights.size) if s not in {pair.second for pair in pairs}),
    )
    smaller = min(first.weights.size, second.weights.size)
    match = sum(pair.congruence for pair in pairs) / smaller if smaller else 0.0
    return Comparison(pairs, unmatched, match, tuple(modes), tuple(skipped))


def _status(least: float) -> str:
    return "same" if least >= SAME else "similar" if least >= SIMILAR else "changed"


def common_modes(first: Comparable, second: Comparable) -> tuple[list[CommonMode], list[str]]:
    """Return the modes that two models have in common, and why others are skipped."""
    if len(first.factors) != len(second.factors):
        raise InputError(f"a model of {len(first.factors)} modes and one of {len(second.factors)}")
    names = mode_names(second.labels if first.labels is None else first.labels, len(first.factors))
    modes, skipped = list[CommonMode](), list[str]()
    order = mode_order(first.labels, second.labels, len(names))
    for mode, (name, other) in enumerate(zip(names, order, strict=True)):
        matrices = first.factors[mode], second.factors[other]
        if first.labels is None or second.labels is None:
            if len(matrices[0]) != len(matrices[1]):
                skipped.append(f"{name}: {len(matrices[0])} and {len(matrices[1])} indices without labels")
                continue
            known = next((each[mode] for each in (first.labels, second.labels) if each is not None), None)
            modes.append(CommonMode(name, known, (_exact(matrices[0]), _exact(matrices[1])), ([], [])))
            continue
        try:
            common = _common(name, first.labels[mode], second.labels[other], matrices)
        except InputError as error:
            skipped.append(f"{name}: {error.cause}")
            continue
        if common is None:
            skipped.append(f"{name}: no label in common")
        else:
            modes.append(common)
    return modes, skipped


def _exact(matrix: Floats) -> NDArray[np.float64]:
    return matrix.astype(np.float64)


def _common(name: str, labels: HostArray, others: HostArray, matrices: tuple[Floats, Floats]) -> CommonMode | None:
    """Return a mode over the labels of both models; None if they have no label in common."""
    positions = places(labels, others)
    new = positions < 0
    if new.all():
        return None
    every = np.concatenate([labels, others[new]])
    columns = np.zeros((every.size, matrices[0].shape[1])), np.zeros((every.size, matrices[1].shape[1]))
    columns[0][: labels.size] = matrices[0]
    columns[1][np.where(new, labels.size + np.cumsum(new) - 1, positions)] = matrices[1]
    lost = np.ones(labels.size, bool)
    lost[positions[~new]] = False
    only = [[label_of(each, row) for row in range(each.size)] for each in (labels[lost], others[new])]
    return CommonMode(name, every, columns, (only[0], only[1]))


def scaled(mode: CommonMode, first: int, second: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the columns of two components in comparable scales; see `LabelChange`."""
    one, other = mode.columns[0][:, first], mode.columns[1][:, second]
    if min(one.min(initial=0), other.min(initial=0)) >= 0:
        return one / (one.sum() or 1.0), other / (other.sum() or 1.0)
    sign = -1.0 if one @ other < 0 else 1.0
    return one / (np.linalg.norm(one) or 1.0), sign * other / (np.linalg.norm(other) or 1.0)


def _changes(mode: CommonMode, first: int, second: int, count: int) -> tuple[LabelChange, ...]:
    """Return the labels whose entries differ most."""
    before, after = scaled(mode, first, second)
    rows = np.argsort(-np.abs(after - before), kind="stable")[:count]
    return tuple(
        LabelChange(label_of(mode.labels, row), float(before[row]), float(after[row]))
        for row in rows
        if before[row] != after[row]
    )
