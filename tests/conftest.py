"""Fixtures of all tests, and how Hypothesis runs."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from amped.backend.cuda import probe
from amped.parallel.mpi import Comm, world

# The same examples in every run; `--hypothesis-profile=explore` tries many new ones.
settings.register_profile("fixed", derandomize=True, database=None, deadline=None, suppress_health_check=HealthCheck)
settings.register_profile("explore", deadline=None, max_examples=1000, suppress_health_check=HealthCheck)
settings.load_profile("fixed")


def pytest_configure() -> None:
    """Let Ctrl-C end what tests start, also where these are run in the background of a script, which ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files ``*_mpi.py`` to runs under mpirun, with ``--with-mpi``, and all other files to runs without it."""
    under_mpirun = bool(config.getoption("with_mpi", default=False))
    if collection_path.suffix == ".py" and collection_path.stem.endswith("_mpi") != under_mpirun:
        return True
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is for other numbers of ranks."""
    others = [i for i in items if (mark := i.get_closest_marker("ranks")) and world().size not in mark.args]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]


@pytest.fixture(scope="session")
def comm() -> Comm:
    """All processes of this run: one, or those that mpirun started."""
    return world()


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Each device in turn; skipped where there is none."""
    if request.param == "cuda" and (missing := probe()):
        pytest.skip(missing)
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own, and the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
