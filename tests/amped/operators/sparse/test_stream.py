"""The operator on one process: placements, shards that pass through slots, kernels and options."""

from __future__ import annotations

import time
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import (
    PRECISIONS,
    Case,
    assert_rounding_only,
    cases,
    coo_mttkrp,
    make_operator,
    memory_for,
    mttkrp_all,
    random_factors,
    random_nonzeros,
    small_pieces,
)

from amped.backend.cpu.device import HostSlot
from amped.backend.exchange import connect
from amped.backend.null.device import NullDevice
from amped.backend.null.ops.mttkrp import RecordedKernel
from amped.backend.ops.mttkrp import MTTKRP
from amped.errors import InputError
from amped.operators.memory import SLOTS
from amped.parallel.mpi import Comm
from partitioner.shards.partition import SortedTensor
from partitioner.tensors.sparse import SparseTensor

SHAPE = (60, 1, 9, 40)
COLUMNS, VALUES = random_nonzeros(3, SHAPE, 3001)
FACTORS = random_factors(3, SHAPE, 5)
PLACEMENTS = st.sampled_from(["resident", "stream", "auto"])
TENSOR = SparseTensor(COLUMNS.T, VALUES, SHAPE)


@pytest.mark.parametrize("precision", PRECISIONS)
@given(case=cases(), placement=PLACEMENTS, slot=st.integers(1, 9), more=st.integers(0, 40))
@settings(max_examples=60)
def test_any_tensor_any_placement(
    comm: Comm, device: str, precision: str, case: Case, placement: str, slot: int, more: int
) -> None:
    options: dict[str, Any] = {"device": device, "precision": precision, "threads": 1 + slot % 3}
    with small_pieces(slot):
        if placement == "auto":
            streaming = make_operator(case.tensor, case.factors, comm, placement="stream", **options)
            options["device_memory"] = memory_for(streaming.plan, more)
        operator = make_operator(case.tensor, case.factors, comm, placement=placement, **options)
        results = mttkrp_all(operator, range(operator.order))
    for mode, result in enumerate(results):
        assert result.dtype == operator.plan.dtype
        assert np.array_equal(result, case.mttkrp(mode))


@given(case=cases(max_order=4), placement=PLACEMENTS, slot=st.integers(1, 9), more=st.integers(0, 40))
@settings(max_examples=40)
def test_padded_rows_change_nothing(comm: Comm, case: Case, placement: str, slot: int, more: int) -> None:
    """A device that pads rows and needs working memory by the nonzero, as GPUs do."""
    machine = connect(NullDevice(comm), comm)
    with small_pieces(slot):
        streaming = make_operator(case.tensor, case.factors, machine, placement="stream")
        memory = memory_for(streaming.plan, more) if placement == "auto" else None
        operator = make_operator(case.tensor, case.factors, machine, placement=placement, device_memory=memory)
        results = mttkrp_all(operator, range(operator.order))
    assert operator.plan.modes[0].share.stride % 4 == 0
    for mode, result in enumerate(results):
        assert np.array_equal(result, case.mttkrp(mode))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("memory", [None, 0.95, 0.7, 0.5])
def test_emulated_small_device_memory(comm: Comm, device: str, precision: str, memory: float | None) -> None:
    options: dict[str, Any] = {"device": device, "precision": precision, "threads": 2}  # each takes memory
    with small_pieces(50):
        if memory is not None:
            whole = make_operator(TENSOR, FACTORS, comm, **options).plan.device_bytes
            # With less memory to work in, a CPU makes shards in pieces, and everything may still fit.
            spare = whole["working memory"] if device == "cpu" else 0
            options["device_memory"] = int(memory * (sum(whole.values()) - spare))
        operator = make_operator(TENSOR, FACTORS, comm, **options)
        streamed = sum(m.streamed for m in operator.plan.modes)
        assert (streamed > 0) == (memory is not None)
        for mode, result in enumerate(mttkrp_all(operator, range(operator.order))):
            assert_rounding_only(result, coo_mttkrp(COLUMNS, VALUES, FACTORS, mode), precision)


