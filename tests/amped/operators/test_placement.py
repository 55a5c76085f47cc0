"""What goes where: plans, and the choice of device and threads."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import make_operator, random_factors, random_nonzeros

from amped.backend.choose import choose
from amped.backend.cpu.device import CpuDevice
from amped.backend.cpu.ops.solve import BLOCK_BYTES
from amped.backend.cuda import probe
from amped.backend.device import Device
from amped.backend.exchange import HostExchange, Machine
from amped.backend.null.device import NullDevice
from amped.errors import InputError
from amped.methods import als
from amped.methods.driver import StopRule, iterate
from amped.operators import placement as placement_module
from amped.operators.memory import PIECES, SLOT_BYTES, SLOTS, SMALLEST_SLOT
from amped.operators.placement import Plan, Setting, make_plan, nonzero_bytes
from amped.options import DTYPES, Options
from amped.parallel.mpi import Comm, SingleComm
from partitioner.host.threads import fair_threads
from partitioner.shards.partition import Cut, cut_mode
from partitioner.tensors.sparse import SparseTensor
from partitioner.tensors.value_range import ValueRange

VALUES = ValueRange(0.0, 1.0, 0.0)


@dataclass
class Job:
    """What a plan is made from."""

    cuts: list[Cut]
    parts: int
    rank: int
    precision: Any
    device: Device

    def plan(self, part: int, memory: int = 1 << 60, overlaps: bool = False, placement: Any = "auto") -> Plan:
        options = Options(precision=self.precision, placement=placement)
        return make_plan(self.cuts, part, setting(len(self.cuts), self.rank, self.device, options, memory, overlaps))

    @property
    def dtype(self) -> np.dtype[Any]:
        return DTYPES[self.precision]

    def plans(self, **options: Any) -> list[Plan]:
        return [self.plan(part, **options) for part in range(self.parts)]


class World:
    """One process of a node that has several."""

    rank = local_rank = 0
    size = local_size = 1

    def __init__(self, others: int = 0) -> None:
        self.size = self.local_size = others + 1

    def allgather(self, item: Any) -> list[Any]:
        return [item] * self.size


DEVICES: list[Any] = [CpuDevice(World(), 1), CpuDevice(World(), 3), NullDevice(World())]  # type: ignore[arg-type]


def setting(
    order: int, rank: int, device: Device, options: Options | None = None, memory: int = 1 << 60, overlaps: bool = False
) -> Setting:
    """Return what plans of CP-ALS have in common."""
    options = options or Options()
    solving = als.solving_bytes(Machine(SingleComm(), device, HostExchange(SingleComm())), options.dtype, order)
    return Setting((rank,) * order, options, device, VALUES, memory, overlaps, solving)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    order, parts = draw(st.integers(2, 8)), draw(st.integers(1, 6))
    nnz = draw(st.sampled_from([1, 3, 20, SMALLEST_SLOT, 5000, 30_000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    lengths = [draw(st.sampled_from([1, 2, 50, 100_000])) for _ in range(order)]
    used = [-(-length // draw(st.sampled_from([1, 10]))) for length in lengths]
    rows = [np.sort(rng.integers(0, n, nnz).astype(np.int32)) for n in used]
    cuts = [cut_mode(column, length, parts) for column, length in zip(rows, lengths, strict=True)]
    return Job(
        cuts,
        parts,
        draw(st.sampled_from([1, 3, 16, 257, 1024])),
        draw(st.sampled_from(["fp32", "fp64"])),
        draw(st.sampled_from(DEVICES)),
    )


MEMORY = st.floats(0, 1.2) | st.floats(0, 0.01)  # as a share of what everything takes


def bytes_of(plan: Plan) -> int:
    return sum(plan.device_bytes.values())


@given(jobs(), MEMORY, st.sampled_from(["auto", "resident", "stream"]))
def test_a_plan_stays_within_its_memory_or_is_refused(job: Job, share: float, placement: Any) -> None:
    for part in range(job.parts):
        memory = int(share * bytes_of(job.plan(part, memory=1 << 60)))
        try:
            plan = job.plan(part, memory=memory, placement=placement)
        except InputError:
            continue
        assert bytes_of(plan) <= memory
        assert all(need >= 0 for need in plan.device_bytes.values())


@given(jobs(), st.booleans())
def test_modes_are_cut_where_rows_take_long_to_send(job: Job, overlaps: bool) -> None:
    with mock.patch.object(placement_module, "PART_BYTES", 1000):
        plans = job.plans(memory=1 << 60, overlaps=overlaps)
        for mode, cut in enumerate(job.cuts):
            (shares,) = {plan.modes[mode].parts for plan in plans}  # all ranks agree
            assert sum(shares) == pytest.approx(1)
            assert all(a >= b > 0 for a, b in pairwise(shares))
            sent = placement_module.SENT * int(cut.rows[-1]) * plans[0].modes[0].share.stride * job.dtype.itemsize
            assert len(shares) == 1 or (overlaps and job.parts > 1 and sent > 1000)
            if overlaps and job.parts > 1 and shares[-1] * sent * (job.parts - 1) / job.parts > 1e6:
                assert len(shares) == placement_module.MOST_PARTS


@given(jobs(), MEMORY, st.sampled_from(["auto", "resident", "stream"]))
def test_every_nonzero_has_one_place(job: Job, share: float, placement: Any) -> None:
    each = nonzero_bytes(len(job.cuts), job.dtype)
    for part in range(job.parts):
        try:
            plan = job.plan(part, memory=int(share * bytes_of(job.plan(part, memory=1 << 60))), placement=placement)
        except InputError:
            continue
        for mode, (share_of_mode, cut) in enumerate(zip(plan.modes, job.cuts, strict=True)):
            assert share_of_mode.mode == mode
            assert share_of_mode.nnz == cut.nonzeros[part + 1] - cut.nonzeros[part]
            assert 0 <= share_of_mode.resident <= share_of_mode.nnz
            assert share_of_mode.streamed == share_of_mode.nnz - share_of_mode.resident
        streamed = sum(m.streamed for m in plan.modes)
        assert bool(plan.slot) == bool(streamed), "slots are for what is streamed"
        resident = sum(m.shard_bytes(m.resident) for m in plan.modes)
        slot = max(m.shard_bytes(plan.slot, streamed=True) for m in plan.modes)
        assert plan.device_bytes["resident nonzeros"] == resident
        assert plan.device_bytes["stream slots"] == SLOTS * slot
        assert plan.slot * each <= SLOT_BYTES
        assert plan.host_bytes >= streamed * each
        assert not streamed or plan.slot > 0
        if placement == "resident":
            assert streamed == 0
        if placement == "stream":
            assert all(m.resident == 0 for m in plan.modes)


@given(jobs())
def test_ample_memory_keeps_everything_resident(job: Job) -> None:
    for auto, resident in zip(job.plans(memory=1 << 50), job.plans(placement="resident", memory=1 << 50), strict=True):
        assert auto.device_bytes == resident.device_bytes
        assert auto.slot == resident.slot == 0
        assert all(m.streamed == 0 for m in auto.modes)


@given(jobs())
def test_what_an_iteration_reads(job: Job) -> None:
    """Factor rows of every nonzero, and what is streamed."""
    resident, streamed = (job.plan(0, memory=1 << 50, placement=where) for where in ("resident", "stream"))
    rows = sum(m.nnz * (len(job.cuts) - 1) * m.share.row_bytes for m in resident.modes)
    assert resident.read_bytes == rows
    assert streamed.read_bytes == rows + sum(m.shard_bytes(m.nnz, streamed=True) for m in streamed.modes)


@given(jobs(), st.integers(1, 100))
def test_more_memory_never_hurts(job: Job, more: int) -> None:
    """There is one threshold: what fits in some memory fits in any larger one, and no less is resident."""
    plan_of_all = bytes_of(job.plan(0, memory=1 << 60))
    low, high = 0, 2 * plan_of_all + (SLOTS + 1) * SMALLEST_SLOT * 1024
    while high - low > 1:
        middle = (low + high) // 2
        try:
            job.plan(0, memory=middle)
            high = middle
        except InputError:
            low = middle
    residents = []
    for memory in sorted({high, high + more, high + more * 1000, high + more * 100_000}):
        residents.append(sum(m.resident for m in job.plan(0, memory=memory).modes))
    assert residents == sorted(residents)


@given(jobs())
def test_rows_are_dealt_once_and_computed_where_their_nonzeros_are(job: Job) -> None:
    plans = job.plans(memory=1 << 60)
    for mode, cut in enumerate(job.cuts):
        shares = [plan.modes[mode] for plan in plans]
        assert [s.owned.start for s in shares] == [0, *(s.owned.stop for s in shares[:-1])]
        assert shares[-1].owned.stop == cut.rows[-1]
        for part, share in enumerate(shares):
            assert share.rows.stop >= share.owned.stop
            assert share.rows.start == (cut.heads[part] if cut.heads[part] >= 0 else share.owned.start)
            assert share.owned.start - share.rows.start == (cut.heads[part] >= 0)


@given(jobs())
def test_what_is_always_there(job: Job) -> None:
    for plan in job.plans(memory=1 << 60):
        assert plan.modes[0].share.stride >= job.rank
        row = job.rank * job.dtype.itemsize
        unit = 32 if row <= 32 else 64
        assert plan.modes[0].share.stride * job.dtype.itemsize % unit == 0
        assert plan.modes[0].share.stride * job.dtype.itemsize - row < unit
        lengths = [int(cut.rows[-1]) for cut in job.cuts]
        rows = max(m.rows.stop - m.rows.start for m in plan.modes)
        assert plan.device_bytes["factor matrices"] == sum(lengths) * plan.modes[0].share.stride * job.dtype.itemsize
        assert plan.device_bytes["MTTKRP output"] == rows * plan.modes[0].share.stride * 8
        owned = max(m.owned.stop - m.owned.start for m in plan.modes)
        dense = min(owned * job.rank * 8, BLOCK_BYTES - job.rank * 8)  # rows are solved in blocks
        scratch = max(m.running_bytes(plan.piece) for m in plan.modes)
        assert plan.device_bytes["working memory"] >= dense + scratch


@given(jobs(), MEMORY)
def test_there_is_room_to_make_each_resident_shard(job: Job, share: float) -> None:
    try:
        plan = job.plan(0, memory=int(share * bytes_of(job.plan(0, memory=1 << 60))))
    except InputError:
        return
    largest = [min(m.resident, plan.piece) for m in plan.modes]
    packing = max(m.making_bytes(n) for m, n in zip(plan.modes, largest, strict=True))
    assert plan.device_bytes["stream slots"] + plan.device_bytes["working memory"] >= packing
    assert all(m.resident <= (PIECES + 1) * plan.piece for m in plan.modes if not m.streamed)


@pytest.mark.parametrize("rank", [-1, 0, 1025])
def test_a_rank_out_of_range_is_refused(rank: int) -> None:
    cut = cut_mode(np.zeros(1, np.int32), 1, 1)
    with pytest.raises(InputError, match=f"rank {rank}: expected"):
        make_plan([cut, cut], 0, setting(2, rank, DEVICES[0]))


@pytest.mark.parametrize("memory", [-5, 0, 1, 1000])
@pytest.mark.parametrize("placement", ["auto", "resident", "stream"])
def test_too_little_memory_is_refused(memory: int, placement: Any) -> None:
    cut = cut_mode(np.arange(1000, dtype=np.int32), 1000, 1)
    with pytest.raises(InputError, match=r"need [\d,]+ bytes, but [\d,]+ are available"):
        make_plan([cut] * 3, 0, setting(3, 8, DEVICES[0], Options(placement=placement), memory))


def test_what_is_said_to_be_needed_is_enough() -> None:
    cut = cut_mode(np.sort(np.random.default_rng(0).integers(0, 50, 40_000)).astype(np.int32), 50, 1)
    for device in DEVICES:
        for placement in ("auto", "resident", "stream"):

            def plan(memory: int, device: Any = device, placement: Any = placement) -> Plan:
                return make_plan([cut] * 3, 0, setting(3, 8, device, Options(placement=placement), memory))

            with pytest.raises(InputError) as caught:
                plan(1)
            need = int(str(caught.value).split("need ")[1].split(" bytes")[0].replace(",", ""))
            assert bytes_of(plan(need)) <= need


# The plan and what an operator then allocates


@pytest.mark.parametrize("placement", ["resident", "stream", "auto"])
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_the_engine_allocates_what_the_plan_says(comm: Comm, precision: str, placement: str) -> None:
    shape = (300, 20, 1, 70)
    columns, values = random_nonzeros(5, shape, 20_000)
    tensor, factors = SparseTensor(columns.T, values, shape), random_factors(5, shape, 7)
    options: dict[str, Any] = {"device": "cpu", "precision": precision, "placement": placement}
    whole = bytes_of(make_operator(tensor, factors, comm, **options).plan)
    memory = whole * 3 // 4 if placement == "auto" else None
    operator = make_operator(tensor, factors, comm, **options, device_memory=memory)
    plan, stream = operator.plan, operator.stream
    resident, streamed = ([s for m in stream.modes for s in getattr(m, kind)] for kind in ("resident", "streamed"))
    pieces = [sum(array.nbytes for array in shard.pieces) for shard in resident]
    assert plan.device_bytes["factor matrices"] == sum(f.nbytes for f in operator.work.factors)
    assert plan.device_bytes["MTTKRP output"] == max(out.nbytes for out in operator.work.outs)
    in_rows = plan.device_bytes["resident nonzeros"] - sum(s.nbytes for s in resident)
    assert 0 <= in_rows <= sum(pieces), "most rows have nonzeros"
    assert plan.device_bytes["stream slots"] == sum(slot._memory.nbytes for slot in stream.slots)
    assert plan.device_bytes["working memory"] >= operator.work.scratch.nbytes
    assert (plan.device_bytes["resident nonzeros"] > 0) == (placement != "stream")
    on_host = sum(s.nbytes for s in streamed)
    assert (on_host > 0) == (placement != "resident")
    assert plan.host_bytes >= on_host + bytes_of(plan), "on a CPU the device's memory is the host's"


@pytest.mark.gpu
@pytest.mark.skipif(bool(probe()), reason=probe() or "a GPU is there")
@pytest.mark.parametrize(("placement", "kernel"), [("resident", "auto"), ("stream", "segmented")])
def test_the_plan_is_the_peak_of_a_gpu(
    comm: Comm, placement: str, kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.collect()  # of tests before, which would go while the peak is taken
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))  # kernels whose times are remembered are not tried again
    shape = (200_000, 30_000, 500)
    columns, values = random_nonzeros(5, shape, 4_000_000)
    how = {"device": "cuda", "placement": placement, "kernel": kernel}  # a plan has room for all that may be tried
    start = random_factors(5, shape, 30)  # whose rows are padded on the device, so that it copies them twice
    operator = make_operator(SparseTensor(columns.T, values, shape), start, comm, **how)
    list(iterate(als.CpAls(operator), StopRule(2, 0)))
    operator.machine.device.synchronize()
    assert operator.machine.device.peak_bytes() == pytest.approx(bytes_of(operator.plan), rel=0.1)


# The choice of device and threads


def test_auto_takes_a_gpu_where_there_is_one(comm: Comm) -> None:
    assert choose("auto", comm).name == ("cpu" if probe() else "cuda")


@pytest.mark.skipif(not probe(), reason="this machine has a GPU")
def test_cuda_without_a_gpu_is_refused(comm: Comm) -> None:
    with pytest.raises(InputError, match="device='cuda': "):
        choose("cuda", comm)


def test_an_unknown_device_is_refused(comm: Comm) -> None:
    with pytest.raises(InputError, match="'tpu'"):
        choose("tpu", comm)  # type: ignore[arg-type]


@pytest.mark.parametrize(("wish", "threads"), [("1", 1), ("2,4", 2), ("99", 8), ("0", 8), ("many", 8), ("", 8)])
def test_threads_that_are_asked_for(monkeypatch: pytest.MonkeyPatch, wish: str, threads: int) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr("partitioner.host.threads._cgroup_cores", lambda: 1 << 16)
    monkeypatch.setenv("OMP_NUM_THREADS", wish)
    assert fair_threads(World()) == threads  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("others", "limit", "threads"), [(0, 99, 8), (1, 99, 4), (2, 99, 2), (8, 99, 1), (1, 6, 3), (0, 3, 3)]
)
def test_ranks_of_a_node_share_its_cores(
    monkeypatch: pytest.MonkeyPatch, others: int, limit: int, threads: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr("partitioner.host.threads._cgroup_cores", lambda: limit)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert fair_threads(World(others)) == threads  # type: ignore[arg-type]
