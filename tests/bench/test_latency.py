"""What an iteration takes from end to end, on small cases."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from command import ROOT, finish, mpirun_line, succeeded

from amped.backend.cpu.device import CpuDevice
from bench import latency
from bench.__main__ import main
from bench.latency import CASES, Case

SMALL = Case("uber", 5, "fp64", nonzeros=3000)
MAIN = f"""
import sys
from bench import latency
from bench.__main__ import main
from bench.latency import Case
latency.CASES["small"], latency.BURST = {SMALL!r}, 0
main(["latency", *sys.argv[1:]])
"""


@pytest.fixture(autouse=True)
def small_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CASES, "small", SMALL)
    monkeypatch.setattr(latency, "BURST", 0)


def test_cases_by_threads(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--device", "cpu", "--threads", "1", "2", "--iterations", "10", "--output", str(folder)]
    main(["latency", "--case", "small", "nycflights", "amazon", *flags, "--data", str(folder / "none")])
    found = json.loads((folder / "latency-cpu-1.json").read_text())
    assert {"date", "machine", "versions"} <= set(found)
    one, two, absent, large = found["cases"]
    assert (one["description"], two["description"]) == ("CPU, 1 thread", "CPU, 2 threads")
    assert (one["nonzeros"], one["rank"], one["precision"]) == (3000, 5, "fp64")
    whole = one["seconds_an_iteration"]
    assert whole["runs"] == 2 * latency.SHORTEST, "whole bursts"
    assert one["seconds_of_kernels"] == pytest.approx(sum(one["seconds_by_kind"].values()))
    assert one["seconds_by_kind"]["compute"] > 0
    assert one["seconds_by_kind"]["exchange"] == 0, "one rank"
    assert "nycflights_5d.tns.gz" in absent["skipped"]
    assert "bytes are needed" in large["skipped"]
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 4
    assert "amazon rank 32 fp32: skipped: " in said[-1]


def test_what_a_cpu_is_not_asked_for(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(CpuDevice, "memory", lambda device, ranks: 1)
    main(["latency", "--device", "cpu", "--name", "none", "--output", str(folder)])
    found = json.loads((folder / "none.json").read_text())["cases"]
    assert {"nell2-8m", "uber", "small"} <= {case["case"] for case in found}
    assert not {"nell2", "amazon"} & {case["case"] for case in found}
    assert all("skipped" in case for case in found)


@pytest.mark.exhaustive
def test_on_two_ranks(folder: Path) -> None:
    flags = ["--device", "cpu", "--case", "small", "--iterations", "8", "--output", str(folder)]
    succeeded(finish([*mpirun_line(2), sys.executable, "-c", MAIN, *flags], cwd=ROOT))
    (case,) = json.loads((folder / "latency-cpu-2.json").read_text())["cases"]
    assert (case["ranks"], len(case["kernels"])) == (2, 2)
    assert case["seconds_by_kind"]["exchange"] > 0


@pytest.mark.parametrize("constraint", ["nonnegative", "fixed", "admm-monotone"])
def test_constraints(folder: Path, constraint: str) -> None:
    flags = ["--device", "cpu", "--case", "small", "--iterations", "8", "--output", str(folder)]
    main(["latency", *flags, "--constraint", constraint])
    (case,) = json.loads((folder / "latency-cpu-1.json").read_text())["cases"]
    assert case["constraint"] == constraint
    assert case["seconds_an_iteration"]["median"] > 0
