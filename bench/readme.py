"""Print the table of results of docs/design/measurements.md, in Markdown, from the JSON files on disk."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from . import record
from .cases import (
    ADVERSARIAL,
    RANK,
    RESIDENT,
    Case,
    against_yardstick,
    bytes_a_nonzero,
    fastest,
    grouped,
    ordinary,
    ratio,
    read_cases,
    select,
    sweep,
    tensor,
)


class Row(NamedTuple):
    """The cases of one tensor with all nonzeros resident, or all streamed."""

    alone: Case | None  # on one rank
    together: Case | None  # on the most ranks

    @property
    def last(self) -> Case:
        """The case on the most ranks."""
        case = self.together or self.alone
        assert case is not None
        return case

    @property
    def both(self) -> list[Case]:
        """The existing cases."""
        return [case for case in self if case is not None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    add = parser.add_argument
    add("--input", type=Path, default=record.RESULTS, metavar="FOLDER")
    add("--rank", type=int, default=RANK, help=f"columns of the factor matrices ({RANK})")
    add("--precision", default="fp32")
    add("--device", default="cuda")
    add("--ranks-table", action="store_true", help="instead, one GPU against the yardstick by columns")


def run(args: argparse.Namespace) -> None:
    """Print the table."""
    wanted = {"precision": args.precision, "device": args.device, "values": "real"}
    cases = [c for c in select(ordinary(read_cases(args.input)), **wanted) if c["shape"] not in ADVERSARIAL]
    if args.ranks_table:
        print(by_columns(cases))
    else:
        print(table(select(cases, rank=args.rank), "GPU" if args.device == "cuda" else "rank"))


def table(cases: Sequence[Case], unit: str) -> str:
    """Return the table: a row per tensor, resident or streamed, without empty columns."""
    most = max((c["ranks"] for c in cases), default=1)
    groups = grouped(cases, lambda c: (tensor(c), c["nonzeros"], c["placement"] in RESIDENT))
    alone = [fastest(select(some, ranks=1)) for some in groups.values()]
    together = [fastest(select(some, ranks=most)) if most > 1 else None for some in groups.values()]
    rows = [row for row in map(Row, alone, together) if row.both]
    columns: dict[str, Callable[[Row], str]] = {
        "tensor": _tensor,
        "nonzeros": lambda row: f"{row.last['nonzeros'] / 1e6:,.1f} M",
        f"1 {unit}, ms": lambda row: _milliseconds(row.alone),
        "× yardstick": lambda row: f"{ratio(row.alone):.2f}" if row.alone and "yardstick" in row.alone else "",
        f"{most} {unit}s, ms": lambda row: _milliseconds(row.together),
        "speed-up": lambda row: f"{sweep(row.alone) / sweep(row.together):.2f}" if row.alone and row.together else "",
        "of the link": _link,
        "bytes per nonzero": _bytes,
        "norm-, row-wise error": _errors,
        "balance": lambda row: f"{row.together['balance']:.2%}" if row.together else "",
        "loaded, s": lambda row: f"{row.last['seconds_to_load']['all']:.1f}",
    }
    cells = {head: [cell(row) for row in rows] for head, cell in columns.items()}
    cells = {head: column for head, column in cells.items() if any(column)}
    return _markdown(list(cells), zip(*cells.values(), strict=True))


def by_columns(cases: Sequence[Case]) -> str:
    """Return the table of one GPU's speed relative to the yardstick, by tensor and number of columns."""
    measured = against_yardstick(cases)
    ranks = sorted({rank for some in measured.values() for rank in some})
    rows = [
        [name, *(f"{ratio(some[rank]):.2f}" if rank in some else "" for rank in ranks)]
        for name, some in measured.items()
    ]
    return _markdown(["columns", *map(str, ranks)], rows)


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _tensor(row: Row) -> str:
    case = row.last
    name = f"{case['shape']}: {' × '.join(map(str, case['lengths']))}, skew {case['skew']:g}"
    return name if case["placement"] in RESIDENT else f"{name}, streamed"


def _milliseconds(case: Case | None) -> str:
    return f"{sweep(case) * 1e3:,.2f}" if case else ""


def _link(row: Row) -> str:
    linked = [case for case in row.both if case["device"] != "cpu"]  # streaming on a host stays within its memory
    shares = [case["link"].get("fraction_of_link") for case in linked if case["link"]]
    return ", ".join(f"{share:.1%}" for share in shares if share)


def _bytes(row: Row) -> str:
    each = bytes_a_nonzero(row.last)
    return "–".join(dict.fromkeys(f"{size:.1f}" for size in (min(each), max(each))))


def _errors(row: Row) -> str:
    found = [case["errors"] for case in row.both if "errors" in case]
    return ", ".join(f"{max(e[k] for e in found):.1e}".replace("e-0", "e-") for k in ("norm-wise", "row-wise") if found)
