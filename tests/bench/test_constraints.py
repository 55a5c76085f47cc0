"""The comparison of constraints with TensorLy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.__main__ import main


def test_one_constraint(folder: Path) -> None:
    pytest.importorskip("tensorly")
    flags = ["--constraint", "simplex", "--iterations", "4", "--repeats", "1", "--output", str(folder)]
    main(["constraints", *flags])
    cases = json.loads((folder / "constraints-cpu.json").read_text())["cases"]
    assert [case["shape"] for case in cases] == [[20, 40, 15], [30, 25, 20], [12, 50, 30]]
    assert all(case["objective"]["amped"] > 0 for case in cases)
    assert all(case["seconds"]["TensorLy"]["median"] > 0 for case in cases)
