"""All-gathers of factor rows, sums of rows and small sums, on the host, staged through it, and on devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from oracle import block_sizes, on_examples

from amped.backend.choose import choose
from amped.backend.cuda import probe
from amped.backend.device import Collectives
from amped.backend.exchange import HostExchange, StagedExchange, connect
from amped.parallel.mpi import Comm

pytestmark = pytest.mark.mpi


class DeviceArray(np.ndarray):
    """Host memory under the rules of a device: filled with `set`, read with a copy."""

    def set(self, host: np.ndarray) -> None:
        self[...] = host


@dataclass
class Wire:
    """An exchange, and the way to and from the memory that it works on."""

    exchange: Collectives
    put: Callable[[np.ndarray], Any]
    get: Callable[[Any], np.ndarray]


@pytest.fixture(scope="module", params=["host", "staged", pytest.param("device", marks=pytest.mark.gpu)])
def wire(request: pytest.FixtureRequest, comm: Comm) -> Wire:
    if request.param == "host":
        return Wire(HostExchange(comm), np.array, np.array)
    if request.param == "staged":
        return Wire(StagedExchange(comm, np.array), lambda a: a.copy().view(DeviceArray), np.array)
    if missing := probe():
        pytest.skip(missing)
    backend = choose("cuda", comm)
    exchange = connect(backend, comm).exchange
    alone = len(set(comm.allgather(backend.description))) == comm.size
    assert exchange.name == ("none" if comm.size == 1 else "NCCL" if alone else "MPI, staged through the host")
    return Wire(exchange, backend.to_device, lambda a: np.array(backend.to_host(a)))


def matrix(rows: int, columns: int, dtype: str) -> np.ndarray:
    return (np.arange(rows * columns).reshape(rows, columns) + 1).astype(dtype)


def check_gather(comm: Comm, wire: Wire, sizes: list[int], columns: int, dtype: str) -> None:
    offsets = np.cumsum([0, *sizes])
    whole = matrix(int(offsets[-1]), columns, dtype)
    mine = np.full_like(whole, np.nan)
    owned = slice(offsets[comm.rank], offsets[comm.rank + 1])
    mine[owned] = whole[owned]
    on_wire, sums = wire.put(mine), wire.put(np.arange(21.0).reshape(7, 3) + comm.rank)
    with wire.exchange.comm_stream():
        wire.exchange.gather_rows(on_wire, offsets[:-1], offsets[1:], sums)
    wire.exchange.wait_comm(forget=False)
    wire.exchange.wait_comm()
    assert np.array_equal(wire.get(on_wire), whole)
    assert np.array_equal(wire.get(sums), sum(np.arange(21.0).reshape(7, 3) + r for r in range(comm.size)))
    on_wire = wire.put(mine)
    wire.exchange.gather_rows(on_wire, offsets[:-1], offsets[1:])
    assert np.array_equal(wire.get(on_wire), whole)


def test_gather_rows(comm: Comm, wire: Wire) -> None:
    examples = st.tuples(block_sizes(comm.size, 300), st.sampled_from([1, 4, 33]), st.sampled_from(["f4", "f8"]))
    on_examples(comm, examples, lambda example: check_gather(comm, wire, *example))


@pytest.mark.parametrize("owner", range(4))
@pytest.mark.parametrize("rows", [0, 5, 70_000])
def test_one_rank_owns_all_rows(comm: Comm, wire: Wire, owner: int, rows: int) -> None:
    check_gather(comm, wire, [rows * (r == owner % comm.size) for r in range(comm.size)], 16, "f4")


@pytest.mark.parametrize("rows", [1, 3000])
def test_equal_blocks(comm: Comm, wire: Wire, rows: int) -> None:
    check_gather(comm, wire, [rows] * comm.size, 24, "f8")


def check_reduce_rows(comm: Comm, wire: Wire, sizes: list[int], columns: int, dtype: str) -> None:
    offsets = np.cumsum([0, *sizes])
    whole = matrix(int(offsets[-1]), columns, dtype)
    on_wire = wire.put(whole + comm.rank)
    wire.exchange.reduce_rows(on_wire, offsets)
    owned = slice(offsets[comm.rank], offsets[comm.rank + 1])
    assert np.array_equal(wire.get(on_wire)[owned], sum(whole + r for r in range(comm.size))[owned])


def test_reduce_rows(comm: Comm, wire: Wire) -> None:
    examples = st.tuples(block_sizes(comm.size, 300), st.sampled_from([1, 4, 33]), st.sampled_from(["f4", "f8"]))
    on_examples(comm, examples, lambda example: check_reduce_rows(comm, wire, *example))


@pytest.mark.parametrize("owner", range(4))
def test_one_rank_owns_all_sums(comm: Comm, wire: Wire, owner: int) -> None:
    check_reduce_rows(comm, wire, [50_000 * (r == owner % comm.size) for r in range(comm.size)], 16, "f8")


def test_reduce(comm: Comm, wire: Wire) -> None:
    def check(example: Any) -> None:
        shape, seed = example
        everyone = np.random.default_rng(seed).integers(-99, 99, (comm.size, *shape)).astype(float)
        for reduction, combine in (("sum", np.sum), ("max", np.max)):
            on_wire = wire.put(everyone[comm.rank])
            wire.exchange.reduce(on_wire, reduction)
            assert np.array_equal(wire.get(on_wire), combine(everyone, axis=0))

    on_examples(comm, st.tuples(st.sampled_from([(1,), (7,), (33, 33)]), st.integers(0, 2**32 - 1)), check)
