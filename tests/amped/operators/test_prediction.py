"""What an iteration will take: sums by hand, and speeds of the machine at hand, whatever they are."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import in_process, run_amped, small_tns, succeeded
from oracle import PRECISIONS

from amped.backend.base import Device
from amped.backend.choose import choose
from amped.backend.cpu.device import CpuDevice
from amped.backend.exchange import connect
from amped.operators.placement import Plan, Setting, make_plan
from amped.operators.prediction import Forecast, Speeds, forecast, measure
from amped.options import Options
from amped.parallel.mpi import Comm
from partitioner.coo import ValueRange
from partitioner.shards import cut_mode

SHAPE, NNZ = (100, 30, 50), 6000
SPEEDS = Speeds(((100.0, 1e6), (10_000.0, 1e5)), copy=1e4, solve=1e3, message=0.5, exchange=1e2)


@pytest.fixture
def backend(device: str, comm: Comm) -> Device:
    return choose(device, comm)  # type: ignore[arg-type]


def plans(backend: Device, parts: int, **options: object) -> list[Plan]:
    rng = np.random.default_rng(0)
    cuts = [cut_mode(np.sort(rng.integers(0, n, NNZ).astype(np.int32)), n, parts) for n in SHAPE]
    chosen = Options(**options)  # type: ignore[arg-type]
    setting = Setting((8, 8, 8), chosen, backend, ValueRange(0.0, 1.0, 0.0), backend.memory(1))
    return [make_plan(cuts, part, setting) for part in range(parts)]


def test_sums_by_hand(comm: Comm) -> None:
    backend = choose("cpu", comm)
    for plan in plans(backend, 2):
        got = forecast(plan, SPEEDS)
        # Rows of 32 bytes out of matrices of 3200, 960 and 1600 bytes; each is an input of the two other modes.
        speed = {n: np.interp(np.log(32 * n), np.log([100, 10_000]), [1e6, 1e5]) for n in SHAPE}
        inputs = [(m.nnz, n) for m in plan.modes for k, n in enumerate(SHAPE) if k != m.mode]
        assert got.compute == pytest.approx(sum(nnz * 32 / speed[n] for nnz, n in inputs))
        owned = [m.owned.stop - m.owned.start for m in plan.modes]
        assert got.solve == pytest.approx(sum(owned) / 1e3)
        assert got.exchange == pytest.approx(3 * 0.5 + (sum(SHAPE) - sum(owned)) * 32 / 1e2)
        assert got.copy == 0
        assert got.seconds == pytest.approx(got.compute + got.exchange + got.solve)


def test_what_is_streamed_is_copied_beside_computing(comm: Comm) -> None:
    backend = choose("cpu", comm)
    (plan,) = plans(backend, 1, placement="stream")
    got = forecast(plan, SPEEDS)
    copied = sum(mode.shard_bytes(NNZ, streamed=True) for mode in plan.modes)
    assert got.copy == pytest.approx(copied / 1e4)
    assert copied == pytest.approx(3 * NNZ * 16, rel=0.05)
    assert got.seconds == pytest.approx(max(got.copy, got.compute) + got.exchange + got.solve)
    assert got.copy > got.compute
    quick = forecast(plan, replace(SPEEDS, copy=1e12))
    assert quick.seconds == pytest.approx(quick.compute + quick.exchange + quick.solve)


def test_matrices_beyond_those_measured(comm: Comm) -> None:
    backend = choose("cpu", comm)
    (plan,) = plans(backend, 1)
    slow, fast = (forecast(plan, replace(SPEEDS, gather=((size, 1e6),))) for size in (1.0, 1e12))
    assert slow.compute == fast.compute == pytest.approx(6 * NNZ * 32 / 1e6)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("rank", [1, 7, 32])
def test_speeds_of_this_machine(backend: Device, comm: Comm, rank: int, precision: Any) -> None:
    machine = connect(backend, comm)
    small = measure(machine, (50, 3), rank, Options(precision=precision))
    assert len(small.gather) == 1, "no more memory than the run will take"
    speeds = measure(machine, (1 << 30, 3), rank, Options(precision=precision, kernel="segmented"))
    assert [size for size, _ in speeds.gather] == list(backend.trial.matrices)
    assert all(0 < speed < 1e15 for _, speed in (*speeds.gather, (0, speeds.copy), (0, speeds.solve)))
    assert (speeds.message, speeds.exchange) == (0, np.inf), "nothing is exchanged alone"


def test_a_trial_takes_no_memory_for_rows_that_it_does_not_compute(comm: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, asked, empty = connect(choose("cpu", comm, 3), comm), [], CpuDevice.empty

    def noted(device: CpuDevice, shape: tuple[int, ...], dtype: Any) -> Any:
        asked.append(math.prod(shape) * np.dtype(dtype).itemsize)
        return empty(device, shape, dtype)

    monkeypatch.setattr(CpuDevice, "empty", noted)
    measure(machine, (1 << 30, 3, 3), 16, Options(kernel="blocked"))
    assert max(asked) <= 2 * max(machine.device.trial.matrices)


def test_a_plan_and_a_run_say_it(folder: Path) -> None:
    path = small_tns(folder)
    number = r"[\d.e+-]+"
    parts = rf"\(compute {number}, copy {number}, exchange {number}, solve {number}\)"
    flags = ["--rank", 3, "--device", "cpu"]
    said = succeeded(run_amped("plan", path, *flags)).out
    assert re.search(rf"an iteration of CP-ALS will take about {number} ms {parts}\n", said)
    assert "exchange is not in it" in succeeded(run_amped("plan", path, *flags, "--ranks", 3)).out
    result = in_process("cpd", path, *flags, "--max-iters", 3)
    assert re.search(rf"iterations took {number} ms; foreseen: {number} ms {parts}\n", result.out + result.err)


def test_text() -> None:
    assert str(Forecast(2e-3, 5e-3, 1e-3, 0.5e-3)) == "6.5 ms (compute 2, copy 5, exchange 1, solve 0.5)"
