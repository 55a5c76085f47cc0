"""Whole programs of amped and other packages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.tasks import PROGRAMS, TASKS


def test_each_task_has_its_programs() -> None:
    named = {f"{task}_{package}.py" for task, packages in TASKS.items() for package in packages}
    assert {path.name for path in PROGRAMS.glob("*.py")} == named


@pytest.mark.exhaustive
@pytest.mark.parametrize("task", TASKS)
def test_lines_seconds_and_a_picture(folder: Path, task: str) -> None:
    pytest.importorskip("PIL")
    main(["tasks", "--task", task, "--package", "amped", "--repeats", "1", "--output", str(folder)])
    (case,) = json.loads((folder / "tasks-cpu.json").read_text())["cases"]
    assert 4 < case["lines"] < 15
    assert case["seconds"]["processor"]["median"] > 0
    assert (folder / case["picture"]).stat().st_size > 1000
    assert len(case["output"].splitlines()) > 4
