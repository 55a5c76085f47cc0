"""The residuals of a model as text: one line per finding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..models.residuals import Finding, Residuals
from .components import shown

SHOWN = 3  # labels of a mode in a line
ALL = "all"  # instead of labels
WORDS = {"element": "", "absent": "absent: ", "group": "group: ", "slice": "slice: "}


def text(residuals: Residuals) -> str:
    """Return the findings as text, and then the labels with the most unusual misfit per mode."""
    lines = [f"{number}. {line(finding, residuals.names)}" for number, finding in enumerate(residuals.findings, 1)]
    for each in residuals.slices:
        top = each.columns()["label"]
        parts = [f"{shown(top[row])} z {each.z[row]:+.1f}" for row in each.top()[:SHOWN]]
        if parts:
            lines.append(f"{each.name}: most unusual {', '.join(parts)}")
    return "\n".join(lines or ["no residuals"])


def line(finding: Finding, names: Sequence[str]) -> str:
    """Return a finding as a line."""
    parts = [f"{name} {labels_text(labels)}" for name, labels in zip(names, finding.labels, strict=True) if labels]
    many = f"; {finding.elements} elements" if finding.kind == "group" else ""
    return (
        f"{WORDS[finding.kind]}{', '.join(parts)}: {finding.value:,.6g}, expected {finding.expected:,.3g}{many}; "
        f"score {finding.score:.1f}"
    )


def labels_text(labels: Sequence[Any]) -> str:
    """Return the labels of a finding in one mode as text."""
    if not labels:
        return ALL
    more = f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else ""
    return ", ".join(map(shown, labels[:SHOWN])) + more
