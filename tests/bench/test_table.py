"""The benchmark of tables, very small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.__main__ import main

pytest.importorskip("duckdb")


def test_table(tmp_path: Path) -> None:
    main(["table", *f"--millions 0.01 --repeats 1 --memory 1G --folder {tmp_path} --output {tmp_path}".split()])
    found = json.loads((tmp_path / "table-0.01m.json").read_text())
    group_by, store = found["cases"]
    assert store["nonzeros"] == group_by["groups"] <= found["rows"] == 10_000
    ratio = store["seconds"]["median"] / group_by["seconds"]["median"]
    assert found["store_over_group_by"]["median"] == pytest.approx(ratio, rel=1e-6)
    assert store["peak_bytes"] < found["memory"] == 1 << 30
    assert [path.name for path in tmp_path.iterdir()] == ["table-0.01m.json"]
