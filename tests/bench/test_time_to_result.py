"""Seconds until there is a result, of small programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from bench.time_to_result import summed

SMALL = "--device cpu --first 1 --later 1 --problems uber --partitioned 2000 --output".split()


def rows(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["part"], row["when"]): row for row in json.loads(path.read_text())["cases"]}


@pytest.mark.exhaustive
def test_every_part(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["time-to-result", *SMALL, str(folder)])
    found = rows(folder / "time_to_result-cpu-1.json")
    whens = {"calls": ("first call, empty caches", "first call, filled caches", "later")}
    parts = "processes", "calls", "partitions"
    assert set(found) == {(part, when) for part in parts for when in whens.get(part, ("first", "later"))}
    assert len(capsys.readouterr().out.splitlines()) == len(found)
    for row in found.values():
        assert row["seconds"]["runs"] == 1
        assert sum(row["seconds_by_stage"].values()) == pytest.approx(row["seconds"]["median"], rel=0.01)
    stages = {part: row["seconds_by_stage"] for (part, when), row in found.items() if when == "later"}
    assert {"start", "import", "read", "iterate", "write", "end"} <= set(stages["processes"])
    assert {"read", "iterate", "write"} <= set(stages["calls"])
    assert found["partitions", "later"]["store_bytes"] > 3 * 2000 * 16
    assert min(found["partitions", "later"]["seconds_of_a_plain_write"]) > 0


@pytest.mark.exhaustive
def test_partitions(folder: Path) -> None:
    main(["time-to-result", "--part", "partitions", *SMALL, str(folder)])
    found = rows(folder / "time_to_result-cpu-1.json")
    assert [row["ranks"] for row in found.values()] == [1, 1]
    assert {"start", "import", "compile", "read", "end"} <= set(found["partitions", "first"]["seconds_by_stage"])


@pytest.mark.exhaustive
def test_on_two_ranks(folder: Path) -> None:
    main(["time-to-result", "--part", "calls", "--ranks", "2", *SMALL, str(folder)])
    found = rows(folder / "time_to_result-cpu-2.json")
    assert [row["ranks"] for row in found.values()] == [2, 2, 2]


def test_medians_by_stage() -> None:
    each = [{"seconds": 10.0, "stages": {"end": 1.0, "read": s, "sort": 2.0}} for s in (3.0, 5.0, 4.0)]
    del each[0]["stages"]["sort"]  # type: ignore[attr-defined]
    found = summed("this", "later", each)
    assert found["seconds"]["median"] == 10
    assert found["seconds_by_stage"] == {"read": 4, "sort": 2, "end": 1, "other": 3}
    assert list(found["seconds_by_stage"]) == ["read", "sort", "end", "other"]
