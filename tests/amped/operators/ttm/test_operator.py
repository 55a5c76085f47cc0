"""Products of a sparse tensor: fibres in pieces, resident and streamed, whole results and those in pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from forms import exhaustive
from ttmcases import SHAPES, dense_of, dense_product, gathered, operator_of, small_pieces, source_of, tensor_of

import amped
from amped.backend.device import Device
from amped.backend.null.device import NullDevice
from amped.errors import InputError
from amped.operators.ttm.plan import TtmPlan, TtmSetting, make_ttm_plan, most_fibres
from amped.options import Options
from amped.parallel.mpi import Comm

pytestmark = pytest.mark.in_turn


def check(operator: Any, tensor: Any, array: np.ndarray, mode: int, comm: Comm, precision: str, seed: int = 0) -> None:
    """Hold a product to its definition, twice: nothing of the first one is left in the second."""
    matrix = np.random.default_rng(seed).random((array.shape[mode], operator.ranks[0])) + 0.5
    for factor in (1.0, 2.0):
        operator.set_matrix(matrix * factor)
        operator._out.fill(np.nan)
        operator.compute()
        operator._out.fill(np.nan)
        indices, values = gathered(operator, comm)
        modes = (*getattr(tensor, "modes", ()), mode)
        want = dense_product(array, matrix * factor, mode)
        found = amped.SemiSparseTensor(
            indices, values.reshape(len(values), *(want.shape[m] for m in modes)), modes, want.shape
        )
        np.testing.assert_array_equal(found.indices, indices)
        tolerance = 1e-6 if precision == "fp32" else 1e-13
        assert np.linalg.norm(found.to_dense() - want) <= tolerance * np.linalg.norm(want)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("placement", ["resident", "stream"])
def test_a_product(backend: Device, comm: Comm, shape: tuple[int, ...], precision: str, placement: str) -> None:
    tensor = tensor_of(shape, 200)
    for mode in range(len(shape)):
        operator = operator_of(
            source_of(tensor, comm), backend, comm, mode, 7, precision=precision, placement=placement
        )
        assert operator.plan.whole
        check(operator, tensor, dense_of(tensor), mode, comm, precision)


@pytest.mark.parametrize("heavy", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("placement", ["auto", "stream"])
@pytest.mark.parametrize("piece", [exhaustive(1), 7, 50, 1000])
def test_pieces(comm: Comm, piece: int, placement: str, heavy: float) -> None:
    """A fibre may go on over several pieces; the result is in pieces where memory has no room for all of it."""
    tensor, device = tensor_of((20, 300, 4), 400, 1, heavy), NullDevice(comm)
    array, seen = dense_of(tensor), set[tuple[bool, bool, bool]]()
    with small_pieces(piece):
        for mode in range(3):
            least = needed(tensor, device, mode, placement)
            for memory in (least, 2 * least, 1 << 30):
                options = {"placement": placement, "precision": "fp64", "device_memory": memory}
                operator = operator_of(source_of(tensor, comm), device, comm, mode, 5, **options)
                plan = operator.plan
                assert sum(plan.device_bytes.values()) <= memory
                seen.add((plan.whole, plan.resident > 0, plan.resident < plan.pieces))
                check(operator, tensor, array, mode, comm, "fp64")
    if placement == "auto" and piece == 7 and not heavy:
        assert {(True, True, False), (False, True, True), (False, False, True)} <= seen
    if placement == "stream":
        assert {resident for _, resident, _ in seen} == {False}


def needed(tensor: amped.SparseTensor, device: Device, mode: int, placement: str) -> int:
    """Return the least device memory that a product of five columns is planned for."""
    fibres = np.unique(np.delete(tensor.columns, mode, axis=0), axis=1).shape[1]
    low, high = 0, 1 << 30
    while high - low > 1:
        options = Options(precision="fp64", placement=placement, device_memory=(low + high) // 2)  # type: ignore[arg-type]
        setting = TtmSetting(mode, 5, 3, 1, tensor.shape[mode], tensor.nnz, options, device, (low + high) // 2)
        try:
            make_ttm_plan(setting, tensor.nnz, fibres)
        except InputError:
            low = (low + high) // 2
        else:
            high = (low + high) // 2
    return high


@pytest.mark.parametrize("placement", ["resident", "stream"])
def test_a_chain(backend: Device, comm: Comm, placement: str) -> None:
    """The product of a semi-sparse tensor in each other mode, until none is sparse."""
    tensor = tensor_of((6, 5, 4, 3), 60)
    for first in range(4):
        array = dense_of(tensor)
        held: Any = amped.SemiSparseTensor.from_sparse(tensor, first)
        for step, mode in enumerate(m for m in range(4) if m != first):
            operator = operator_of(
                source_of(held, comm), backend, comm, mode, 2 + step, precision="fp64", placement=placement
            )
            check(operator, held, array, mode, comm, "fp64", step)
            matrix = np.random.default_rng(step).random((array.shape[mode], 2 + step))
            array, modes = dense_product(array, matrix, mode), (*held.modes, mode)
            held = amped.SemiSparseTensor.from_dense(array, modes)


def test_equal_bits_every_time(backend: Device, comm: Comm) -> None:
    tensor, matrix = tensor_of((30, 40, 50), 3000, 2, 0.5), np.random.default_rng(0).random((40, 9))
    found = []
    for _ in range(2):
        operator = operator_of(source_of(tensor, comm), backend, comm, 1, 9)
        operator.set_matrix(matrix)
        found.append(gathered(operator, comm)[1])
    np.testing.assert_array_equal(*found)


def test_as_many_bytes_as_planned(comm: Comm) -> None:
    """The null device allocates what the plan counts as permanent."""
    tensor, device = tensor_of((200, 300, 40), 20_000), NullDevice(comm)
    device.allocated.clear()
    operator = operator_of(source_of(tensor, comm), device, comm, 1, 16)
    plan = operator.plan
    assert isinstance(plan, TtmPlan)
    assert plan.device_bytes["matrix"] == operator._matrix.nbytes
    assert plan.device_bytes["result"] == operator._out.nbytes
    shards = sum(piece.shard.nbytes for piece in operator._pieces)
    assert shards <= plan.device_bytes["resident nonzeros"] <= 1.1 * shards
    assert operator._scratch.nbytes + operator._carry.nbytes <= plan.device_bytes["working memory"]
    operator.set_matrix(np.ones((300, 16)))
    before = len(device.allocated)
    operator.compute()
    operator.compute()
    assert len(device.allocated) == before, "a product allocates no memory"


def test_how_many_fibres_there_are_at_most() -> None:
    assert most_fibres(100, (5, 7)) == 35
    assert most_fibres(20, (5, 7)) == 20
    assert most_fibres(20, ()) == 1
    assert most_fibres(0, ()) == 0
    assert most_fibres(10**6, (10**9,) * 7) == 10**6
