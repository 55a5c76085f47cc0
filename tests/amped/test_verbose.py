"""``verbose``: the Python functions print what the command line prints."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import PROGRESS, run_amped, small_tns, succeeded

import amped

CPU: dict[str, Any] = {"device": "cpu", "max_iters": 2, "tol": 0}
CALLS: dict[str, tuple[Callable[..., Any], Any, tuple[object, ...]]] = {
    "cp_als": (amped.cp_als, 3, ("cpd", "--rank", 3)),
    "starts": (lambda X, rank, **how: amped.cp_als(X, rank, starts=2, **how), 3, ("cpd", "--rank", 3, "--starts", 2)),
    "cp_apr": (amped.cp_apr, 3, ("cpd", "--rank", 3, "--loss", "poisson")),
    "tucker": (amped.tucker, (2, 2, 2), ("tucker", "--rank", "2,2,2")),
}


def without_times(text: str) -> list[str]:
    """The lines, but for seconds, bytes, what was compiled, and where the model is."""
    varies = "time ", "iterations took", "ranks ", "compiling ", "compiled in "
    lines = [line for line in text.splitlines() if not line.startswith(varies)]
    lines = [re.sub(r"; model in .*|  about .*", "", line) for line in lines]
    return [line.replace("--max-iters", "max_iters") for line in lines]


@pytest.mark.parametrize("call", CALLS)
def test_the_lines_are_those_of_the_command_line(folder: Path, call: str, capsys: pytest.CaptureFixture[str]) -> None:
    function, rank, (verb, *flags) = CALLS[call]
    path = small_tns(folder)
    how = ("--device", "cpu", "--max-iters", 2, "--tol", 0, "--output", "model")
    result = succeeded(run_amped(verb, path, *flags, *how))
    capsys.readouterr()
    function(path, rank, verbose=True, **CPU)
    found = capsys.readouterr()
    progress = [line for line in without_times(found.out) if PROGRESS.match(line)]
    assert progress == without_times(result.progress)
    assert [line for line in without_times(found.out) if line not in progress] == without_times(result.out)
    assert "memory per rank: host" in found.out
    assert not found.err


@pytest.mark.parametrize("verbose", [False, 0])
def test_they_are_quiet_otherwise(folder: Path, verbose: int, capsys: pytest.CaptureFixture[str]) -> None:
    path = small_tns(folder)
    capsys.readouterr()
    for function, rank, _ in CALLS.values():
        function(path, rank, verbose=verbose, **CPU)
        function(path, rank, **CPU)
    assert capsys.readouterr() == ("", "")


def test_a_tensor_in_memory_is_x(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensor = amped.read(small_tns(folder))
    capsys.readouterr()
    amped.cp_als(tensor, 2, verbose=2, **CPU)
    assert capsys.readouterr().out.startswith("X: ")
    with pytest.raises(amped.InputError, match="verbose -1"):
        amped.cp_als(tensor, 2, verbose=-1, **CPU)


def test_scans(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = small_tns(folder)
    expected = succeeded(
        run_amped("scan", path, "--rank", "1-2", "--starts", 2, "--max-iters", 3, "--device", "cpu")
    ).out
    capsys.readouterr()
    amped.scan(path, "1-2", starts=2, max_iters=3, verbose=True, device="cpu")
    found = capsys.readouterr().out

    def but_seconds(text: str) -> list[list[str]]:
        return [line.split()[:-1] if line.lstrip()[:1].isdigit() else line.split() for line in text.splitlines()]

    assert but_seconds(found) == but_seconds(expected)
    assert found.splitlines()[-1].startswith("suggested: ")
    amped.scan(path, "1-2", starts=2, max_iters=3, device="cpu")
    assert capsys.readouterr() == ("", "")
