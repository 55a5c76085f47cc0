"""Checkpoints: when they are written, what goes on from them, and the signal that stops a run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import (
    TIMEOUT,
    Result,
    entries,
    environment,
    finish,
    mpirun_line,
    on_ranks,
    python_line,
    random_tensor,
    refused,
    refused_on_ranks,
    run_amped,
    run_partitioner,
    signalled_line,
    small_tns,
    succeeded,
    write_tns,
)
from forms import exhaustive

import amped
from amped.errors import EXIT_INTERRUPTED, EXIT_STOPPED, InputError
from amped.methods.driver import MethodState
from amped.parallel.progress import CURRENT, LOADING_SECONDS
from amped.runs import checkpoint
from partitioner.host import checksums
from partitioner.store.locks import Claim

RANK = 4
SHAPE = (9, 7, 5)
COMMON = ["--rank", RANK, "--tol", 0, "--precision", "fp64", "--device", "cpu"]
AFTER_A_STOP = 3  # iterations of the runs that go on


def fits_in(folder: Path | str) -> list[float]:
    """Return the fits that a run has recorded."""
    return [float(fit) for fit in json.loads((Path(folder) / "run.json").read_text())["fits"]]


def cpd(path: Path, output: str, *flags: object) -> list[float]:
    """Run `cpd` in this process; return its fits."""
    succeeded(run_amped("cpd", path, *COMMON, "--output", output, *flags))
    return fits_in(output)


def newest() -> checkpoint.Checkpoint:
    """Return the newest checkpoint in `c`."""
    found, damages = checkpoint.load_newest(Path("c"))
    assert found is not None
    assert not damages
    return found


# -------------------------------------------------------------------------------------------- write and resume


def test_resumed_run_is_the_uninterrupted_one(folder: Path) -> None:
    path = small_tns(folder)
    whole = cpd(path, "whole", "--max-iters", 9, "--threads", 1)
    flags = ["--checkpoint", "c", "--threads", 1]
    assert cpd(path, "first", *flags, "--max-iters", 4) == whole[:4]
    result = succeeded(run_amped("cpd", path, *COMMON, "--output", "rest", *flags, "--max-iters", 9, "--resume"))
    assert "resumed after iteration 4 from c" in result.out
    assert "iteration   4 " not in result.progress
    assert "iteration   5 " in result.progress
    assert fits_in("rest") == whole  # to the last bit
    with np.load("whole/model.npz") as one, np.load("rest/model.npz") as two:
        assert all(np.array_equal(one[name], two[name]) for name in one.files)
    assert json.loads(Path("rest/run.json").read_text())["iterations"] == 9


def test_what_a_checkpoint_holds(folder: Path) -> None:
    path = small_tns(folder)
    fits = cpd(path, "out", "--max-iters", 3, "--checkpoint", "deep/er/c", "--seed", 5)
    names = sorted(p.name for p in (folder / "deep/er/c").iterdir())
    assert names[-1] == "iteration-3"
    assert set(names) <= {"iteration-1", "iteration-2", "iteration-3"}
    arrays = {p.stem: np.load(p) for p in (folder / "deep/er/c/iteration-3").glob("*.npy")}
    assert set(arrays) == {"weights", "norms", "scales", "fit", "factor_0", "factor_1", "factor_2"}
    assert arrays["fit"].tolist() == fits
    assert [arrays[f"factor_{n}"].shape for n in range(3)] == [(n, RANK) for n in SHAPE]
    found = checkpoint.load(folder / "deep/er/c/iteration-3")
    facts = found.origin.facts
    assert (facts["shape"], facts["nonzeros"], facts["rank"], found.origin.seed) == (list(SHAPE), 80, RANK, 5)
    assert found.origin.options["precision"] == "fp64"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [([], [1, 2, 3, 4, 5]), (["--every", 2], [2, 4, 5]), (["--every", 5], [5]), (["--every", 99], [5])],
)
def test_every(folder: Path, monkeypatch: pytest.MonkeyPatch, flags: list[object], expected: list[int]) -> None:
    """The last iteration is always kept."""
    written: list[int] = []
    monkeypatch.setattr(
        checkpoint.CheckpointWriter, "busy", property(checkpoint.CheckpointWriter.finish)
    )  # the disk is fast enough
    real = checkpoint.CheckpointWriter.write

    def write(self: checkpoint.CheckpointWriter, taken: checkpoint.Checkpoint) -> None:
        written.append(taken.state.iterations)
        real(self, taken)

    monkeypatch.setattr(checkpoint.CheckpointWriter, "write", write)
    cpd(small_tns(folder), "out", "--max-iters", 5, "--checkpoint", "c", *flags)
    assert written == expected
    assert checkpoint.names_in("c") == [f"iteration-{n}" for n in expected[:-3:-1]]  # the last two
    assert newest().state.iterations == 5


def test_a_slow_disk_holds_up_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints that it cannot take in time are left out, and the last one is waited for."""
    gate, real, fits = threading.Event(), checkpoint.CheckpointWriter._write, []

    def write(self: checkpoint.CheckpointWriter, taken: checkpoint.Checkpoint) -> None:
        fits.append(taken.state.iterations)
        assert gate.wait(TIMEOUT)
        real(self, taken)

    def iteration(_: object, number: int, *__: object) -> None:
        if number == 5:
            gate.set()

    monkeypatch.setattr(checkpoint.CheckpointWriter, "_write", write)
    monkeypatch.setattr("amped.report.progress.PlainDisplay.iteration", iteration)
    cpd(small_tns(folder), "out", "--max-iters", 6, "--checkpoint", "c")
    assert fits[0] == 1
    assert not {2, 3, 4} & set(fits)
    assert fits[-1] == 6
    assert newest().name == "iteration-6"


