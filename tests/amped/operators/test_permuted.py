"""One copy of the nonzeros for all modes: the kernel `permuted`, on its own and in an operator of one rank."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import pytest
from forms import cases_of, exhaustive
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import (
    PRECISIONS,
    Case,
    assert_rounding_only,
    cases,
    coo_mttkrp,
    kernel_of,
    make_operator,
    mttkrp_all,
    random_factors,
    random_nonzeros,
    small_pieces,
)

from amped import cp_als
from amped.backend.choose import choose
from amped.backend.device import Device
from amped.backend.exchange import connect
from amped.backend.ops.mttkrp import Share
from amped.errors import InputError
from amped.options import DTYPES
from amped.parallel.mpi import Comm
from partitioner.shards.partition import mode_order
from partitioner.tensors.sparse import SparseTensor
from partitioner.tensors.value_range import ValueRange

SHAPE = (60, 1, 9, 40)
COLUMNS, VALUES = random_nonzeros(3, SHAPE, 3001)
TENSOR = SparseTensor(COLUMNS.T, VALUES, SHAPE)
FACTORS = random_factors(3, SHAPE, 5)


# Shards


class Problem:
    """Nonzeros in the order of mode 0, factors on the device, and each mode's share."""

    def __init__(self, backend: Device, precision: str, columns: np.ndarray, values: np.ndarray, rank: int) -> None:
        order = np.lexsort(columns[::-1])
        self.kernel: Any = kernel_of(backend, "permuted")
        self.backend, self.columns, self.values = backend, columns[:, order].astype(np.int32), values[order]
        self.shape = tuple(int(c.max()) + 2 for c in columns)  # the last row is empty
        self.dtype, self.rank = DTYPES[precision], rank
        self.stride = backend.stride(rank, self.dtype.itemsize)
        self.factors = random_factors(rank, self.shape, rank)
        if np.all(values == np.rint(values)):  # sums of integers are exact, in any order
            self.factors = [np.rint(4 * f) - 2 for f in self.factors]

    def share(self, mode: int) -> Share:
        lengths = tuple(self.shape[m] for m in mode_order(len(self.shape), mode)[1:])
        ends, rows = ValueRange(float(self.values.min()), float(self.values.max()), 0.0), slice(0, self.shape[mode])
        return Share(lengths, rows, self.values.size, self.stride, self.dtype, ends, mode)

    def shard(self, start: int = 0, stop: int | None = None) -> Any:
        """Return nonzeros as a shard of mode 0."""
        part, rows = slice(start, stop), self.columns[0]
        continues = bool(start and rows[start] == rows[start - 1])
        columns = [np.ascontiguousarray(c[part]) for c in self.columns]
        values = np.ascontiguousarray(self.values[part], self.dtype)
        return self.kernel.make(columns, values, self.share(0), continues)

    def run(self, mode: int, shards: list[Any]) -> np.ndarray:
        """Compute one mode of shards of mode 0; rows before and after the output must stay as they are."""
        out = self.backend.empty((self.shape[mode] + 2, self.stride), np.float64)
        out[:] = np.nan
        out[1:-1] = 0
        inputs = []
        for m in mode_order(len(self.shape), mode)[1:]:
            wide = np.zeros((self.shape[m], self.stride), self.dtype)
            wide[:, : self.rank] = self.factors[m]
            inputs.append(self.backend.to_device(wide))
        for shard in shards:
            shard_of_mode = self.kernel.derive(shard, self.share(mode)) if mode else shard
            self.kernel.run(shard_of_mode, inputs, out[1:-1])
        self.backend.synchronize()
        result = np.array(self.backend.to_host(out)[:, : self.rank])
        assert np.all(np.isnan(result[[0, -1]]))
        return result[1:-1]

    def expected(self, mode: int) -> np.ndarray:
        return coo_mttkrp(self.columns, self.values, self.factors, mode)


