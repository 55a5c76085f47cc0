"""Components in words, for readers who know the data but not the method."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from partitioner.array_types import Floats, HostArray

from ..models.explained import is_ordered, label_of
from ..models.kruskal import KruskalTensor
from .calendar import calendar_rows
from .components import mode_names, shown

SENTENCES = 12  # components that are described
LARGE = 0.5  # part of a column's largest magnitude from which entries are named
NAMED = 4  # labels or ranges per mode
RANGE = 3  # adjacent labels that are a range


def sentences(model: KruskalTensor) -> list[str]:
    """Return a sentence for each of the first components: its share, and the labels of large entries in each mode."""
    return [sentence(model, number, share) for number, share in enumerate(model.shares()[:SENTENCES])]


def sentence(model: KruskalTensor, number: int, share: float) -> str:
    """Return the sentence of a component, counted from 0, with its share of the model."""
    names = mode_names(model)
    labels = [None] * len(names) if model.labels is None else model.labels
    part = f"{share:.0%}" if not share or abs(share) >= 0.005 else "less than 1%"
    return f"{part} of the model: " + "; ".join(
        f"{name}: {_named(own, factor[:, number])}"
        for name, own, factor in zip(names, labels, model.host_factors, strict=True)
    )


def _named(labels: HostArray | None, column: Floats) -> str:
    """Return the labels of a column's large entries as text; those of the other sign follow."""
    largest = float(np.abs(column).max(initial=0))
    if not largest:
        return "nothing"
    sign = np.sign(column[np.argmax(np.abs(column))])
    if column.size > 1 and (sign * column >= LARGE * largest).all():
        return "all alike"
    order = calendar_rows(labels)
    if order is None and is_ordered(labels):
        order = list(range(column.size)) if labels is None else np.argsort(labels, kind="stable").tolist()
    high, low = (_listed(labels, side * column, largest, order) for side in (1, -1))
    return " against ".join(filter(None, (high, low)))


def _listed(labels: HostArray | None, column: Floats, largest: float, order: Sequence[int] | None) -> str:
    """Return the labels of entries near `largest`, as ranges if there is an `order`; empty if there are none."""
    chosen = column >= LARGE * largest
    if order is None:
        rows = np.argsort(-column, kind="stable")[: np.count_nonzero(chosen)]
        parts = [(str(shown(label_of(labels, row))), 1.0) for row in rows]
    else:
        parts = _ranges(labels, column, chosen, np.asarray(order))
    kept = sorted(sorted(range(len(parts)), key=lambda at: -parts[at][1])[:NAMED])
    texts = [parts[at][0] for at in kept]
    texts += [f"{len(parts) - len(kept)} more"] if len(parts) > len(kept) else []
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1]))) if texts else ""


def _ranges(
    labels: HostArray | None, column: Floats, chosen: NDArray[np.bool_], order: NDArray[np.intp]
) -> list[tuple[str, float]]:
    """Return the ranges of chosen labels in an order, each with the sum of its entries."""
    places = np.flatnonzero(chosen[order])
    parts = list[tuple[str, float]]()
    for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
        names = [shown(label_of(labels, row)) for row in order[run]]
        size = float(column[order[run]].sum())
        if len(names) >= RANGE:
            parts.append((f"{names[0]} to {names[-1]}", size))
        else:
            parts += [(name, float(column[row])) for name, row in zip(names, order[run], strict=True)]
    return parts
