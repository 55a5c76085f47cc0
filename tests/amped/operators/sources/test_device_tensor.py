"""A tensor that is sorted on the device: the same shares, to the bit, as of one that the host sorts."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from oracle import make_operator, mttkrp_all, random_factors
from tensors import hard_nonzeros, random_nonzeros

import amped
from amped.backend.choose import choose
from amped.backend.cuda import probe
from amped.backend.exchange import Machine, connect
from amped.backend.null.device import NullDevice
from amped.errors import InputError
from amped.operators.sources import device_tensor
from amped.operators.sources.protocols import DeviceMemory
from amped.operators.sources.sparse import TensorSource
from amped.parallel.mpi import Comm
from partitioner.shards.partition import Cut
from partitioner.tensors import sparse as coo
from partitioner.tensors.ingest import MAX_MODE_LENGTH
from partitioner.tensors.sparse import SparseTensor

pytestmark = pytest.mark.in_turn

LONG = MAX_MODE_LENGTH - 1
CASES = hard_nonzeros() | {
    f"order {order}, 31 bits each": random_nonzeros((LONG,) * order, 2000, order) for order in range(2, 7)
}
CASES["one nonzero"] = np.array([[4], [0], [LONG]], np.int32), np.array([-2.5])
CASES["equal in the first 62 bits"] = np.vstack([np.full((2, 3000), LONG), CASES["spread"][0]]), CASES["spread"][1]
CASES["sums need double precision"] = np.zeros((2, 3000), np.int32), CASES["spread"][1].astype(np.float32)
ROOM = 1 << 30


@pytest.fixture(params=["null", pytest.param("cuda", marks=pytest.mark.gpu)])
def machine(request: pytest.FixtureRequest, comm: Comm, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A device that sorts even few nonzeros, of tensors whose sorting is deferred."""
    if request.param == "cuda" and (missing := probe()):
        pytest.skip(missing)
    monkeypatch.setattr(device_tensor, "LEAST", 1)
    monkeypatch.setattr(coo, "LATER", 1)
    device = NullDevice(comm) if request.param == "null" else choose("cuda", comm)
    return connect(device, comm)


def sources(name: str, machine: Machine) -> tuple[TensorSource, TensorSource]:
    """Return a tensor that is held on a device, and the same one on the host."""
    columns, values = CASES[name]
    with mock.patch.object(SparseTensor, "_settle", side_effect=AssertionError("sorted by the host")):
        there = TensorSource(SparseTensor(columns.T, values), machine.comm, None, DeviceMemory(machine, ROOM))
    return there, TensorSource(SparseTensor(columns.T, values), machine.comm)


def host(machine: Machine, arrays: Any) -> list[np.ndarray]:
    return [machine.device.to_host(array) for array in arrays]


