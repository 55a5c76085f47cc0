"""One MTTKRP over all ranks: ownership, split rows, placements, sources."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from eager import EagerExchange
from forms import exhaustive
from hypothesis import strategies as st
from oracle import (
    BUNDLED,
    PRECISIONS,
    REFERENCE_MTTKRP,
    SMALL,
    Case,
    assert_rounding_only,
    cases,
    coo_mttkrp,
    load,
    machine_of,
    make_operator,
    memory_for,
    mttkrp_all,
    mttkrp_error,
    on_examples,
    random_factors,
    random_nonzeros,
    small_pieces,
    tensor_path,
)
from tensors import write_store

import amped
from amped.backend.exchange import Machine, agree
from amped.errors import InputError
from amped.operators import placement as placement_module
from amped.operators.modes import ModePlan
from amped.operators.sources.sparse import TensorSource, open_source
from amped.operators.sparse import operator as sparse_module
from amped.operators.sparse.operator import SparseOperator
from amped.operators.sparse.tuning import Tuner
from amped.parallel.mpi import Comm, on_root
from partitioner.tensors.sparse import SparseTensor

pytestmark = pytest.mark.mpi
PLACEMENTS = ("resident", "stream", "auto")


@pytest.fixture(scope="module")
def machine(comm: Comm, device: str) -> Machine:
    """Used by many operators: connecting GPUs takes long."""
    return machine_of(device, comm)


@pytest.fixture
def shared_path(comm: Comm, tmp_path: Path) -> Path:
    """A folder that all ranks see."""
    return comm.bcast(tmp_path)


def on_rank_0(comm: Comm, tensor: SparseTensor) -> SparseTensor | None:
    return tensor if comm.rank == 0 else None


# Any tensor


@pytest.mark.parametrize("precision", ["fp32", exhaustive("fp64")])
def test_any_tensor_any_placement(comm: Comm, machine: Any, precision: str) -> None:
    def check(example: tuple[Case, str, int, int]) -> None:
        case, placement, slot, more = example
        tensor = on_rank_0(comm, case.tensor)
        options: dict[str, Any] = {"precision": precision, "placement": placement}
        with small_pieces(slot):
            if placement == "auto":
                streaming = make_operator(tensor, case.factors, machine, precision=precision, placement="stream")
                options["device_memory"] = memory_for(streaming.plan, more)
            operator = make_operator(tensor, case.factors, machine, **options)
            owned = [np.array(operator.machine.device.to_host(operator.mttkrp(mode))) for mode in range(operator.order)]
            whole = mttkrp_all(operator, range(operator.order))
        for mode, share in enumerate(operator.plan.modes):
            assert np.array_equal(owned[mode], case.mttkrp(mode)[share.owned])
            assert np.array_equal(whole[mode], case.mttkrp(mode))

    on_examples(comm, st.tuples(cases(), st.sampled_from(PLACEMENTS), st.integers(1, 9), st.integers(0, 40)), check)


def test_rows_are_sent_as_they_are_done(comm: Comm, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_module, "LEAST_MESSAGE", 1)
    monkeypatch.setattr(placement_module, "PART_BYTES", 0)
    if machine.device.on_host:
        machine = machine._replace(exchange=EagerExchange(comm))
    blocks = []

    def check(example: tuple[Case, str, int]) -> None:
        case, where, slot = example
        with small_pieces(slot):
            operator = make_operator(
                on_rank_0(comm, case.tensor), case.factors, machine, placement=where, precision="fp32"
            )
        for mode in range(operator.order):
            sizes = []

            def solve(rows: Any, target: Any, sizes: list[int] = sizes) -> None:
                target[...] = rows
                sizes.append(len(rows))

            operator.mttkrp(mode, solve)
            assert np.array_equal(operator.factor(mode), case.mttkrp(mode))
            operator.set_factor(mode, case.factors[mode])
            owned = operator.plan.modes[mode].owned
            assert sum(sizes) == owned.stop - owned.start
            assert {len(sizes)} == set(comm.allgather(len(sizes)))
            blocks.append(len(sizes))

    on_examples(comm, st.tuples(cases(), st.sampled_from(PLACEMENTS), st.integers(1, 9)), check)
    assert max(blocks) > 1 or not machine.exchange.overlaps


@pytest.mark.parametrize(
    ("done", "rows", "least", "expected"),
    [
        ([[]], [0, 5], 1, [(0, [0], [5])]),
        ([[3, 5]], [0, 5], None, [(2, [0], [5])]),
        ([[3, 5]], [0, 5], 1, [(1, [0], [3]), (1, [3], [5])]),
        ([[3, 3, 4, 5]], [0, 5], 2, [(1, [0], [3]), (3, [3], [5])]),
        # A rank with fewer shards keeps the rows of its last one to the end.
        (
            [[2, 4, 6], [8, 9], []], [0, 6, 9, 9], 1,
            [(1, [0, 6, 9], [2, 8, 9]), (1, [2, 8, 9], [4, 8, 9]), (1, [4, 8, 9], [6, 9, 9])],
        ),
    ],
)  # fmt: skip
def test_blocks_that_all_ranks_agree_on(
    done: list[list[int]], rows: list[int], least: int | None, expected: list[tuple[int, list[int], list[int]]]
) -> None:
    blocks = agree(done, np.array(rows), least)
    assert [(b.shards, b.begin.tolist(), b.end.tolist()) for b in blocks] == expected
    assert [b.last for b in blocks] == [False] * (len(blocks) - 1) + [True]


def test_shares_add_up(comm: Comm) -> None:
    def check(case: Case) -> None:
        operator = make_operator(on_rank_0(comm, case.tensor), case.factors, comm, device="cpu")
        by_rank = comm.allgather([(mode.nnz, mode.owned) for mode in operator.plan.modes])
        for mode, each in enumerate(zip(*by_rank, strict=True)):
            shares, owned = zip(*each, strict=True)
            assert sum(shares) == case.tensor.nnz
            assert max(shares) <= case.tensor.nnz / comm.size * 1.01 + 1
            assert [s.start for s in owned] == [0, *(s.stop for s in owned[:-1])]
            assert owned[-1].stop == case.shape[mode]

    on_examples(comm, cases(max_nonzeros=300), check)


# Heavy rows, and ranks with nothing to do


@pytest.mark.parametrize("precision", [exhaustive("fp32"), "fp64"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_heavy_rows_are_split_and_summed(comm: Comm, machine: Any, placement: str, precision: str) -> None:
    shape = (30, 1, 7, 40)
    columns, values = random_nonzeros(1, shape, 20_011)
    factors = random_factors(1, shape, 5)
    tensor = on_rank_0(comm, SparseTensor(columns.T, values, shape))
    with small_pieces(300):
        operator = make_operator(tensor, factors, machine, precision=precision, placement=placement)
        results = mttkrp_all(operator, range(4))
    for mode, result in enumerate(results):
        cut = operator.plan.modes[mode].cut
        assert cut.imbalance <= 0.02
        assert (cut.split_rows.size > 0) == (comm.size > 1)
        assert_rounding_only(result, coo_mttkrp(columns, values, factors, mode), precision)
    assert operator.plan.modes[1].cut.split_rows.size == (comm.size > 1), "all ranks share the only row"


def test_ranks_get_less_where_nonzeros_take_longer(
    comm: Comm, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = (300, 1, 40)
    columns, values = random_nonzeros(len(shape), shape, 20_011)
    tensor, factors = SparseTensor(columns.T, values, shape), random_factors(len(shape), shape, 4)

    def clock(nonzeros: int) -> float:
        return 1e-6 * (nonzeros + 2 * min(nonzeros, tensor.nnz // 2))  # the first half takes three times as long

    def seconds(_: Any, shards: Any, mode: ModePlan) -> float:
        begin, end = mode.cut.nonzeros[comm.rank :][:2]
        return clock(int(end)) - clock(int(begin))

    monkeypatch.setattr(machine.device, "steady", True)
    monkeypatch.setattr(Tuner, "_run", seconds)
    operator = make_operator(on_rank_0(comm, tensor), factors, machine, precision="fp64")
    for mode, plan in enumerate(operator.plan.modes):
        each = comm.allgather(seconds(None, None, plan))
        assert max(each) <= 1.02 * np.mean(each)
        assert comm.size == 1 or plan.cut.imbalance > 0.2
        got = operator.gathered(mode, operator.mttkrp(mode))
        assert_rounding_only(got, coo_mttkrp(tensor.columns, tensor.values, factors, mode), "fp64")
    even = make_operator(on_rank_0(comm, tensor), factors, machine, deterministic=True)
    assert all(plan.cut.imbalance < 0.02 for plan in even.plan.modes)


@pytest.mark.parametrize("nonzeros", [1, 2, 3, 5])
@pytest.mark.parametrize("shape", [(1, 1), (2, 1, 3), (1000, 2, 1, 2)])
def test_fewer_nonzeros_or_rows_than_ranks(comm: Comm, machine: Any, shape: tuple[int, ...], nonzeros: int) -> None:
    columns, values = random_nonzeros(nonzeros, shape, nonzeros)
    factors = random_factors(2, shape, 3)
    tensor = SparseTensor(columns.T, values, shape)
    for placement in PLACEMENTS:
        operator = make_operator(on_rank_0(comm, tensor), factors, machine, placement=placement)
        idle = [counts == 0 for counts in comm.allgather(operator.plan.modes[0].nnz)]
        assert sum(idle) == max(0, comm.size - tensor.nnz)
        for mode, result in enumerate(mttkrp_all(operator, range(len(shape)))):
            assert_rounding_only(result, coo_mttkrp(columns, values, factors, mode), "fp32")


def test_factors_are_published(comm: Comm, machine: Any) -> None:
    shape = (50, 3, 1)
    columns, values = random_nonzeros(3, shape, 200)
    factors = random_factors(3, shape, 5)
    operator = make_operator(on_rank_0(comm, SparseTensor(columns.T, values, shape)), factors, machine)
    for mode in range(3):
        operator.owned(mode)[:] = comm.rank + 10 * mode
        operator.publish(mode)
        sizes = np.diff(operator.plan.modes[mode].cut.rows)
        expected = np.repeat(np.arange(comm.size) + 10.0 * mode, sizes)
        assert all(comm.allgather(np.array_equal(operator.factor(mode), np.repeat(expected[:, None], 5, axis=1))))


# Sources


@pytest.mark.parametrize("kind", ["tns", "npz", "store"])
@pytest.mark.parametrize("placement", ["resident", "stream"])
def test_files_and_stores(comm: Comm, machine: Any, shared_path: Path, kind: str, placement: str) -> None:
    shape = (30, 1, 7, 40)
    columns, values = random_nonzeros(4, shape, 3001)
    tensor, path = SparseTensor(columns.T, values, shape), shared_path / f"tensor.{kind}"
    if comm.rank == 0:
        if kind == "store":
            write_store(tensor, path)
        elif kind == "npz":
            np.savez(path, indices=columns.T, values=values, shape=shape)
        else:
            np.savetxt(path, np.vstack([columns + 1, values]).T, fmt=["%d"] * 4 + ["%.17g"])
    comm.allgather(None)
    source = open_source(path, comm)
    assert (source.shape, source.nnz, source.norm) == (
        tensor.shape,
        tensor.nnz,
        pytest.approx(tensor.norm(), rel=1e-14),
    )
    assert (source.tensor() is None) == (comm.rank > 0)
    factors = random_factors(4, shape, 6)
    with small_pieces(100):
        operator = make_operator(source, factors, machine, precision="fp64", placement=placement)
        results = mttkrp_all(operator, range(4))
    for mode, result in enumerate(results):
        assert_rounding_only(result, coo_mttkrp(columns, values, factors, mode), "fp64")


def message_on_all_ranks(comm: Comm, action: Any) -> str:
    with pytest.raises(InputError) as caught:
        action()
    messages = comm.allgather(str(caught.value))
    assert len(set(messages)) == 1
    return messages[0]


@pytest.mark.parametrize("mode", [0, 2])
def test_damage_that_one_rank_finds_stops_all(comm: Comm, shared_path: Path, mode: int) -> None:
    path = shared_path / "store"
    columns, values = random_nonzeros(4, (30, 20, 40), 20_000)
    if comm.rank == 0:
        written = write_store(SparseTensor(columns.T, values), path)
        file = path / written.mode(mode).names[-1]
        whole = bytearray(file.read_bytes())
        whole[-1] ^= 1  # in the last rank's share
        file.write_bytes(whole)
    comm.allgather(None)
    message = message_on_all_ranks(comm, lambda: amped.cp_als(path, 2, device="cpu"))
    assert f"mode{mode}.values.npy" in message
    assert "checksum" in message


@pytest.mark.parametrize("name", ["no/such/tensor.tns", "no/such/tensor.npz", "."])
def test_a_wrong_path_is_reported_on_all_ranks(comm: Comm, name: str) -> None:
    assert name in message_on_all_ranks(comm, lambda: amped.cp_als(name, 2, device="cpu"))


# The interface


def test_mttkrp_gives_all_ranks_the_same(comm: Comm, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if each computes everything, and their arithmetic differs."""
    gathered = SparseOperator.gathered
    shape = (30, 1, 7, 40)
    columns, values = random_nonzeros(5, shape, 3001)
    factors = random_factors(5, shape, 6)
    tensor = on_rank_0(comm, SparseTensor(columns.T, values, shape))
    for mode, grid in product(range(4), ("auto", "replicated")):
        error = 1e-15 * comm.rank * (grid == "replicated")
        monkeypatch.setattr(SparseOperator, "gathered", lambda *given, by=1 + error: gathered(*given) * by)
        result = amped.mttkrp(tensor, factors, mode, device=device, precision="fp64", grid=grid)
        assert len(set(comm.allgather(result.tobytes()))) == 1
        assert_rounding_only(result, coo_mttkrp(columns, values, factors, mode), "fp64")


