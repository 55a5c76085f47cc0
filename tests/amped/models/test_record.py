"""The record beside a model, which anyone may have written: what is wrong in it is left out, or one line of error."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import refused, run_amped, succeeded
from forms import exhaustive

import amped
from amped.models.record import KINDS, recorded, sound
from partitioner.tensors.labels import Labels

MODEL = amped.KruskalTensor(np.ones(2), [np.ones((n, 2)) for n in (4, 3, 2)])
RECORD: dict[str, Any] = {
    "tensor": "x.tns", "fits": [0.5, 0.75], "iterations": 2, "seed": 0, "init": None, "rank": 2, "more": [],
    "seconds_by_kind": {"compute": 1.0}, "versions": {"numpy": "2"}, "nonzeros": 9, "ranks": 1, "converged": True,
}  # fmt: skip
WRONG: list[Any] = [
    None, "text", "\x1b[2J", 5, -1, 10**400, float("nan"), float("inf"), True, [], {}, ["a"], [None], [[1]], [[[]]],
    {"a": "b"}, {"a": None}, {"a": [1]}, [{"a": "b"}], [10**400], [float("nan")], [1, "2"],
]  # fmt: skip


def saved(folder: Path, record: str | bytes) -> Path:
    (folder / "m").mkdir()
    MODEL.save(folder / "m" / "model.npz")
    (folder / "m" / "run.json").write_bytes(record.encode() if isinstance(record, str) else record)
    return folder / "m"


def test_a_record_is_what_was_written(folder: Path) -> None:
    place = saved(folder, json.dumps(RECORD | {"kernels": ["a"], "what": {"is": 1}}))
    assert recorded(place) == recorded(place / "model.npz") == RECORD | {"kernels": ["a"], "what": {"is": 1}}
    assert recorded(place / "other.npz") == {}
    assert succeeded(run_amped("show", place)).out.splitlines()[0] == (
        f"{place}: 2 components of x.tns; fit 0.750000 after 2 iterations"
    )


@pytest.mark.parametrize(
    "wrong",
    [each if k % 5 == 0 else exhaustive(each) for k, each in enumerate(WRONG)],
    ids=lambda each: repr(each)[:20],
)
def test_parts_of_another_kind_do_no_harm(folder: Path, wrong: Any) -> None:
    """Neither to what is shown, nor to a report, nor to a tensor that it is compared with."""
    (folder / "x.tns").write_text("1 1 1 2\n4 3 2 3\n")
    place = saved(folder, "{}")
    for name in [*KINDS, "rank", "kernels"]:
        (place / "run.json").write_text(json.dumps(RECORD | {name: wrong}))
        assert "component 1: " in succeeded(run_amped("show", place)).out
    (place / "run.json").write_text(json.dumps(dict.fromkeys([*KINDS, "rank", "kernels"], wrong)))
    found = run_amped("report", place, "--tensor", "x.tns", "--force")
    assert found.code in (0, 2), found.err
    assert found.err.count("\n") <= 1


def test_parts_are_of_their_kind() -> None:
    for name, wrong in (("fits", "0.5"), ("fits", [True]), ("iterations", 2.5), ("converged", 1), ("nonzeros", True)):
        assert sound({name: wrong, "seed": None}) == {"seed": None}
    assert sound(RECORD) == RECORD


@pytest.mark.parametrize("text", ["{", "[" * 100_000, b"\xff\xfe{}", '{"fits": [1' + "0" * 5000 + "]}"], ids=str)
def test_a_record_that_cannot_be_read_is_one_line(folder: Path, text: str | bytes) -> None:
    place = saved(folder, text)
    assert amped.load(place).run == {}  # type: ignore[union-attr]
    for verb in ("show", "report"):
        refused(run_amped(verb, place), "run.json", "not a valid record of a run")


def test_a_record_that_is_no_object_is_none(folder: Path) -> None:
    place = saved(folder, "[1]")
    assert recorded(place) == amped.load(place).run == {}  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["pipe", "folder", "long"])
def test_what_is_no_plain_file_is_not_waited_for(folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = saved(folder, "{}        ")
    if kind == "long":
        monkeypatch.setattr("amped.models.record.LONGEST", 5)
    else:
        (place / "run.json").unlink()
        os.mkfifo(place / "run.json") if kind == "pipe" else (place / "run.json").mkdir()
    assert amped.load(place).run == {}  # type: ignore[union-attr]
    refused(run_amped("show", place), "run.json", "not a valid record of a run")


def test_a_model_that_is_a_pipe_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "model.npz")
    for verb in ("show", "report"):
        refused(run_amped(verb, "model.npz"), "model.npz", "not a regular file")


HOSTILE = "a\x1b]0;taken\x07\x9b31m\nerror: b\u202e\udcff\x00<i>"


def test_what_files_say_is_printed_without_orders_to_the_terminal(folder: Path) -> None:
    place = saved(folder, json.dumps(RECORD | {"tensor": HOSTILE, "command": HOSTILE, "versions": {HOSTILE: HOSTILE}}))
    texts = [[HOSTILE.replace("\udcff", str(k)) for k in range(n)] for n in (4, 3, 2)]
    known = Labels.of(texts, (4, 3, 2))
    assert known is not None
    MODEL.labelled(Labels(known, [f"{HOSTILE[:9]}\\q{n}\\1" for n in "xyz"])).save(place / "model.npz")
    head, *others = succeeded(run_amped("show", place)).out.splitlines()
    assert r"a\x1b]0;taken\x07\x9b31m\nerror: b\u202e" in head
    assert all(line.isprintable() for line in (head, *others))
    succeeded(run_amped("report", place, "--output", "r.html"))
    page = (folder / "r.html").read_text()
    assert "\x1b" not in page
    assert "b<i>" not in page.replace(" ", "")


def test_names_of_files_are_printed_so_too(folder: Path) -> None:
    name = "x\x1b[2J\ny.tns"
    (folder / name).write_text("1 1 1 2\n4 3 2 3\n2 2 2 1\n")
    for verb, flags in (("info", []), ("plan", ["--rank", 2]), ("cpd", ["--rank", 2, "--max-iters", 2])):
        found = run_amped(verb, name, "--device", "cpu", *flags)
        assert found.code == 0, found.err
        assert "\x1b" not in found.out + found.err
        assert r"x\x1b[2J\ny" in found.out
    place = next(each for each in folder.iterdir() if each.is_dir())
    assert "\x1b" not in place.name or "\x1b" not in succeeded(run_amped("show", place)).out
