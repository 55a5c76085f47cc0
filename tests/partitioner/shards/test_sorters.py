"""The choice of the device that sorts, and CuPy's kernel cache."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Thread

import pytest

from partitioner.host.ranks import SingleRank
from partitioner.shards import sorters


@pytest.mark.parametrize(("mode", "in_memory"), [(None, None), (0o755, None), (0o777, "1")])
def test_kernels_are_kept_where_nobody_else_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int | None, in_memory: str | None
) -> None:
    folder = tmp_path / "cupy" / "kernels"
    monkeypatch.setenv("CUPY_CACHE_DIR", str(folder))
    monkeypatch.delenv("CUPY_CACHE_IN_MEMORY", raising=False)
    monkeypatch.setattr(sorters, "probe", lambda: "")
    monkeypatch.setattr(os, "environ", os.environ.copy())
    if mode is not None:
        folder.mkdir(parents=True)
        folder.chmod(mode)
    assert sorters.pick("cuda", SingleRank()) == "cuda"
    assert os.environ.get("CUPY_CACHE_IN_MEMORY") == in_memory
    assert folder.stat().st_mode & 0o777 == (0o700 if mode is None else mode)


def test_a_folder_named_cupy_is_not_cupy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "cupy").mkdir()
    if not sorters.has_cupy.__wrapped__():  # an installed one is found first
        assert sorters.probe().startswith("CuPy is not installed")
    package = tmp_path / "cupy" / "__init__.py"
    package.touch()
    monkeypatch.syspath_prepend(tmp_path)  # forgets what is cached
    assert sorters.has_cupy.__wrapped__()


def test_a_gpu_that_is_not_there_is_not_woken(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Errors are reported later, when the GPU is used."""
    started: list[object] = []
    monkeypatch.setattr(sorters, "Thread", lambda **how: started.append(how["target"]) or Thread(**how))
    sorters.wake("cpu", 0)
    assert started == []
    monkeypatch.setattr(sorters, "has_cupy", lambda: True)
    monkeypatch.setattr(sorters.ctypes, "CDLL", refused)
    sorters.wake("auto", 0)
    sorters._wake(0)
    assert started == [sorters._wake]
    assert capfd.readouterr() == ("", "")


def refused(name: str) -> None:
    raise OSError(f"{name}: cannot open shared object file")
