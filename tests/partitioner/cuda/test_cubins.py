"""Compiled CUDA code: compiled in parallel, each source once, and cached on disk."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Barrier

import pytest

from partitioner.cuda.cubins import Cubins, CudaSource

SOURCES = [CudaSource("sort", f"text {k}", ("-std=c++17", f"-DK={k}")) for k in range(4)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder, which does not exist yet."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "amped"


class Compiler:
    """Records the sources that it compiles."""

    def __init__(self) -> None:
        self.asked: list[CudaSource] = []

    def __call__(self, source: CudaSource) -> bytes:
        self.asked.append(source)
        return f"code of {source.text} with {source.options}".encode()


def code(compile: Callable[[CudaSource], bytes], facts: str = "90", sources: list[CudaSource] = SOURCES) -> list[bytes]:
    cubins = Cubins(compile, facts, threads=4)
    cubins.prepare(sources)
    return [cubins.of(source) for source in sources]


def test_each_source_is_compiled_once_and_found_by_later_runs(folder: Path) -> None:
    first, second = Compiler(), Compiler()
    assert code(first, sources=SOURCES * 2) == code(second, sources=SOURCES * 2)
    assert sorted(first.asked) == SOURCES
    assert second.asked == []
    assert len(list(folder.iterdir())) == len(SOURCES)  # and no drafts


@pytest.mark.parametrize("what", ["facts", "text", "options"])
def test_what_code_depends_on_is_seen(folder: Path, what: str) -> None:
    code(Compiler())
    other, source = Compiler(), SOURCES[0]
    if what == "facts":
        code(other, "100", [source])
    else:
        code(other, "90", [source._replace(**{what: "x" if what == "text" else ("-x",)})])
    assert len(other.asked) == 1


def test_sources_are_compiled_side_by_side(folder: Path) -> None:
    together = Barrier(len(SOURCES), timeout=60)

    def compile(source: CudaSource) -> bytes:
        together.wait()  # breaks unless all are compiled at once
        return source.text.encode()

    assert code(compile) == [source.text.encode() for source in SOURCES]


@pytest.mark.parametrize("harm", [b"", b"x" * 100, None], ids=["cut off", "something else", "a bit flipped"])
def test_what_is_damaged_is_compiled_again(folder: Path, harm: bytes | None) -> None:
    whole = code(Compiler(), sources=SOURCES[:1])
    (kept,) = folder.iterdir()
    data = kept.read_bytes()
    kept.write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if harm is None else harm)
    again = Compiler()
    assert code(again, sources=SOURCES[:1]) == whole
    assert again.asked == SOURCES[:1]
    assert kept.read_bytes() == data


def test_a_folder_that_cannot_be_made_costs_time_alone(folder: Path) -> None:
    folder.parent.write_text("a file where the folder should be")
    for _ in range(2):
        compiler = Compiler()
        assert len(code(compiler)) == len(compiler.asked) == len(SOURCES)


def test_processes_that_compile_at_once_leave_what_is_right_for_each(folder: Path) -> None:
    program = """
import sys
from partitioner.cuda.cubins import Cubins, CudaSource
sources = [CudaSource("sort", str(k), ()) for k in range(50)]
cubins = Cubins(lambda source: source.text.encode() * 10_000, "90", 4)
cubins.prepare(sources)
sys.exit(any(cubins.of(source) != source.text.encode() * 10_000 for source in sources))
"""
    processes = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    assert len(list(folder.iterdir())) == 50


def test_an_error_of_the_compiler_is_that_of_whoever_asks(folder: Path) -> None:
    def compile(source: CudaSource) -> bytes:
        raise RuntimeError(f"{source.text} is wrong")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="text 0 is wrong"):
            code(compile)
    assert not list(folder.glob("*.cubin"))
