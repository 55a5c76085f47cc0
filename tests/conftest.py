"""Fixtures of all tests, and Hypothesis profiles."""

from __future__ import annotations

import gc
import math
import os
import signal
from pathlib import Path

import forms
import pytest
import tiers
from budget import BUDGET, WITH_SHARED, Budget
from hypothesis import HealthCheck, settings
from oracle import BACKENDS, SHARED

from amped.backend.choose import choose
from amped.backend.cpu.kernels import sums
from amped.backend.cpu.ops import mttkrp as cpu_mttkrp
from amped.backend.cuda import probe
from amped.backend.device import Device
from amped.backend.null.device import NullDevice
from amped.parallel.mpi import Comm, world
from partitioner.host.worth import SETTING

gc.set_threshold(50_000)  # ten thousand tests, and the compiler, make many objects: collecting took a tenth of the time

# The same examples in every run, more of them with --exhaustive; `--hypothesis-profile=explore` tries many new ones.
settings.register_profile(
    "fixed", derandomize=True, database=None, deadline=None, suppress_health_check=HealthCheck, max_examples=30
)
settings.register_profile("exhaustive", settings.get_profile("fixed"), max_examples=300)
settings.register_profile("explore", deadline=None, max_examples=1000, suppress_health_check=HealthCheck)
settings.load_profile("fixed")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag of the third tier of tests; `launch/test` describes all three."""
    parser.addoption("--exhaustive", action="store_true", help="run the tests marked exhaustive, too")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the tier. Enable signals that a background script ignores, so that tests can end what they start."""
    quick = config.getoption("markexpr") == "quick"  # compiling took a third of the time
    os.environ.setdefault(SETTING, "never" if quick else "always")  # tests of both paths choose for themselves
    everything = _is_exhaustive(config)
    forms.most_modes = 6 if everything else forms.most_modes
    if everything and not config.getoption("hypothesis_profile", default=None):
        settings.load_profile("exhaustive")
    budget = WITH_SHARED if (SHARED / "data").is_dir() else BUDGET
    config.pluginmanager.register(Budget(math.inf if everything else budget))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files ``*_mpi.py`` to runs under mpirun, with ``--with-mpi``, and all other files to runs without it.

    Files that have no test of a tier, or on a number of ranks, are not read.
    """
    under_mpirun = bool(config.getoption("with_mpi", default=False))
    if collection_path.suffix != ".py":
        return None
    if collection_path.stem.endswith("_mpi") != under_mpirun:
        return True
    entries = tiers.QUICK if config.getoption("markexpr") == "quick" else None
    if entries is None and under_mpirun and not _is_exhaustive(config):
        entries = tiers.entries_on(world().size)
    return True if entries is not None and not tiers.has_tests(collection_path, entries) else None


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark quick tests; deselect tests of other tiers and numbers of ranks, and those that need a GPU without one."""
    if missing := tiers.missing():
        raise pytest.UsageError(f"{tiers.__file__} names missing tests: {', '.join(missing)}")
    for item in items:
        if tiers.is_of(item, tiers.QUICK) and not item.get_closest_marker("slow"):
            item.add_marker("quick")
    due = [item for item in items if _is_due(item, world().size)]
    if "gpu" not in config.getoption("markexpr") and probe():  # two thousand; to skip each takes seconds
        due = [item for item in due if not item.get_closest_marker("gpu")]
    if not _is_exhaustive(config):
        due = tiers.in_turn(item for item in due if not item.get_closest_marker("exhaustive"))
        due = tiers.on_ranks(world().size, due) if config.getoption("with_mpi", default=False) else due
    if len(due) < len(items):
        others = set(items) - set(due)
        config.hook.pytest_deselected(items=[item for item in items if item in others])
        items[:] = due


def _is_due(item: pytest.Item, size: int) -> bool:
    """Return whether a test's mark allows this number of ranks."""
    mark = item.get_closest_marker("ranks")
    return mark is None or size in mark.args


def _is_exhaustive(config: pytest.Config) -> bool:
    return bool(config.getoption("exhaustive")) or "exhaustive" in config.getoption("markexpr")


@pytest.fixture(scope="session")
def comm() -> Comm:
    """All processes of this run: one, or those that mpirun started."""
    return world()


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Each device in turn; skipped if it is not available."""
    if request.param == "cuda" and (missing := probe()):
        pytest.skip(missing)
    return str(request.param)


@pytest.fixture(params=BACKENDS, ids=lambda b: "-".join(map(str, filter(None, b))))
def backend(request: pytest.FixtureRequest, comm: Comm, monkeypatch: pytest.MonkeyPatch) -> Device:
    """Each device; on the CPU several threads share even small shards."""
    name, threads = request.param
    if name == "cuda" and (missing := probe()):
        pytest.skip(missing)
    monkeypatch.setattr(cpu_mttkrp, "SMALLEST", 5)
    monkeypatch.setattr(sums, "START_SECONDS", 1e-15)
    monkeypatch.setattr(cpu_mttkrp, "own_cache", lambda: 4000)
    return NullDevice(comm, threads) if name == "null" else choose(name, comm, threads)


@pytest.fixture
def without_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs use NumPy instead of compiled code."""
    monkeypatch.setenv(SETTING, "never")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