def test_rank_0s_matrices_count(comm: Comm) -> None:
    columns, values = random_nonzeros(5, (8, 9, 10), 100)
    factors, others = (random_factors(seed, (8, 9, 10), 6) for seed in (5, 5 + comm.rank))
    tensor = on_rank_0(comm, SparseTensor(columns.T, values, (8, 9, 10)))
    result = amped.mttkrp(tensor, others, 0, device="cpu")
    assert_rounding_only(result, coo_mttkrp(columns, values, factors, 0), "fp32")
    others[1] = others[1][:-1]
    assert "factor_1" in message_on_all_ranks(comm, lambda: amped.mttkrp(tensor, others, 0, device="cpu"))
    assert "factor_1" in message_on_all_ranks(comm, lambda: amped.cp_als(tensor, 6, init=others, device="cpu"))


# Reference results


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("uber393k_4d", "fp32"),
        *(exhaustive(*each) for each in product([*BUNDLED, *SMALL], PRECISIONS) if each != ("uber393k_4d", "fp32")),
    ],
)
@pytest.mark.parametrize("placement", ["resident", "stream"])
def test_reference(comm: Comm, machine: Any, name: str, placement: str, precision: str) -> None:
    tensor_path(name)
    source = TensorSource(on_root(comm, lambda: load(name)), comm)
    with small_pieces(20_000):
        error = mttkrp_error(name, source, machine, placement=placement, precision=precision)
    assert all(comm.allgather(error <= REFERENCE_MTTKRP[precision]))
