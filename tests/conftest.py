"""Fixtures of all tests, and how Hypothesis runs."""

from __future__ import annotations

import signal
from pathlib import Path

import forms
import pytest
from hypothesis import HealthCheck, settings
from oracle import BACKENDS

from amped.backend.base import Device
from amped.backend.choose import choose
from amped.backend.cpu import sums
from amped.backend.cpu.kernels import mttkrp as cpu_mttkrp
from amped.backend.cuda import probe
from amped.backend.null.device import NullDevice
from amped.parallel.mpi import Comm, world

# The same examples in every run; `--hypothesis-profile=explore` tries many new ones.
settings.register_profile("fixed", derandomize=True, database=None, deadline=None, suppress_health_check=HealthCheck)
settings.register_profile("explore", deadline=None, max_examples=1000, suppress_health_check=HealthCheck)
settings.load_profile("fixed")


# What `launch/test --quick` runs of: soon done, and of each room something.
QUICK = """
    amped/test_api_errors.py amped/test_cli.py amped/test_refused_output.py amped/backend/test_solve.py
    amped/backend/cuda/test_layout.py amped/decomp/test_als_mpi.py amped/decomp/test_initial.py
    amped/models/test_kruskal.py amped/operators/test_placement.py amped/operators/test_source_mpi.py
    amped/operators/test_stream.py amped/parallel/test_comm_mpi.py amped/backend/test_exchange_mpi.py
    amped/report/test_metrics.py amped/report/test_progress.py launch/test_scripts.py partitioner/test_coo.py
    partitioner/test_cuda_sort.py partitioner/test_sort.py partitioner/readers/test_npz.py
    partitioner/readers/test_tns.py partitioner/readers/test_tns_mpi.py partitioner/readers/test_bins.py
    test_documents.py
""".split()


# The files of tests under mpirun that also run on 1 and 4 ranks. Other tests run on these numbers of ranks only if they
# are marked with them (`ranks`), or with --exhaustive.
SMOKE = """
    amped/backend/test_exchange_mpi.py amped/decomp/test_als_mpi.py amped/decomp/test_tucker_mpi.py
    amped/operators/test_source_mpi.py amped/parallel/test_comm_mpi.py partitioner/test_build_mpi.py
    partitioner/readers/test_tns_mpi.py
""".split()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag of the third tier of tests; `launch/test` describes all three."""
    parser.addoption("--exhaustive", action="store_true", help="run the tests marked exhaustive, too")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the tier. Let signals end what tests start, also in the background of a script, which ignores some."""
    forms.most_modes = 6 if _is_exhaustive(config) else forms.most_modes
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files ``*_mpi.py`` to runs under mpirun, with ``--with-mpi``, and all other files to runs without it."""
    under_mpirun = bool(config.getoption("with_mpi", default=False))
    if collection_path.suffix == ".py" and collection_path.stem.endswith("_mpi") != under_mpirun:
        return True
    return None


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is quick, and leave out what is for other numbers of ranks."""
    quick = {Path(__file__).parent / name for name in QUICK}
    if missing := [name for name in QUICK + SMOKE if not (Path(__file__).parent / name).exists()]:
        raise pytest.UsageError(f"QUICK or SMOKE in {__file__} names what is not there: {', '.join(missing)}")
    for item in items:
        if item.path in quick and not item.get_closest_marker("slow"):
            item.add_marker("quick")
    everything = _is_exhaustive(config)
    others = [item for item in items if not _is_due(item, everything)]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]


def _is_exhaustive(config: pytest.Config) -> bool:
    return bool(config.getoption("exhaustive")) or "exhaustive" in config.getoption("markexpr")


def _is_due(item: pytest.Item, everything: bool) -> bool:
    """Return whether a test runs in this tier, and on as many ranks as there are."""
    if not everything and item.get_closest_marker("exhaustive"):
        return False
    if mark := item.get_closest_marker("ranks"):
        return world().size in mark.args
    smoke = str(item.path.relative_to(Path(__file__).parent)) in SMOKE
    return everything or smoke or world().size in (2, 3) or not item.path.stem.endswith("_mpi")


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
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own, and the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
