"""Hostile input: a collection of it, and a few seconds of coverage-guided fuzzing from there on."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import ROOT, environment
from forms import exhaustive

from partitioner.errors import InputError
from partitioner.readers import read
from partitioner.tensors.sparse import SparseTensor

FUZZ = ROOT / "tests" / "fuzz"
sys.path.insert(0, str(FUZZ))

import targets  # noqa: E402


@pytest.fixture
def own_folder() -> Iterator[None]:
    """Leave the folder that targets work in."""
    before, hook = Path.cwd(), sys.excepthook
    yield
    targets.remove_folder()
    os.chdir(before)
    sys.excepthook = hook  # `amped.run` puts its own in place


@pytest.fixture
def memory() -> Iterator[str]:
    """A folder for the files of fuzzers, which end without removing theirs."""
    with tempfile.TemporaryDirectory(prefix="amped-fuzz-", dir=targets.MEMORY) as made:
        yield made


@pytest.mark.parametrize("name", targets.TARGETS)
@pytest.mark.usefixtures("own_folder")
def test_what_was_found_before(name: str) -> None:
    corpus = sorted((FUZZ / "corpus" / name).iterdir())
    assert len(corpus) > 5
    for file in corpus:
        targets.TARGETS[name](file.read_bytes())


@pytest.mark.usefixtures("own_folder")
def test_targets_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that raises something else, says two lines or takes much memory is found."""

    def greedy(path: Path, **_: object) -> SparseTensor:
        bytearray(targets.ROOM + 10_000_000)
        return read(path)

    def talkative(path: Path, **_: object) -> SparseTensor:
        raise InputError("two\nlines", path=path)

    targets.tns(b"p1 1 1\n")
    monkeypatch.setattr(targets, "read", greedy)
    with pytest.raises(AssertionError, match="bytes of memory"):
        targets.tns(b"p1 1 1\n")
    monkeypatch.setattr(InputError, "__str__", lambda self: self.cause)
    monkeypatch.setattr(targets, "read", talkative)
    with pytest.raises(AssertionError, match="not one clear line"):
        targets.tns(b"p1 1 1\n")
    monkeypatch.setattr(targets, "read", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        targets.tns(b"p1 1 1\n")


@pytest.mark.usefixtures("own_folder")
@pytest.mark.parametrize(("names", "seconds"), [(["tns"], 1), exhaustive([*targets.TARGETS], 5)], ids=["one", "all"])
def test_a_few_seconds_of_fuzzing(tmp_path: Path, memory: str, names: list[str], seconds: int) -> None:
    pytest.importorskip("atheris")
    jobs = {}
    for name in names:
        folder = tmp_path / name
        folder.mkdir()
        line = [sys.executable, str(FUZZ / "fuzz.py"), name, str(folder), str(FUZZ / "corpus" / name)]
        line += [f"-max_total_time={seconds}", "-timeout=20", f"-artifact_prefix={folder}/"]
        # The peak that the system counts for a process begins with the peak of the process that started it.
        inherited = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        line.append(f"-rss_limit_mb={max(3000, inherited + 100)}")
        line.append("-seed=1")  # a run of the tests is to depend on little else than the code
        jobs[name] = subprocess.Popen(
            line,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(TMPDIR=memory),
            cwd=folder,
        )
    said = {name: job.communicate(timeout=300)[0] for name, job in jobs.items()}
    for name, job in jobs.items():
        assert job.returncode == 0, f"{name}:\n{said[name][-3000:]}"
        assert "DONE" in said[name], said[name][-3000:]
