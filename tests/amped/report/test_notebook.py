"""Results in notebooks, and as data frames."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import run_amped, small_tns, succeeded

import amped
from amped import InputError
from amped.report.notebook import MOST_ROWS
from partitioner.tensors.labels import Labels, as_labels

ARRAY = np.random.default_rng(0).random((6, 5, 4))
HOW: dict[str, Any] = {"device": "cpu", "precision": "fp64"}


def cells(html: str) -> list[list[str]]:
    """Return the texts of a table by rows, the heads first."""
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    return [[unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows]


def above(html: str) -> str:
    return unescape(re.sub("<table>.*</table>", "", html))


@pytest.fixture
def model() -> amped.KruskalTensor:
    factors = [np.array([[0.25, 0], [0.75, 1.0]]), np.array([[0.5, 0.2], [0.5, 0.8]])]
    model = amped.KruskalTensor(np.array([3.0, 1.0]), factors, [0.5, 0.625], True)
    return model.labelled([["<b>&", "x"], [2, 4]])


@pytest.mark.parametrize(
    ("name", "text"),
    [("loglikelihood", "log-likelihood -1,105,009"), ("objective", "objective -1,105,009")],
)
def test_the_headline_has_the_main_metric(model: amped.KruskalTensor, folder: Path, name: str, text: str) -> None:
    other = amped.KruskalTensor(model.weights, model.factors, (), False, {name: [2.0, -1_105_009.25]})
    assert f"{text} after 2 iterations, not converged" in above(other._repr_html_())
    other.save("m.npz")
    (folder / "m").mkdir()
    (folder / "m.npz").rename(folder / "m" / "model.npz")
    record = "objectives" if name == "objective" else name
    (folder / "m" / "run.json").write_text(json.dumps({record: [2.0, -1_105_009.25]}))
    assert succeeded(run_amped("show", "m")).out.splitlines()[0].endswith(f"; {text} after 2 iterations")


def test_a_cp_model(model: amped.KruskalTensor) -> None:
    html = model._repr_html_()
    assert cells(html) == [
        ["component", "weight", "share", "mode 0", "mode 1"],
        ["1", "3", "75.0%", "x 75%, <b>& 25%", "2 50%, 4 50%"],
        ["2", "1", "25.0%", "x 100%", "4 80%, 2 20%"],
    ]
    assert "CP model, 2 components, shape 2 × 2; fit 0.6250 after 2 iterations, converged" in above(html)
    assert "<b>&" not in html
    assert "&lt;b&gt;&amp;" in html
    assert cells(model.top(1)._repr_html_())[1] == ["1", "3", "75.0%", "x 75%", "2 50%"]


def test_components_as_frames(model: amped.KruskalTensor) -> None:
    pandas = pytest.importorskip("pandas")
    frame = model.to_frame()
    assert frame.columns.tolist() == ["component", "weight", "share", "mode 0", "mode 1"]
    assert frame["mode 1"].tolist() == ["2 50%, 4 50%", "4 80%, 2 20%"]
    assert frame["share"].tolist() == [0.75, 0.25]
    top = model.top()
    assert isinstance(top, list)
    assert model.to_frame()["component"].tolist() == [0, 1], "frames count from 0"
    frame = top.to_frame()
    assert len(frame) == 4 + 3, "zero entries are left out"
    first = frame.iloc[0]
    assert (first.component, first["mode"], first.place, first.label, first.entry) == (0, "mode 0", 0, "x", 0.75)
    assert isinstance(frame, pandas.DataFrame)


def test_many_components_are_counted() -> None:
    model = amped.KruskalTensor(np.ones(40), [np.ones((2, 40)), np.ones((3, 40))])
    html = model._repr_html_()
    assert len(cells(html)) == 1 + MOST_ROWS
    assert "and 8 more" in html
    assert len(model.to_frame()) == 40


def test_a_tucker_model() -> None:
    pytest.importorskip("pandas")
    model = amped.tucker(ARRAY, (2, 2, 2), max_iters=3, tol=0, **HOW)
    html = model._repr_html_()
    assert f"Tucker model, core 2 × 2 × 2, shape 6 × 5 × 4; fit {model.fits[-1]:.4f} after 3 iterations" in above(html)
    assert cells(html)[0] == ["mode", "column", "share", "labels"]
    assert [row[1] for row in cells(html)[1:]] == ["1", "2"] * 3
    frame = model.to_frame(2)
    assert frame["column"].tolist() == [0, 1] * 3
    np.testing.assert_allclose(frame.groupby("mode")["share"].sum(), 1)
    np.testing.assert_allclose(frame["share"][2], np.square(model.core[:, 0]).sum() / np.square(model.core).sum())
    assert frame["labels"][0].count(",") == 1


def test_residuals(model: amped.KruskalTensor) -> None:
    pytest.importorskip("pandas")
    tensor = amped.DenseTensor(np.array([[1.0, 2.0], [3.0, 9.0]])).labelled(model.labels)
    residuals = model.residuals(tensor)
    frame = residuals.to_frame()
    assert frame.columns.tolist()[:4] == ["mode 0", "mode 1", "value", "expected"]
    assert frame.iloc[0]["mode 0"] == "x"
    np.testing.assert_allclose(frame["residual"], frame["value"] - frame["expected"])
    rows = cells(residuals._repr_html_())
    assert rows[0] == ["finding", "mode 0", "mode 1", "elements", "value", "expected", "score"]
    assert ["x", "4", "9"] in [row[:3] for row in rows]


def test_modes_with_the_names_of_columns(model: amped.KruskalTensor) -> None:
    model.labelled(Labels(map(as_labels, ([0.25, 0.5], [1990, 1991])), ["share", "finding"]))
    tensor = amped.DenseTensor(np.array([[1.0, 2.0], [3.0, 9.0]])).labelled(model.labels)
    rows = cells(model.residuals(tensor)._repr_html_())
    at = rows.index(["share", "finding", "value", "expected", "standardised", "absent"])
    assert ["0.5", "1991", "9"] in [row[:3] for row in rows[at:]]
    model.labelled(Labels(map(as_labels, ([0.25, 0.5], [1990, 1991])), ["share", "largest changes"]))
    rows = cells(model.compare(model)._repr_html_())
    heads = ["first", "second", "status", "congruence", "share_first", "share_second", "share", "largest changes"]
    assert rows[0] == [*heads, "largest changes_"]
    assert rows[1] == ["1", "1", "same", "1", "75.0%", "75.0%", "1", "1", ""]


def test_scans() -> None:
    pytest.importorskip("pandas")
    found = amped.scan(ARRAY, "1-2", starts=2, max_iters=5, halves=False, **HOW)
    frame = found.to_frame()
    assert frame["rank"].tolist() == [1, 2]
    assert frame["explained"].tolist() == [each.squared for each in found.tried]
    assert frame["suggested"].tolist() == [each.rank == found.suggestion.rank for each in found.tried]
    html = found._repr_html_()
    assert found.suggestion.reason in above(html)
    assert cells(html)[1][5] == "-", "no halves"
    assert cells(html)[2][6].endswith(" %"), "the core consistency"


def test_large_numbers_have_no_exponent(model: amped.KruskalTensor) -> None:
    model.weights[:] = [148_561.7, 0.000123]
    assert [row[1] for row in cells(model._repr_html_())] == ["weight", "148,562", "0.000123"]


@pytest.mark.parametrize(
    ("rank", "how", "flags"),
    [
        (3, {}, ["--rank", 3]),
        (3, {"ranks": 2, "nonnegative": True}, ["--rank", 3, "--ranks", 2, "--nonnegative"]),
        (3, {"loss": "poisson"}, ["--rank", 3, "--loss", "poisson"]),
        ((2, 3, 2), {}, ["--rank", "2,3,2"]),
    ],
)
def test_plans_are_those_of_the_command_line(folder: Path, rank: Any, how: dict[str, Any], flags: list[Any]) -> None:
    pytest.importorskip("pandas")
    path = small_tns(folder)
    plan = amped.plan(path, rank, device="cpu", **how)
    printed = succeeded(run_amped("plan", path, *flags, "--device", "cpu")).out
    assert plan is not None
    varies = re.compile(r"[\d.]+ (?:B|KiB|MiB)|\s+")  # free memory changes from run to run
    assert varies.sub(" ", str(plan)) in varies.sub(" ", printed)
    frame = plan.to_frame()
    assert len(frame) == how.get("ranks", 1)
    assert (frame["device"] == frame.drop(columns=["rank", "device", "host"]).sum(axis=1)).all()
    assert frame["host"].tolist() == list(plan.host_bytes)
    assert len(cells(plan._repr_html_())) == 1 + len(frame)
    assert plan.expectation in above(plan._repr_html_())


def test_invalid_plans() -> None:
    for rank, message in ((0, "rank 0: expected"), ((2, 0, 2), "rank 0: expected"), ("3", "rank '3': expected")):
        with pytest.raises(InputError, match=message):
            amped.plan(ARRAY, rank, device="cpu")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="ranks 0"):
        amped.plan(ARRAY, 2, ranks=0, device="cpu")
