"""A tensor that all ranks hold on their devices: the same shares as rank 0, or a file, deals on the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import make_operator, mttkrp_all, random_factors
from tensors import hard_nonzeros

from amped.backend.choose import choose
from amped.backend.cuda import probe
from amped.backend.exchange import Machine, connect
from amped.backend.null.device import NullDevice
from amped.errors import InputError
from amped.operators.sources import device_tensor
from amped.operators.sources.distributed import DistributedFile
from amped.operators.sources.protocols import DeviceMemory
from amped.operators.sources.sparse import TensorSource
from amped.parallel.mpi import Comm, on_root
from partitioner.readers import ReadOptions
from partitioner.tensors import sparse as coo
from partitioner.tensors.sparse import SparseTensor

pytestmark = pytest.mark.mpi
CASES = hard_nonzeros()
CASES["one nonzero"] = np.array([[4], [0], [7]], np.int32), np.array([-2.5])


@pytest.fixture(params=["null", pytest.param("cuda", marks=pytest.mark.gpu)])
def machine(request: pytest.FixtureRequest, comm: Comm, monkeypatch: pytest.MonkeyPatch) -> Machine:
    if request.param == "cuda" and (missing := probe()):
        pytest.skip(missing)
    monkeypatch.setattr(device_tensor, "LEAST", 1)
    monkeypatch.setattr(coo, "LATER", 1)
    return connect(NullDevice(comm) if request.param == "null" else choose("cuda", comm), comm)


def check_shares(found: Any, expected: Any, machine: Machine) -> None:
    """Compare all shares of a source that is held on devices with those of one on the host."""
    assert found.loading(machine.comm.size, np.dtype("f4"), on_host=False).device is not None
    for mode in range(len(expected.shape)):
        assert found.used(mode) == expected.used(mode)
        cut = found.cut(mode, machine.comm.size)
        assert np.array_equal(cut.nonzeros, expected.cut(mode, machine.comm.size).nonzeros)
        for dtype in (np.dtype("f4"), np.dtype("f8")):
            for mine, other in zip(found.load(mode, cut, dtype), expected.load(mode, cut, dtype), strict=True):
                assert machine.device.to_host(mine).tobytes() == other.tobytes()
        for mine, other in zip(
            found.by_fibre(mode, np.dtype("f8")), expected.by_fibre(mode, np.dtype("f8")), strict=True
        ):
            assert machine.device.to_host(mine).tobytes() == np.ascontiguousarray(other).tobytes()


@pytest.mark.parametrize("name", CASES)
def test_a_tensor_in_the_memory_of_rank_0(name: str, machine: Machine) -> None:
    columns, values = CASES[name]
    comm, memory = machine.comm, DeviceMemory(machine, 1 << 30)
    there = TensorSource(SparseTensor(columns.T, values) if comm.rank == 0 else None, comm, None, memory)
    expected = TensorSource(SparseTensor(columns.T, values) if comm.rank == 0 else None, comm)
    for fact in ("shape", "nnz", "duplicates", "zeros", "value_range"):
        assert getattr(there, fact) == getattr(expected, fact), fact
    check_shares(there, expected, machine)
    there.leave_device()
    assert there.loading(comm.size, np.dtype("f4"), on_host=False).device is None


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("name", ["spread", "one row has most", "few", "one nonzero"])
def test_a_file_that_all_ranks_read(name: str, compact: bool, machine: Machine, tmp_path: Path) -> None:
    comm = machine.comm
    path, (columns, values) = comm.bcast(tmp_path) / "t.npz", CASES[name]
    on_root(comm, lambda: np.savez(path, indices=columns.T, values=values))
    limits = DeviceMemory(machine, 1 << 30), None
    found, expected = (
        DistributedFile(path, comm, form=ReadOptions(compact=compact), memory=memory) for memory in limits
    )
    check_shares(found, expected, machine)


def test_one_rank_without_room_is_enough(machine: Machine) -> None:
    columns, values = CASES["spread"]
    comm = machine.comm
    memory = DeviceMemory(machine, 1 if comm.rank == comm.size - 1 else 1 << 30)
    source = TensorSource(SparseTensor(columns.T, values) if comm.rank == 0 else None, comm, None, memory)
    assert source.loading(comm.size, np.dtype("f4"), on_host=False).device is None


def test_what_is_wrong_is_told_on_all_ranks(machine: Machine) -> None:
    tensor = SparseTensor([[1, 2], [1, 2], [0, 0]], [1.0, -1.0, 0.0]) if machine.comm.rank == 0 else None
    with pytest.raises(InputError, match="every value is zero"):
        TensorSource(tensor, machine.comm, None, DeviceMemory(machine, 1 << 30))


def test_an_operator_computes_the_same(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    columns, values = CASES["one row has most"]
    shape, results = (60, 70, 80), list[list[np.ndarray]]()
    for least in (1, 1 << 40):
        monkeypatch.setattr(device_tensor, "LEAST", least)
        tensor = SparseTensor(columns.T, values, shape) if machine.comm.rank == 0 else None
        operator = make_operator(tensor, random_factors(5, shape, 8), machine, deterministic=True)
        assert operator.plan.on_device == (least == 1)
        results.append(mttkrp_all(operator, range(3)))
    for one, other in zip(*results, strict=True):
        assert one.tobytes() == other.tobytes()