KILLED = """
import os, signal, sys, time
import numpy as np
import amped
from amped.runs import checkpoint

real = checkpoint._write_files

def slow(*arguments):
    time.sleep(0.3)  # several hundred iterations
    real(*arguments)

def kill(iteration, fit):
    if iteration == 12:
        os.kill(os.getpid(), signal.SIGKILL)

checkpoint._write_files = slow
X = np.random.default_rng(0).random((5, 4, 3))
amped.cp_als(X, 2, max_iters=50, tol=0, device="cpu", checkpoint="c", callback=kill, **eval(sys.argv[1]))
"""


@pytest.mark.parametrize(("how", "names"), [("{'every': 5}", ["iteration-10", "iteration-5"]), ("{}", [])])
def test_what_a_run_killed_in_its_twelfth_iteration_leaves(folder: Path, how: str, names: list[str]) -> None:
    """Checkpoints at given intervals are complete one iteration later, also on a slow disk."""
    Path("run.py").write_text(KILLED)
    result = finish([sys.executable, "run.py", how], env=environment())
    assert result.code == -signal.SIGKILL
    assert checkpoint.names_in("c") == names


EMBEDDED = """
import logging, os, signal, sys
import numpy as np
import amped

victim, last = map(int, sys.argv[1:])
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))
logging.basicConfig(level=logging.INFO, filename="run.log")

def kill(iteration, fit):
    if iteration == 12 and rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)

X = np.random.default_rng(0).random((5, 4, 3))
model = amped.cp_als(
    X, 2, max_iters=last, tol=0, device="cpu", checkpoint="c", every=5, resume=True, metrics="m.jsonl", callback=kill,
)
if rank == 0:
    model.save("model.npz")
"""


