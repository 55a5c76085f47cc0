"""Compiled kernels on disk: found again, by any environment and rank, and only where they are right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = """
from partitioner.jit import jit
from .constants import FACTOR

@jit
def scaled(x):
    return FACTOR * x
"""
RUN = """
import sys
from {package}.kernels import scaled
print(*map(scaled, [{argument}]), sum(scaled.stats.cache_hits.values()), sum(scaled.stats.cache_misses.values()))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a package `mine` in an environment."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    make(tmp_path / "first", 2)
    return tmp_path


def make(environment: Path, factor: int) -> None:
    package = environment / "mine"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    (package / "constants.py").write_text(f"FACTOR = {factor}\n")
    (package / "kernels.py").write_text(KERNELS)


def start(environment: Path, argument: str = "21") -> subprocess.Popen[str]:
    """Call the kernel in a process, with one argument or several in turn: prints the results, hits and misses."""
    code = f"import sys; sys.path.insert(0, {str(environment)!r})" + RUN.format(package="mine", argument=argument)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def call(environment: Path, argument: str = "21") -> str:
    with start(environment, argument) as process:
        assert process.stdout is not None
        return process.stdout.read().strip()


def files(folder: Path) -> list[Path]:
    return sorted((folder / "cache" / "amped").iterdir())


def test_a_kernel_is_compiled_once_for_all_environments(folder: Path) -> None:
    make(folder / "second", 2)
    assert call(folder / "first") == "42 0 1"
    assert call(folder / "first") == "42 1 0"
    assert call(folder / "second") == "42 1 0"
    assert call(folder / "second", "1.5") == "3.0 0 1"  # other types
    assert len(files(folder)) == 2


def test_a_change_of_what_it_builds_on_is_seen_and_the_other_version_stays(folder: Path) -> None:
    make(folder / "changed", 3)  # in another module than the kernel's
    for hits, misses in ((0, 1), (1, 0)):
        assert call(folder / "first") == f"42 {hits} {misses}"
        assert call(folder / "changed") == f"63 {hits} {misses}"


def test_ranks_that_compile_at_once_leave_what_is_right_for_each(folder: Path) -> None:
    arguments = ["21", "1.5", "2j", "True"] * 2
    with_types = {"21": "42", "1.5": "3.0", "2j": "4j", "True": "2"}
    for process in [start(folder / "first", argument) for argument in arguments]:
        with process:
            assert process.wait() == 0
    assert call(folder / "first", ", ".join(with_types)) == f"{' '.join(with_types.values())} 4 0"
    assert len(files(folder)) == len(with_types)  # and no drafts


@pytest.mark.parametrize("harm", [b"", b"x" * 100, None], ids=["cut off", "something else", "a bit flipped"])
def test_what_is_damaged_is_compiled_again(folder: Path, harm: bytes | None) -> None:
    call(folder / "first")
    (kept,) = files(folder)
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if harm is None else harm)
    assert call(folder / "first") == "42 0 1"
    assert kept.read_bytes()[32:33] == whole[32:33]
    assert call(folder / "first") == "42 1 0"


def test_a_cache_that_cannot_be_written_costs_time_alone(folder: Path) -> None:
    (folder / "cache").write_text("a file where the folder should be")
    assert call(folder / "first") == "42 0 1"
