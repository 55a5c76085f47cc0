"""How providers of an operation are found and chosen."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from amped.backend.cpu import ops
from amped.backend.cpu.device import CpuDevice
from amped.backend.null.device import NullDevice
from amped.backend.ops.cast16 import CAST16
from amped.backend.ops.dense import DENSE
from amped.backend.ops.mttkrp import MTTKRP
from amped.backend.ops.solve import SOLVE, solver
from amped.parallel.mpi import SingleComm

DOUBLE = np.dtype(np.float64)
OPERATIONS = {each.name.removesuffix(".py") for each in files("amped.backend.ops").iterdir()} - {"__init__"}
ADDED = """
from amped.backend.ops.solve import SOLVE

class OfThreeColumns:
    name = "added"

    def suits(self, rank, dtype):
        return rank == 3

@SOLVE.provider("cpu", priority={priority})
def providers(device):
    return [OfThreeColumns()] if device.threads.count == 1 else []
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose modules count as the CPU's, while its providers are looked up as if for the first time."""
    SOLVE.providers(CpuDevice(SingleComm(), 1))
    sources = {device: list(of_device) for device, of_device in SOLVE._sources.items()}
    monkeypatch.setattr(SOLVE, "_sources", defaultdict(list, sources))
    monkeypatch.setattr(SOLVE, "_loaded", set())
    monkeypatch.setattr(ops, "__path__", [*ops.__path__, str(tmp_path)])
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith(f"{ops.__name__}.solve_")]:
        del sys.modules[name]


def test_a_file_adds_a_provider_and_where_it_declines_the_next_is_used(folder: Path) -> None:
    (folder / "solve_added.py").write_text(ADDED.format(priority=1))
    device = CpuDevice(SingleComm(), 1)
    assert [each.name for each in SOLVE.providers(device)] == ["added", "rows"]
    assert solver(device, 3, DOUBLE).name == "added"
    assert solver(device, 4, DOUBLE).name == "rows"  # it declines this rank
    assert solver(CpuDevice(SingleComm(), 2), 3, DOUBLE).name == "rows"  # and this device
    assert solver(NullDevice(SingleComm()), 3, DOUBLE).name == "added"  # which computes as a CPU


def test_without_priority_a_file_adds_a_provider_behind_the_others(folder: Path) -> None:
    (folder / "solve_added.py").write_text(ADDED.format(priority=0))
    assert [each.name for each in SOLVE.providers(CpuDevice(SingleComm(), 1))] == ["rows", "added"]


def test_modules_of_other_operations_are_not_imported(folder: Path) -> None:
    for name in ("solver_added", "resolve", "sol", "solveadded"):
        (folder / f"{name}.py").write_text("raise AssertionError")
    assert [each.name for each in SOLVE.providers(CpuDevice(SingleComm(), 1))] == ["rows"]


def test_what_a_device_does_not_compute() -> None:
    cpu = CpuDevice(SingleComm(), 1)
    assert CAST16.providers(cpu) == []
    assert CAST16.first(cpu) is None
    with pytest.raises(LookupError, match="no suitable provider of 'cast16' on device 'cpu'"):
        CAST16.require(cpu)
    with pytest.raises(LookupError, match="no suitable provider of 'solve' on device 'cpu'"):
        SOLVE.require(cpu, lambda provider: False)


def test_the_null_device_computes_as_a_cpu_only_where_it_says_so() -> None:
    null, cpu = NullDevice(SingleComm()), CpuDevice(SingleComm(), 1)
    assert [type(each) for each in SOLVE.providers(null)] == [type(each) for each in SOLVE.providers(cpu)]
    assert [each.name for each in MTTKRP.providers(null)] == ["slow", "fast"]
    assert DENSE.providers(null) == []


@pytest.mark.parametrize("device", ["cpu", "cuda", "null"])
def test_every_module_of_a_device_registers_providers_of_its_operation(device: str) -> None:
    for each in files(f"amped.backend.{device}.ops").iterdir():
        name = each.name.removesuffix(".py")
        if name in ("__init__", "__pycache__"):
            continue
        (of,) = [op for op in OPERATIONS if name == op or name.startswith(f"{op}_")]
        assert f'\n@{of.upper()}.provider("{device}"' in each.read_text("utf-8"), each.name


def test_only_the_modules_of_the_operation_and_the_device_are_imported() -> None:
    code = """
import sys
from amped.backend.cpu.device import CpuDevice
from amped.backend.ops import dense, mttkrp, solve
from amped.parallel.mpi import SingleComm
assert not [name for name in sys.modules if name.startswith("amped.backend.cpu.ops.")]
solve.SOLVE.providers(CpuDevice(SingleComm(), 1))
loaded = {name for name in sys.modules if name.startswith("amped.backend.cpu.ops.")}
assert loaded == {"amped.backend.cpu.ops.solve"}, loaded
assert "cupy" not in sys.modules and "amped.backend.cuda" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