@pytest.mark.parametrize("victim", [1, exhaustive(0)])
def test_a_program_under_mpirun_continues_after_a_rank_was_killed(folder: Path, victim: int) -> None:
    """With checkpoints, metrics and a log: the same program again gives the model of an uninterrupted run."""
    Path("run.py").write_text(EMBEDDED)

    def run(*arguments: int) -> Any:
        line = [*mpirun_line(2), sys.executable, "run.py", *map(str, arguments)]
        return finish(line, env=environment())

    killed = run(victim, 20)
    assert killed.code != 0
    assert checkpoint.names_in("c") == ["iteration-10", "iteration-5"]
    assert run(-1, 20).code == 0
    found = amped.load("model.npz")
    numbers = [
        each["iteration"]
        for line in Path("m.jsonl").read_text().splitlines()
        if (each := json.loads(line))["event"] == "iteration"
    ]
    assert numbers[-10:] == list(range(11, 21))
    assert "resumed after iteration 10 from c" in Path("run.log").read_text()
    whole = amped.cp_als(np.random.default_rng(0).random((5, 4, 3)), 2, max_iters=20, tol=0, device="cpu")
    assert len(found.fits) == 20
    np.testing.assert_allclose(found.fits, whole.fits, atol=1e-6)
    np.testing.assert_allclose(found.factors[0], whole.factors[0], atol=1e-4)


