"""Findings: groups of neighbouring elements and unusual slices where a model fits badly, and how unusual they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .elements import Elements, ModeLabels, Residual
from .explained import is_ordered, label_of
from .slices import MAD, SliceResiduals

LEAST_SCALE = 0.3  # least robust standard deviation of the logarithm of a residual
ALIKE = 3.0  # largest ratio of the residuals of neighbours
DENSE = 0.5  # least share of a group's elements among all combinations of its labels
FEW = 8  # elements that may be the cause of an unusual slice
NO_FINDING = 1 << 30
UNUSUAL = 3.0  # least z-score of a slice that is a finding


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
    labels: tuple[tuple[object, ...], ...]
    elements: int
    value: float
    expected: float
    score: float


def findings(
    elements: Elements,
    slices: Sequence[tuple[SliceResiduals, NDArray[np.float64]]],
    labels: ModeLabels,
    standard: Residual,
    stored: int,
) -> tuple[list[Finding], NDArray[np.intp]]:
    """Return the most unusual elements, groups and slices, the most unusual first, and each element's finding.

    `elements` are those with the largest residuals: first `stored` stored ones, then absent ones. Both are scored among
    their peers. A slice is a finding unless one element or group causes its misfit; its elements are then no findings.
    Consecutive slices of an ordered mode are one finding.
    """
    groups = [rows for rows in neighbours(elements) if np.any(elements.standardised[rows])]
    misfit = standard.misfit(elements)

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
        last = dict[tuple[object, ...], int]()
        for row in np.argsort(-sizes, kind="stable").tolist():
            key = (signs[row], *others[row])
            if key in last and sizes[last[key]] <= ALIKE * sizes[row]:
                links.append((-sizes[row], last[key], row))
            last[key] = row
    for _, first, second in sorted(links):
        merge(group_of[first], group_of[second])
    return [np.array(sorted(rows)) for rows in groups.values()]


def _group(elements: Elements, rows: NDArray[np.intp], labels: ModeLabels, score: float, stored: int) -> Finding:
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
