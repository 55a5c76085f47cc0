"""The predicted time of an iteration, from measurements, and the rule by which it is reported."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import in_process, random_tensor, run_amped, small_tns, succeeded
from oracle import PRECISIONS

from amped.backend.choose import choose
from amped.backend.cpu.device import CpuDevice
from amped.backend.exchange import Machine, connect
from amped.methods import prediction, prediction_dense
from amped.methods.constraints import ConstraintParams
from amped.methods.prediction import Forecast, foretell, hopeless
from amped.methods.prediction_dense import foretell_dense, hopeless_dense
from amped.operators.dense.plan import DensePlan, make_dense_plan
from amped.operators.placement import Plan, Setting, make_plan
from amped.operators.sources.dense import DenseSource, of_array
from amped.operators.sources.sparse import TensorSource
from amped.options import Options
from amped.parallel.mpi import Comm
from amped.runs import planning
from amped.runs.assembly import setting_for, solving_bytes
from partitioner.tensors.dense import DenseTensor
from partitioner.tensors.sparse import SparseTensor

SHAPE, NNZ = (100, 30, 50), 6000
SURE = Forecast(compute=2e-3, copy=0.0, rest=1e-3, spread=0.05)


@pytest.fixture
def machine(device: str, comm: Comm) -> Machine:
    chosen = choose(device, comm)  # type: ignore[arg-type]
    chosen.steady = True  # otherwise a CPU is not timed
    return connect(chosen, comm)


def planned(machine: Machine, **options: Any) -> tuple[TensorSource, Plan, Setting]:
    """Return a tensor, this rank's plan for it and the setting."""
    indices, values = random_tensor(SHAPE, NNZ)
    source = TensorSource(SparseTensor(indices, values, SHAPE), machine.comm)
    chosen = Options(**options)
    setting = setting_for(source, 8, machine, chosen, solving_bytes(machine, chosen, 3))
    cuts = [source.cut(mode, machine.comm.size) for mode in range(3)]
    return source, make_plan(cuts, machine.comm.rank, setting), setting


def test_what_may_be_told() -> None:
    assert SURE.doubt is None
    assert SURE.seconds == pytest.approx(3e-3)
    assert str(SURE) == "3 ms (compute 2, copy 0, rest 1)"
    assert replace(SURE, copy=5e-3).seconds == pytest.approx(6e-3), "copies and computing overlap"


def test_what_may_not_be_told() -> None:
    short = replace(SURE, compute=0.0, rest=prediction.LEAST_SECONDS * 0.99)
    assert "below 1 ms" in (short.doubt or "")
    unsteady = replace(SURE, spread=0.11)
    assert "vary by 11%" in (unsteady.doubt or "")


def test_the_spread_is_that_of_the_quartiles() -> None:
    assert prediction.spread_of([1.0, 1.0, 1.0, 1.0, 9.0]) == 0
    assert prediction.spread_of([0.8, 0.9, 1.0, 1.3, 1.4]) == pytest.approx(0.3)
    assert prediction.spread_of([0.0, 0.0, 0.0]) == 0


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("options", [{}, {"placement": "stream"}, {"kernel": "segmented"}, {"deterministic": True}])
@pytest.mark.exhaustive
def test_on_this_machine(machine: Machine, precision: Any, options: dict[str, Any]) -> None:
    found = foretell(*planned(machine, precision=precision, **options)[:2], machine, planned(machine, **options)[2])
    assert found.compute >= 0
    assert found.rest > 0
    assert (found.copy > 0) == (options.get("placement") == "stream")
    assert found.spread >= 0