def test_a_wait_for_the_disk_is_no_step_without_progress(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits, real = list[float](), checkpoint._write_files

    def write(*args: Any) -> None:
        time.sleep(0.3)  # meanwhile the run reaches the end of the next iteration
        limits.append(CURRENT.limit)
        real(*args)

    monkeypatch.setattr(checkpoint, "_write_files", write)
    cpd(small_tns(folder), "out", "--max-iters", 3, "--checkpoint", "c", "--every", 1)
    assert len(limits) == 3
    assert min(limits) >= LOADING_SECONDS


def test_a_checkpoint_does_not_change_as_the_run_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written late is what was taken early."""
    path = small_tns(folder)
    real = checkpoint.CheckpointWriter._write
    late: list[checkpoint.Checkpoint] = []
    monkeypatch.setattr(checkpoint.CheckpointWriter, "_write", lambda _, taken: late.append(taken))
    cpd(path, "out", "--max-iters", 5, "--checkpoint", "c")
    monkeypatch.setattr(checkpoint.CheckpointWriter, "_write", real)
    early = next(taken for taken in late if taken.state.iterations < 5)
    (folder / "c").mkdir()
    writer = checkpoint.CheckpointWriter(folder / "c")
    writer.write(early)
    writer.finish()
    writer.close()
    rest = cpd(path, "rest", "--max-iters", 5, "--checkpoint", "c", "--resume")
    assert rest == fits_in("out")


@pytest.mark.parametrize("precision", [exhaustive("fp32"), "fp64"])
def test_resume_on_another_number_of_ranks(folder: Path, precision: str) -> None:
    """Three ranks begin, one goes on; in fp32 this run keeps to its own precision."""
    path = small_tns(folder)
    flags = ["--precision", precision, "--checkpoint", folder / "c"]
    whole = cpd(path, "whole", "--max-iters", 8, "--precision", precision)
    result = on_ranks(3, "cpd", path, *COMMON, *flags, "--max-iters", 3, "--output", folder / "first")
    assert result.code == 0, result.err
    tolerance = {"fp32": 1e-5, "fp64": 1e-10}[precision]
    np.testing.assert_allclose(cpd(path, "rest", *flags, "--max-iters", 8, "--resume"), whole, atol=tolerance)
    assert fits_in("rest")[:3] == fits_in("first")
    assert json.loads(Path("rest/run.json").read_text())["ranks"] == 1


@pytest.mark.exhaustive
def test_one_rank_begins_and_two_go_on(folder: Path) -> None:
    path = small_tns(folder)
    whole = cpd(path, "whole", "--max-iters", 6)
    first = cpd(path, "first", "--max-iters", 2, "--checkpoint", "c")
    flags = ["--checkpoint", folder / "c", "--resume", "--max-iters", 6, "--output", folder / "rest"]
    result = on_ranks(2, "cpd", path, *COMMON, *flags)
    assert result.code == 0, result.err
    assert result.out.count("resumed after iteration 2") == 1
    assert fits_in("rest")[:2] == first
    np.testing.assert_allclose(fits_in("rest"), whole, atol=1e-10)


def test_resume_where_there_is_no_checkpoint_begins(folder: Path) -> None:
    """So that the same job script may be sent again and again."""
    path = small_tns(folder)
    assert cpd(path, "a", "--max-iters", 3, "--checkpoint", "c", "--resume") == cpd(path, "b", "--max-iters", 3)


def test_resume_of_a_finished_run_adds_nothing(folder: Path) -> None:
    path = small_tns(folder)
    flags = ["--checkpoint", "c", "--max-iters", 4]
    fits = cpd(path, "a", *flags)
    assert cpd(path, "b", *flags, "--resume") == fits
    with np.load("a/model.npz") as one, np.load("b/model.npz") as two:
        assert all(np.array_equal(one[name], two[name]) for name in one.files)


def test_resume_of_a_converged_run_stays_converged(folder: Path) -> None:
    path = small_tns(folder)
    flags = ["--checkpoint", "c", "--tol", 1e-3]
    fits = cpd(path, "a", *flags)
    assert cpd(path, "b", *flags, "--resume") == fits
    assert json.loads(Path("b/run.json").read_text())["converged"] is True


def test_force_replaces_a_checkpoint(folder: Path) -> None:
    path = small_tns(folder)
    cpd(path, "a", "--max-iters", 4, "--checkpoint", "c")
    again = run_amped("cpd", path, *COMMON, "--output", "b", "--max-iters", 2, "--checkpoint", "c")
    refused(again, "c/iteration-4", "exists", "--resume", "--force")
    cpd(path, "b", "--max-iters", 2, "--checkpoint", "c", "--force")
    assert newest().state.iterations == 2
    assert all(name in ("iteration-1", "iteration-2") for name in os.listdir("c"))


# ------------------------------------------------------------------------------------------- what is refused


def test_checkpoint_of_something_else(folder: Path) -> None:
    path = small_tns(folder)
    cpd(path, "a", "--max-iters", 2, "--checkpoint", "c")
    kept = entries(folder / "c")
    resume, name = ["--output", "b", "--checkpoint", "c", "--resume"], "c/iteration-2"
    refused(run_amped("cpd", path, *COMMON, "--rank", 5, *resume), name, "rank 4", "5")
    shorter = small_tns(folder, "shorter.tns", nonzeros=79)
    refused(run_amped("cpd", shorter, *COMMON, *resume), name, "nonzeros 80", "79")
    wider = small_tns(folder, "wider.tns", shape=(9, 7, 6))
    refused(run_amped("cpd", wider, *COMMON, *resume), name, "shape", "[9, 7, 5]", "[9, 7, 6]")
    indices, values = random_tensor()
    for changed in ((indices, np.roll(values, 1)), (np.concatenate([indices[:-2], [[1, 2, 3], [8, 6, 4]]]), values)):
        other = write_tns(folder / "other.tns", *changed)
        refused(run_amped("cpd", other, *COMMON, *resume), name, "another tensor")
    assert entries(folder / "c") == kept


@pytest.mark.parametrize("ranks", [1, 2, exhaustive(3)])
def test_the_same_tensor_in_another_file(folder: Path, ranks: int) -> None:
    """Text begins, and a store, whose nonzeros each rank hashes a part of, or text in another order goes on."""
    path = small_tns(folder)
    cpd(path, "a", "--max-iters", 2, "--checkpoint", "c")
    succeeded(run_partitioner(path, "--output", "store"))
    lines = path.read_text().splitlines(keepends=True)
    (folder / "turned.tns").write_text("".join(reversed(lines)))
    for number, tensor in enumerate(["store"] if ranks == 2 else ["store", "turned.tns"], 3):
        flags = ["--checkpoint", folder / "c", "--resume", "--max-iters", number, "--output", folder / str(number)]
        line = ["cpd", folder / tensor, *COMMON, *flags]
        result = on_ranks(ranks, *line) if ranks > 1 else run_amped(*line)
        assert result.code == 0, result.err
        assert "resumed after iteration" in result.out


@pytest.mark.parametrize("ranks", [1, 2, exhaustive(3)])
def test_one_run_at_a_time_writes_into_a_folder(folder: Path, ranks: int) -> None:
    """A second one would remove what the first has saved."""
    path = small_tns(folder)
    flags = ["--checkpoint", folder / "c", "--resume", "--max-iters", 3, "--output", folder / "out"]
    cpd(path, "first", *flags[:2], "--max-iters", 2)
    other = Claim(folder / "c" / checkpoint.CLAIM_NAME).take()
    before = entries(folder)
    if ranks == 1:
        refused(run_amped("cpd", path, *COMMON, *flags), "another run", folder / "c")
    else:
        refused_on_ranks(on_ranks(ranks, "cpd", path, *COMMON, *flags), "another run", folder / "c")
    assert entries(folder) == before
    other.release()
    succeeded(run_amped("cpd", path, *COMMON, *flags))


def damaged(file: Path) -> None:
    """Flip a bit in the middle of a file."""
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 2] ^= 4
    file.write_bytes(whole)


def two_checkpoints(path: Path) -> list[float]:
    """Write `c` with the checkpoints of iterations 2 and 3; return the fits."""
    cpd(path, "a", "--max-iters", 2, "--checkpoint", "c", "--every", 2)
    fits = cpd(path, "a", "--max-iters", 3, "--checkpoint", "c", "--resume")
    assert checkpoint.names_in("c") == ["iteration-3", "iteration-2"]
    return fits


@pytest.mark.parametrize("name", ["manifest.json", "factor_1.npy", "weights.npy", "fit.npy"])
@pytest.mark.parametrize("how", ["flipped", "cut", "missing"])
@pytest.mark.in_turn
def test_a_damaged_checkpoint_gives_way_to_the_one_before(folder: Path, name: str, how: str) -> None:
    path = small_tns(folder)
    fits = two_checkpoints(path)
    file = folder / "c" / "iteration-3" / name
    if how == "flipped":
        damaged(file)
    elif how == "cut":
        file.write_bytes(file.read_bytes()[:-5])
    else:
        file.unlink()
    result = run_amped("cpd", path, *COMMON, "--output", "b", "--checkpoint", "c", "--resume", "--max-iters", 3)
    assert result.code == 0, result.err
    assert "resumed after iteration 2" in result.out
    assert result.err.count("\n") == 1
    assert "c/iteration-3" in result.err
    assert "iteration-2" in result.err
    assert fits_in("b") == fits
    assert newest().name == "iteration-3"  # written again


def test_no_checkpoint_that_is_whole(folder: Path) -> None:
    path = small_tns(folder)
    two_checkpoints(path)
    for name in ("iteration-2", "iteration-3"):
        damaged(folder / "c" / name / "factor_0.npy")
    before = entries(folder)
    resume = ["--output", "b", "--checkpoint", "c", "--resume"]
    refused(run_amped("cpd", path, *COMMON, *resume), "c/iteration-3/factor_0.npy", "damaged")
    assert entries(folder) == before
    cpd(path, "b", "--checkpoint", "c", "--resume", "--max-iters", 3, "--no-verify")


def test_every_thousandth_byte_of_a_checkpoint(folder: Path) -> None:
    """Flipped in turn, and the first and last of each file: all are found."""
    path = small_tns(folder, shape=(400, 300, 50), nonzeros=2000)
    cpd(path, "a", "--max-iters", 1, "--checkpoint", "c", "--rank", 8)
    whole, caught = folder / "c" / "iteration-1", 0
    for file in whole.iterdir():
        content = file.read_bytes()
        for at in {*range(0, len(content), 1000), len(content) - 1}:
            file.write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
            with pytest.raises(InputError, match="iteration-1"):
                checkpoint.load(whole)
            caught += 1
        file.write_bytes(content)
    assert caught > 50
    checkpoint.load(whole)


def test_a_checkpoint_of_the_first_version_is_read(folder: Path) -> None:
    """It supported only CP-ALS: no method, fits under their own name, and no start."""
    path, init = small_tns(folder), ("--init", "nvecs")
    whole = cpd(path, "whole", "--max-iters", 6, *init)
    cpd(path, "first", "--max-iters", 3, "--checkpoint", "c", *init)
    shutil.rmtree(folder / "c" / "iteration-2", ignore_errors=True)  # may have been left out
    found = folder / "c" / "iteration-3"
    body = json.loads((found / checksums.MANIFEST).read_text())
    for name in ("crc32", "arrays", "series", "iterations", "init"):
        del body[name]
    del body["facts"]["method"]
    (found / "fit.npy").rename(found / "fits.npy")
    body["files"]["fits"] = body["files"].pop("fit")
    checksums.write_manifest(found, {**body, "version": 1})
    assert cpd(path, "rest", "--max-iters", 6, "--checkpoint", "c", "--resume", *init) == whole


HOSTILE: dict[str, dict[str, Any]] = {
    "no weights": {"weights": None},
    "no fits": {"fit": None},
    "no factor": {"factor_0": None},
    "a factor less": {"factor_2": None},
    "other weights": {"weights": np.ones(RANK + 1)},
    "no numbers": {"factor_1": np.full((7, RANK), np.nan)},
    "no finite scales": {"scales": np.full((3, RANK), np.inf)},
    "fits of text": {"fit": np.array(["a", "b"])},
    "objects": {"weights": np.array([{}] * RANK, object)},
    "mode": {"mode": 3},
    "no mode": {"mode": "first"},
    "facts": {"facts": None},
    "files": {"files": 3},
    "a name that leads elsewhere": {"../../elsewhere": np.ones(3)},
    "an absolute name": {f"{os.devnull}/../tmp/elsewhere": np.ones(3)},
    "version": {"version": 99},
    "block": {"block_bytes": 1},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_checkpoint_that_makes_no_sense(folder: Path, case: str) -> None:
    """Its checksums are right: it was written so."""
    path = small_tns(folder)
    cpd(path, "a", "--max-iters", 2, "--checkpoint", "c", "--every", 2)
    whole = folder / "c" / "iteration-2"
    body = json.loads((whole / "manifest.json").read_text())
    body.pop("crc32")
    for name, value in HOSTILE[case].items():
        if value is None and name in body["files"]:
            del body["files"][name]
        elif isinstance(value, np.ndarray):
            file = folder / "elsewhere.npy" if "/" in name else whole / f"{name}.npy"
            np.save(file, value)
            content = file.read_bytes()
            body["files"][name] = {"bytes": len(content), "crc32": [zlib.crc32(content)]}
        else:
            body[name] = value
    checksums.write_manifest(whole, body)
    result = run_amped("cpd", path, *COMMON, "--output", "b", "--checkpoint", "c", "--resume")
    refused(result, "c/iteration-2", "is not a plain file name" if "name" in case else "")


@pytest.mark.parametrize("flag", ["--resume", "--force"])
def test_what_no_checkpoint_holds_is_not_removed(folder: Path, flag: str) -> None:
    path = small_tns(folder)
    two_checkpoints(path)
    (folder / "c" / "iteration-1").mkdir()
    (folder / "c" / "iteration-1" / "thesis.tex").write_text("data")
    before = entries(folder)
    result = run_amped("cpd", path, *COMMON, "--output", "b", "--checkpoint", "c", flag)
    refused(result, "c/iteration-1", "contains thesis.tex, which is not part of a checkpoint")
    assert entries(folder) == before


def test_drafts_have_names_that_nobody_can_guess(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link by such a name would have amped write wherever it leads."""
    drafts = list[str]()
    monkeypatch.setattr(checkpoint, "_write_files", lambda _, draft: drafts.append(draft.name))
    (folder / "c").mkdir()
    writer = checkpoint.CheckpointWriter(folder / "c")
    for iteration in (1, 1, 2):
        state = MethodState({}, {}, iteration, 0)
        writer.write(checkpoint.Checkpoint(state, [], checkpoint.Origin({}, 0, None, {})))
    writer.finish()
    writer.close()
    assert len(set(drafts)) == 3
    assert all(re.fullmatch(r"\.iteration-\d\.[0-9a-f]{16}\.part", name) for name in drafts)


def test_what_killed_runs_have_left_is_removed(folder: Path) -> None:
    path = small_tns(folder)
    for left in ("c/.iteration-7.99.part", "c/.iteration-3-mode-1.98.old"):
        (folder / left).mkdir(parents=True)
        (folder / left / "factor_0.npy").write_text("half")
    (folder / "c" / "notes").write_text("precious")
    cpd(path, "a", "--max-iters", 2, "--checkpoint", "c")
    assert set(os.listdir("c")) <= {"iteration-1", "iteration-2", "notes"}
    assert (folder / "c" / "notes").read_text() == "precious"


# ------------------------------------------------------------------------------------------------ the signal


def stopped_after(line: list[str], iterations: int, folder: Path, sent: signal.Signals = signal.SIGUSR1) -> Result:
    """Run a command, send a signal once it has shown some iterations; return exit code and output."""
    process = subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), cwd=folder
    )
    timer = threading.Timer(TIMEOUT, process.kill)
    timer.start()
    seen = []
    try:
        assert process.stderr is not None
        for text in process.stderr:
            seen.append(text)
            if text.startswith(f"iteration {iterations:3d} "):
                process.send_signal(sent)
        assert process.stdout is not None
        out = process.stdout.read()
        return Result.of(process.wait(TIMEOUT), out, "".join(seen))
    finally:
        timer.cancel()
        process.kill()


