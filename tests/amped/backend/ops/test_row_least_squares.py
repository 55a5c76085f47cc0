"""Least squares of rows over their nonzeros, against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
from row_tensor import Rows
from scipy.optimize import nnls

from amped.backend.choose import choose
from amped.backend.cpu.device import CpuDevice
from amped.backend.cpu.rows.least_squares import solve_rows
from amped.backend.cuda.code import least_squares
from amped.backend.device import Device
from amped.backend.ops.rowproblems import DEFICIENT, RESIDUAL, SIZE, RowTerms
from amped.backend.plain.device import PlainDevice
from amped.parallel.mpi import world
from partitioner.shards.sorters import probe

pytestmark = pytest.mark.in_turn

SHAPES = [(2, 1), (3, 7), (4, 16), (5, 33), (3, 64), (6, 5)]
UNTIL_SETTLED = 5000


@pytest.fixture(scope="module", params=[1, 3, "plain", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Device:
    if request.param == "plain":
        return PlainDevice(CpuDevice(world(), 1))
    if request.param == "cuda":
        if missing := probe():
            pytest.skip(missing)
        return choose("cuda", world())
    return CpuDevice(world(), request.param)


def fuses(device: Device, rank: int, dtype: str) -> bool:
    """Return whether sums are in single precision."""
    return device.folder == "cuda" and dtype == "f4" and rank <= 32


def counts_of(rank: int) -> list[int]:
    """Return the nonzeros of rows: none, one, fewer than the rank, as many, and more."""
    return [3 * rank, 0, 1, rank // 2 + 1, rank, 0, rank + 5, 500]


def solution(rows: Rows, i: int, ridge: float) -> np.ndarray:
    """Return the shortest solution of a row."""
    x, pi = rows.row(i).values, rows.row(i).pi
    if not ridge:
        return np.linalg.lstsq(pi, x, rcond=1e-9)[0]
    return np.linalg.solve(pi.T @ pi + ridge * np.eye(rows.rank), pi.T @ x)


def residual(rows: Rows, got: np.ndarray) -> float:
    """Return the sum of squared residuals."""
    rows_of = [rows.row(i) for i in range(len(rows.counts))]
    return float(sum(((row.values - row.pi @ b) ** 2).sum() for row, b in zip(rows_of, got, strict=True)))


@pytest.mark.parametrize(("order", "rank"), SHAPES)
@pytest.mark.parametrize("ridge", [0.0, 0.5])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_rows_are_the_shortest_solutions(device: Device, order: int, rank: int, ridge: float, dtype: str) -> None:
    rows = Rows(order, rank, counts_of(rank), dtype)
    got, seen = rows.solve(device, "als", RowTerms(ridge, measured=True))
    close = 1e-4 if fuses(device, rank, dtype) else 1e-9
    for i, count in enumerate(rows.counts):
        row, wanted = rows.row(i), solution(rows, i, ridge) if count else np.zeros(rank)
        size = max(np.linalg.norm(row.values), 1)
        tolerance = (1e-9 if dtype == "f8" else 1e-4) * size
        np.testing.assert_allclose(row.pi @ got[i], row.pi @ wanted, rtol=0, atol=tolerance)
        assert np.linalg.norm(got[i]) <= np.linalg.norm(wanted) * (1 + max(1e-6, close))
    assert seen[RESIDUAL] == pytest.approx(residual(rows, got), rel=close, abs=1e-12)
    if device.folder == "cuda":
        assert seen[SIZE] == pytest.approx(np.vdot(got, got.astype(np.float64)), rel=1e-9)
    if not ridge:
        few = sum(np.linalg.matrix_rank(rows.row(i).pi, tol=1e-9) < rank for i, c in enumerate(rows.counts) if c)
        assert seen[DEFICIENT] == few
    else:
        assert seen[DEFICIENT] == 0


@pytest.mark.parametrize("rank", [7, 16, 32])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_rows_with_numbers_of_different_magnitudes(device: Device, rank: int, dtype: str) -> None:
    """Each row has nonzeros in which the first factor matrix is of one magnitude."""
    rows, classes = Rows(3, rank, [90] * 5, dtype), 5
    rows.columns[1] = rows.columns[1] // classes * classes + rows.columns[0]
    rows.factors[0] *= (10.0 ** (-4 * (np.arange(len(rows.factors[0])) % classes)))[:, None].astype(dtype)
    got, seen = rows.solve(device, "als", RowTerms(0.0, measured=True))
    for i in range(classes):
        row, wanted = rows.row(i), solution(rows, i, 0.0)
        want = row.pi @ wanted
        np.testing.assert_allclose(row.pi @ got[i], want, rtol=0, atol=1e-4 * np.linalg.norm(want))
    assert seen[RESIDUAL] == pytest.approx(residual(rows, got), rel=1e-4)
    assert seen[DEFICIENT] == 0


@pytest.mark.gpu
@pytest.mark.parametrize(("order", "rank"), [(2, 18), (3, 32), (4, 20)])
def test_rows_of_large_factor_matrices(order: int, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are copied to shared memory, and summed in the same order."""
    from amped.backend.cuda.ops.rowproblems_least_squares import _fused

    device, rows = choose("cuda", world()), Rows(order, rank, [*counts_of(rank), 31, 32, 33, 63, 64, 65, 5000], "f4")
    near = rows.solve(device, "als", RowTerms(0.1, measured=True))
    monkeypatch.setattr(least_squares, "CACHED", 0)
    _fused.cache_clear()
    far = rows.solve(device, "als", RowTerms(0.1, measured=True))
    _fused.cache_clear()
    for one, other in zip(near, far, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("order", "rank"), SHAPES[:3])
