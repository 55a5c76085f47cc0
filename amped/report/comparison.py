"""The comparison of two models as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..models.comparison import SAME, Comparison, ComponentPair, LabelChange
from .components import INDENT, number_text, shown

NAMES = "the first model", "the second model"


def text(comparison: Comparison) -> str:
    """Return the comparison: a line per pair, and the labels that changed most in modes that are not the same."""
    lines = headlines(comparison)
    for pair in comparison.pairs:
        modes = zip(comparison.modes, pair.by_mode, strict=True)
        by_mode = ", ".join(f"{mode.name} {congruence:.2f}" for mode, congruence in modes)
        shares = " -> ".join(f"{share:.1%}" for share in pair.shares)
        lines.append(
            f"component {pair.first + 1} and {pair.second + 1}: {pair.status}, congruence {pair.congruence:.2f} "
            f"({by_mode}); {shares} of the model"
        )
        lines += [INDENT + line for line in change_lines(comparison, pair)]
    return "\n".join(lines)


def headlines(comparison: Comparison) -> list[str]:
    """Return lines about the whole comparison: the match, and what one of the models lacks."""
    counts = [sum(pair.status == status for pair in comparison.pairs) for status in ("same", "similar", "changed")]
    lines = [
        f"factor match {comparison.match:.3f}; components: {counts[0]} the same, {counts[1]} similar, "
        f"{counts[2]} changed, {len(comparison.only[0])} only in {NAMES[0]}, {len(comparison.only[1])} only in "
        f"{NAMES[1]}"
    ]
    for name, numbers in zip(NAMES, comparison.only, strict=True):
        if numbers:
            lines.append(f"only in {name}: component {', '.join(str(number + 1) for number in numbers)}")
    for mode in comparison.modes:
        for name, labels in zip(NAMES, mode.only, strict=True):
            if labels:
                count = f"{len(labels):,} label{'s' * (len(labels) > 1)}"
                lines.append(f"{mode.name}: {count} only in {name} ({_some(labels)})")
    return lines + [f"not compared: {reason}" for reason in comparison.skipped]


def _some(labels: Sequence[object]) -> str:
    return ", ".join(map(shown, labels[:3])) + ", ..." * (len(labels) > 3)


def change_lines(comparison: Comparison, pair: ComponentPair) -> Iterator[str]:
    """Yield a line for each mode that is not the same, with the labels that gained and those that lost."""
    for mode, congruence, changes in zip(comparison.modes, pair.by_mode, pair.changes, strict=True):
        if congruence >= SAME:
            continue
        yield f"{mode.name}: {change_text(changes)}"


def change_text(changes: Sequence[LabelChange]) -> str:
    """Return the labels that gained, then those that lost, as text."""
    parts = []
    for word, gains in (("gained", True), ("lost", False)):
        chosen = [change for change in changes if (change.after > change.before) == gains]
        if chosen:
            parts.append(f"{word} {', '.join(map(_change, chosen))}")
    return "; ".join(parts)


def _change(change: LabelChange) -> str:
    positive = min(change.before, change.after) >= 0
    return f"{shown(change.label)} {number_text(change.before, positive)} -> {number_text(change.after, positive)}"