def _heavy(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.where(rng.random(count) < 0.65, 17, rng.integers(0, 40, count))


ROWS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "uniform": lambda rng, count: rng.integers(0, 101, count),
    "heavy row": _heavy,
    "heavy first row": lambda rng, count: abs(_heavy(rng, count) - 17),
    "one row": lambda rng, count: np.zeros(count, int),
    "one row of many": lambda rng, count: np.full(count, 70_000),  # two passes of the sort
    "mostly empty": lambda rng, count: rng.integers(0, 60, count) * 83 + 7,
    "a row each": lambda rng, count: rng.permutation(count),
}


def problem(
    backend: Device, precision: str, order: int, rank: int, rows: str = "uniform", count: int = 1009, **kind: bool
) -> Problem:
    """Return nonzeros of which modes 1 and up fall on `rows`."""
    rng = np.random.default_rng([order, rank, count])
    columns = np.stack([rng.integers(0, 30, count), *(ROWS[rows](rng, count) for _ in range(order - 1))])
    values = rng.integers(-3, 4, count).astype(float) if kind.get("integers") else rng.random(count) + 0.5
    return Problem(backend, precision, columns, values, rank)


@pytest.mark.parametrize(("order", "rank", "precision", "kernel"), cases_of("permuted"))
def test_order_and_rank(backend: Device, precision: str, order: int, rank: int, kernel: str) -> None:
    p = problem(backend, precision, order, rank)
    shard = p.shard()
    for mode in range(order):
        assert_rounding_only(p.run(mode, [shard]), p.expected(mode), precision)


@pytest.mark.parametrize("precision", ["fp32", exhaustive("fp64")])
@pytest.mark.parametrize("rows", ROWS)
def test_how_nonzeros_fall_on_rows(backend: Device, precision: str, rows: str) -> None:
    for count in (1, 2, 127, 128, 129, 1009):
        p = problem(backend, precision, 3, 7, rows, count)
        for mode in range(3):
            assert_rounding_only(p.run(mode, [p.shard()]), p.expected(mode), precision)


@pytest.mark.parametrize("precision", ["fp32", exhaustive("fp64")])
@pytest.mark.parametrize("rows", ROWS)
def test_shards_add_up(backend: Device, precision: str, rows: str) -> None:
    p = problem(backend, precision, 3, 7, rows, integers=True)
    at_random = sorted(np.random.default_rng(4).choice(1008, 30, replace=False) + 1)
    for cuts in ([1], [1008], [500, 501, 502, 503], at_random):
        shards = [p.shard(a, b) for a, b in pairwise([0, *cuts, 1009])]
        for mode in range(3):
            assert np.array_equal(p.run(mode, shards), p.expected(mode))


@pytest.mark.parametrize("precision", ["fp32", exhaustive("fp64")])
def test_a_million_nonzeros_in_one_row_keep_their_precision(backend: Device, precision: str) -> None:
    p = problem(backend, precision, 3, 4, "heavy row", 1_000_003)
    shard = p.shard()
    for mode in range(3):
        assert_rounding_only(p.run(mode, [shard]), p.expected(mode), precision)


@pytest.mark.parametrize("rows", ["uniform", "heavy row", "one row"])
def test_the_same_bits_every_time(backend: Device, rows: str) -> None:
    p = problem(backend, "fp32", 3, 7, rows, 5003)
    shard = p.shard()
    first = [p.run(mode, [shard]).tobytes() for mode in range(3)]
    for _ in range(5):
        assert [p.run(mode, [shard]).tobytes() for mode in range(3)] == first


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_it_takes(backend: Device, precision: str) -> None:
    p = problem(backend, precision, 5, 3)
    shard = p.shard()
    assert shard.nbytes <= p.kernel.bytes(p.share(0), shard.nnz).shard
    for mode in range(1, 5):
        other, share = p.kernel.derive(shard, p.share(mode)), p.share(mode)
        assert other.nnz == shard.nnz
        assert 4 * shard.nnz <= other.nbytes <= p.kernel.bytes(share, shard.nnz).shard
        assert p.kernel.bytes(share, 1 << 20).shard < p.kernel.bytes(p.share(0), 1 << 20).shard / 2


