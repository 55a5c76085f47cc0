"""Standard streams that are closed, full, or that nobody reads: runs end with their files and the right exit code."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command import PROGRESS, TIMEOUT, environment, python_line, small_tns
from forms import exhaustive

from amped.errors import EXIT_INCOMPLETE, EXIT_INPUT, EXIT_UNREAD

CPU = ["--device", "cpu"]
CPD = ["--rank", 2, "--max-iters", 2, *CPU, "--output", "out"]
# Verbs whose result is what they print.
PRINTED = [("info", []), exhaustive("plan", ["--rank", 2, *CPU]), exhaustive("show", [])]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    done = line_of("cpd", small_tns(folder), *CPD, more="", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "out"


def line_of(*arguments: object, more: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command line whose streams a shell sets."""
    line = " ".join(python_line(*arguments))
    how = {"capture_output": True, "text": True, "env": environment(), "timeout": TIMEOUT, "check": False} | options
    done: subprocess.CompletedProcess[str] = subprocess.run(["bash", "-c", f"{line} {more}"], **how)
    return done


def unread(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command line of whose output nobody reads anything."""
    read, write = os.pipe()
    os.close(read)
    try:
        done: subprocess.CompletedProcess[str] = subprocess.run(
            python_line(*arguments), stdout=write, stderr=-1, text=True, env=environment(), cwd=cwd, check=False
        )
    finally:
        os.close(write)
    return done


@pytest.mark.parametrize("streams", [*map(exhaustive, ["2>&-", "2>/dev/full"]), "<&- >&- 2>&-"])
def test_standard_error_that_takes_nothing(folder: Path, streams: str) -> None:
    path = small_tns(folder)
    again = [*CPD, "--checkpoint", "c"]
    done = line_of("cpd", path, *again, more=streams, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(os.listdir(folder / "out")) == ["model.npz", "run.json"]
    assert b"amped" not in (folder / "c" / "iteration-2" / "factor_0.npy").read_bytes()
    for refused in (["cpd", path, *again], ["info", "missing.tns"], ["partition", "missing.tns", "--output", "s"]):
        done = line_of(*refused, more=streams, cwd=folder)
        assert (done.returncode, done.stdout, done.stderr) == (EXIT_INPUT, "", "")


def test_warnings_to_standard_error_that_is_closed(folder: Path) -> None:
    (folder / "x.tns").write_text("".join(f"{k} {k} {k}\n" for k in range(1, 5)))
    assert "warning: " in line_of("info", "x.tns", more="", cwd=folder).stderr
    done = line_of("info", "x.tns", more="2>&-", cwd=folder)
    assert done.returncode == 0
    assert "warning" not in done.stdout


@pytest.mark.parametrize(("verb", "flags"), PRINTED)
def test_a_reader_that_leaves_ends_what_only_prints(model: Path, verb: str, flags: list[object]) -> None:
    tensor = model if verb == "show" else model.parent / "small.tns"
    done = unread(verb, tensor, *flags, cwd=model.parent)
    assert (done.returncode, done.stderr) == (EXIT_UNREAD, "")
    done = line_of(verb, tensor, *flags, more=">/dev/full", cwd=model.parent)
    assert done.returncode == 1
    assert done.stderr == "amped: error: standard output: No space left on device\n"


def test_a_reader_that_leaves_costs_no_file(model: Path, folder: Path) -> None:
    path = model.parent / "small.tns"
    wanted = {
        "out/model.npz": ["cpd", path, *CPD],
        "m.npz": ["mttkrp", path, "--rank", 2, *CPU, "--output", "m.npz"],
        "store/manifest.json": ["partition", path, "--output", "store"],
        "r.html": ["report", model, "--output", "r.html"],
    }
    for name, line in wanted.items():
        done = unread(*line, cwd=folder)
        assert done.returncode == EXIT_INCOMPLETE, done.stderr
        others = [each for each in done.stderr.splitlines() if not PROGRESS.match(each)]
        assert len(others) == 1
        assert "standard output: Broken pipe" in others[0]
        assert (folder / name).stat().st_size
