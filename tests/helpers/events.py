"""A small table of events as a file, and checks of the tensor built from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from partitioner.tensors.sparse import SparseTensor

EVENTS = [("b", 3, "2026-01-01 05:30", 1.5), ("a", 3, "2026-01-01 07:00", 2.0), ("b", 3, "2026-01-03 05:00", -1.0),
          ("b", 1, "2026-01-03 05:59", 4.0), ("b", 3, "2026-01-01 05:31", 0.5)]  # fmt: skip


def write_csv(path: Path, rows: Sequence[Sequence[Any]] = EVENTS, names: str = "who,what,t,cost") -> Path:
    """Write rows as text with commas."""

    def field(each: Any) -> str:
        text = "" if each is None else str(each)
        quoted = any(mark in text for mark in ',"\n')
        return '"' + text.replace('"', '""') + '"' if quoted else text

    lines = [names, *(",".join(map(field, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def sparse(tensor: Any) -> SparseTensor:
    """Check that a tensor has a label for each index."""
    assert isinstance(tensor, SparseTensor)
    assert tensor.labels is not None
    assert tuple(each.size for each in tensor.labels) == tensor.shape
    return tensor


def entries(tensor: SparseTensor) -> dict[tuple[Any, ...], float]:
    """Return the values by labels."""
    labels = [each.tolist() for each in tensor.labels or ()]
    rows = zip(tensor.columns.T.tolist(), tensor.values.tolist(), strict=True)
    return {tuple(labels[m][i] for m, i in enumerate(row)): value for row, value in rows}
