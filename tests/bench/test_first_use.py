"""The time to the first answer, of small programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main


def cases(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["cases"]
    return found


@pytest.mark.exhaustive
def test_a_process_with_empty_and_with_filled_caches(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["first-use", "--part", "processes", "--only", "ttm", "--repeats", "1", "--output", str(folder)])
    cold, warm = cases(folder / "first-use-cpu.json")
    assert (cold["package"], cold["when"], warm["when"]) == ("amped", "cold", "warm")
    for case, names in ((cold, {"process", "cpu", "first", "later"}), (warm, {"process", "cpu", "first"})):
        assert set(case["seconds"]) == names
        assert case["seconds"]["process"]["median"] > case["seconds"]["first"]["median"] > 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert (folder / "first-use-cpu.png").exists()


def test_small_arrays(folder: Path) -> None:
    arguments = ["--part", "arrays", "--only", "201", "--iterations", "2", "--repeats", "1", "--output", str(folder)]
    main(["first-use", *arguments])
    plain, nonnegative = cases(folder / "first-use-cpu.json")
    assert "non-negative" in nonnegative["problem"]
    for case in (plain, nonnegative):
        assert case["seconds"]["amped"]["runs"] == 4
        assert abs(case["reported_minus_computed_fit"]) < 1e-12
        assert abs(case.get("amped_minus_tensorly_fit", 0.0)) < 1e-9