@pytest.mark.parametrize(
    "wanted",
    [
        ConstraintParams(True),
        ConstraintParams(ridge=1.0),
        ConstraintParams((0,), fixed_modes=(1,)),
        ConstraintParams(fixed_modes=(0, 2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("placement", ["resident", "stream"])
def test_constrained_iterations(machine: Machine, wanted: ConstraintParams, placement: Any) -> None:
    source, plan, setting = planned(machine, placement=placement)
    found = foretell(source, plan, machine, setting, wanted.of(3))
    assert found.compute >= 0
    assert found.rest > 0
    assert (found.copy > 0) == (placement == "stream")


def test_fixed_modes_take_no_time_and_rows_count_as_often_as_there_are_any(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, plan, setting = planned(machine)
    monkeypatch.setattr(
        prediction._Trial, "seconds", lambda trial, of: 1e-3 * of.share.nnz if of.share.nnz > 5000 else 0
    )
    monkeypatch.setattr(prediction, "_row_seconds", lambda operator, count: 1000.0 * count)
    found = foretell(source, plan, machine, setting, ConstraintParams((0, 1), fixed_modes=(1,)).of(3))
    assert found.compute == pytest.approx(1e-3 * sum(plan.modes[mode].nnz for mode in (0, 2)))
    assert found.rest // 1000 == source.used(0)


def test_rows_beyond_those_that_are_tried(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    operator = prediction._hardly_any(planned(machine)[0], machine, planned(machine)[2])
    monkeypatch.setattr(prediction, "MOST_ROWS", 100)
    clock = type(machine.device.clock())
    seconds = iter([3.0, 2.0, 4.0, 0.5, 0.5, 0.5])
    monkeypatch.setattr(clock, "collect", lambda self: {("tune", 0): next(seconds)})
    assert prediction._row_seconds(operator, 1000) == pytest.approx(15.0)


@pytest.mark.parametrize(("every", "expected"), [(1, 10.0), (3, 10.0), (6, 1.0)])
def test_iterations_with_the_host_count_only_if_there_are_few_others(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, every: int, expected: float
) -> None:
    """Here one in `every` iterations raises a flag; it and the next one take ten times as long."""
    now, count, followed = [0.0], [0], list[int]()

    def run(method: Any, rule: Any, observers: Any) -> None:
        while count[0] < rule.max_iters:
            count[0] += 1
            checked, raised = method.checked > 0, count[0] % every == 0
            now[0] += 10.0 if checked or raised else 1.0
            followed.append(method.checked)
            method.checked = 5 if raised else max(0, method.checked - 1)
            observers[0](method, {}, 0.0)

    monkeypatch.setattr(prediction, "run", run)
    monkeypatch.setattr(prediction.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(prediction, "ENOUGH", 1e3)
    source, _, setting = planned(machine)
    few = prediction._hardly_any(source, machine, setting)
    assert np.median(prediction.iterations(few, ConstraintParams().of(3))) == expected
    assert max(followed[1:]) <= 1, "the host never takes part for longer than one iteration"


def test_one_mode_without_negative_numbers_is_hopeless(machine: Machine) -> None:
    plan = planned(machine)[1]
    assert "until they converge" in (hopeless(plan, machine, ConstraintParams(True, fixed_modes=(0, 1)).of(3)) or "")
    assert hopeless(plan, machine, ConstraintParams(True, fixed_modes=(1,)).of(3)) is None
    assert hopeless(plan, machine, ConstraintParams(fixed_modes=(0, 1)).of(3)) is None


def test_a_sample_stands_for_all(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples have the requested number of nonzeros, and their time is scaled to the whole tensor."""
    source, plan, setting = planned(machine)
    monkeypatch.setattr(type(machine.device), "sample", 640)
    seen = list[int]()

    def seconds(trial: Any, of: Any) -> float:
        seen.append(of.share.nnz)
        return 1e-3 * of.share.nnz if of.share.nnz == 640 else 0.0

    monkeypatch.setattr(prediction._Trial, "seconds", seconds)
    found = foretell(source, plan, machine, setting)
    assert 640 in seen
    assert max(seen) <= 640
    assert found.compute == pytest.approx(1e-3 * sum(mode.nnz for mode in plan.modes))


def test_windows_of_a_mode() -> None:
    assert prediction._windows(640, 640) == [slice(0, 640)]
    windows = prediction._windows(64_000, 640)
    assert [w.stop - w.start for w in windows] == [10] * 64
    assert [w.start for w in windows] == [1000 * k for k in range(64)]
    column = np.arange(64_000, dtype=np.int32) // 7
    rows = prediction._renumbered(prediction._taken(column, windows))
    assert rows.size == 640
    assert rows[0] == 0
    assert set(np.diff(rows)) == {0, 1}
    taken = np.concatenate([column[w] for w in windows])
    assert np.array_equal(np.diff(rows) > 0, np.diff(taken) > 0), "the same runs"


def test_what_is_hopeless(machine: Machine) -> None:
    assert hopeless(planned(machine)[1], machine) is None
    assert "one copy" in (hopeless(planned(machine, kernel="permuted")[1], machine) or "")
    machine.device.steady = False
    assert "CPU timings vary" in (hopeless(planned(machine)[1], machine) or "")


def told(arguments: list[object]) -> tuple[str, float | None]:
    """Return the line of `plan` about the time, and the seconds in its metrics."""
    out = succeeded(run_amped("plan", *arguments, "--device", "cpu", "--metrics", "m.jsonl", "--force")).out
    (event,) = map(json.loads, Path("m.jsonl").read_text().splitlines())
    return next(line for line in out.splitlines() if "iteration" in line or "estimate" in line), event["seconds"]


def test_a_plan_tells_what_is_sure_and_nothing_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags: list[object] = [small_tns(folder), "--rank", 3]
    assert told(flags)[0] == "No time estimate: CPU timings vary too much to predict"
    monkeypatch.setattr(CpuDevice, "steady", True)
    monkeypatch.setattr(planning, "foretell", lambda *_: SURE)
    assert told(flags) == ("an iteration will take about 3 ms (compute 2, copy 0, rest 1)", 3e-3)
    monkeypatch.setattr(planning, "foretell", lambda *_: replace(SURE, spread=0.5))
    line, seconds = told(flags)
    assert line.startswith("No time estimate: ")
    assert line.endswith("timings on this machine currently vary by 50%")
    assert seconds is None
    assert told([*flags, "--ranks", 3])[0].endswith("estimate: a run on 3 ranks needs 3 started ranks")
    assert "one copy of the nonzeros" in told([*flags, "--kernel", "permuted"])[0]


def test_a_run_tells_what_iterations_took(folder: Path) -> None:
    result = in_process("cpd", small_tns(folder), "--rank", 3, "--device", "cpu", "--max-iters", 3)
    assert re.search(r"iterations took [\d.e+-]+ ms\n", result.out + result.err)


def dense_plan(machine: Machine, shape: tuple[int, ...], **options: Any) -> tuple[DenseSource, DensePlan, Setting]:
    """Return a dense tensor whose last mode varies slowest, this rank's plan for it and the setting."""
    array = np.asfortranarray(np.random.default_rng(0).random(shape))
    chosen = Options(**options)
    source = of_array(DenseTensor(array), machine.comm)
    setting = setting_for(source, 8, machine, chosen, solving_bytes(machine, chosen, len(shape)))
    return source, make_dense_plan(source, machine.comm.rank, machine.comm.size, setting), setting


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", [(30, 20), (20, 30, 40), (6, 7, 8, 9)])
@pytest.mark.parametrize("most", [1 << 12, 1 << 30])
def test_of_dense_tensors(
    machine: Machine, precision: Any, shape: tuple[int, ...], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random numbers of the same shape; of fewer indices of the slowest mode, where they are many."""
    monkeypatch.setattr(prediction_dense, "MOST_ON_HOST" if machine.device.on_host else "MOST_BYTES", most)
    source, plan, setting = dense_plan(machine, shape, precision=precision)
    shapes, made = list[tuple[int, ...]](), prediction_dense.DenseOperator
    monkeypatch.setattr(prediction_dense, "DenseOperator", lambda *args: shapes.append(args[0].shape) or made(*args))
    found = foretell_dense(source, plan, machine, setting, ConstraintParams().of(len(shape)))
    assert found.seconds > 0
    assert found.spread >= 0
    index = int(np.prod(shape[:-1])) * np.dtype(setting.options.dtype).itemsize
    assert shapes == [(*shape[:-1], min(shape[-1], max(8, most // index)))]


def test_what_is_not_told_of_dense_tensors(machine: Machine) -> None:
    shape = (6, 7, 8)
    source, plan, setting = dense_plan(machine, shape)
    streamed = dense_plan(machine, shape, placement="stream")[1]
    assert hopeless_dense(plan, machine) is None
    assert "limits the speed" in (hopeless_dense(streamed, machine) or "")
    alone = ConstraintParams(nonnegative=True, fixed_modes=(0, 1)).of(3)
    assert "only non-fixed mode" in (hopeless_dense(plan, machine, alone) or "")
    assert "one process only" in (hopeless_dense(make_dense_plan(source, 0, 2, setting), machine) or "")