@pytest.mark.parametrize("name", CASES)
def test_fibres_are_those_that_the_host_sorts(machine: Machine, name: str) -> None:
    found, expected = sources(name, machine)
    for mode in range(len(expected.shape)):
        for dtype in (np.dtype("f4"), np.dtype("f8")):
            with np.errstate(over="ignore"):
                mine, other = host(machine, found.by_fibre(mode, dtype)), expected.by_fibre(mode, dtype)
            assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(mine, other, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_facts_and_shares_are_those_of_the_host(name: str, machine: Machine) -> None:
    there, expected = sources(name, machine)
    for fact in ("shape", "nnz", "duplicates", "zeros", "value_range", "value_dtype"):
        assert getattr(there, fact) == getattr(expected, fact), fact
    assert there.norm == pytest.approx(expected.norm, rel=1e-14)
    for mode in range(len(expected.shape)):
        assert there.used(mode) == expected.used(mode)
        for dtype in (np.dtype("f4"), np.dtype("f8")):
            found, wanted = (source.load(mode, source.cut(mode, 1), dtype) for source in (there, expected))
            for array, other in zip(host(machine, found), wanted, strict=True):
                assert array.dtype == other.dtype
                assert array.tobytes() == other.tobytes()


@pytest.mark.parametrize("parts", [2, 5, 50])
@pytest.mark.parametrize("name", CASES)
def test_each_part_gets_its_own(name: str, parts: int, machine: Machine) -> None:
    """With 50 parts, some share a row and some have none."""
    there, expected = sources(name, machine)
    assert there._device_tensor is not None
    for mode in range(len(expected.shape)):
        cut, other = there.cut(mode, parts), expected.cut(mode, parts)
        for field in Cut.__dataclass_fields__:
            assert np.array_equal(getattr(cut, field), getattr(other, field)), field
        whole = list(expected.load(mode, expected.cut(mode, 1), np.dtype("f8")))
        for part in range(parts):
            mine = slice(int(cut.nonzeros[part]), int(cut.nonzeros[part + 1]))
            share = host(machine, there._device_tensor.share(mode, cut, part, np.dtype("f8")))
            for array, column in zip(share, whole, strict=True):
                assert np.array_equal(array, column[mine])


@pytest.mark.parametrize("small", [True, False])
def test_a_small_tensor_stays_where_it_is_asked_for_again(machine: Machine, small: bool, monkeypatch: Any) -> None:
    """Placed twice, it is sorted by the device both times."""
    monkeypatch.setattr(device_tensor, "SMALL", 1 if small else ROOM)
    there, expected = sources("spread", machine)
    there.stay_on_device()
    there.placed()
    assert (there._device_tensor is not None) == small
    cut = expected.cut(0, 1)
    for array, other in zip(
        host(machine, there.load(0, cut, np.dtype("f4"))), expected.load(0, cut, np.dtype("f4")), strict=True
    ):
        assert np.array_equal(array, other)
    there.leave_device()
    assert there._device_tensor is None


@pytest.mark.parametrize(
    ("values", "cause"),
    [([1.0, -1.0, 0.0], "every value is zero"), ([1.5e308, 1.5e308, 1.0], "sum of duplicates overflows")],
)
def test_what_is_wrong_is_told(values: list[float], cause: str, machine: Machine) -> None:
    tensor = SparseTensor([[1, 2], [1, 2], [0, 0]], values)
    with pytest.raises(InputError, match=rf"^t\.npz: .*{cause}"):
        TensorSource(tensor, machine.comm, "t.npz", DeviceMemory(machine, ROOM))
    with pytest.raises(InputError, match=cause):
        tensor.columns  # noqa: B018  which are sorted now


def test_without_room_the_host_sorts(machine: Machine) -> None:
    columns, values = CASES["spread"]
    source = TensorSource(SparseTensor(columns.T, values), machine.comm, None, DeviceMemory(machine, 50_000))
    share = list(source.load(1, source.cut(1, 1), np.dtype("f4")))
    assert all(isinstance(array, np.ndarray) for array in share)
    assert source.loading(1, np.dtype("f4"), on_host=False).device is None


@pytest.mark.gpu
@pytest.mark.skipif(bool(probe()), reason=probe() or "a GPU is there")
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_an_operator_computes_the_same_bits(comm: Comm, monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    """If memory suffices only for the shards, the tensor is freed before they are built."""
    shape = 3000, 2000, 1000
    columns, values = random_nonzeros(shape, 300_000, 1)
    results, planned = [], []
    for least, memory in ((1, None), (1 << 40, None), (1, 30_000_000)):
        monkeypatch.setattr(device_tensor, "LEAST", least)
        operator = make_operator(
            SparseTensor(columns.T, values), random_factors(5, shape, 8), comm,
            device="cuda", deterministic=True, precision=precision, placement="resident", device_memory=memory,
        )  # fmt: skip
        planned.append(operator.plan.on_device)
        results.append(mttkrp_all(operator, range(3)))
    for result in results[1:]:
        for one, other in zip(result, results[0], strict=True):
            assert one.tobytes() == other.tobytes()
    assert planned[:2] == [True, False]


@pytest.mark.gpu
@pytest.mark.skipif(bool(probe()), reason=probe() or "a GPU is there")
def test_a_decomposition_of_a_tensor_that_is_not_sorted_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_tensor, "LEAST", 1)
    columns, values = random_nonzeros((300, 200, 100), 50_000, 1)
    how: dict[str, Any] = {"rank": 4, "max_iters": 3, "tol": 0, "device": "cuda", "deterministic": True}
    expected = amped.cp_als(SparseTensor(columns.T, values), **how)
    monkeypatch.setattr(coo, "LATER", 1)
    with mock.patch.object(SparseTensor, "_settle", side_effect=AssertionError("sorted by the host")):
        found = amped.cp_als(SparseTensor(columns.T, values), **how)
    assert found.fits == pytest.approx(expected.fits, rel=1e-12)
    for one, other in zip(found.factors, expected.factors, strict=True):
        assert np.array_equal(one, other)