def test_the_columns_are_shared(comm: Comm) -> None:
    p = problem(choose("cpu", comm), "fp32", 4, 3)
    shard = p.shard()
    for mode in range(1, 4):
        other = p.kernel.derive(shard, p.share(mode))
        assert other.values is shard.values
        columns = [shard.rows, *shard.indices]
        assert [id(c) for c in other.indices] == [id(columns[m]) for m in mode_order(4, mode)[1:]]
        rows = p.columns[mode]
        assert np.array_equal(other.permutation, np.argsort(rows, kind="stable"))


# Operators


@pytest.mark.parametrize("precision", ["fp32", exhaustive("fp64")])
@given(case=cases(), piece=st.integers(1, 40))
@settings(max_examples=60)
def test_any_tensor(comm: Comm, backend: Device, precision: str, case: Case, piece: int) -> None:
    machine, kind = connect(backend, comm), type(kernel_of(backend, "permuted"))
    with small_pieces(piece), mock.patch.object(kind, "most_nonzeros", piece):
        operator = make_operator(case.tensor, case.factors, machine, kernel="permuted", precision=precision)
        results = mttkrp_all(operator, range(operator.order))
    assert operator.kernels == ["permuted"] * operator.order
    assert operator.plan.piece <= piece
    for mode, result in enumerate(results):
        assert np.array_equal(result, case.mttkrp(mode))


@pytest.mark.exhaustive
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_engine_allocates_what_the_plan_says(comm: Comm, precision: str) -> None:
    operator = make_operator(TENSOR, FACTORS, comm, device="cpu", kernel="permuted", precision=precision)
    plan, modes = operator.plan, operator.stream.modes
    shards = [s for m in modes for s in m.resident]
    pieces = sum(array.nbytes for s in shards for array in s.pieces)
    assert sum(s.nbytes for s in shards) == TENSOR.nnz * (4 * 4 + plan.dtype.itemsize + 3 * 4) + pieces
    unused = plan.device_bytes["resident nonzeros"] - sum(s.nbytes for s in shards)
    assert 0 <= unused <= pieces, "most rows have nonzeros"
    assert (
        plan.device_bytes["MTTKRP output"]
        == max(out.nbytes for out in operator.work.outs)
        == 60 * plan.modes[0].share.stride * 8
    )
    assert plan.device_bytes["stream slots"] == 0
    assert not any(m.streamed for m in modes)


def test_nothing_is_chosen_for_whom_does_not_ask(comm: Comm, backend: Device) -> None:
    machine = connect(backend, comm)
    for options in ({}, {"deterministic": True}):
        operator = make_operator(TENSOR, FACTORS, machine, **options)
        assert "permuted" not in operator.kernels
        assert not any(m.any_row for m in operator.plan.modes)


@pytest.mark.exhaustive
def test_the_decomposition_of_other_kernels(comm: Comm, backend: Device) -> None:
    options: dict[str, Any] = {"tol": 0, "max_iters": 5, "device": backend.name}
    usual, one = (cp_als(TENSOR, 3, kernel=kernel, **options) for kernel in ("auto", "permuted"))
    np.testing.assert_allclose(one.fits, usual.fits, rtol=0, atol=1e-5)


@pytest.mark.exhaustive
def test_it_is_not_streamed(comm: Comm) -> None:
    with pytest.raises(InputError, match=r"^kernel 'permuted' .*'stream'$"):
        make_operator(TENSOR, FACTORS, comm, device="cpu", kernel="permuted", placement="stream")
    whole = make_operator(TENSOR, FACTORS, comm, device="cpu", kernel="permuted").plan
    need = sum(whole.device_bytes.values())
    for placement in ("auto", "resident"):
        options: dict[str, Any] = {"device": "cpu", "kernel": "permuted", "placement": placement}
        assert make_operator(TENSOR, FACTORS, comm, device_memory=need, **options).plan.device_bytes
        with pytest.raises(InputError, match="the resident tensor need"):
            make_operator(TENSOR, FACTORS, comm, device_memory=need // 2, **options)
