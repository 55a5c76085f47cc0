"""``--metrics``: JSON lines with the times of every rank and mode."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import on_ranks, run_amped, small_tns, succeeded

import amped
from amped.report.metrics import WORK_KINDS, Metrics, split

RANK = 4
CPU = ["--device", "cpu"]


def events(path: Path | str, name: str = "") -> list[dict[str, Any]]:
    """Return the events of a file, or those of one name."""
    text = Path(path).read_text()
    assert text.endswith("\n")
    found = [json.loads(line) for line in text.splitlines()]
    return [event for event in found if name in ("", event["event"])]


def splits(path: Path | str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each event that has a split, with each record of it."""
    for event in events(path):
        for record in event.get("split", ()):
            yield event, record


def check_times(path: Path | str, ranks: int, modes: int) -> None:
    """Check that every iteration accounts for every rank and mode, and that rank 0's times fit into its own clock's."""
    for event in events(path, "iteration"):
        assert [(s["rank"], s["mode"]) for s in event["split"]] == [(r, m) for r in range(ranks) for m in range(modes)]
        spent = sum(s[k] for s in event["split"] if s["rank"] == 0 for k in WORK_KINDS if k != "copy")
        assert 0 < spent <= event["seconds"] + 1e-6
    for _, record in splits(path):
        assert set(record) == {"rank", "mode", *WORK_KINDS}
        assert all(record[kind] >= 0 for kind in WORK_KINDS)


def test_events_of_cpd(folder: Path) -> None:
    path, began = small_tns(folder), time.time()
    flags = ["--rank", RANK, "--tol", 0, "--max-iters", 4, "--seed", 2, "--metrics", "m.jsonl", "--output", "out"]
    succeeded(run_amped("cpd", path, *flags, *CPU))
    found = events("m.jsonl")
    assert [e["event"] for e in found] == ["start", *["iteration"] * 4, "memory", "stages", "end"]
    times = [e["time"] for e in found]
    assert times == sorted(times)
    assert began - 0.01 <= times[0] <= times[-1] <= time.time() + 0.01
    start, *iterations, memory, stages, end = found
    assert (start["tensor"], start["shape"], start["nonzeros"]) == (str(path), [9, 7, 5], 80)
    assert (start["rank"], start["ranks"]) == (RANK, 1)
    assert start["norm"] == pytest.approx(amped.read(path).norm(), rel=1e-12)
    assert start["options"]["device"] == "cpu"
    assert len(start["devices"]) == len(start["planned_bytes"]) == 1
    assert start["versions"]["amped"] == amped.__version__
    assert start["kernels"] == [["segmented"] * 3]
    record = json.loads(Path("out/run.json").read_text())
    assert [e["iteration"] for e in iterations] == [1, 2, 3, 4]
    assert [e["fit"] for e in iterations] == record["fits"]
    assert sum(e["seconds"] for e in iterations) <= record["seconds"] + 1e-6
    assert len(memory["used_and_planned_bytes"]) == 1
    assert {"read", "iterate", "write"} <= set(stages["seconds"])
    within = sum(
        stages["seconds"].get(stage, 0.0) for stage in ("iterate", "import", "compile")
    )  # the first loads code
    assert within >= sum(e["seconds"] for e in iterations) - 1e-3
    assert sum(stages["seconds"].values()) <= time.time() - began
    assert {key: end[key] for key in record} == record
    check_times("m.jsonl", 1, 3)
    totals = {kind: sum(s[kind] for _, s in splits("m.jsonl")) for kind in WORK_KINDS}
    for kind, seconds in record["seconds_by_kind"].items():
        assert totals[kind] == pytest.approx(seconds, abs=1e-6)
    assert totals["compute"] > 0
    assert totals["solve"] > 0
    assert totals["copy"] == 0  # all is resident


def test_events_of_mttkrp(folder: Path) -> None:
    path = small_tns(folder)
    flags = ["--rank", RANK, "--repeat", 2, "--mode", "all", "--metrics", "m.jsonl"]
    succeeded(run_amped("mttkrp", path, *flags, *CPU))
    found = events("m.jsonl")
    assert [e["event"] for e in found] == ["start", *["mttkrp"] * 6, "memory"]
    runs = events("m.jsonl", "mttkrp")
    assert [e["mode"] for e in runs] == [0, 0, 1, 1, 2, 2]
    for event in runs:
        assert [(s["rank"], s["mode"]) for s in event["split"]] == [(0, event["mode"])]
        assert 0 < event["split"][0]["compute"] <= event["seconds"]
        assert event["split"][0]["solve"] == 0


