"""Each backend's MTTKRP of a shard, called directly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from oracle import ROUNDING, assert_rounding_only, coo_mttkrp, random_factors

from amped.backend import Backend, Shard, choose
from amped.backend.cpu import mttkrp as cpu_mttkrp
from amped.backend.cuda import probe
from amped.mpi import Comm

DTYPES = {"fp32": np.float32, "fp64": np.float64}
BACKENDS = [("cpu", 1), ("cpu", 2), ("cpu", 3), pytest.param(("cuda", None), marks=pytest.mark.gpu)]
ORDER_AND_RANK = [
    *((order, rank) for order in (3, 4, 5, 6) for rank in (1, 7, 16, 33, 64)),
    *((order, rank) for order in (2, 7, 8) for rank in (5, 32)),
    *((3, rank) for rank in (130, 257, 1024)),
    (4, 1023),
]  # fmt: skip


@pytest.fixture(params=BACKENDS, ids=lambda b: "-".join(map(str, filter(None, b))))
def backend(request: pytest.FixtureRequest, comm: Comm, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """Each backend; on the CPU several threads share even small shards."""
    name, threads = request.param
    if name == "cuda" and (missing := probe()):
        pytest.skip(missing)
    monkeypatch.setattr(cpu_mttkrp, "SMALLEST", 5)
    return choose(name, comm, threads)


@pytest.fixture(params=DTYPES)
def precision(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# Nonzeros of one mode copy, by how they fall on the output rows


def _heavy(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.where(rng.random(count) < 0.65, 17, rng.integers(0, 40, count))


SHAPES_OF_ROWS: dict[str, tuple[int, Callable[[np.random.Generator, int], np.ndarray]]] = {
    "uniform": (101, lambda rng, count: rng.integers(0, 101, count)),
    "heavy row": (40, _heavy),
    "heavy last row": (40, lambda rng, count: 39 - abs(_heavy(rng, count) - 17)),
    "one row": (1, lambda rng, count: np.zeros(count, int)),
    "mostly empty": (5003, lambda rng, count: rng.integers(0, 60, count) * 83 + 7),
    "a row each": (1009, lambda rng, count: rng.permutation(1009)[:count]),
}


class Problem:
    """Sorted nonzeros, factors, and their MTTKRP: the output mode is the first."""

    def __init__(self, order: int, rank: int, rows: str = "uniform", count: int = 1009, *, integers: bool = False):
        rng = np.random.default_rng([order, rank, count])
        length, draw = SHAPES_OF_ROWS[rows]
        shape = (length, *(int(n) for n in rng.integers(1, 50, order - 1)))
        columns = np.stack([draw(rng, count), *(rng.integers(0, n, count) for n in shape[1:])])
        self.columns = columns[:, np.lexsort(columns[::-1])].astype(np.int32)
        self.values = rng.random(count) + 0.5
        self.factors = random_factors(rank, shape, rank)
        if integers:
            self.values = rng.integers(-3, 4, count).astype(float)
            self.factors = [rng.integers(-2, 3, f.shape).astype(float) for f in self.factors]
        self.expected = coo_mttkrp(self.columns, self.values, self.factors, 0)
        self.named = np.bincount(self.columns[0], minlength=length) > 0

    def shard(self, backend: Backend, precision: str, start: int = 0, stop: int | None = None) -> Shard:
        """Return the nonzeros `start` to `stop` in device memory."""
        part = slice(start, self.values.size if stop is None else stop)
        rows = self.columns[0]
        return Shard(
            [backend.column(column[part], np.int32) for column in self.columns],
            backend.column(self.values[part], DTYPES[precision]),
            part.stop - part.start,
            bool(start and rows[start] == rows[start - 1]),
        )

    def inputs(self, backend: Backend, precision: str) -> list[Any]:
        """Return the input factors in device memory, padded as the backend asks."""
        rows = []
        for factor in self.factors[1:]:
            wide = np.zeros((len(factor), stride_of(backend, precision, factor.shape[1])), DTYPES[precision])
            wide[:, : factor.shape[1]] = factor
            rows.append(backend.to_device(wide))
        return rows


def stride_of(backend: Backend, precision: str, rank: int) -> int:
    unit = max(1, backend.vector_bytes // np.dtype(DTYPES[precision]).itemsize)
    return -(-rank // unit) * unit


def run(
    backend: Backend, problem: Problem, precision: str, kernel: str, cuts: Sequence[int] = (), row_begin: int = 0
) -> np.ndarray:
    """Compute shards between `cuts`, one after the other, into an output that is NaN before; return all of it."""
    rank = problem.expected.shape[1]
    shape = problem.expected.shape[0] - row_begin, stride_of(backend, precision, rank)
    poison = np.full(shape, np.nan)
    poison[:, rank:] = 0  # what pads the rows is never looked at
    out = backend.empty(shape, np.float64)
    out[:] = backend.to_device(poison)
    inputs = problem.inputs(backend, precision)
    bounds = [0, *cuts, problem.values.size]
    for start, stop in pairwise(bounds):
        backend.mttkrp(problem.shard(backend, precision, start, stop), inputs, out, row_begin, kernel)
    backend.synchronize()
    return np.array(backend.to_host(out)[:, :rank])


def kernels(backend: Backend) -> Iterator[str]:
    assert len(set(backend.kernels)) == len(backend.kernels) >= 1
    yield from backend.kernels


def check(got: np.ndarray, problem: Problem, precision: str) -> None:
    """Named rows hold the result, the others what was there."""
    assert np.all(np.isnan(got[~problem.named]))
    assert_rounding_only(got[problem.named], problem.expected[problem.named], precision)


@pytest.mark.parametrize(("order", "rank"), ORDER_AND_RANK)
def test_order_and_rank(backend: Backend, precision: str, order: int, rank: int) -> None:
    problem = Problem(order, rank)
    for kernel in kernels(backend):
        check(run(backend, problem, precision, kernel), problem, precision)


@pytest.mark.parametrize("rows", SHAPES_OF_ROWS)
def test_how_nonzeros_fall_on_rows(backend: Backend, precision: str, rows: str) -> None:
    for kernel in kernels(backend):
        for count in (1, 2, 127, 128, 129, 1009):
            problem = Problem(3, 7, rows, count)
            check(run(backend, problem, precision, kernel), problem, precision)


@pytest.mark.parametrize("rows", SHAPES_OF_ROWS)
@pytest.mark.parametrize("order", [2, 3, 6])
def test_sums_of_integers_are_exact_however_cut(backend: Backend, precision: str, order: int, rows: str) -> None:
    problem = Problem(order, 9, rows, 1009, integers=True)
    at_random = sorted(np.random.default_rng(order).choice(1008, 30, replace=False) + 1)
    for kernel in kernels(backend):
        for cuts in ([], [1], [1008], [500, 501, 502, 503], at_random, range(1, 200)):
            got = run(backend, problem, precision, kernel, cuts)
            assert np.array_equal(got[problem.named], problem.expected[problem.named])
            assert np.all(np.isnan(got[~problem.named]))


def test_the_output_may_begin_at_a_later_row(backend: Backend, precision: str) -> None:
    problem = Problem(3, 7, "mostly empty")
    first = int(problem.columns[0, 0])
    for kernel in kernels(backend):
        got = run(backend, problem, precision, kernel, [300], row_begin=first)
        named = problem.named[first:]
        assert_rounding_only(got[named], problem.expected[first:][named], precision)
        assert np.all(np.isnan(got[~named]))


@pytest.mark.parametrize("at", [0, 1, 64, 128, 700])
def test_a_shard_that_continues_a_row_adds_to_it(backend: Backend, precision: str, at: int) -> None:
    problem = Problem(4, 5, "one row")
    before = np.arange(5.0)
    for kernel in kernels(backend):
        out = backend.zeros((1, stride_of(backend, precision, 5)), np.float64)
        out[0, :5] = backend.to_device(before)
        shard = problem.shard(backend, precision, at)
        shard.continues = True
        backend.mttkrp(shard, problem.inputs(backend, precision), out, 0, kernel)
        part = coo_mttkrp(problem.columns[:, at:], problem.values[at:], problem.factors, 0)
        assert_rounding_only(np.array(backend.to_host(out)[:, :5]), before + part, precision)


@pytest.mark.parametrize("continues", [False, True])
def test_an_empty_shard_changes_nothing(backend: Backend, precision: str, continues: bool) -> None:
    problem = Problem(3, 4)
    for kernel in kernels(backend):
        out = backend.empty((101, 4), np.float64)
        out.fill(7)
        empty = problem.shard(backend, precision, 0, 0)
        empty.continues = continues
        backend.mttkrp(empty, problem.inputs(backend, precision), out, 0, kernel)
        assert np.all(backend.to_host(out) == 7)


def test_a_million_nonzeros_in_one_row_keep_their_precision(backend: Backend, precision: str) -> None:
    problem = Problem(3, 4, "heavy row", 1_000_003)
    for kernel in kernels(backend):
        check(run(backend, problem, precision, kernel), problem, precision)
        check(run(backend, problem, precision, kernel, [333_333, 700_001]), problem, precision)


def test_large_and_small_terms_of_one_row(backend: Backend, precision: str) -> None:
    """Sums are in double precision: a term below the last bit of a large single-precision sum is not lost."""
    problem = Problem(2, 4, "one row", 1009)
    problem.values[:] = 1.0
    problem.values[500] = 2.0**26
    problem.factors[1][:] = 1.0
    problem.expected = coo_mttkrp(problem.columns, problem.values, problem.factors, 0)
    for kernel in kernels(backend):
        got = run(backend, problem, precision, kernel)
        assert np.all(np.abs(got / problem.expected - 1) <= ROUNDING[precision][0])


@pytest.mark.parametrize("rows", ["uniform", "heavy row", "one row"])
def test_the_same_bits_every_time(backend: Backend, precision: str, rows: str) -> None:
    problem = Problem(3, 33, rows, 5003)
    for kernel in kernels(backend):
        first = run(backend, problem, precision, kernel, [2000])
        for _ in range(5):
            assert run(backend, problem, precision, kernel, [2000]).tobytes() == first.tobytes()


def test_inputs_are_not_changed(backend: Backend, precision: str) -> None:
    problem = Problem(3, 4, "heavy row")
    shard, inputs = problem.shard(backend, precision), problem.inputs(backend, precision)
    arrays = [*shard.indices, shard.values, *inputs]
    before = [np.array(backend.to_host(a)) for a in arrays]
    for kernel in kernels(backend):
        out = backend.zeros((40, 4), np.float64)
        backend.mttkrp(shard, inputs, out, 0, kernel)
    after = [backend.to_host(a) for a in arrays]
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(after, before, strict=True))


def test_threads_share_the_nonzeros(comm: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
    spans: list[tuple[int, int]] = []
    kernel = cpu_mttkrp.segmented

    def spy(*args: Any) -> None:
        spans.append(args[5:7])
        kernel(*args)

    monkeypatch.setattr(cpu_mttkrp, "segmented", spy)
    problem = Problem(3, 4, count=1009)
    for smallest, parts in ((5, 3), (400, 2), (505, 1), (5000, 1)):
        monkeypatch.setattr(cpu_mttkrp, "SMALLEST", smallest)
        spans.clear()
        check(run(choose("cpu", comm, 3), problem, "fp64", "segmented"), problem, "fp64")
        assert [b for _, b in sorted(spans)] == [1009 * (t + 1) // parts for t in range(parts)]
        assert [a for a, _ in sorted(spans)] == [1009 * t // parts for t in range(parts)]
