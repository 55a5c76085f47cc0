"""Rows without negative numbers, and what is added up of them, against column updates in NumPy and active sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import nnls

from amped.backend.choose import choose
from amped.backend.cpu.ops.nonnegative import HostHals
from amped.backend.normal_equations.hals import ColumnSolver
from amped.backend.ops.nonnegative import NonnegativeSolver, System, nonnegative_solver
from amped.backend.ops.solve import Sums
from amped.parallel.mpi import world

pytestmark = pytest.mark.in_turn

RANKS = (1, 7, 16, 33, 64, 128, 130)
ROWS = (0, 1, 255, 4099)
UNTIL_SETTLED = 20_000


@pytest.fixture(scope="module")
def backend(device: str) -> Any:
    return choose(device, world())


@pytest.fixture(params=["first", "columns"])
def kind(request: pytest.FixtureRequest) -> str:
    """The device's first solver, or the one that suits all."""
    return str(request.param)


def solver_of(backend: Any, kind: str, rank: int, dtype: str) -> NonnegativeSolver:
    return nonnegative_solver(backend, rank, np.dtype(dtype)) if kind == "first" else ColumnSolver(backend)


def system_of(rng: np.random.Generator, rank: int) -> System:
    """Return equations of columns of length about 1, which are far from independent."""
    columns = rng.random((rank + 3, rank)) * (rng.random((rank + 3, rank)) < 0.7) + 1e-3
    columns /= np.linalg.norm(columns, axis=0) * (0.5 + rng.random(rank))
    return System(columns.T @ columns, 0.5 + rng.random(rank), 2 * rng.random(rank))


def oracle(source: np.ndarray, system: System, sweeps: int, target: np.ndarray) -> np.ndarray:
    """Update one column after the other, as it is written in textbooks."""
    rows, rights, gram = target.astype(np.float64) * system.begin, source * system.right, system.gram
    rows[np.ix_(~source.any(axis=1), np.diag(gram) > 0)] = 0
    for _ in range(sweeps):
        for r in np.flatnonzero(np.diag(gram) > 0):
            others = rows @ gram[r] - rows[:, r] * gram[r, r]
            rows[:, r] = np.maximum(0, (rights[:, r] - others) / gram[r, r])
    return rows


def objective(rows: np.ndarray, source: np.ndarray, system: System) -> np.ndarray:
    """Return what each row is to minimise."""
    return ((rows @ system.gram / 2 - source * system.right) * rows).sum(axis=1)


def solved(
    backend: Any, kind: str, source: np.ndarray, system: System, sweeps: int, target: np.ndarray, sums: Sums
) -> np.ndarray:
    """Solve rows that have more columns in memory, which are poisoned."""
    rank, pad = source.shape[1], ((0, 0), (0, 3))
    solver = solver_of(backend, kind, rank, target.dtype.str)
    made = solver.make(len(source), rank, target.dtype)
    held = backend.to_device(np.pad(target, pad, constant_values=np.nan))
    given = backend.to_device(np.pad(source, pad, constant_values=np.nan))
    system = System(*(backend.to_device(np.ascontiguousarray(each)) for each in system))
    solver.run(made, given[:, :rank], system, sweeps, held[:, :rank], sums)
    backend.wait_side()  # sums are added up beside
    matrix: np.ndarray = backend.to_host(held)
    assert np.all(np.isnan(matrix[:, rank:]))
    return matrix[:, :rank]


def sums_on(backend: Any, rank: int, dots: bool = True) -> Sums:
    gram, largest, total = (backend.zeros(shape, np.float64) for shape in ((rank, rank), (rank,), (rank,)))
    return Sums(gram, largest, total if dots else None)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("rank", RANKS)