@pytest.mark.parametrize("ranks", [exhaustive(1), 2, exhaustive(3)])
def test_sigusr1_writes_a_checkpoint_and_the_same_command_goes_on(folder: Path, ranks: int) -> None:
    """Sent to mpirun it reaches the ranks. What a job script does: the same line again, with --resume."""
    path = small_tns(folder)
    line = ["cpd", path, *COMMON, "--checkpoint", folder / "c", "--every", 10**6, "--output", folder / "out"]
    start = [] if ranks == 1 else signalled_line(ranks)
    found = stopped_after([*start, *python_line(*line, "--max-iters", 10**6)], 3, folder)
    assert found.code == EXIT_STOPPED, found
    assert "Traceback" not in found.err
    assert "stopped by SIGUSR1 after iteration" in found.out
    assert "the same command with --resume continues" in found.out
    done = newest().state.iterations
    assert done >= 3
    assert len(re.findall(r"^iteration ", found.progress, re.M)) == done
    total = done + AFTER_A_STOP
    again = run_amped(*line, "--max-iters", total, "--resume")
    assert again.code == 0, again.err
    whole = cpd(path, "whole", "--max-iters", total)
    np.testing.assert_allclose(fits_in("out"), whole, atol=1e-9)


def test_sigusr1_while_the_tensor_is_read(folder: Path) -> None:
    """A job that receives a signal before its first iteration stops, and is not killed."""
    indices, values = random_tensor()
    pipe = folder / "t.tns"
    os.mkfifo(pipe)
    line = python_line("cpd", pipe, *COMMON, "--checkpoint", "c", "--max-iters", 10**6, "--output", "out")
    process = subprocess.Popen(
        line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment(), cwd=folder
    )
    try:
        with contextlib.suppress(BrokenPipeError), open(pipe, "w") as writer:  # opens when amped has, to read
            process.send_signal(signal.SIGUSR1)
            time.sleep(0.5)
            for row, value in zip(indices + 1, values, strict=True):
                writer.write(f"{' '.join(map(str, row))} {value}\n")
        _, err = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
    assert process.returncode == EXIT_STOPPED, err


