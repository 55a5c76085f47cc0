"""The benchmark of scans: what it measures, and that runs agree with separate ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.__main__ import main


@pytest.mark.parametrize("kind", ["gaussian", "nonnegative", "poisson"])
def test_a_small_scan(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    rng = np.random.default_rng(0)
    indices = np.unique(rng.integers(1, 9, (200, 3)), axis=0)
    rows = [" ".join(map(str, [*row, value])) for row, value in zip(indices, rng.integers(1, 5, 200), strict=False)]
    (tmp_path / "x.tns").write_text("\n".join(rows) + "\n")
    how = ["--kind", kind, "--ranks", "1-3", "--starts", "2", "--repeats", "1", "--max-iters", "4"]
    main(["scan", "--tensor", str(tmp_path / "x.tns"), *how, "--output", str(tmp_path)])
    found = json.loads((tmp_path / "scan-cpu.json").read_text())["cases"][0]
    assert found["kind"] == kind
    assert found["largest_difference"] < 1e-5
    assert found["runs_seconds"]["median"] > 0 < found["halves_seconds"]["median"]
    assert f"{found['runs_as_times_the_largest']:.1f} times" in capsys.readouterr().out