def test_non_negative_rows_reach_the_minimum(device: Device, order: int, rank: int) -> None:
    rows = Rows(order, rank, counts_of(rank))
    got, seen = rows.solve(device, "als", RowTerms(0.0, UNTIL_SETTLED, True))
    assert got.min() >= 0
    least = sum(nnls(rows.row(i).pi, rows.row(i).values)[1] ** 2 for i, count in enumerate(rows.counts) if count)
    assert seen[RESIDUAL] == pytest.approx(least, rel=1e-6)
    assert seen[DEFICIENT] == 0


@pytest.mark.parametrize("sweeps", [0, 5])
@pytest.mark.parametrize("cuts", [[], [40], [1, 40, 300]])
def test_rows_in_step_are_those_of_one_pass(device: Device, sweeps: int, cuts: list[int]) -> None:
    rows, terms = Rows(3, 7, counts_of(7)), RowTerms(0.1, sweeps, True)
    alone, of_rows = rows.solve(device, "als", terms)
    got, seen = rows.solve_in_step(device, "als", terms, cuts)
    there = np.array(rows.counts) > 0
    np.testing.assert_allclose(got[there], alone[there], rtol=1e-9)
    np.testing.assert_allclose(seen[RESIDUAL:], of_rows[RESIDUAL:], rtol=1e-9)


def test_heavy_rows_have_the_same_bits_on_any_number_of_threads() -> None:
    rows, terms = Rows(3, 7, [5, 40_000, 3, 20_000]), RowTerms(0.1, 0, True)
    one, several = (rows.solve(CpuDevice(world(), count), "als", terms) for count in (1, 4))
    np.testing.assert_array_equal(one[0], several[0])
    np.testing.assert_allclose(one[1], several[1], rtol=1e-12)


def test_both_precisions_share_the_compiled_code() -> None:
    device, dispatcher = CpuDevice(world(), 1), solve_rows.dispatcher
    for dtype in ("f4", "f8"):
        Rows(3, 7, counts_of(7), dtype).solve(device, "als", RowTerms(0.1))
    assert len(dispatcher.signatures) == 1
