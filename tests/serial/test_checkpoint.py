"""Checkpoints: when they are written, what goes on from them, and the signal that stops a run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import (
    TIMEOUT,
    environment,
    mpirun_line,
    on_ranks,
    python_line,
    random_tensor,
    refused,
    run_amped,
    small_tns,
    succeeded,
)

from amped import checkpoint
from amped.errors import EXIT_STOPPED

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


# -------------------------------------------------------------------------------------------- write and resume


def test_resumed_run_is_the_uninterrupted_one(folder: Path) -> None:
    path = small_tns(folder)
    whole = cpd(path, "whole", "--max-iters", 9, "--threads", 1)
    flags = ["--checkpoint", "c", "--threads", 1]
    assert cpd(path, "first", *flags, "--max-iters", 4) == whole[:4]
    result = succeeded(run_amped("cpd", path, *COMMON, "--output", "rest", *flags, "--max-iters", 9, "--resume"))
    assert "resumed after iteration 4 from c" in result.out
    assert "iteration   4 " not in result.out
    assert "iteration   5 " in result.out
    assert fits_in("rest") == whole  # to the last bit
    with np.load("whole/model.npz") as one, np.load("rest/model.npz") as two:
        assert all(np.array_equal(one[name], two[name]) for name in one.files)
    assert json.loads(Path("rest/run.json").read_text())["iterations"] == 9


def test_what_a_checkpoint_holds(folder: Path) -> None:
    path = small_tns(folder)
    fits = cpd(path, "out", "--max-iters", 3, "--checkpoint", "deep/er/c", "--seed", 5)
    assert [p.name for p in (folder / "deep/er/c").iterdir()] == [checkpoint.FILE]
    with np.load(f"deep/er/c/{checkpoint.FILE}", allow_pickle=False) as archive:
        assert {"weights", "fits", "facts", "factor_0", "factor_1", "factor_2"} <= set(archive.files)
        assert archive["fits"].tolist() == fits
        assert [archive[f"factor_{n}"].shape for n in range(3)] == [(n, RANK) for n in SHAPE]
        facts = json.loads(str(archive["facts"]))
    assert (facts["shape"], facts["nonzeros"], facts["rank"], facts["seed"]) == (list(SHAPE), 80, RANK, 5)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [([], [1, 2, 3, 4, 5]), (["--every", 2], [2, 4, 5]), (["--every", 5], [5]), (["--every", 99], [5])],
)
def test_every(folder: Path, monkeypatch: pytest.MonkeyPatch, flags: list[object], expected: list[int]) -> None:
    """The last iteration is always kept."""
    written: list[int] = []
    real = checkpoint.save

    def save(where: Path, engine: Any, state: Any, facts: Any) -> None:
        written.append(len(state.fits))
        real(where, engine, state, facts)

    monkeypatch.setattr(checkpoint, "save", save)
    cpd(small_tns(folder), "out", "--max-iters", 5, "--checkpoint", "c", *flags)
    assert written == expected
    found = checkpoint.load("c")
    assert found is not None
    assert len(found.state.fits) == 5


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
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


def test_one_rank_begins_and_three_go_on(folder: Path) -> None:
    path = small_tns(folder)
    whole = cpd(path, "whole", "--max-iters", 6)
    first = cpd(path, "first", "--max-iters", 2, "--checkpoint", "c")
    flags = ["--checkpoint", folder / "c", "--resume", "--max-iters", 6, "--output", folder / "rest"]
    result = on_ranks(3, "cpd", path, *COMMON, *flags)
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
    refused(again, f"c/{checkpoint.FILE}", "exists", "--resume", "--force")
    cpd(path, "b", "--max-iters", 2, "--checkpoint", "c", "--force")
    found = checkpoint.load("c")
    assert found is not None
    assert len(found.state.fits) == 2


# ------------------------------------------------------------------------------------------- what is refused


def test_checkpoint_of_something_else(folder: Path) -> None:
    path = small_tns(folder)
    cpd(path, "a", "--max-iters", 2, "--checkpoint", "c")
    kept = Path(f"c/{checkpoint.FILE}").read_bytes()
    resume = ["--output", "b", "--checkpoint", "c", "--resume"]
    refused(run_amped("cpd", path, *COMMON, "--rank", 5, *resume), f"c/{checkpoint.FILE}", "rank 4", "5")
    shorter = small_tns(folder, "shorter.tns", nonzeros=79)
    refused(run_amped("cpd", shorter, *COMMON, *resume), f"c/{checkpoint.FILE}", "nonzeros 80", "79")
    wider = small_tns(folder, "wider.tns", shape=(9, 7, 6))
    refused(run_amped("cpd", wider, *COMMON, *resume), f"c/{checkpoint.FILE}", "shape", "[9, 7, 5]", "[9, 7, 6]")
    other = small_tns(folder, "other.tns", seed=9)
    refused(run_amped("cpd", other, *COMMON, *resume), f"c/{checkpoint.FILE}", "norm")
    assert Path(f"c/{checkpoint.FILE}").read_bytes() == kept


def test_damaged_checkpoint(folder: Path) -> None:
    path = small_tns(folder)
    cpd(path, "a", "--max-iters", 2, "--checkpoint", "c")
    file = Path(f"c/{checkpoint.FILE}")
    with np.load(file) as archive:
        good = {name: archive[name] for name in archive.files}
    whole = file.read_bytes()
    resume = ["--output", "b", "--checkpoint", "c", "--resume"]
    for content in (b"", b"nonsense", whole[: len(whole) // 2]):
        file.write_bytes(content)
        refused(run_amped("cpd", path, *COMMON, *resume), file)
    for name in ("weights", "fits", "facts", "factor_0", "factor_2"):
        np.savez(file, **{key: value for key, value in good.items() if key != name})
        refused(run_amped("cpd", path, *COMMON, *resume), file)
    changes = {"weights": np.ones(RANK + 1), "facts": np.array("{}"), "factor_1": np.full((7, RANK), np.nan)}
    for name, value in changes.items():
        np.savez(file, **{**good, name: value})
        refused(run_amped("cpd", path, *COMMON, *resume), file)
    file.write_bytes(whole)
    cpd(path, "b", "--checkpoint", "c", "--resume", "--max-iters", 3)


# ------------------------------------------------------------------------------------------------ the signal


def stopped_after(line: list[str], iterations: int, folder: Path) -> tuple[int, str, str]:
    """Run a command, send SIGUSR1 once it has shown some iterations; return exit code and output."""
    process = subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), cwd=folder
    )
    timer = threading.Timer(TIMEOUT, process.kill)
    timer.start()
    seen = []
    try:
        assert process.stdout is not None
        for text in process.stdout:
            seen.append(text)
            if text.startswith(f"iteration {iterations:3d} "):
                process.send_signal(signal.SIGUSR1)
        assert process.stderr is not None
        errors = process.stderr.read()
        return process.wait(TIMEOUT), "".join(seen), errors
    finally:
        timer.cancel()
        process.kill()


@pytest.mark.parametrize("ranks", [1, 3])
def test_sigusr1_writes_a_checkpoint_and_the_same_command_goes_on(folder: Path, ranks: int) -> None:
    """Sent to mpirun it reaches the ranks. What a job script does: the same line again, with --resume."""
    path = small_tns(folder)
    line = ["cpd", path, *COMMON, "--checkpoint", folder / "c", "--every", 10**6, "--output", folder / "out"]
    start = [] if ranks == 1 else mpirun_line(ranks)
    code, out, err = stopped_after([*start, *python_line(*line, "--max-iters", 10**6)], 3, folder)
    assert code == EXIT_STOPPED, out[-2000:] + err
    assert "Traceback" not in err
    assert "stopped by a signal" in out
    found = checkpoint.load("c")
    assert found is not None
    done = len(found.state.fits)
    assert done >= 3
    assert out.count("iteration ") == done
    total = done + AFTER_A_STOP
    again = run_amped(*line, "--max-iters", total, "--resume")
    assert again.code == 0, again.err
    whole = cpd(path, "whole", "--max-iters", total)
    np.testing.assert_allclose(fits_in("out"), whole, atol=1e-9)


def test_sigusr1_while_the_tensor_is_read(folder: Path) -> None:
    """A job that is told to stop before its first iteration stops as it should, and is not killed."""
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
    code, out, err = stopped_after(line, 2, folder)
    assert code == EXIT_STOPPED, err
    assert "stopped by a signal" in out
    assert len(fits_in(folder / "out")) == out.count("iteration ")
