"""Rows of factor matrices that are solved, and what is added up of them, against NumPy in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amped.backend import rows as rows_module
from amped.backend.choose import choose
from amped.backend.cpu.ops.solve import PART_ROWS, HostSolver
from amped.backend.ops.solve import Sums, solver
from amped.parallel.mpi import world

pytestmark = pytest.mark.in_turn

RANKS = (1, 7, 16, 33, 64, 128, 130, 257)
ROWS = (0, 1, 63, 64, 65, 20_011)


@pytest.fixture(scope="module")
def backend(device: str) -> Any:
    return choose(device, world())


def solved(backend: Any, rows: np.ndarray, inverse: np.ndarray, dtype: str, padding: int, totals: Any) -> np.ndarray:
    """Solve rows that have some more columns in memory; return the matrix, which was poisoned before."""
    count, rank = rows.shape
    source = backend.to_device(np.pad(rows, ((0, 0), (0, padding)), constant_values=np.nan))
    target = backend.to_device(np.full((count, rank + padding), np.nan, dtype))
    solve = solver(backend, rank, np.dtype(dtype))
    made = solve.make(count, rank, np.dtype(dtype))
    fixed = np.ascontiguousarray(inverse)
    solve.run(made, source[:, :rank], backend.to_device(fixed), target[:, :rank], Sums(*totals))
    backend.wait_side()
    matrix: np.ndarray = backend.to_host(target)
    assert np.all(np.isnan(matrix[:, rank:]))
    return matrix[:, :rank]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("rank", RANKS)
def test_rows_and_totals(backend: Any, rank: int, dtype: str) -> None:
    rng = np.random.default_rng(rank)
    inverse = np.asfortranarray(rng.random((rank, rank)) - 0.5)
    gram, largest, dots = (backend.zeros(shape, np.float64) for shape in ((rank, rank), (rank,), (rank,)))
    rows, matrices, exact = [], [], []
    for padding, count in enumerate(ROWS):
        rows.append(rng.random((count, rank)) - 0.3)
        matrices.append(solved(backend, rows[-1], inverse, dtype, padding, (gram, largest, dots)))
        exact.append(rows[-1] @ inverse)
        np.testing.assert_allclose(matrices[-1], exact[-1], rtol=0, atol=rank * np.finfo(dtype).eps)
    stored, wanted = np.concatenate(matrices).astype(np.float64), np.concatenate(exact)
    scale = len(stored) * np.abs(stored).max()
    np.testing.assert_allclose(backend.to_host(gram), stored.T @ stored, rtol=1e-12, atol=1e-13 * scale)
    np.testing.assert_allclose(backend.to_host(largest), np.abs(wanted).max(axis=0), rtol=1e-12)
    want = (np.concatenate(rows) * stored).sum(axis=0)
    np.testing.assert_allclose(backend.to_host(dots), want, rtol=1e-11, atol=1e-13 * scale)


@pytest.mark.parametrize("rank", [5, 33])
@pytest.mark.parametrize("every", [5, 40, 20_000])
def test_rows_of_which_most_are_empty(backend: Any, rank: int, every: int) -> None:
    """Also those whose first entry is zero, or whose entries cancel."""
    rng = np.random.default_rng(every)
    rows, inverse = np.zeros((20_011, rank)), rng.random((rank, rank)) - 0.5
    rows[every // 2 :: every] = rng.random(rows[every // 2 :: every].shape) - 0.5
    rows[every // 2 :: 2 * every, 0] = 0
    rows[7, :2] = 1, -1
    totals = [backend.zeros(shape, np.float64) for shape in ((rank, rank), (rank,), (rank,))]
    matrix = solved(backend, rows, inverse, "f8", 3, totals)
    np.testing.assert_allclose(matrix, rows @ inverse, rtol=0, atol=1e-14)
    assert not matrix[~rows.any(axis=1)].any()
    gram, largest, dots = (backend.to_host(each) for each in totals)
    np.testing.assert_allclose(gram, matrix.T @ matrix, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(largest, np.abs(matrix).max(axis=0), rtol=1e-12)
    np.testing.assert_allclose(dots, (rows * matrix).sum(axis=0), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("rank", [5, 130])
def test_the_same_bits_each_time_and_no_dots(backend: Any, rank: int) -> None:
    rng = np.random.default_rng(rank)
    rows, inverse, bits = rng.random((30_000, rank)), rng.random((rank, rank)), set()
    for _ in range(3):
        totals = backend.zeros((rank, rank), np.float64), backend.zeros((rank,), np.float64), None
        matrix = solved(backend, rows, inverse, "f4", 3, totals)
        bits.add((matrix.tobytes(), backend.to_host(totals[0]).tobytes(), backend.to_host(totals[1]).tobytes()))
    assert len(bits) == 1


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_more_rows_than_are_solved_at_once(backend: Any, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rank, rng = 130, np.random.default_rng(0)
    monkeypatch.setattr(rows_module, "BLOCK_BYTES", 8 * rank * 700)
    rows, inverse = rng.random((2900, rank)), rng.random((rank, rank)) - 0.5
    totals = [backend.zeros(shape, np.float64) for shape in ((rank, rank), (rank,), (rank,))]
    matrix = solved(backend, rows, inverse, dtype, 1, totals).astype(np.float64)
    np.testing.assert_allclose(matrix, rows @ inverse, rtol=0, atol=rank * np.finfo(dtype).eps)
    gram, largest, dots = map(backend.to_host, totals)
    np.testing.assert_allclose(gram, matrix.T @ matrix, rtol=1e-11, atol=1e-9)
    np.testing.assert_allclose(largest, np.abs(rows @ inverse).max(axis=0), rtol=1e-12)
    np.testing.assert_allclose(dots, (rows * matrix).sum(axis=0), rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("rank", [9, 135])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_what_is_not_finite_is_seen(backend: Any, number: float, rank: int) -> None:
    rows = np.ones((1000, rank))
    rows[700, 4] = number
    gram, largest = backend.zeros((rank, rank), np.float64), backend.zeros((rank,), np.float64)
    with np.errstate(invalid="ignore"):
        solved(backend, rows, np.ones((rank, rank)), "f4", 0, (gram, largest, None))
    assert not np.any(np.isfinite(backend.to_host(gram)))
    assert not np.any(np.isfinite(backend.to_host(largest)))


@pytest.mark.parametrize("rows", [2 * PART_ROWS - 1, 2 * PART_ROWS + 1, 20 * PART_ROWS])
def test_the_same_bits_whatever_the_threads(rows: int) -> None:
    rng = np.random.default_rng(rows)
    source, inverse, found = rng.random((rows, 7)), rng.random((7, 7)), []
    for threads in (1, 3):
        target, sums = np.empty((rows, 7), np.float32), Sums(np.zeros((7, 7)), np.zeros(7), np.zeros(7))
        solve = HostSolver(threads)
        made = solve.make(rows, 7, target.dtype)
        for _ in range(2):  # what a part has added up before does not count
            for total in sums:
                total.fill(0)
            solve.run(made, source, inverse, target, sums)
        np.testing.assert_allclose(target, source @ inverse, rtol=1e-5)
        found.append([array.tobytes() for array in (target, *sums)])
    assert found[0] == found[1]


def test_parts_have_no_dots_where_none_are_asked_for() -> None:
    source, target, sums = (
        np.ones((2 * PART_ROWS, 3)),
        np.empty((2 * PART_ROWS, 3)),
        Sums(np.zeros((3, 3)), np.zeros(3)),
    )
    solve = HostSolver(2)
    solve.run(solve.make(len(source), 3, target.dtype), source, np.eye(3), target, sums)
    assert np.array_equal(sums.gram, np.full((3, 3), 2.0 * PART_ROWS))
    assert np.array_equal(sums.largest, np.ones(3))
