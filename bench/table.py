"""Rows a second from a Parquet table of events to a store, beside DuckDB's own GROUP BY of the same keys."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from amped.report.metrics import peak_resident_bytes
from partitioner.flags import byte_count
from partitioner.host.threads import usable_cores

from .harness import Facts, Result, common_flags, in_a_process, in_turn, seconds_of
from .spread import summary

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
    add = common_flags(parser, "table-MILLIONSm", device=None, repeats=3)
    add("--millions", type=float, default=10, metavar="N", help="of rows (10)")
    add("--memory", type=byte_count, default=2 << 30, metavar="BYTES", help="of each program (2G)")
    add("--folder", type=Path, metavar="DIR", help="for the table and the store (a temporary one)")


def run(args: argparse.Namespace) -> None:
    """Measure and write the result."""
    rows, threads = int(args.millions * 1e6), usable_cores()
    found: dict[str, list[Facts]] = {"group_by": [], "store": []}
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        table = Path(name) / "events.parquet"
        in_a_process(generate, table, rows)

        def once(way: str, measured: Any) -> float:
            found[way].append(in_a_process(measured, table, args.memory, threads))
            print(f"{way}: {found[way][-1]}", flush=True)
            return float(found[way][-1]["seconds"])

        ways = {"group_by": partial(once, "group_by", group_by), "store": partial(once, "store", to_store)}
        each = in_turn(ways, args.repeats, warm=0)
        size = table.stat().st_size
    ratios = [mine / theirs for mine, theirs in zip(each["store"], each["group_by"], strict=True)]
    facts = {
        "rows": rows, "keys": KEYS, "table_bytes": size, "memory": args.memory, "threads": threads,
        "duckdb": version("duckdb"), "store_over_group_by": summary(ratios),
    }  # fmt: skip
    result = Result(args, f"table-{args.millions:g}m", ["CPU"], **facts)
    for way, runs in found.items():
        result.add({"way": way, **runs[-1], "seconds": summary(each[way])})
    speed = rows / statistics.median(each["store"]) / 1e6
    print(f"{speed:.2f} million rows/s, {statistics.median(ratios):.2f} times GROUP BY's time", flush=True)


def _connect(folder: Path, memory: int, threads: int) -> Any:
    import duckdb

    config = {"memory_limit": f"{memory}B", "threads": str(threads), "temp_directory": str(folder / "spilled")}
    connection = duckdb.connect(config=config)
    connection.execute("SET enable_progress_bar = false").fetchall()
    return connection


def generate(table: Path, rows: int) -> None:
    """Write a table of events."""
    connection = _connect(table.parent, 4 << 30, usable_cores())
    connection.execute("SELECT setseed(0.25)").fetchall()
    connection.execute(f"COPY ({EVENTS.format(rows=rows)}) TO '{table}' (FORMAT parquet)").fetchall()


def group_by(table: Path, memory: int, threads: int) -> Facts:
    """Time DuckDB's GROUP BY; its groups are counted."""
    connection, groups = _connect(table.parent, memory, threads), list[int]()
    connection.execute("SET preserve_insertion_order = false").fetchall()
    query = f"SELECT count(*) FROM (SELECT {', '.join(KEYS)}, count(*) FROM '{table}' GROUP BY ALL)"
    seconds = seconds_of(lambda: groups.append(connection.execute(query).fetchall()[0][0]))
    return {"seconds": seconds, "groups": groups[0], "peak_bytes": peak_resident_bytes()}


def to_store(table: Path, memory: int, threads: int) -> Facts:
    """Time the way from the table to a store on the disk."""
    from partitioner.build import partition
    from partitioner.host.jit import load_compiler
    from partitioner.host.stages import STAGES
    from partitioner.readers import ReadOptions

    load_compiler()
    target, stores = table.with_name("store"), list[Any]()
    options = ReadOptions(key=KEYS)
    seconds = seconds_of(lambda: stores.append(partition(table, target, memory=memory, force=True, form=options)))
    return {
        "seconds": seconds, "shape": stores[0].shape, "nonzeros": stores[0].nnz, "peak_bytes": peak_resident_bytes(),
        "store_bytes": sum(file.stat().st_size for file in target.iterdir()), "stages": STAGES.collect(),
    }  # fmt: skip
