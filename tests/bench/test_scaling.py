"""The forecast for many GPUs: the rows of its tensors, and its comparison with measured points."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from amped.operators.distributions.machine_model import H200, NVLINK, MachineModel
from bench import scaling
from bench.__main__ import main
from bench.counter_rng import HostRng, Recipe
from bench.record import RESULTS


def point(gpus: int, ms: float, **facts: object) -> dict[str, object]:
    usual = {"tensor": "uber393k", "gpu": "h200", "distribution": "all-gather", "what": "iteration", "kernels_ms": 0.1}
    return {**usual, "gpus": gpus, "ms": ms, **facts}


def test_rows_have_the_nonzeros_that_benchmarks_draw_on_average() -> None:
    recipe = Recipe((3000, 50), 400_000)
    drawn = HostRng(recipe).counts(0, range(recipe.nonzeros))
    expected = scaling.expected(3000, recipe.nonzeros)
    assert expected.sum() == recipe.nonzeros
    assert np.all(np.abs(drawn - expected) < 6 * np.sqrt(expected + 1))


def test_the_time_on_one_gpu_scales_the_forecast_of_others() -> None:
    work, machine = scaling.workload("uber393k"), MachineModel(H200, NVLINK)
    found = scaling.compared(work, [point(1, 0.5, kernels_ms=0.4), point(2, 0.5), point(4, 0.5)], machine)
    assert [each["by"] for each in found] == ["constants", "scaled", "scaled"]
    unscaled = scaling.compared(work, [point(2, 0.5)], machine)[0]
    assert unscaled["by"] == "constants"
    assert found[1]["model_ms"] > unscaled["model_ms"]
    assert found[1]["deviation"] == pytest.approx(found[1]["model_ms"] / 0.5 - 1)


def test_points_of_earlier_code_are_compared_with_one_another(tmp_path: Path) -> None:
    points = [point(1, 0.5, kernels_ms=0.4, earlier=True), point(2, 0.5, earlier=True), point(1, 0.2), point(2, 0.5)]
    (tmp_path / "points.json").write_text(json.dumps({"points": points}))
    flags = ["--tensors", "uber393k", "--gpus", "1", "--points", str(tmp_path / "points.json")]
    main(["scaling", *flags, "--output", str(tmp_path)])
    result = json.loads((tmp_path / "scaling.json").read_text())
    assert result["cases"][0]["today_ms"][0] == pytest.approx(0.2)
    one, newest, before = result["deviations"]
    assert (one["gpus"], one["measured_ms"]) == (1, 0.2), "that of earlier code is not compared with constants"
    assert before["model_ms"] > newest["model_ms"] + 0.1


def test_sweeps_have_no_solves() -> None:
    work, machine = scaling.workload("uber393k"), MachineModel(H200, NVLINK)
    one = point(1, 0.4, what="sweep")
    sweep, iteration = (scaling.compared(work, [one, point(2, 1.0, what=what)], machine)[1] for what in WHATS)
    assert sweep["model_ms"] < iteration["model_ms"]


WHATS = "sweep", "iteration"


@pytest.mark.parametrize(("name", "parts"), [("2x1x1x1", (2, 1, 1, 1)), ("all-gather", ()), ("replicated", ())])
def test_points_name_their_distribution(name: str, parts: tuple[int, ...]) -> None:
    found = scaling.distribution_of(point(2, 1.0, distribution=name))
    assert found.parts == parts
    assert found.ranks == 2


def test_it_writes_curves_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    points = tmp_path / "points.json"
    points.write_text(json.dumps({"points": [point(1, 0.166), point(2, 0.25)]}))
    flags = ["--tensors", "uber393k", "--gpus", "1", "2", "16", "--points", str(points), "--output", str(tmp_path)]
    main(["scaling", *flags])
    result = json.loads((tmp_path / "scaling.json").read_text())
    (case,) = result["cases"]
    assert case["measured"]
    assert case["today_ms"][0] == pytest.approx(0.166)
    assert case["best"][-1] == "replicated"  # never slower than one GPU
    assert case["best_ms"][-1] == pytest.approx(0.166)
    assert len(result["deviations"]) == 2
    assert (tmp_path / "scaling.png").exists()
    assert "uber393k on 2 h200" in capsys.readouterr().out


def test_the_model_is_within_a_tenth_of_most_measured_points() -> None:
    found = json.loads((RESULTS / "scaling.json").read_text())["deviations"]
    scaled = [each["deviation"] for each in found if each["by"] == "scaled"]
    assert len(scaled) >= 12
    assert sum(abs(each) <= 0.1 for each in scaled) >= 0.9 * len(scaled)
    assert max(map(abs, scaled)) <= 0.25
