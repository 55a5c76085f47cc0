"""Compiled kernels on disk: any environment and rank finds them, and only valid ones are used."""

from __future__ import annotations

import os
import pickle
import shutil
import stat
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from forms import exhaustive

from partitioner.host import numba_code
from partitioner.host.cache import is_private, read_private

KERNELS = """
from partitioner.host.jit import jit
from .constants import FACTOR

@jit
def scaled(x):
    return FACTOR * x
"""
RUN = """
import sys
from {package}.kernels import scaled
results, stats = [scaled(x) for x in [{argument}]], scaled.dispatcher.stats
print(*results, sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
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


def start(environment: Path, argument: str = "21", **options: Any) -> subprocess.Popen[str]:
    """Call the kernel in a process, with one argument or several in turn: prints the results, hits and misses."""
    code = f"import sys; sys.path.insert(0, {str(environment)!r})" + RUN.format(package="mine", argument=argument)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, **options)


def call(environment: Path, argument: str = "21") -> str:
    with start(environment, argument) as process:
        assert process.stdout is not None
        return process.stdout.read().strip()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in which the kernel is."""
    place = tmp_path_factory.mktemp("compiled")
    make(place / "first", 2)
    with mock.patch.dict(os.environ, NUMBA_CACHE_DIR=str(place / "cache")):
        assert call(place / "first") == "42 0 1"
    return place / "cache"


@pytest.fixture
def filled(folder: Path, compiled: Path) -> Path:
    """A cache in which the kernel is, and a package `mine` in an environment."""
    shutil.copytree(compiled, folder / "cache")
    return folder


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
    with_types = {"21": "42", "1.5": "3.0"}
    arguments = [*with_types] * 2
    misses = 0
    for process in [start(folder / "first", argument) for argument in arguments]:
        with process:
            assert process.stdout is not None
            misses += int(process.stdout.read().split()[-1])
            assert process.wait() == 0
    assert misses == len(with_types), "each form is compiled by one process"
    assert call(folder / "first", ", ".join(with_types)) == f"{' '.join(with_types.values())} 2 0"
    assert len(files(folder)) == len(with_types)  # and no drafts


def test_an_interrupted_compilation_is_repeated_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that was interrupted still has the name of the form, and does not wait for itself."""
    monkeypatch.setattr(numba_code, "Reservation", mock.Mock(wraps=numba_code.Reservation))
    kernels = numba_code._Cache(unused)
    assert [kernels._stored("a form") for _ in range(2)] == [None, None]
    numba_code.Reservation.assert_called_once_with("a form")
    kernels._reservations["a form"].release()


def unused() -> None:
    """Stand for a kernel."""


@pytest.mark.parametrize(
    "harm", [exhaustive(b""), exhaustive(b"x" * 100), None], ids=["cut off", "something else", "a bit flipped"]
)
def test_what_is_damaged_is_compiled_again(filled: Path, harm: bytes | None) -> None:
    (kept,) = files(filled)
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if harm is None else harm)
    assert call(filled / "first") == "42 0 1"
    assert kept.read_bytes()[32:33] == whole[32:33]
    assert call(filled / "first") == "42 1 0"


def test_a_cache_that_cannot_be_written_costs_time_alone(folder: Path) -> None:
    (folder / "cache").write_text("a file where the folder should be")
    assert call(folder / "first") == "42 0 1"


class Harm:
    """Makes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self._file,)


def harmed(folder: Path) -> Path:
    """Put a pickle that does harm where a compiled kernel was."""
    data = pickle.dumps(Harm(folder / "harm"))
    (kept,) = files(folder)
    kept.write_bytes(sha256(data).digest() + data)
    return kept


def refusals(folder: Path, arguments: str = "21, 1.5", **options: Any) -> list[str]:
    """Call the kernel; return the lines on standard error."""
    with start(folder / "first", arguments, stderr=subprocess.PIPE, **options) as process:
        out, err = process.communicate()
    assert out.startswith("42 3.0 ")
    assert not (folder / "harm").exists()
    return err.splitlines()


