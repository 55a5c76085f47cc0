"""Rows a second from a Parquet table of events to a store, beside DuckDB's own GROUP BY of the same keys."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from amped.report.metrics import peak_resident_bytes
from partitioner.flags import byte_count
from partitioner.host.threads import usable_cores

from . import record
from .host_partition import alone

KEYS = ('"user"', "host", "action", "hour", "day")
EVENTS = """
    SELECT 'user-' || lpad(CAST(floor(50000 * pow(random(), 2.5)) AS VARCHAR), 5, '0') AS "user",
        'host-' || lpad(CAST(floor(5000 * pow(random(), 2)) AS VARCHAR), 4, '0') || '.example.org' AS host,
        'action-' || CAST(CAST(floor(200 * pow(random(), 3)) AS INTEGER) AS VARCHAR) AS action,
        lpad(CAST(CAST(floor(24 * random()) AS INTEGER) AS VARCHAR), 2, '0') AS hour,
        strftime(DATE '2025-01-01' + CAST(floor(365 * random()) AS INTEGER), '%Y-%m-%d') AS day
    FROM range({rows})
"""
"""Strings, of which some users, hosts and actions are far more frequent than others."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's flags."""
    parser.add_argument("--millions", type=float, default=10, metavar="N", help="of rows (10)")
    parser.add_argument("--memory", type=byte_count, default=2 << 30, metavar="BYTES", help="of each program (2G)")
    parser.add_argument("--repeats", type=int, default=3, metavar="K", help="of each, in turn (3)")
    parser.add_argument("--written", action="store_true", help="have DuckDB write its groups to Parquet, too")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="for the table and the store (a temporary one)")
    parser.add_argument("--output", type=Path, default=record.RESULTS, metavar="FOLDER")


def run(args: argparse.Namespace) -> None:
    """Measure and write the result."""
    rows, threads = int(args.millions * 1e6), usable_cores()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        table = folder / "events.parquet"
        alone(generate, table, rows)
        parts = {
            "group_by": group_by,
            **({"group_by_written": group_by_written} if args.written else {}),
            "store": to_store,
        }
        found: dict[str, list[dict[str, Any]]] = {part: [] for part in parts}
        for _ in range(args.repeats):
            for part, measured in parts.items():
                found[part].append(alone(measured, table, args.memory, threads))
                print(f"{part}: {found[part][-1]}", flush=True)
        size = table.stat().st_size
    ratios = [
        mine["seconds"] / theirs["seconds"] for mine, theirs in zip(found["store"], found["group_by"], strict=True)
    ]
    facts = {
        "rows": rows, "keys": list(KEYS), "table_bytes": size, "memory": args.memory, "threads": threads,
        "duckdb": version("duckdb"), "times": found, "store_over_group_by": record.summary(ratios),
    }  # fmt: skip
    path = record.write(f"table-{args.millions:g}m", ["CPU"], facts, args.output)
    speed = rows / statistics.median(each["seconds"] for each in found["store"]) / 1e6
    print(f"{path.name}: {speed:.2f} million rows/s, {statistics.median(ratios):.2f} times GROUP BY's time", flush=True)


def _connect(folder: Path, memory: int, threads: int) -> Any:
    import duckdb

    spilled = str(folder / "spilled")
    how = {"memory_limit": f"{memory}B", "threads": str(threads), "temp_directory": spilled}
    connection = duckdb.connect(config=how)
    connection.execute("SET enable_progress_bar = false").fetchall()
    return connection


def generate(table: Path, rows: int) -> None:
    """Write a table of events."""
    connection = _connect(table.parent, 4 << 30, usable_cores())
    connection.execute("SELECT setseed(0.25)").fetchall()
    connection.execute(f"COPY ({EVENTS.format(rows=rows)}) TO '{table}' (FORMAT parquet)").fetchall()


def group_by(table: Path, memory: int, threads: int, into: str = "") -> dict[str, Any]:
    """Time DuckDB's GROUP BY; its groups are counted."""
    connection = _connect(table.parent, memory, threads)
    connection.execute("SET preserve_insertion_order = false").fetchall()
    groups = f"SELECT {', '.join(KEYS)}, count(*) AS n FROM '{table}' GROUP BY ALL"
    began = time.perf_counter()
    query = f"COPY ({groups}) TO '{into}' (FORMAT parquet)" if into else f"SELECT count(*), sum(n) FROM ({groups})"
    (found,) = connection.execute(query).fetchall()
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "groups": int(found[0]), "peak_bytes": peak_resident_bytes()}


def group_by_written(table: Path, memory: int, threads: int) -> dict[str, Any]:
    """Time DuckDB's GROUP BY; its groups are written to a Parquet file."""
    into = table.with_name("groups.parquet")
    try:
        return group_by(table, memory, threads, str(into))
    finally:
        into.unlink(missing_ok=True)


def to_store(table: Path, memory: int, threads: int) -> dict[str, Any]:
    """Time the way from the table to a store on the disk."""
    from partitioner.build import partition
    from partitioner.host.jit import load_compiler
    from partitioner.host.stages import STAGES
    from partitioner.readers import ReadOptions

    load_compiler()
    target = table.with_name("store")
    began = time.perf_counter()
    store = partition(table, target, memory=memory, force=True, form=ReadOptions(key=KEYS))
    seconds = time.perf_counter() - began
    return {
        "seconds": seconds, "shape": store.shape, "nonzeros": store.nnz, "peak_bytes": peak_resident_bytes(),
        "store_bytes": sum(file.stat().st_size for file in target.iterdir()), "stages": STAGES.collect(),
    }  # fmt: skip
