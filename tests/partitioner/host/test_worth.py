"""When code is compiled: never for little work, in the end for much, at once where it is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from partitioner.errors import InputError
from partitioner.host import worth
from partitioner.host.worth import LOADING, SETTING, Compilable


@pytest.fixture(autouse=True)
def _undecided(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(SETTING, raising=False)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setitem(worth.sys.modules, "numba", None)


def code(tmp_path: Path) -> Compilable:
    """Return code that takes two seconds to compile."""
    (tmp_path / "code.py").write_text("1")
    return Compilable("code", 2.0, [tmp_path])


def test_work_adds_up(tmp_path: Path) -> None:
    some = code(tmp_path)
    assert not some.compiles(1.0)
    assert not some.compiles(1.0, "another form")
    assert some.compiles(2.0)
    assert some.compiles(0.1)
    assert not some.compiles(0.0), "compiled code gains nothing"


def test_what_was_compiled_before_is_only_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(worth.sys.modules, "numba")
    assert code(tmp_path).compiles(3.0, "a form")
    assert not code(tmp_path).compiles(LOADING / 2, "a form")
    assert code(tmp_path).compiles(LOADING * 2, "a form")
    assert not code(tmp_path).compiles(LOADING * 2, "another form")


def test_other_sources_are_compiled_anew(tmp_path: Path) -> None:
    assert code(tmp_path).compiles(3.0)
    (tmp_path / "code.py").write_text("2")
    worth._sources.cache_clear()
    assert not Compilable("code", 2.0, [tmp_path]).compiles(0.1)


@pytest.mark.parametrize(("wish", "expected"), [("always", True), ("never", False)])
def test_the_environment_decides(wish: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, wish)
    some = code(tmp_path)
    assert [some.compiles(seconds) for seconds in (0.0, 1e9)] == [expected] * 2


def test_another_wish_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "yes")
    with pytest.raises(InputError, match="AMPED_COMPILE=yes: expected always or never"):
        code(tmp_path).compiles(1.0)
