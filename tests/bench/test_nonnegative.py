"""Ways to solve rows without negative numbers, as the benchmark compares them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench import latency
from bench.__main__ import main
from bench.alternating import Admm, Hals, Inner


def system(rank: int, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rank)
    mixed = rng.random((3 * rank, rank))
    return mixed.T @ mixed, 10 * rng.standard_normal((rows, rank)), rng.random((rows, rank))


def objectives(gram: np.ndarray, right: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.asarray(((rows @ gram) * rows / 2 - rows * right).sum(axis=1))


@pytest.mark.parametrize("rank", [1, 7, 16])
def test_both_end_at_the_same_rows(rank: int) -> None:
    gram, right, start = system(rank, 1500)
    found = []
    for way in (Hals(5000), Admm(5000)):
        rows = start.copy()
        way.solve(0, gram, right, rows)
        assert rows.min() >= 0
        gradient = rows @ gram - right
        assert abs(np.minimum(rows, gradient)).max() < 1e-6 * abs(right).max(), "a minimum"
        found.append(rows)
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)


@pytest.mark.parametrize("way", [Hals(1), Admm(1), Admm(5)], ids=lambda way: way.name)
def test_no_row_becomes_worse(way: Inner) -> None:
    gram, right, rows = system(9, 300)
    for _ in range(20):
        before = objectives(gram, right, rows)
        way.solve(0, gram, right, rows)
        assert np.all(objectives(gram, right, rows) <= before + 1e-10 * (1 + abs(before)))


def test_a_result(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(latency, "BURST", 0)
    data = Path(__file__).parents[1] / "data"
    flags = ["--case", "matmul", "kinships", "--iterations", "8", "--starts", "2", "--output", str(folder)]
    main(["nonnegative", *flags, "--data", str(data)])
    found = json.loads((folder / "nonnegative-cpu.json").read_text())
    assert [path["way"] for path in found["paths"]] == 2 * [
        "HALS 1",
        "HALS 2",
        "HALS 5",
        "HALS 10",
        "ADMM 5",
        "ADMM 10",
    ]
    assert all(path["largest_fall"] < 1e-12 for path in found["paths"])
    assert [len(path.get("fits", [])) for path in found["paths"]] == 6 * [8] + 6 * [0]
    assert {cost["constraint"] for cost in found["costs"]} == {"plain", "non-negative", "ridge", "first mode fixed"}
    assert all(abs(each["fit"] - each["fit_of_tensorly"]) < 1e-4 for each in found["peer"])
    assert "kinships: skipped" in capsys.readouterr().out
