"""`amped warmup` compiles in separate processes, and reports the time."""

from __future__ import annotations

from pathlib import Path

import pytest

from amped.cli import warmup
from amped.run import main
from partitioner.host.worth import SETTING, Compilable


def test_it_compiles_and_reports(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(warmup, "TASKS", {"text files": warmup.TASKS["text files"]})
    assert main(["warmup"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"compiling for 1 kinds of runs, 1 at a time, into {tmp_path / 'amped'}"
    assert lines[1].startswith(" 1 of 1  text files: ")
    assert lines[2].startswith("compiled in ")
    names = {path.name.split("-")[0] for path in (tmp_path / "amped").iterdir()}
    assert "partitioner.readers.text.parse.parse_block" in names
    assert "compiled" in names, "later runs know"


def test_kinds_of_runs_have_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes the compiled path, also where the other one would be faster."""
    forms = set[str]()
    monkeypatch.setenv(SETTING, "never")  # is put back
    monkeypatch.setattr(Compilable, "use", lambda self, form="": forms.add(self.name))
    monkeypatch.setattr(warmup, "NONZEROS", 64)
    for name in ("text files", "sparse, non-negative", "dense, single precision"):
        warmup._timed(name)
    assert {"parser", "sort", "mttkrp", "dense"} <= forms


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["warmup", "--help"])
    assert ended.value.code == 0
    assert "Compile the CPU code of typical runs" in capsys.readouterr().out
