"""The comparison of missing elements with TensorLy and pyttb."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.__main__ import main


def test_one_fraction(folder: Path) -> None:
    pytest.importorskip("tensorly")
    pytest.importorskip("pyttb")
    rng = np.random.default_rng(0)
    columns = [rng.random(length) for length in (4, 5, 6)]
    np.save(folder / "small.npy", np.einsum("i,j,k->ijk", *columns) + 0.01 * rng.random((4, 5, 6)))
    flags = ["--rank", "1", "--missing", "0.2", "--starts", "1", "--limit", "0.3", "--iterations", "100"]
    main(["gaps", str(folder / "small.npy"), *flags, "--output", str(folder)])
    plain, nonnegative = json.loads((folder / "gaps-cpu.json").read_text())["cases"]
    assert (plain["nonnegative"], nonnegative["nonnegative"]) == (False, True)
    for case in (plain, nonnegative):
        assert min(case["lowest"].values()) >= case["optimum"] * (1 - 1e-9)
        assert case["lowest"]["pyttb"] == pytest.approx(case["optimum"], rel=1e-3)
