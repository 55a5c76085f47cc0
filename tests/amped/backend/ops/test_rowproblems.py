"""The row problems of CP-APR, against an oracle of one row and against an optimiser that knows nothing of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
from forms import in_turn
from row_tensor import Rows
from rowproblem import RowProblem, pdnr, pqnr
from scipy.optimize import minimize

from amped.backend.cpu.device import CpuDevice
from amped.backend.cpu.ops import rowproblems as kernels
from amped.backend.cpu.rows import threaded
from amped.backend.cpu.rows.problems import order_rows
from amped.backend.device import Device
from amped.backend.ops.mttkrp import MTTKRP, Share
from amped.backend.ops.rowproblems import ROWPROBLEMS, RowLimits
from amped.parallel.mpi import world
from partitioner.tensors.value_range import ValueRange

ORACLES = {"pdnr": pdnr, "pqnr": pqnr}
METHODS = pytest.mark.parametrize("method", ORACLES)
EVERY = pytest.mark.parametrize(
    "backend", [("cpu", 2), pytest.param(("cuda", None), marks=pytest.mark.gpu)], indirect=True, ids=["cpu", "cuda"]
)
SHAPES = [(2, 1), (3, 7), (4, 16), (5, 33), (3, 64), (6, 5)]


@pytest.fixture(scope="module", params=[1, 2, 3])
def device(request: pytest.FixtureRequest) -> Iterator[CpuDevice]:
    return CpuDevice(world(), request.param)


@pytest.fixture(scope="module")
def two() -> CpuDevice:
    return CpuDevice(world(), 2)


@EVERY
@METHODS
@pytest.mark.parametrize(("shape", "dtype"), in_turn(SHAPES, ["f4", "f8"]))
def test_iterations_are_the_oracles(shape: tuple[int, int], dtype: str, method: Any, backend: Device) -> None:
    """One nonzero, fewer than the rank, a vector's length and one more, none, and several blocks of Pi."""
    order, rank = shape
    problem = Rows(order, rank, [1, 0, 3, 8, 9, 40, 0, 700, 64], dtype)
    for inner in (1, 4):
        got, done = problem.solve(backend, method, RowLimits(inner))
        steps, largest, close = 0, 0.0, 1e-6 if dtype == "f4" else 1e-9
        for i, b in enumerate(problem.start):
            row = problem.row(i)
            want, made = ORACLES[method](row, b, inner, 1e-4) if problem.counts[i] else (np.zeros(rank), 0)
            largest, steps = max(largest, row.violation(b.astype(float))), steps + made
            np.testing.assert_allclose(got[i], want, rtol=0, atol=close * max(1, want.sum()))
        assert done.kkt == pytest.approx(largest, rel=1e-9)
        assert done.iterations == steps


@EVERY
@METHODS
@pytest.mark.parametrize(("shape", "cuts"), in_turn(SHAPES, [[], [750], [33, 700]]))
def test_rows_in_step_are_whole_rows(shape: tuple[int, int], cuts: list[int], method: Any, backend: Device) -> None:
    """Nonzeros of rows lie in one, two and three shards."""
    order, rank = shape
    problem = Rows(order, rank, [1, 0, 3, 8, 9, 40, 0, 900, 64])
    problem.start[4] = 0  # below the floor
    for inner in (1, 4):
        limits = RowLimits(inner)
        want, done = problem.solve(backend, method, limits)
        got, seen = problem.solve_in_step(backend, method, limits, cuts)
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-12 * want.sum())
        empty = min(1.0, float(problem.start[[1, 6]].max()))  # their Phi is zero
        assert max(seen.kkt, empty) == pytest.approx(done.kkt, rel=1e-12)
        assert (seen.iterations, seen.failed) == (done.iterations, done.failed)


@METHODS
def test_rows_of_many_nonzeros_are_whole_rows(method: Any, device: CpuDevice) -> None:
    """They are solved in step, in parts for the threads; their paths are those of rows that one thread solves."""
    problem = Rows(3, 7, [30, 9_000, 0, 20_000, 5])
    problem.start[3] = 0
    for limits in (RowLimits(5), RowLimits(40)):
        with mock.patch.object(threaded, "IN_STEP_COST", 1e9):
            want, done = problem.solve(device, method, limits)
        with mock.patch.object(threaded, "IN_STEP_COST", 0):
            got, seen = problem.solve(device, method, limits)
        assert np.array_equal(got, want)
        assert seen == done


def test_rows_that_all_threads_solve(two: CpuDevice) -> None:
    """As few as leave no thread waiting for long."""

    def most(threads: int, *counts: int) -> int:
        shard = Rows(3, 4, list(counts)).shards(two, [])[0]
        return threaded.heaviest(order_rows(shard), threads, 8192)

    assert most(2, 90_000, 10) == 90_000
    assert most(16, 90_000, 10, 20) == 20
    assert most(16, *[10_000] * 12) == 10_000
    assert most(16, 60_000, *[500] * 100) == 500
    assert most(16, 8_000, 10) == 8_000, "one part"


@EVERY
@METHODS
@pytest.mark.parametrize(("order", "rank"), SHAPES)
def test_solutions_are_optimal(order: int, rank: int, method: Any, backend: Device) -> None:
    problem = Rows(order, rank, [1, 5, 30, 300], largest=300)
    got, done = problem.solve(backend, method, RowLimits(500, 1e-7))
    again, last = problem.solve(backend, method, RowLimits(0, 1e-7))
    assert np.array_equal(again, problem.start)
    assert last.kkt == done.kkt
    for i, b in enumerate(got):
        row = problem.row(i)
        assert row.violation(b) < 1e-6  # rounded as it is stored, and a rounding from the last test
        best = optimum(row, problem.start[i])
        assert row.objective(b) <= best + 1e-9 * abs(best)


