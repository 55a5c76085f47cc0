"""Names that runs write: claimed at the start, given back at the end, never taken from another run or file."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import (
    TIMEOUT,
    entries,
    environment,
    python_line,
    random_tensor,
    refused,
    run_amped,
    run_partitioner,
    small_tns,
    succeeded,
    write_factors,
    write_tns,
)

import amped
from amped.errors import EXIT_STOPPED
from amped.files import OutputError, Outputs, TakenError, write_text
from partitioner.store.locks import Claim

RANK = 4
FLAGS = ["--rank", RANK, "--max-iters", 2, "--device", "cpu"]


@contextmanager
def waiting(folder: Path, *flags: object) -> Iterator[tuple[subprocess.Popen[str], Callable[[], None]]]:
    """Yield a run that has claimed what it will write, and what gives it the tensor that it waits for."""
    pipe = folder / "small.tns"
    os.mkfifo(pipe)
    process = subprocess.Popen(
        python_line("cpd", pipe, *FLAGS, *flags), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=environment(), cwd=folder,
    )  # fmt: skip

    def give() -> None:
        indices, values = random_tensor()
        with open(writer, "w") as text:
            for row, value in zip(indices + 1, values, strict=True):
                text.write(f"{' '.join(map(str, row))} {value}\n")

    def opened() -> int:
        with suppress(OSError):  # until the run has opened it to read
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        return -1

    try:
        while (writer := opened()) < 0:  # what it will write is claimed before it opens the tensor
            assert process.poll() is None
            time.sleep(0.02)
        yield process, give
    finally:
        process.kill()
        process.communicate()


def test_runs_that_start_together_have_a_folder_each(folder: Path) -> None:
    path = small_tns(folder)
    line = python_line("cpd", path, *FLAGS)
    runs = [
        subprocess.Popen([*line, "--seed", str(k)], env=environment(), cwd=folder, stdout=subprocess.DEVNULL)
        for k in range(2)
    ]
    assert [run.wait(TIMEOUT) for run in runs] == [0, 0]
    made = ["small-rank4", "small-rank4-2"]
    assert sorted(os.listdir(folder)) == [*made, "small.tns"]
    assert {json.loads((folder / name / "run.json").read_text())["seed"] for name in made} == {0, 1}


@pytest.mark.parametrize(("verb", "flag"), [("cpd", "--output"), ("mttkrp", "--output"), ("info", "--metrics")])
def test_a_name_that_another_run_has_claimed_is_refused(folder: Path, verb: str, flag: str) -> None:
    (folder / "other").mkdir()
    other = small_tns(folder / "other")
    mine: dict[str, list[object]] = {"cpd": ["--output", "out"], "mttkrp": ["--output", "out/model.npz"]}
    with waiting(folder, "--output", "out", "--metrics", "m.jsonl") as (process, give):
        flags = ["--rank", RANK] if verb != "info" else []
        for force in ([], ["--force"]):
            line = [verb, other, *flags, *mine.get(verb, ["--metrics", "m.jsonl"]), *force]
            refused(run_amped(*line), "another run", "m.jsonl" if flag == "--metrics" else "out/model.npz")
        give()
        assert process.wait(TIMEOUT) == 0
    assert sorted(os.listdir("out")) == ["model.npz", "run.json"]


def test_the_name_of_a_run_that_was_killed_is_taken_over(folder: Path) -> None:
    with waiting(folder, "--metrics", "m.jsonl") as (process, _):
        process.kill()
        process.wait(TIMEOUT)
    assert os.listdir("small-rank4") == [".model.npz.claim"]
    os.remove("small.tns")
    succeeded(run_amped("cpd", small_tns(folder), *FLAGS, "--metrics", "m.jsonl"))
    assert sorted(os.listdir(folder)) == ["m.jsonl", "small-rank4", "small.tns"]
    assert sorted(os.listdir("small-rank4")) == ["model.npz", "run.json"]


def test_a_run_that_is_stopped_leaves_no_empty_folder(folder: Path) -> None:
    with waiting(folder, "--checkpoint", "c") as (process, _):
        process.send_signal(signal.SIGUSR1)
        assert process.wait(TIMEOUT) == EXIT_STOPPED
    assert sorted(os.listdir(folder)) == ["small.tns"]


def test_a_file_that_appears_meanwhile_is_not_replaced(folder: Path) -> None:
    with waiting(folder, "--output", "out") as (process, give):
        (folder / "out" / "model.npz").write_text("precious")
        give()
        out, _ = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 0, out
    assert "out/model.npz: exists already, or another program has just written it" in out
    assert (folder / "out" / "model.npz").read_text() == "precious"
    assert amped.KruskalTensor.load("out-2/model.npz").rank == RANK


def claims_and_lets_go(number: int, turns: Any, told: Any) -> None:
    """Claim what runs that start together claim, and are then refused, many times."""
    for turn in range(100):
        outputs = Outputs()
        turns.wait()
        try:
            outputs.fresh(Path("small-rank4"), "model.npz")
            outputs.folder(Path(f"sweep-{turn}/results/{number}"))
        except BaseException as error:
            told.put(repr(error))
        turns.wait()  # until all folders are there
        outputs.close()


def test_folders_come_and_go_with_runs_beside(folder: Path) -> None:
    """Of an array of jobs each has a folder in one that the first of them makes, and another may just have removed."""
    context = multiprocessing.get_context("fork")
    turns, told = context.Barrier(2, timeout=TIMEOUT), context.SimpleQueue()
    runs = [context.Process(target=claims_and_lets_go, args=(number, turns, told)) for number in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join(TIMEOUT)
    assert [run.exitcode for run in runs] == [0, 0]
    assert told.empty(), told.get()


def test_a_name_in_a_folder_that_is_gone_is_not_waited_for(folder: Path) -> None:
    with pytest.raises(amped.InputError, match=r"gone/model.npz: its folder has just been removed"):
        Claim(folder / "gone" / "model.npz").take()


def test_what_is_made_for_the_result_may_hold_the_metrics(folder: Path) -> None:
    path = small_tns(folder)
    succeeded(run_amped("cpd", path, *FLAGS, "--output", "not/there/../out", "--metrics", "not/out/m.jsonl"))
    assert sorted(os.listdir("not/out")) == ["m.jsonl", "model.npz", "run.json"]
    path.write_text("1 1 1 1.0\n1 1 0 1.0\n")
    refused(run_amped("cpd", path, *FLAGS, "--output", "new", "--metrics", "new/m.jsonl"), path)
    assert sorted(os.listdir(folder)) == ["not", "small.tns"]


# ------------------------------------------------------------------------------------------------- going on


def begun(folder: Path, *flags: object) -> Path:
    """Run two iterations of a tensor, with a checkpoint, a model and metrics."""
    path = small_tns(folder)
    succeeded(run_amped("cpd", path, *FLAGS, "--tol", 0, "--checkpoint", "c", "--output", "a", *flags))
    return path


def test_a_run_that_goes_on_replaces_its_own_alone(folder: Path) -> None:
    path = begun(folder, "--metrics", "m.jsonl")
    other = small_tns(folder, "other.tns", shape=(9, 7, 5), nonzeros=70)
    succeeded(run_amped("cpd", other, *FLAGS, "--checkpoint", "d", "--output", "b", "--metrics", "o.jsonl"))
    resume = ["cpd", path, *FLAGS[:2], "--max-iters", 4, "--tol", 0, "--checkpoint", "c", "--resume", "--device", "cpu"]
    before = entries(folder)
    refused(run_amped(*resume, "--output", "b"), "b/model.npz", "does not belong to the resumed run", "--force")
    for name in ("other.tns", "b/run.json", "o.jsonl"):
        refused(run_amped(*resume, "--output", "a", "--metrics", name), name, "does not belong to the resumed run")
    refused(run_amped(*resume, "--output", "a", "--metrics", path), path, "is both TENSOR and --metrics")
    assert entries(folder) == before
    succeeded(run_amped(*resume, "--output", "a", "--metrics", "m.jsonl"))
    events = [json.loads(line)["event"] for line in Path("m.jsonl").read_text().splitlines()]
    assert events.count("start") == 2
    assert events.count("iteration") == 4
    assert json.loads(Path("a/run.json").read_text())["iterations"] == 4
    succeeded(run_amped(*resume, "--output", "b", "--force"))


def test_a_job_that_was_killed_before_its_first_checkpoint_goes_on(folder: Path) -> None:
    """The same line, with --resume, may be sent again and again: its metrics are its own."""
    path = begun(folder, "--metrics", "m.jsonl")
    for left in ("a/model.npz", "a/run.json"):
        os.remove(left)
    with open("m.jsonl", "r+") as file:  # cut in a line, as on a full disk
        file.truncate(len(file.read()) - 5)
    flags = ["--checkpoint", "new", "--resume", "--output", "a", "--metrics", "m.jsonl"]
    succeeded(run_amped("cpd", path, *FLAGS, *flags))
    assert json.loads(Path("m.jsonl").read_text().splitlines()[-1])["event"] == "end"


def test_labels_tell_tensors_apart(folder: Path) -> None:
    """January's run does not go on with February's events, which have the same shape when they are compact."""
    indices, values = random_tensor()
    line = ["cpd", "x.tns", *FLAGS, "--compact", "--tol", 0, "--checkpoint", "c", "--output", "out"]
    for month, code in ((0, 0), (1000, 2)):
        write_tns(folder / "x.tns", indices + np.array([month, 0, 0]), values)
        result = run_amped(*line, *(["--resume"] if month else []))
        assert result.code == code, result.err
    assert "c/iteration-2: was made with other labels of mode 0" in result.err


def test_a_start_is_not_ignored_where_a_run_goes_on(folder: Path) -> None:
    write_factors(folder / "start.npz", (9, 7, 5), RANK)
    path = begun(folder, "--init", "start.npz")
    resume = ["cpd", path, *FLAGS, "--checkpoint", "c", "--resume", "--output", "a"]
    refused(run_amped(*resume, "--init", "nvecs"), "c/iteration-2", "began with --init start.npz, not --init nvecs")
    for seed in (0, 3):
        refused(run_amped(*resume, "--seed", seed), "c/iteration-2", f"began with --init start.npz, not --seed {seed}")
    for same in ([], ["--init", "start.npz"]):  # a job script sends the same line each time
        succeeded(run_amped(*resume, *same))
        assert json.loads(Path("a/run.json").read_text())["init"] == "start.npz"


@pytest.mark.parametrize("began", [[], ["--init", "random"], ["--seed", 3]])
def test_a_random_start_may_be_named_or_not(folder: Path, began: list[object]) -> None:
    line = ["tucker", small_tns(folder), "--rank", "2,2,2", "--device", "cpu", "--tol", 0, "--checkpoint", "c"]
    succeeded(run_amped(*line, "--max-iters", 1, "--output", "a", *began))
    seed, resume = 3 if 3 in began else 0, [*line, "--max-iters", 2, "--resume", "--output", "a"]
    refused(run_amped(*resume, "--init", "nvecs"), "c/iteration-1", "not --init nvecs")
    refused(run_amped(*resume, "--seed", 4), "c/iteration-1", f"began with --seed {seed}, not --seed 4")
    for same in ([], ["--init", "random"], ["--seed", seed]):
        succeeded(run_amped(*resume, *same, "--force"))
        record = json.loads(Path("a/run.json").read_text())
        assert record["init"] == ("random" if "random" in (*began, *same) else None)
        assert record["seed"] == seed
        parsed = record["command"].split()
        assert ("--seed" in parsed, "--init" in parsed) == (seed == 3, seed == 0 and record["init"] is not None)


def test_a_call_records_the_seed_of_a_random_start(folder: Path) -> None:
    path = small_tns(folder)
    line = ["tucker", path, "--rank", "2,2,2", "--device", "cpu", "--tol", 0, "--checkpoint", "c", "--init", "random"]
    succeeded(run_amped(*line, "--max-iters", 1, "--output", "a"))
    how: dict[str, Any] = {"max_iters": 2, "tol": 0, "device": "cpu", "checkpoint": "c", "resume": True}
    assert amped.tucker(path, (2, 2, 2), **how).run["seed"] == 0


@pytest.mark.parametrize("began", [0, 1])
def test_a_seed_counts_also_where_it_is_the_default(folder: Path, began: int) -> None:
    path = begun(folder, *(["--seed", 1] if began else []))
    resume = ["cpd", path, *FLAGS, "--checkpoint", "c", "--resume", "--output", "a"]
    cause = f"began with --seed {began}, not --seed {1 - began}: leave out --seed, or --resume"
    refused(run_amped(*resume, "--seed", 1 - began), "c/iteration-2", cause)
    refused(run_amped(*resume, "--init", "nvecs"), "c/iteration-2", "began with a random start, not --init nvecs")
    for same in ([], ["--seed", began]):
        succeeded(run_amped(*resume, *same, "--force"))
        assert json.loads(Path("a/run.json").read_text())["seed"] == began


@pytest.mark.parametrize("seed", [0, 1])
def test_a_seed_excludes_another_start(folder: Path, seed: int) -> None:
    start = ["--seed", seed, "--init", "nvecs"]
    for verb, more in (("cpd", FLAGS), ("tucker", ["--rank", "2,2,2"]), ("mttkrp", ["--rank", 2])):
        refused(run_amped(verb, small_tns(folder), *more, *start), "--init: not allowed with argument --seed")


def test_an_empty_expression_is_not_taken_for_none(folder: Path) -> None:
    for name in ("--where", "--value"):
        refused(run_amped("info", small_tns(folder), name, ""), "a table: --key EXPR")


# ------------------------------------------------------------------------------------------ what is no output


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["mttkrp", "T", "--output", "f", "--metrics", "./f"], "is both --metrics and --output"),
        (["cpd", "T", "--output", "o", "--metrics", "o/run.json"], "is both --metrics and run.json"),
        (["cpd", "T", "--metrics", "T", "--force"], "is both TENSOR and --metrics"),
        (["mttkrp", "T", "--output", "T", "--force"], "is both TENSOR and --output"),
        (["mttkrp", "T", "--init", "s.npz", "--output", "s.npz", "--force"], "is both --init and --output"),
        (["info", "S", "--metrics", "S/manifest.json", "--force"], "is both TENSOR and --metrics"),
        (["mttkrp", "S", "--output", "S/mode0.values.npy", "--force"], "is both TENSOR and --output"),
        (["cpd", "T", "--output", "lost"], "lost: is a broken symbolic link"),
        (["mttkrp", "T", "--output", "lost", "--force"], "lost: is a broken symbolic link"),
        (["cpd", "T", "--metrics", "lost"], "lost: is a broken symbolic link"),
        (["cpd", "T", "--metrics", "none/m.jsonl"], "none/m.jsonl: cannot write"),
        (["cpd", "T", "--checkpoint", "c", "--resume", "--metrics", "none/m.jsonl"], "none/m.jsonl: cannot write"),
        (["mttkrp", "T", "--output", "pipe", "--force"], "pipe: is not a plain file"),
        (["mttkrp", "T", "--metrics", "pipe", "--force"], "pipe: cannot write"),
        (["mttkrp", "T", "--output", "m" * 240], "cannot write: file name too long"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_what_cannot_be_an_output_is_refused_before_the_work(
    folder: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], named: str
) -> None:
    monkeypatch.setattr("amped.runs.assembly.open_source", None)  # the tensor is not read
    path = small_tns(folder)
    write_factors(folder / "s.npz", (9, 7, 5), RANK)
    (folder / "lost").symlink_to("nothing")
    os.mkfifo(folder / "pipe")
    succeeded(run_partitioner(path, "--output", "S"))
    before = sorted(os.listdir(folder)), path.read_bytes(), entries(folder / "S")
    line = [str(path) if word == "T" else word for word in flags]
    refused(run_amped(*line, *([] if line[0] == "info" else ["--rank", RANK])), named)
    assert (sorted(os.listdir(folder)), path.read_bytes(), entries(folder / "S")) == before


def test_a_name_that_is_a_link_is_not_written_through(folder: Path) -> None:
    """In a folder that others may write to, a link with the name of a claim would have a file of the user's emptied."""
    path = small_tns(folder)
    (folder / "thesis.tex").write_text("years of work")
    (folder / "out").mkdir()
    (folder / "out" / ".model.npz.claim").symlink_to(folder / "thesis.tex")
    refused(run_amped("cpd", path, *FLAGS, "--output", "out"), "out/model.npz", "cannot write")
    os.remove("out/.model.npz.claim")
    os.link("thesis.tex", "out/.model.npz.claim")
    refused(run_amped("cpd", path, *FLAGS, "--output", "out"), "remove out/.model.npz.claim")
    assert (folder / "thesis.tex").read_text() == "years of work"