def test_copies_are_counted_where_nonzeros_are_streamed(folder: Path) -> None:
    path = small_tns(folder)
    flags = ["--rank", RANK, "--tol", 0, "--max-iters", 2, "--placement", "stream", "--metrics", "m.jsonl"]
    result = succeeded(run_amped("cpd", path, *flags, *CPU))
    copied: dict[int, float] = {}
    for _, s in splits("m.jsonl"):  # copies run ahead, into the iteration before
        copied[s["mode"]] = copied.get(s["mode"], 0.0) + s["copy"]
    assert len(copied) == 3
    assert all(seconds > 0 for seconds in copied.values())
    assert "copy " in result.out.splitlines()[-3]


def test_every_rank_and_mode_is_in_it(folder: Path) -> None:
    path = small_tns(folder, shape=(30, 20, 6), nonzeros=900)
    flags = ["--rank", RANK, "--tol", 0, "--max-iters", 3, "--metrics", folder / "m.jsonl", "--output", folder / "o"]
    result = on_ranks(3, "cpd", path, *flags, *CPU)
    assert result.code == 0, result.err
    check_times("m.jsonl", 3, 3)
    start = events("m.jsonl", "start")[0]
    assert start["ranks"] == len(start["devices"]) == len(start["planned_bytes"]) == len(start["kernels"]) == 3
    assert len(events("m.jsonl", "memory")[0]["used_and_planned_bytes"]) == 3
    assert all(s["exchange"] > 0 for _, s in splits("m.jsonl"))
    assert all(s["compute"] > 0 for _, s in splits("m.jsonl"))
    assert len(events("m.jsonl", "iteration")) == 3


def test_resume_appends(folder: Path) -> None:
    path = small_tns(folder)
    flags = ["--rank", RANK, "--tol", 0, "--metrics", "m.jsonl", "--checkpoint", "c", *CPU]
    succeeded(run_amped("cpd", path, *flags, "--max-iters", 2, "--output", "a"))
    first = Path("m.jsonl").read_bytes()
    succeeded(run_amped("cpd", path, *flags, "--max-iters", 5, "--output", "b", "--resume"))
    assert Path("m.jsonl").read_bytes().startswith(first)
    assert [e["iteration"] for e in events("m.jsonl", "iteration")] == [1, 2, 3, 4, 5]
    assert len(events("m.jsonl", "start")) == 2


def test_lines_can_be_read_while_the_run_goes_on(folder: Path) -> None:
    """Each event is whole on the disk when the next begins: a run that is killed leaves what it has measured."""
    seen: list[int] = []
    metrics = Metrics(folder / "m.jsonl")
    for number in range(3):
        metrics.event("iteration", iteration=number)
        seen.append(len(events("m.jsonl")))
    assert seen == [1, 2, 3]


def test_totals_are_means_over_ranks() -> None:
    metrics = Metrics()
    by_rank = [{("compute", 0): 1.0, ("solve", 1): 4.0}, {("compute", 0): 3.0}]
    metrics.add(by_rank)
    assert metrics.totals == {"compute": 2.0, "solve": 2.0}
    assert split(by_rank) == [
        {"rank": 0, "mode": 0, "copy": 0.0, "compute": 1.0, "exchange": 0.0, "solve": 0.0},
        {"rank": 0, "mode": 1, "copy": 0.0, "compute": 0.0, "exchange": 0.0, "solve": 4.0},
        {"rank": 1, "mode": 0, "copy": 0.0, "compute": 3.0, "exchange": 0.0, "solve": 0.0},
        {"rank": 1, "mode": 1, "copy": 0.0, "compute": 0.0, "exchange": 0.0, "solve": 0.0},
    ]


@pytest.mark.parametrize(
    ("seconds", "usual"), [([], None), ([3.0], 3.0), ([2.0, 1.0, 2.0, 1.0, 2.0], 1.5), ([9.0, 1.0, 1.0, 1.0], 1.0)]
)
def test_what_an_iteration_usually_takes(seconds: list[float], usual: float | None) -> None:
    """Of iterations that take turns, in one of which the next one's work is done, the mean counts."""
    metrics = Metrics()
    metrics.iterations.extend(seconds)
    assert metrics.usual == usual