@pytest.mark.parametrize("slot", [1, 2, 49, 50, 51, 200])
def test_shards_are_the_nonzeros_in_order(comm: Comm, slot: int) -> None:
    with small_pieces(slot):
        how: dict[str, Any] = {"device": "cpu", "threads": 2}  # each takes memory
        whole = make_operator(TENSOR, FACTORS, comm, **how).plan
        memory = int(0.6 * sum(whole.device_bytes.values()))
        operator = make_operator(TENSOR, FACTORS, comm, device_memory=memory, **how)
    assert operator.plan.slot == slot
    for mode, share in enumerate(operator.plan.modes):
        assert 0 < share.resident < share.nnz
        seen: list[list[np.ndarray]] = []
        last_row, shards = -1, 0
        for shard in operator.stream.shards(mode):
            assert shard.nnz <= (share.resident if shards == 0 else slot)
            rows = np.repeat(shard.pieces.rows, np.diff(shard.pieces.starts))
            arrays = [np.array(a[: shard.nnz]) for a in (rows, *shard.indices, shard.values)]
            assert (shard.parts.shared[0] >= 0) == (arrays[0][0] == last_row)
            seen.append(arrays)
            last_row, shards = arrays[0][-1], shards + 1
        assert shards > share.streamed // slot
        copy = SortedTensor(TENSOR, mode)
        for k in range(len(SHAPE)):
            assert np.array_equal(np.concatenate([s[k] for s in seen]), copy.column(k))
        assert np.array_equal(np.concatenate([s[-1] for s in seen]), copy.values.astype(np.float32))