def optimum(row: RowProblem, b: np.ndarray) -> float:
    """Return the least objective, by multiplicative steps and then a general method."""
    for _ in range(200):
        b = b * row.phi(b)
    bounds = [(0, None)] * b.size
    found = minimize(row.objective, b, jac=lambda b: 1 - row.phi(b), method="L-BFGS-B", bounds=bounds, tol=1e-14)
    return min(float(found.fun), row.objective(b))


@METHODS
def test_results_do_not_depend_on_threads(method: Any, device: CpuDevice, two: CpuDevice) -> None:
    rng = np.random.default_rng(1)
    problem = Rows(4, 10, [*(int(n) for n in rng.integers(0, 50, 500)), 9000], "f4")
    want, first = problem.solve(two, method, RowLimits())
    got, second = problem.solve(device, method, RowLimits())
    assert got.tobytes() == want.tobytes()
    assert first == second


@pytest.mark.parametrize(("method", "dtype"), in_turn(list(ORACLES), ["f4", "f8"]))
def test_heavy_rows_are_made_again_in_blocks(method: Any, dtype: str, two: CpuDevice) -> None:
    problem = Rows(3, 16, [100_000, 7, 130_000], dtype, length=70_000)  # indices of 32 bits
    want, kept = problem.solve(two, method, RowLimits(30))
    with mock.patch.object(kernels, "KEPT_BYTES", 1 << 14):
        got, made = problem.solve(two, method, RowLimits(30))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-7 * want.sum())
    assert kept.kkt == pytest.approx(made.kkt, rel=1e-9)
    for i, b in enumerate(got):
        row = problem.row(i)
        assert b.astype(float).sum() == pytest.approx(row.values.sum(), rel=1e-3)
        assert row.objective(b.astype(float)) < row.objective(problem.start[i].astype(float))


@EVERY
@METHODS
def test_rows_of_others_are_left_alone(method: Any, backend: Device) -> None:
    problem = Rows(3, 7, [5, 0, 80, 0, 9])
    want, _ = problem.solve(backend, method, RowLimits())
    assert not want[[1, 3]].any()
    problem.start[[0, 1, 4]] = np.nan
    got, done = problem.solve(backend, method, RowLimits(), whole=slice(2, 4))
    assert np.array_equal(got[2:4], want[2:4])
    assert np.all(np.isnan(got[[0, 1, 4]]))
    assert np.isfinite(done.kkt)


@EVERY
@METHODS
def test_a_row_of_zeros_finds_its_nonzeros(method: Any, backend: Device) -> None:
    """Newton steps from below the floor are tiny, so the row is raised first; also where one nonzero is there."""
    problem = Rows(3, 7, [20, 1, 50])
    problem.start[:2], problem.start[2, 1:] = 0, 0
    problem.factors[0][3, 0], problem.columns[1][40] = 0, 3
    got, _ = problem.solve(backend, method, RowLimits(300))
    for i, b in enumerate(got):
        assert problem.row(i).violation(b) < 1e-3
        assert problem.row(i).objective(b) <= optimum(problem.row(i), np.ones(7)) + 1e-6


@EVERY
@METHODS
def test_the_objective_never_rises(method: Any, backend: Device) -> None:
    """Starts that are orders of magnitude off, components that are zero or no use, and very unequal values."""
    rng = np.random.default_rng(3)
    problem = Rows(3, 9, [int(n) for n in rng.integers(1, 60, 300)], largest=3)
    problem.values *= 10.0 ** rng.integers(0, 6, problem.values.size)
    problem.start *= 10.0 ** rng.integers(-9, 6, problem.start.shape) * (rng.random(problem.start.shape) < 0.8)
    problem.factors[1][:, 4] = 0
    failed = 0
    for inner in (1, 2, 10):
        got, done = problem.solve(backend, method, RowLimits(inner))
        failed += done.failed
        assert np.all(np.isfinite(got))
        assert np.all(got >= 0)
        for i, b in enumerate(got):
            row, before = problem.row(i), problem.row(i).objective(problem.start[i])
            assert row.objective(b) <= before + 1e-12 * abs(before)
    assert failed > 0


def test_kernels_whose_rows_lie_side_by_side(two: CpuDevice) -> None:
    problem, share = Rows(3, 8, [50, 60]), Share((9, 9), slice(0, 2), 110, 8, np.dtype("f8"), ValueRange(1.0, 9.0, 1.0))
    want, _ = problem.solve(two, "pdnr", RowLimits())
    solver = ROWPROBLEMS.require(two, lambda rows: rows.method == "pdnr")
    suited = {kernel.name for kernel in MTTKRP.providers(two) if solver.suits(kernel, share)}
    assert suited == {"segmented", "prefetched", "panelled", "fibre"}
    for name in suited:
        assert np.array_equal(problem.solve(two, "pdnr", RowLimits(), name)[0], want)


def test_methods_of_devices(two: CpuDevice) -> None:
    assert {rows.method for rows in ROWPROBLEMS.providers(two)} == {"pdnr", "pqnr", "als", "gaps"}