def test_sigusr1_without_a_checkpoint_stops_too(folder: Path) -> None:
    line = python_line("cpd", small_tns(folder), *COMMON, "--max-iters", 10**6, "--output", "out")
    found = stopped_after(line, 2, folder)
    assert found.code == EXIT_STOPPED, found.err
    assert "stopped by SIGUSR1 after iteration" in found.out
    assert len(fits_in(folder / "out")) == len(re.findall(r"^iteration ", found.progress, re.M))


@pytest.mark.parametrize(
    ("sent", "code"), [exhaustive(signal.SIGTERM, EXIT_STOPPED), (signal.SIGINT, EXIT_INTERRUPTED)]
)
def test_other_signals_that_stop_a_run(folder: Path, sent: signal.Signals, code: int) -> None:
    line = ["cpd", small_tns(folder), *COMMON, "--checkpoint", "c", "--every", 10**6, "--output", "out"]
    found = stopped_after(python_line(*line, "--max-iters", 10**6), 3, folder, sent)
    assert found.code == code, found
    words = "interrupted" if sent == signal.SIGINT else "stopped by SIGTERM"
    assert found.err == f"amped: {words}; checkpoint in c: the same command with --resume continues\n"
    assert f"stopped by {sent.name} after iteration" in found.out
    assert "the same command with --resume continues" in found.out
    assert newest().state.iterations >= 3


