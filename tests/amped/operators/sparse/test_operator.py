"""A step of an operator: what it queues, and what it does not do."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from oracle import assert_rounding_only, coo_mttkrp, make_operator, random_factors, random_nonzeros, small_pieces

from amped.backend.cuda import probe
from amped.backend.exchange import connect
from amped.backend.null.device import NullDevice
from amped.backend.ops.solve import Sums, solver
from amped.backend.registry import Op
from amped.methods.als import CpAls
from amped.methods.driver import StopRule, iterate
from amped.operators.base import in_turn
from amped.operators.sparse.operator import SparseOperator
from amped.parallel.mpi import Comm
from partitioner.tensors.sparse import SparseTensor

SHAPE = (60, 1, 9, 40)
COLUMNS, VALUES = random_nonzeros(3, SHAPE, 3001)
FACTORS = random_factors(3, SHAPE, 5)
TENSOR = SparseTensor(COLUMNS.T, VALUES, SHAPE)


class Identity:
    """A method that solves rows by a multiple of the identity: the factor matrix becomes a part of the MTTKRP."""

    def __init__(self, operator: SparseOperator) -> None:
        self._operator, device, rank = operator, operator.machine.device, operator.ranks[0]
        self._solver = solver(device, rank, operator.plan.dtype)
        self._made = self._solver.make(max(SHAPE), rank, operator.plan.dtype)
        self._inverse = device.to_device(np.eye(rank) / 1000)
        totals = device.zeros((rank + 1, rank), np.float64)
        self._sums = Sums(totals[:rank], totals[rank])

    def step(self) -> None:
        for mode in range(len(SHAPE)):
            self._operator.mttkrp(mode, self.solve, in_turn(mode, len(SHAPE)))

    def solve(self, source: Any, target: Any) -> None:
        self._solver.run(self._made, source, self._inverse, target, self._sums)


def refuse(*_: object) -> Any:
    raise AssertionError("a step looks a kernel up")


@contextmanager
def counted(device: NullDevice | None) -> Iterator[list[Any]]:
    """Give what is allocated within: in a null device, or else on the GPU."""
    if device is not None:
        del device.allocated[:]
        yield device.allocated
        return
    import cupy

    sizes: list[Any] = []

    class Hook(cupy.cuda.MemoryHook):  # type: ignore[misc]
        name = "counts"

        def malloc_preprocess(self, **facts: Any) -> None:
            sizes.append(facts["size"])

    with Hook():
        yield sizes


@pytest.mark.parametrize("placement", ["resident", "stream"])
@pytest.mark.parametrize("where", ["null", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_after_the_first_iteration_nothing_is_allocated_or_looked_up(
    comm: Comm, monkeypatch: pytest.MonkeyPatch, where: str, placement: str
) -> None:
    device = NullDevice(comm) if where == "null" else None
    if device is None and (missing := probe()):
        pytest.skip(missing)
    on = connect(device, comm) if device else comm
    with small_pieces(200):
        options: dict[str, Any] = {"placement": placement, "precision": "fp32"}
        operator = make_operator(TENSOR, FACTORS, on, **options, **({} if device else {"device": "cuda"}))
    method = Identity(operator)
    method.step()
    monkeypatch.setattr(Op, "providers", refuse)
    with counted(device) as allocated:
        method.step()
        operator.synchronize()
    assert not allocated


@pytest.mark.parametrize("placement", ["resident", "stream"])
def test_one_mode_may_be_repeated(comm: Comm, device: str, placement: str) -> None:
    """As CP-APR's inner iterations do; what is streamed for it is copied ahead."""
    with small_pieces(100):
        operator = make_operator(TENSOR, FACTORS, comm, device=device, placement=placement)
        for then in ([2, 2, 3], [2, 3], [3]):
            got = operator.gathered(2, operator.mttkrp(2, then=then))
            assert_rounding_only(got, coo_mttkrp(COLUMNS, VALUES, FACTORS, 2), "fp32")
            expected = [(then[0], k) for k in range(2)] if placement == "stream" else []
            assert operator.stream._filled == expected


@pytest.mark.exhaustive
@pytest.mark.parametrize("placement", ["resident", "stream"])
def test_memory_is_given_back_when_an_operator_is_dropped(comm: Comm, device: str, placement: str) -> None:
    """At once, not when the garbage collector runs: nothing refers back to what holds it."""
    gc.collect()
    gc.disable()
    try:
        with small_pieces(100):
            operator = make_operator(TENSOR, FACTORS, comm, device=device, placement=placement)
        next(iterate(method := CpAls(operator), StopRule(2, 0)))
        held = [weakref.ref(each) for each in (operator.work, operator.stream, operator.stream.modes[0], operator)]
        del operator, method
        assert [ref() for ref in held] == [None] * 4
    finally:
        gc.enable()
