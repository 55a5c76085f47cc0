"""The residuals of a model as text: one line per finding."""

from __future__ import annotations

from collections.abc import Sequence

from partitioner.wording import readable

from ..models.explained import label_of
from ..models.findings import Finding
from ..models.residuals import Residuals
from .components import shown

SHOWN = 3  # labels of a mode in a line
ALL = "all"  # instead of labels
WORDS = {"element": "", "absent": "absent: ", "group": "group: ", "slice": "slice: "}


def text(residuals: Residuals) -> str:
    """Return the findings as text, and then the labels with the most unusual misfit per mode."""
    lines = [f"{number}. {line(finding, residuals.names)}" for number, finding in enumerate(residuals.findings, 1)]
    for each in residuals.slices:
        parts = [f"{shown(label_of(each.labels, row))} z {each.z[row]:+.1f}" for row in each.top()[:SHOWN]]
        if parts:
            lines.append(f"{each.name}: most unusual {', '.join(parts)}")
    return "\n".join(lines or ["no residuals"])


def line(finding: Finding, names: Sequence[str]) -> str:
    """Return a finding as a line."""
    pairs = zip(names, texts(finding), strict=True)
    where = ", ".join(f"{name} {labels}" for name, labels in pairs if labels != ALL)
    many = f"; {finding.elements} elements" if finding.kind == "group" else ""
    return (
        f"{WORDS[finding.kind]}{where}: {readable(finding.value)}, expected {readable(finding.expected)}{many}; "
        f"score {finding.score:.1f}"
    )


def texts(finding: Finding) -> list[str]:
    """Return the labels of a finding as text, by mode."""
    consecutive = finding.kind == "slice"
    return [labels_text(labels, consecutive and len(labels) > 1) for labels in finding.labels]


def _whole(labels: Sequence[object]) -> bool:
    """Return whether labels are consecutive whole numbers."""
    numbers = [label for label in labels if isinstance(label, int) and not isinstance(label, bool)]
    return len(numbers) == len(labels) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1


def labels_text(labels: Sequence[object], consecutive: bool = False) -> str:
    """Return the labels of a finding in one mode as text; `consecutive`: they follow each other in the mode."""
    if not labels:
        return ALL
    if consecutive or _whole(labels):
        return f"{shown(labels[0])} to {shown(labels[-1])}"
    more = f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else ""
    return ", ".join(map(shown, labels[:SHOWN])) + more
