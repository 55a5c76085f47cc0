"""Checkpoints and metrics of the Python functions: the same as those of the command line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import run_amped, small_tns, succeeded

import amped
from amped import InputError
from amped.runs import checkpoint

HOW: dict[str, Any] = {"tol": 0, "device": "cpu", "precision": "fp64", "threads": 1}
FUNCTIONS: dict[str, tuple[Callable[..., Any], Any, str]] = {
    "cp_als": (amped.cp_als, 3, "fits"),
    "cp_apr": (amped.cp_apr, 3, "loglikelihood"),
    "tucker": (amped.tucker, (2, 2, 2), "fits"),
}


def events(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_resumed_call_gives_what_an_uninterrupted_one_gives(folder: Path, name: str) -> None:
    function, rank, series = FUNCTIONS[name]
    tensor = amped.read(small_tns(folder))
    whole = function(tensor, rank, max_iters=5, **HOW)
    first = function(tensor, rank, max_iters=2, checkpoint="c", metrics="m.jsonl", **HOW)
    rest = function(tensor, rank, max_iters=5, checkpoint=Path("c"), resume=True, metrics="m.jsonl", **HOW)
    assert first.run[series] == whole.run[series][:2]
    assert rest.run == whole.run
    np.testing.assert_array_equal(rest.factors[0], whole.factors[0])
    assert checkpoint.names_in("c")[0] == "iteration-5"
    found = [each["event"] for each in events("m.jsonl")]
    end = ["memory", "stages", "end"]
    assert found == ["start", *["iteration"] * 2, *end, "start", *["iteration"] * 3, *end]


def test_a_call_that_was_killed_before_its_first_checkpoint_continues(folder: Path) -> None:
    """The metrics of such a run name the folder of its checkpoints; they are refused with another folder."""
    tensor, call = amped.read(small_tns(folder)), {"max_iters": 2, "resume": True, "metrics": "m.jsonl"}
    amped.cp_als(tensor, 3, checkpoint="c", **call, **HOW)
    Path("m.jsonl").write_text(Path("m.jsonl").read_text().partition("\n")[0] + "\n")
    shutil.rmtree("c")
    with pytest.raises(InputError, match="does not belong to the resumed run"):
        amped.cp_als(tensor, 3, checkpoint="other", **call, **HOW)
    amped.cp_als(tensor, 3, checkpoint="c", **call, **HOW)
    assert [each["event"] for each in events("m.jsonl")][:4] == ["start", "start", "iteration", "iteration"]


def test_the_command_line_and_a_call_continue_each_others_runs(folder: Path) -> None:
    path = small_tns(folder)
    flags = ["--rank", 3, "--tol", 0, "--device", "cpu", "--precision", "fp64", "--threads", 1, "--checkpoint", "c"]
    amped.cp_als(path, 3, max_iters=1, checkpoint="c", metrics="m.jsonl", **HOW)
    more = ["--resume", "--metrics", "m.jsonl"]
    succeeded(run_amped("cpd", path, *flags, "--max-iters", 2, "--output", "model", *more))
    found = amped.cp_als(path, 3, max_iters=3, checkpoint="c", resume=True, metrics="m.jsonl", **HOW)
    assert found.run["fits"] == amped.cp_als(path, 3, max_iters=3, **HOW).run["fits"]
    assert {each["tensor"] for each in events("m.jsonl") if each["event"] == "start"} == {str(path)}


def test_a_random_start_by_its_name_is_one_of_a_seed(folder: Path) -> None:
    path = small_tns(folder)
    flags = ["--rank", "2,2,2", "--init", "random", "--device", "cpu", "--checkpoint", "c", "--precision", "fp64"]
    succeeded(run_amped("tucker", path, *flags, "--max-iters", 1, "--tol", 0))
    found = amped.tucker(path, (2, 2, 2), init="random", max_iters=2, checkpoint="c", resume=True, **HOW)
    assert len(found.run["fits"]) == 2


def test_every_and_verbose(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensor, seen = amped.read(small_tns(folder)), list[list[str]]()

    def see(*_: object) -> None:
        seen.append(checkpoint.names_in("c"))

    amped.cp_als(tensor, 3, max_iters=5, checkpoint="c", every=9, callback=see, **HOW)
    assert seen == [[]] * 5
    assert checkpoint.names_in("c") == ["iteration-5"]
    capsys.readouterr()
    amped.cp_als(tensor, 3, max_iters=5, checkpoint="c", resume=True, verbose=True, **HOW)
    assert "resumed after iteration 5 from c" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ({"resume": True}, "resume needs checkpoint: the folder to continue from"),
        ({"every": 5}, "every needs checkpoint: the folder to write to"),
        ({"checkpoint": "new", "starts": 2}, "starts 2: checkpoint keeps the state of one start"),
        ({"checkpoint": "c"}, "iteration-2: exists already; resume=True continues from it; or name another folder"),
        ({"checkpoint": "c", "resume": True, "seed": 1}, "its run began with seed 0, not seed 1: pass the same start"),
        ({"checkpoint": "c", "resume": True, "init": "nvecs"}, "its run began with seed 0, not init 'nvecs'"),
        ({"metrics": "m.jsonl"}, "m.jsonl: exists already; remove it, or name another file"),
        ({"checkpoint": "new", "resume": True, "metrics": "m.jsonl"}, "does not belong to the resumed run; remove it"),
        ({"checkpoint": "both", "metrics": "both"}, "both: is both checkpoint and metrics"),
        ({"checkpoint": 3}, "checkpoint is of type int: expected a path"),
        ({"metrics": 3}, "metrics is of type int: expected a path"),
        ({"every": 0}, "every 0: "),
        ({"resume": "yes"}, "resume is 'yes': expected True or False"),
    ],
)
def test_what_does_not_go_together_is_refused(folder: Path, how: dict[str, Any], cause: str) -> None:
    tensor = amped.read(small_tns(folder))
    amped.cp_als(tensor, 3, max_iters=2, checkpoint="c", metrics="m.jsonl", **HOW)
    before = sorted(folder.rglob("*"))
    with pytest.raises(InputError, match=cause.replace("(", r"\(")):
        amped.cp_als(tensor, 3, max_iters=3, **HOW | how)
    assert sorted(folder.rglob("*")) == before


def test_a_checkpoint_of_another_tensor_is_refused(folder: Path) -> None:
    tensor = amped.read(small_tns(folder))
    amped.cp_als(tensor, 3, max_iters=1, checkpoint="c", **HOW)
    with pytest.raises(InputError, match="was made with rank 3, this run has 2"):
        amped.cp_als(tensor, 2, max_iters=2, checkpoint="c", resume=True, **HOW)


@pytest.mark.parametrize(
    ("files", "cause"),
    [
        ({"report": "x.html"}, "x.html: is both X and report"),
        ({"metrics": "x.html"}, "x.html: is both X and metrics"),
        ({"report": "out", "metrics": "out"}, "out: is both metrics and report"),
        ({"checkpoint": "out", "metrics": "out"}, "out: is both checkpoint and metrics"),
        ({"report": ""}, "report: the name is empty"),
    ],
)
def test_files_of_a_call_are_apart(folder: Path, files: dict[str, Any], cause: str) -> None:
    small_tns(folder, name="x.html")
    before = Path("x.html").read_bytes()
    for call in (lambda: amped.cp_als("x.html", 2, **files), lambda: amped.tucker("x.html", (2, 2, 2), **files)):
        with pytest.raises(amped.InputError, match=f"^{cause}"):
            call()
    assert [each.name for each in folder.iterdir()] == ["x.html"]
    assert Path("x.html").read_bytes() == before