def test_rows_and_totals(backend: Any, kind: str, rank: int, dtype: str) -> None:
    rng = np.random.default_rng(rank)
    system, sums = system_of(rng, rank), sums_on(backend, rank)
    sources, matrices, exact = [], [], []
    for count in ROWS:
        source, target = rng.standard_normal((count, rank)), rng.random((count, rank)).astype(dtype)
        source[: count // 9] = 0  # empty rows
        matrices.append(solved(backend, kind, source, system, 3, target, sums))
        sources.append(source)
        exact.append(oracle(source, system, 3, target))
    stored, wanted, rows = np.concatenate(matrices), np.concatenate(exact), np.concatenate(sources)
    assert stored.min() == 0
    assert np.mean(wanted > 0) > 0.01, "not all are cut off"
    scale = abs(wanted).max()
    np.testing.assert_allclose(stored, wanted, rtol=0, atol=scale * {"f4": 1e-6, "f8": 1e-11}[dtype])
    stored = stored.astype(np.float64)
    np.testing.assert_allclose(backend.to_host(sums.gram), stored.T @ stored, rtol=1e-11, atol=1e-11 * scale**2)
    np.testing.assert_allclose(backend.to_host(sums.largest), wanted.max(axis=0), rtol=1e-9, atol=1e-11 * scale)
    dots = (rows * stored).sum(axis=0)
    np.testing.assert_allclose(backend.to_host(sums.dots), dots, rtol=1e-10, atol=1e-10 * scale * len(rows))


@pytest.mark.parametrize("rank", [1, 4, 9])
def test_many_sweeps_end_where_an_active_set_solver_does(backend: Any, kind: str, rank: int) -> None:
    rng = np.random.default_rng(rank)
    columns, data = rng.random((40, rank)), rng.standard_normal((5, 40)) + 0.4
    system = System(columns.T @ columns, np.ones(rank), np.ones(rank))
    target = rng.random((5, rank))
    found = solved(backend, kind, data @ columns, system, UNTIL_SETTLED, target, sums_on(backend, rank, False))
    want = np.array([nnls(columns, row)[0] for row in data])
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-9)


@pytest.mark.parametrize("rank", [3, 33])
def test_no_sweep_makes_anything_worse(backend: Any, kind: str, rank: int) -> None:
    rng = np.random.default_rng(rank)
    system = system_of(rng, rank)._replace(begin=np.ones(rank))
    source, target = rng.standard_normal((50, rank)) * 10 ** rng.uniform(-6, 6, (50, 1)), 100 * rng.random((50, rank))
    for _ in range(6):
        before, size = objective(target, source, system), np.square(target).sum(axis=1)
        target = solved(backend, kind, source, system, 1, target, sums_on(backend, rank))
        assert np.all(objective(target, source, system) <= before + 1e-13 * (size + abs(before)))


def test_columns_without_a_diagonal_stay(backend: Any, kind: str) -> None:
    """A component that another mode has lost: no equation determines it, and it must not become NaN."""
    rng = np.random.default_rng(3)
    system = system_of(rng, 5)
    system.gram[:, 2] = system.gram[2] = 0
    source, target = rng.random((20, 5)), rng.random((20, 5))
    source[:, 2] = 0
    found = solved(backend, kind, source, system, 4, target, sums_on(backend, 5))
    assert np.array_equal(found[:, 2], target[:, 2] * system.begin[2])
    np.testing.assert_allclose(found, oracle(source, system, 4, target), atol=1e-12)
    nothing = System(np.zeros((5, 5)), np.ones(5), np.ones(5))
    assert np.array_equal(solved(backend, kind, source, nothing, 4, target, sums_on(backend, 5)), target)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_what_is_not_finite_is_seen(backend: Any, kind: str, number: float) -> None:
    rng = np.random.default_rng(4)
    source, sums = np.ones((200, 9)), sums_on(backend, 9)
    source[70, 4] = number
    with np.errstate(invalid="ignore", over="ignore"):
        solved(backend, kind, source, system_of(rng, 9), 2, np.ones((200, 9), "f4"), sums)
    assert not np.all(np.isfinite(backend.to_host(sums.gram)))


@pytest.mark.parametrize("rows", [2 * HostHals.part_rows - 1, 2 * HostHals.part_rows + 1, 20 * HostHals.part_rows])
def test_the_same_bits_whatever_the_threads(rows: int) -> None:
    rng = np.random.default_rng(rows)
    source, system, start, found = rng.standard_normal((rows, 7)), system_of(rng, 7), rng.random((rows, 7)), []
    for threads in (1, 3):
        solver = HostHals(threads)
        made = solver.make(rows, 7, np.dtype("f4"))
        for _ in range(2):  # what a part has added up before does not count
            target, sums = start.astype("f4"), Sums(np.zeros((7, 7)), np.zeros(7), np.zeros(7))
            solver.run(made, source, system, 3, target, sums)
        found.append([array.tobytes() for array in (target, *sums)])
    assert found[0] == found[1]