STOPPED = """
import os, signal, sys
from amped.operators.sparse import operator as sparse
from amped import run
healthy, calls = sparse.SparseOperator.mttkrp, 0

def mttkrp(self, mode, *solve):
    global calls
    calls += 1
    if calls == int(sys.argv[1]) and self.machine.comm.rank == self.machine.comm.size - 1:
        os.kill(os.getpid(), signal.SIGUSR1)
    return healthy(self, mode, *solve)

sparse.SparseOperator.mttkrp = mttkrp
sys.exit(run.main(sys.argv[2:]))
"""


@pytest.mark.parametrize(("iteration", "mode", "ranks"), [(0, 1, 1), (2, 2, 2), exhaustive(2, 2, 3)])
def test_a_run_stops_within_an_iteration(folder: Path, iteration: int, mode: int, ranks: int) -> None:
    """After the mode that it is at, although only one rank received the signal; the resumed run ends as usual."""
    path, driver = small_tns(folder), folder / "driver.py"
    driver.write_text(STOPPED)
    start = [] if ranks == 1 else mpirun_line(ranks)
    line = ["cpd", path, *COMMON, "--deterministic", "--max-iters", 4, "--threads", 1]
    run = run_amped if ranks == 1 else partial(on_ranks, ranks)
    whole = run(*line, "--output", folder / "whole")
    assert whole.code == 0, whole.err
    line += ["--checkpoint", folder / "c", "--output", folder / "out"]
    first = finish([*start, *python_line(3 * iteration + mode, *line, script=driver)])
    assert first.code == EXIT_STOPPED, first.err
    modes = "1 mode" if mode == 1 else "2 modes"
    assert f"after iteration {iteration} and {modes} of the next" in first.out
    assert (newest().state.iterations, newest().state.mode) == (iteration, mode)
    rest = run(*line, "--resume")
    assert rest.code == 0, rest.err
    assert fits_in("out") == fits_in("whole")
