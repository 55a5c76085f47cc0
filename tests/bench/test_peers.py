"""CP-ALS of amped and other packages from one start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import small_tns

import amped
from bench import peers
from bench.__main__ import main


def cases(folder: Path, *packages: str) -> dict[str, dict[str, Any]]:
    flags = ["--rank", "2", "--iterations", "3", "--repeats", "1", "--output", str(folder)]
    main(["peers", str(small_tns(folder)), *flags, "--package", *packages])
    return {case["package"]: case for case in json.loads((folder / "peers-cpu.json").read_text())["cases"]}


@pytest.mark.exhaustive
def test_packages_reach_the_same_fit(folder: Path) -> None:
    for package in ("pyttb", "tensorly"):
        pytest.importorskip(package)
    found = cases(folder, "amped", "pyttb", "tensorly")
    assert found["pyttb"]["fit"] == pytest.approx(found["amped"]["fit"], abs=1e-9)
    assert found["tensorly"]["fit"] == pytest.approx(found["amped"]["fit"], abs=1e-9)
    assert all(case["seconds"]["median"] > 0 for case in found.values())


def test_what_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    X = amped.SparseTensor([[0, 0, 0]], [1.0], (10_000, 1000, 100))
    assert peers.missing("tensorly", X) == "an array of 1e+09 elements"
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    assert peers.missing("pygenten", X) == "pip install pygenten"
