"""Models that are there: the verb ``show``."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from command import refused, run_amped, small_tns, succeeded

import amped
from amped.report import components

ROOT = Path(__file__).parents[2]


@pytest.fixture
def named_model() -> amped.KruskalTensor:
    rng = np.random.default_rng(1)
    model = amped.KruskalTensor(np.array([8.0, 2.0]), [rng.dirichlet(np.ones(n), 2).T for n in (4, 30, 3)])
    names = [["UA", 'a, "b"', "x\ny\t", "é" * 100], np.arange(30), [True, False, True]]
    return model.labelled(names)


def test_show_names_the_labels_of_each_component(folder: Path, named_model: amped.KruskalTensor) -> None:
    (folder / "out").mkdir()
    named_model.save(folder / "out" / "model.npz")
    (folder / "out" / "run.json").write_text('{"tensor": "x.tns", "fits": [0.1, 0.25], "iterations": 2}')
    for place in ("out", "out/model.npz"):
        told = succeeded(run_amped("show", place, "--top", 2)).out
        lines = told.splitlines()
        assert lines[0] == f"{place}: 2 components of x.tns; fit 0.250000 after 2 iterations"
        assert [line for line in lines if line.startswith("component")] == [
            "component 1: 80.0% of the model, weight 8",
            "component 2: 20.0% of the model, weight 2",
        ]
        assert max(map(len, lines)) <= 200
    named_model.save(folder / "single.npz")
    assert succeeded(run_amped("show", "single.npz")).out.startswith("single.npz: 2 components\n")


def test_labels_stay_in_their_line_and_lines_in_the_terminal(named_model: amped.KruskalTensor) -> None:
    told = components.text(named_model, 10, width=80)
    assert max(map(len, told.splitlines())) <= 80
    assert len(told.splitlines()) <= 6, "three lines each"
    assert "mode 0: " in told
    assert "é" * 40 not in told
    wide = components.text(named_model, 4, width=1000)
    assert '"a, "b""' in wide
    assert "x y " in wide
    assert components.text(named_model, 3, most=1).endswith("... and 1 more components")
    assert "(missing)" in components.text(
        amped.KruskalTensor(np.ones(1), [np.ones((1, 1))] * 2).labelled([[None], [1]])
    )


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["nothing"], ("nothing", "No such file")),
        (["empty"], ("model.npz",)),
        (["damaged.npz"], ("damaged.npz",)),
        (["fine.npz", "--top", "0"], ("--top 0",)),
        (["fine.npz", "--rank", "3"], ("--rank",)),
    ],
    ids=["nothing", "an empty folder", "no archive", "no labels", "another verb's flag"],
)
def test_what_is_no_model_is_refused(folder: Path, arguments: list[str], parts: tuple[str, ...]) -> None:
    (folder / "empty").mkdir()
    (folder / "damaged.npz").write_bytes(b"no archive")
    amped.KruskalTensor(np.ones(1), [np.ones((2, 1))] * 2).save(folder / "fine.npz")
    refused(run_amped("show", *arguments), *parts)


def test_a_picture_takes_labels_of_any_kind(folder: Path, named_model: amped.KruskalTensor) -> None:
    pytest.importorskip("matplotlib")
    days = np.array(["2024-01-31", "2024-02-01", "NaT", "2024-02-03"], "M8[D]")
    mixed = np.array(["$x^$", None, "b", "c"], object)
    named_model.labelled([days, np.arange(30) * np.timedelta64(1, "h"), mixed[:3]]).plot(folder / "x.png")
    assert (folder / "x.png").stat().st_size > 3000
    named_model.labelled([mixed, np.where(np.arange(30) == 4, np.nan, 0.5), [True, False, True]]).plot(folder / "x.svg")
    many = amped.KruskalTensor(np.ones(40), [np.eye(40)] * 2)
    many.plot(folder / "z.png", top=1)
    for wrong, cause in (("no/such/folder.png", "cannot write: No such"), ("x.docx", "unknown picture format")):
        with pytest.raises(amped.InputError, match=cause):
            named_model.plot(folder / wrong, top=1)


def test_the_guide_shows_what_is_printed(folder: Path) -> None:
    """Numbers may differ a little between machines."""
    guide = (ROOT / "docs/guide/results.md").read_text()
    shown = re.search(r"For example:\n\n    amped (.*)\n    amped (.*)\n\n((?:    .*\n)+)", guide)
    assert shown is not None
    decomposes, explains, printed = shown.groups()
    succeeded(run_amped(*decomposes.replace("amped/data", str(ROOT / "amped/data")).split()))
    found = succeeded(run_amped(*explains.replace("amped/data", str(ROOT / "amped/data")).split())).out
    number = r"-?[\d,]*\.?\d+"
    assert re.sub(number, "N", found).split() == re.sub(number, "N", printed).split()
    of_found, of_printed = ([float(n.replace(",", "")) for n in re.findall(number, text)] for text in (found, printed))
    assert of_found == pytest.approx(of_printed, rel=0.01, abs=0.15)


@pytest.mark.parametrize(
    "flags",
    [
        ["tucker", "--rank", "2,all,2", "--max-iters", "3"],
        ["tucker", "--rank", "2,2,2", "--nonnegative", "--accelerate", "off"],
        ["tucker", "--rank", "2,2,2", "--nonnegative", "--checkpoint", "c", "--max-iters", "7", "--tol", "0"],
        ["cpd", "--rank", "2", "--accelerate", "on", "--max-iters", "9"],
    ],
    ids=" ".join,
)
def test_the_recorded_command_gives_the_model_again(folder: Path, flags: list[str]) -> None:
    verb, *others = flags
    small_tns(folder)
    succeeded(run_amped(verb, "small.tns", *others, "--output", "one", "--precision", "fp64"))
    words = shlex.split(json.loads(Path("one/run.json").read_text())["command"])
    assert words[:2] == ["amped", verb]
    succeeded(run_amped(*words[1:], "--output", "two"))
    one, other = (amped.load(name).full() for name in ("one", "two"))
    np.testing.assert_allclose(one, other, rtol=1e-9)