def test_drafts_have_names_that_nobody_knows_before(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drafts: list[str] = []
    real = os.replace
    monkeypatch.setattr(os, "replace", lambda draft, target: (drafts.append(str(draft)), real(draft, target)))
    for _ in range(2):
        write_text("a", "text")
    assert len(set(drafts)) == 2
    assert os.listdir(folder) == ["a"]
    with pytest.raises(TakenError):
        write_text("a", "other", replace=False)
    assert Path("a").read_text() == "text"
    monkeypatch.setattr("amped.files.draft_of", lambda target: target.with_name(".a.known.part"))
    Path("precious").write_text("years of work")
    os.symlink("precious", ".a.known.part")
    with pytest.raises(OutputError):
        write_text("a", "other")
    assert Path("precious").read_text() == "years of work"


def test_drafts_of_killed_runs_alone_are_removed(folder: Path) -> None:
    """Another run may write m.npz, and other programs have files with such names."""
    path, left = small_tns(folder), ".m.0123456789abcdef.part"
    others = [".m.npz.0123456789abcdef.part", ".m.thesis.part"]
    for name in (left, *others):
        Path(name).write_text("half")
    succeeded(run_amped("mttkrp", path, "--rank", RANK, "--device", "cpu", "--output", "m"))
    assert sorted(os.listdir(folder)) == [*others, "m", "small.tns"]


def test_files_are_readable_as_the_user_wants_them(folder: Path) -> None:
    before = os.umask(0o027)
    try:
        succeeded(run_amped("mttkrp", small_tns(folder), "--rank", RANK, "--device", "cpu", "--output", "m.npz"))
    finally:
        os.umask(before)
    assert os.stat("m.npz").st_mode & 0o777 == 0o640
    with np.load("m.npz") as archive:
        assert len(archive.files) == 3


def test_where_no_file_can_be_created(folder: Path) -> None:
    """Although the folder exists: it looks as if another run had just removed the lock file, each time."""
    place = Path("/proc")
    if not place.is_dir():
        pytest.skip("there is no /proc")
    refused(
        run_amped("cpd", small_tns(folder), *FLAGS, "--report", place / "r.html"), "/proc/r.html", "cannot write there"
    )
    with pytest.raises(amped.InputError, match="/proc/store: cannot write there"):
        Claim(place / "store").take()