@pytest.mark.parametrize("umask", [exhaustive(0), exhaustive(0o022), 0o277])
def test_folders_that_are_made_are_their_user_s_alone(folder: Path, umask: int) -> None:
    with start(folder / "first", umask=umask) as process:
        assert process.wait() == 0
    for each in (folder / "cache", folder / "cache" / "amped"):
        assert stat.S_IMODE(each.stat().st_mode) == 0o700
    (file,) = files(folder)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 & ~umask


def test_a_folder_of_an_older_version_is_taken_over_but_not_what_others_can_write(filled: Path) -> None:
    """Older versions created files according to the umask."""
    kept = harmed(filled)
    kept.chmod(0o664)
    kept.parent.chmod(0o775)
    cause = f"{kept} can be written to by others"
    assert refusals(filled) == [f"amped: cache not used, kernels are compiled and timed again: {cause}"]
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600  # replaced
    assert refusals(filled) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("what", [exhaustive("folder"), "file"])
def test_what_belongs_to_another_user_is_not_read(filled: Path, what: str) -> None:
    kept = harmed(filled)
    theirs = kept if what == "file" else kept.parent
    os.chown(theirs, 65534, -1)
    (line,) = refusals(filled)
    assert f"{theirs} belongs to another user (65534)" in line
    assert what == "file" or "set NUMBA_CACHE_DIR" in line


@pytest.mark.parametrize("what", [exhaustive("link"), "pipe", exhaustive("folder")])
def test_a_kernel_is_a_regular_file(filled: Path, what: str) -> None:
    kept = harmed(filled)
    kept.rename(filled / "elsewhere")
    if what == "link":
        kept.symlink_to(filled / "elsewhere")
    elif what == "pipe":
        os.mkfifo(kept)
    else:
        kept.mkdir()
    assert refusals(filled) == []


def test_a_folder_of_another_program_is_refused_and_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for mode, trusted in ((0o700, True), (0o755, True), (0o775, False), (0o1777, False)):
        theirs = tmp_path / f"{mode:o}"
        theirs.mkdir()
        theirs.chmod(mode)
        for _ in range(2):
            assert is_private(theirs, "CUPY_CACHE_DIR", ours=False) is trusted
        assert stat.S_IMODE(theirs.stat().st_mode) == mode
        told = capsys.readouterr().err
        assert told.count("\n") == (not trusted)
        assert trusted or f"{theirs} can be written to by others; remove it, or set CUPY_CACHE_DIR" in told


def test_a_file_that_is_missing_is_none(tmp_path: Path) -> None:
    assert read_private(tmp_path / "none") is None


def test_compiling_counts_as_a_stage(folder: Path) -> None:
    """Loading compiled code counts, too; importing Numba is a separate stage. No second counts twice."""
    code = f"""
import sys, time; sys.path.insert(0, {str(folder / "first")!r})
from partitioner.host.stages import STAGES
from mine.kernels import scaled
began = time.perf_counter()
with STAGES.of("read"):
    scaled(21)
whole, first = time.perf_counter() - began, STAGES.collect()
scaled(2)
print(*first, STAGES.collect(), min(first.values()) > 0, abs(sum(first.values()) - whole) < 1e-3)
"""
    for _ in range(2):
        assert subprocess.check_output([sys.executable, "-c", code], text=True) == "import compile read {} True True\n"


COLORAMA = """
__version__ = "0.4.6"
Fore = Style = type("Codes", (), {"__getattr__": lambda *_: ""})()
def init():
    print("started")
reinit = deinit = lambda: None
"""


def test_the_compiler_starts_no_colorama(tmp_path: Path) -> None:
    """It would write to the standard output of every program that uses it."""
    (tmp_path / "colorama.py").write_text(COLORAMA)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    line = [sys.executable, "-c", "from partitioner.host.jit import load_compiler\nload_compiler()"]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)
    assert not done.stdout