def test_copies_run_ahead_but_never_into_a_slot_in_use(comm: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[tuple[str, int]] = []
    copy, release = HostSlot._copy, HostSlot.release

    def slow_copy(slot: HostSlot, *args: Any) -> Any:
        events.append(("copy", id(slot)))
        time.sleep(0.001)
        return copy(slot, *args)

    def noted_release(slot: HostSlot) -> None:
        events.append(("release", id(slot)))
        release(slot)

    monkeypatch.setattr(HostSlot, "_copy", slow_copy)
    monkeypatch.setattr(HostSlot, "release", noted_release)
    with small_pieces(100):
        operator = make_operator(TENSOR, FACTORS, comm, device="cpu", placement="stream")
        result = operator.gathered(0, operator.mttkrp(0, then=[1]))
    assert_rounding_only(result, coo_mttkrp(COLUMNS, VALUES, FACTORS, 0), "fp32")
    for slot_ahead in operator.stream.slots:
        slot_ahead.shard()  # is there
    slots = {slot for _, slot in events}
    assert len(slots) == SLOTS
    for slot in slots:
        kinds = [kind for kind, s in events if s == slot]
        assert kinds == ["copy", "release"] * (len(kinds) // 2) + ["copy"], "and one ahead, for the next mode"
    assert {kind for kind, _ in events[:SLOTS]} == {"copy"}, "all slots are filled before the first is waited for"


def test_a_mode_that_was_given_up_leaves_no_slot_in_use(comm: Comm, device: str) -> None:
    with small_pieces(100):
        operator = make_operator(TENSOR, FACTORS, comm, device=device, placement="stream")
    taken = operator.stream.shards(0, [1])
    next(taken)  # its slot is in use, and it never requests another one
    released: list[object] = []
    with mock.patch.object(type(operator.stream.slots[0]), "release", lambda slot: released.append(slot)):
        next(operator.stream.shards(2, [3]))
    assert released[:SLOTS] == operator.stream.slots
    taken.close()
    assert_rounding_only(mttkrp_all(operator, [2])[0], coo_mttkrp(COLUMNS, VALUES, FACTORS, 2), "fp32")


def test_repeats_and_modes_in_any_order(comm: Comm, device: str) -> None:
    with small_pieces(100):
        operator = make_operator(TENSOR, FACTORS, comm, device=device, placement="stream")
        results = {mode: mttkrp_all(operator, [mode])[0] for mode in (3, 0, 2, 1)}
        for mode in (0, 1, 1, 2, 3, 0):
            assert mttkrp_all(operator, [mode])[0].tobytes() == results[mode].tobytes()


@pytest.mark.parametrize("placement", ["resident", "stream"])
def test_clock_tells_copies_from_computing(comm: Comm, device: str, placement: str) -> None:
    operator = make_operator(TENSOR, FACTORS, comm, device=device, placement=placement)
    operator.clock.collect()
    operator.mttkrp(2)
    seconds = operator.clock.collect()
    # Copies run ahead into the next mode.
    assert set(seconds) - {("copy", 3)} == {("compute", 2)} | ({("copy", 2)} if placement == "stream" else set())
    assert all(s >= 0 for s in seconds.values())
    assert operator.clock.collect() == {}


# Factors, kernels, options


def test_factors_go_in_and_come_back(comm: Comm, device: str) -> None:
    operator = make_operator(TENSOR, FACTORS, comm, device=device, precision="fp64")
    for mode, factor in enumerate(FACTORS):
        assert np.array_equal(operator.factor(mode), factor)
        assert np.array_equal(operator.machine.device.to_host(operator.owned(mode)), factor)
    operator.set_factor(2, np.asfortranarray(FACTORS[2] * 2).astype(np.float32))
    assert np.array_equal(operator.factor(2), (FACTORS[2] * 2).astype(np.float32))


def test_the_callers_factors_are_not_changed(comm: Comm, device: str) -> None:
    factors = [f.copy() for f in FACTORS]
    operator = make_operator(TENSOR, factors, comm, device=device, precision="fp64")
    operator.work.factors[0][:] = 0
    assert np.array_equal(factors[0], FACTORS[0])


def test_the_fastest_kernel_is_kept(comm: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
    device = NullDevice(comm)
    machine, compute = connect(device, comm), RecordedKernel.run

    def delayed(kernel: RecordedKernel, *args: Any) -> None:
        time.sleep(0.02 * (kernel.name == "slow"))
        compute(kernel, *args)

    monkeypatch.setattr(RecordedKernel, "run", delayed)
    assert make_operator(TENSOR, FACTORS, machine).kernels == ["fast"] * 4
    for options in ({"deterministic": True}, {"kernel": "slow"}):
        device.used.clear()
        fixed = make_operator(TENSOR, FACTORS, machine, **options)
        assert device.used == [("slow", 1)] * 4, "compiled, not timed"
        assert fixed.kernels == ["slow"] * 4
        fixed.mttkrp(0)
        assert {kernel for kernel, _ in device.used} == {"slow"}


@pytest.mark.exhaustive
def test_every_kernel_by_its_name(comm: Comm, device: str) -> None:
    placed = make_operator(TENSOR, FACTORS, comm, device=device)
    share = placed.plan.modes[0].share
    for name in [kernel.name for kernel in MTTKRP.providers(placed.machine.device) if kernel.suits(share)]:
        operator = make_operator(TENSOR, FACTORS, comm, device=device, kernel=name)
        assert operator.kernels == [name] * 4
        assert_rounding_only(mttkrp_all(operator, [0])[0], coo_mttkrp(COLUMNS, VALUES, FACTORS, 0), "fp32")


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"precision": "fp16"}, "precision 'fp16'"),
        ({"kernel": "magic"}, "kernel 'magic'.*segmented"),
        ({"device": "tpu"}, "device 'tpu'"),
        ({"placement": "elsewhere"}, "placement 'elsewhere'"),
        ({"device_memory": 100}, "device memory"),
        ({"device_memory": -1}, "device memory"),
        ({"threads": -1}, "threads"),
        ({"gather": "int8"}, "gather 'int8'"),
        ({"gather": "bf16"}, "gather 'bf16': cpu has full"),
        ({"gather": "bf16", "precision": "fp64"}, "'fp32'"),
        ({"placement": "stream", "kernel": "permuted"}, "kernel 'permuted'"),
    ],
)
def test_wrong_options(comm: Comm, options: dict[str, Any], cause: str) -> None:
    with pytest.raises(InputError, match=cause):
        make_operator(TENSOR, FACTORS, comm, **({"device": "cpu"} | options))
