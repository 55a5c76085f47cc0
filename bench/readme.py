"""Prints the README's table of results, in Markdown, from the JSON files on disk."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import record
from .cases import Case, bytes_a_nonzero, grouped, read_cases, select, sweep, tensor

HEAD = (
    "tensor", "nonzeros", "rank", "1 GPU, ms", "the yardstick", "GPUs", "resident, ms", "speed-up", "streamed, ms",
    "of the link", "bytes a nonzero", "balance", "errors", "loaded, s", "CP-ALS, ms", "outside MTTKRP",
)  # fmt: skip
PLACED = ("auto", "resident")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    parser.add_argument("--input", type=Path, default=record.RESULTS, metavar="FOLDER")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--device", default="cuda")


def run(args: argparse.Namespace) -> None:
    """Print the table."""
    cases = select(read_cases(args.input), precision=args.precision, device=args.device, kernel="auto")
    decompositions = [json.loads(path.read_text()) for path in sorted(args.input.glob("cp_als-*.json"))]
    decompositions = [d for d in decompositions if d["precision"] == args.precision]
    rows = [HEAD, ["---"] * len(HEAD)]
    for (name, rank, _), some in grouped(cases, lambda c: (tensor(c), c["rank"], c["nonzeros"])).items():
        rows.append(_row(name, rank, some, _of(decompositions, some)))
    print("\n".join("| " + " | ".join(row) + " |" for row in rows))


def _row(name: str, rank: int, cases: Sequence[Case], decomposition: Any) -> list[str]:
    alone = _first(select(cases, ranks=1, placement=PLACED))
    ranks = max(c["ranks"] for c in cases)
    all_of_them = select(cases, ranks=ranks)
    placed = _first([c for c in select(all_of_them, placement=PLACED) if ranks > 1])
    streamed = _first(select(all_of_them, placement="stream"))
    best = placed or alone or streamed
    assert best is not None
    ratio = alone["yardstick"]["seconds_a_sweep"] / sweep(alone) if alone and "yardstick" in alone else None
    errors = best.get("errors")
    cells = [
        name,
        f"{best['nonzeros'] / 1e6:,.1f} M",
        str(rank),
        _milliseconds(alone),
        f"{ratio:.2f}×" if ratio else "",
        str(ranks),
        _milliseconds(placed),
        f"{sweep(alone) / sweep(placed):.2f}×" if alone and placed else "",
        _milliseconds(streamed),
        f"{streamed['link']['fraction_of_link']:.1%}" if streamed and "fraction_of_link" in streamed["link"] else "",
        " / ".join(f"{each:.1f}" for each in bytes_a_nonzero(best)),
        f"{best['balance']['all modes']:.2%}",
        f"{errors['norm-wise']:.0e}, {errors['row-wise']:.0e}" if errors else "",
        f"{best['seconds_to_load']['all']:.1f}",
    ]
    if decomposition is None:
        return [*cells, "", ""]
    each = decomposition["seconds_an_iteration"]["median"]
    return [*cells, f"{each * 1e3:.2f}", f"{decomposition['share_outside_mttkrp']:.1%}"]


def _first(cases: Sequence[Case]) -> Case | None:
    return min(cases, key=sweep) if cases else None


def _milliseconds(case: Case | None) -> str:
    return f"{sweep(case) * 1e3:,.2f}" if case else ""


def _of(decompositions: Sequence[Any], cases: Sequence[Case]) -> Any:
    """Return the decomposition of the same tensor on the most ranks."""
    keys = "shape", "nonzeros", "skew", "rank"
    same = [d for d in decompositions if "share_outside_mttkrp" in d and all(d[k] == cases[0][k] for k in keys)]
    return max(same, key=lambda d: int(d["ranks"])) if same else None
