"""The small matrices of CP-ALS against NumPy in double precision, on each device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from amped.backend.choose import choose
from amped.backend.device import Device
from amped.backend.null.device import NullDevice
from amped.backend.ops.equations import (
    CONDITION,
    CUTOFF,
    NEAR,
    NEARBY,
    NOISY,
    NOT_FINITE,
    RANGE,
    SINGULAR,
    ConstraintBounds,
    EquationsCase,
    EquationsStatus,
    RunStart,
    Terms,
    equations_of,
)
from amped.parallel.mpi import world

RANKS = (1, 7, 16, 33, 64, 128, 130, 257)
NORM, MOST = 5.0, 100.0

Make = Callable[..., tuple[Any, Device]]
ROWS = 3  # of each mode, which no test here solves


@pytest.fixture(params=["null", "device", pytest.param("small squares", marks=pytest.mark.gpu)])
def make(request: pytest.FixtureRequest, device: str) -> Make:
    """Return a function that makes equations: on the null device, and on each device as its provider does.

    "small squares" are those of a GPU whose thread blocks have little shared memory, for any number of columns.
    """
    small = request.param == "small squares"
    if small and device != "cuda":
        pytest.skip("tests GPU code only")

    def made(
        order: int,
        rank: int,
        parts: int = 1,
        gains: bool = True,
        dtype: str = "f4",
        bounds: ConstraintBounds | None = None,
    ) -> tuple[Any, Device]:
        terms = Terms(order, rank, parts, parts - 1, NORM, MOST, gains)
        where = NullDevice(world()) if request.param == "null" else choose(device, world())  # type: ignore[arg-type]
        case = EquationsCase(terms, np.dtype(dtype), (ROWS,) * order, bounds or ConstraintBounds.none(order))
        if small:
            from amped.backend.cuda.launches import equations_large

            request.getfixturevalue("monkeypatch").setattr(equations_large, "SIDES", (32, 32))
            return equations_large.WideEquations(where, case), where  # type: ignore[arg-type]
        return equations_of(where, rank).make(case), where

    return made


def status_of_run(order: int, rank: int, iterations: int = 0, fit: float = np.nan) -> EquationsStatus:
    rng = np.random.default_rng(rank)
    return EquationsStatus(0, iterations, fit, rng.random((order, rank)) + 0.5, rng.random((order, rank)) + 0.5)


def gram(rank: int, seed: int, rows: int = 500) -> np.ndarray:
    matrix = np.random.default_rng(seed).random((rows, rank))
    return np.asarray(matrix.T @ matrix / rows)


def fill(equations: Any, device: Device, **parts: Any) -> None:
    """Set the totals: `gram`, `dots`, `noisy`, and `largest` (ranks, R)."""
    _, lines, rank = equations.totals.shape
    totals = np.zeros((lines, rank))
    totals[:rank] = parts.get("gram", 0)
    totals[rank], totals[rank + 1] = parts.get("dots", 0), parts.get("noisy", 0)
    totals[rank + 2 :] = parts.get("largest", 0)
    equations.totals[0] = device.to_device(totals)


def loaded(
    make: Make, grams: list[np.ndarray], status: EquationsStatus, best: float = 0.0, **how: Any
) -> tuple[Any, Device]:
    """Return equations of a run at a start, that hold Gram matrices of columns without their scales."""
    equations, device = make(len(grams), len(grams[0]), **how)
    equations.put(0, slice(0, len(grams[0])), RunStart(status, best, np.array(grams)))
    return equations, device


def read(equations: Any) -> EquationsStatus:
    (found,) = equations.status()
    return found  # type: ignore[no-any-return]


def scaled(grams: list[np.ndarray], status: EquationsStatus) -> list[np.ndarray]:
    return [each * np.outer(scale, scale) for each, scale in zip(grams, status.scales, strict=True)]


def inverse_of(grams: list[np.ndarray], status: EquationsStatus, mode: int) -> np.ndarray:
    """Return what rows of an MTTKRP of stored matrices are multiplied with."""
    others = [m for m in range(len(grams)) if m != mode]
    product = np.prod([scaled(grams, status)[m] for m in others], axis=0)
    inverse = np.linalg.pinv(product, rcond=CUTOFF, hermitian=True)
    whole = inverse * np.prod(status.scales[others], axis=0)[:, None] / (status.norms[mode] * status.scales[mode])
    return np.asarray(whole)


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("order", [2, 3, 6])
def test_the_inverse_of_the_other_modes(make: Make, order: int, rank: int) -> None:
    grams, status = [gram(rank, m) + np.eye(rank) for m in range(order)], status_of_run(order, rank)
    equations, device = loaded(make, grams, status)
    for mode in range(order):
        equations.totals[...] = np.nan
        equations.prepare(mode)
        device.wait_side()
        want = inverse_of(grams, status, mode)
        np.testing.assert_allclose(device.to_host(equations.inverse), want, rtol=0, atol=1e-11 * abs(want).max())
        assert not device.to_host(equations.totals).any()
        assert read(equations).flags == 0


@pytest.mark.parametrize("rank", [2, 16, 33, 150])
def test_a_singular_matrix_gets_its_pseudo_inverse(make: Make, rank: int) -> None:
    grams, status = [gram(rank, m, rows=1) for m in range(3)], status_of_run(3, rank)
    equations, device = loaded(make, grams, status, gains=False)
    equations.prepare(1)
    if read(equations).flags & SINGULAR:
        equations.invert(1)
    want = inverse_of(grams, status, 1)
    np.testing.assert_allclose(device.to_host(equations.inverse), want, rtol=0, atol=1e-9 * abs(want).max())
    assert read(equations).flags == 0


@pytest.mark.parametrize("rank", [8, 131])
@pytest.mark.parametrize(("gains", "fit", "noisy"), [(True, np.nan, True), (False, np.nan, False), (True, 0.99, True)])
def test_equations_that_single_precision_cannot_solve(
    make: Make, gains: bool, fit: float, noisy: bool, rank: int
) -> None:
    basis = np.linalg.qr(np.random.default_rng(0).random((rank, rank)))[0]
    grams = [basis @ np.diag(np.geomspace(1, 1e-10, rank)) @ basis.T, np.ones((rank, rank)), np.eye(rank)]
    status = EquationsStatus(0, 0 if np.isnan(fit) else 3, fit, np.ones((3, rank)), np.ones((3, rank)))
    equations, device = loaded(make, grams, status, gains=gains)
    for double in (False, True):
        equations.prepare(2, double)
        if read(equations).flags & SINGULAR:
            equations.invert(2, double)
        assert device.to_host(equations.totals)[0, rank + 1].any() == (noisy and not double)
        want = inverse_of(grams, status, 2)
        np.testing.assert_allclose(device.to_host(equations.inverse), want, rtol=0, atol=1e-4 * abs(want).max())
    assert CONDITION > 1e10, "the tenth power is within what elimination solves"


@pytest.mark.parametrize("rank", [100, 150, 257])
def test_what_is_nearly_singular_is_inverted_as_well_as_may_be(make: Make, rank: int) -> None:
    """Half of the eigenvalues are small: so are parts of the matrix that elimination comes to first."""
    basis, condition = np.linalg.qr(np.random.default_rng(0).standard_normal((rank, rank)))[0], 1e8
    values = np.where(np.arange(rank) % 2, 1.0, 1 / condition)
    grams, status = [basis @ np.diag(values) @ basis.T, *2 * [np.ones((rank, rank))]], status_of_run(3, rank)
    ones = status._replace(norms=np.ones((3, rank)), scales=np.ones((3, rank)))
    equations, device = loaded(make, grams, ones, gains=False)
    equations.prepare(2)
    device.wait_side()
    got = device.to_host(equations.inverse)
    assert read(equations).flags == 0
    np.testing.assert_allclose(got @ grams[0], np.eye(rank), rtol=0, atol=1e-6)
    np.testing.assert_allclose(got, basis @ np.diag(1 / values) @ basis.T, rtol=0, atol=1e-6 * condition)


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("iterations", [0, 2])
def test_norms_are_taken_out(make: Make, rank: int, iterations: int) -> None:
    grams, status = [gram(rank, m) + np.eye(rank) for m in range(3)], status_of_run(3, rank, iterations)
    equations, device = loaded(make, grams, status, parts=3)
    equations.prepare(1)
    new, largest = gram(rank, 9), np.random.default_rng(1).random((3, rank)) + 0.5
    fill(equations, device, gram=new, largest=largest)
    equations.finish(1)
    got, divisor = read(equations), status.norms[1] * status.scales[1]
    length = np.maximum(largest.max(axis=0) * divisor, 1) if iterations else np.sqrt(np.diag(new)) * divisor
    assert got.flags == 0
    np.testing.assert_allclose(got.norms[1], length, rtol=1e-12)
    np.testing.assert_allclose(got.scales[1], divisor / length, rtol=1e-12)
    assert np.array_equal(got.norms[[0, 2]], status.norms[[0, 2]])
    equations.prepare(0)  # from the new Gram matrix
    want = inverse_of([grams[0], new, grams[2]], status._replace(norms=got.norms, scales=got.scales), 0)
    np.testing.assert_allclose(device.to_host(equations.inverse), want, rtol=0, atol=1e-10 * abs(want).max())


@pytest.mark.parametrize("rank", [4, 132])
def test_columns_out_of_range_are_divided_by_powers_of_two(make: Make, rank: int) -> None:
    grams, status = [gram(rank, m) + np.eye(rank) for m in range(3)], status_of_run(3, rank, 1)
    equations, device = loaded(make, grams, status)
    equations.prepare(0)
    before, largest = device.to_host(equations.inverse).copy(), np.resize([1.0, 5000.0, 0.0, 1e-3], rank)
    fill(equations, device, gram=np.eye(rank), largest=largest)
    equations.finish(0)
    assert read(equations)._replace(norms=None, scales=None)[:2] == (RANGE, 1)  # type: ignore[arg-type]
    equations.widen(0)
    ratio = before[0] / device.to_host(equations.inverse)[0]
    divisor = status.norms[0] * status.scales[0]
    want = np.resize([1, 4096, 0, 2.0**-10], rank)
    np.testing.assert_allclose(ratio, np.where(want, want, 1 / divisor), rtol=1e-12)  # what vanished is not enlarged
    assert not device.to_host(equations.totals).any()
    fill(equations, device, gram=np.eye(rank), largest=largest / ratio)
    equations.finish(0, again=True)
    got = read(equations)
    assert got.flags == 0
    np.testing.assert_allclose(got.norms[0], np.maximum(largest * status.norms[0] * status.scales[0], 1))


@pytest.mark.parametrize(
    ("parts", "flag"),
    [
        ({"gram": np.inf, "largest": 1.0}, NOT_FINITE),
        ({"gram": np.nan, "largest": np.nan}, RANGE),
        ({"gram": np.inf, "largest": 1e30}, RANGE),
        ({"gram": np.nan, "largest": 1.0, "noisy": 1.0}, NOISY),
    ],
)
@pytest.mark.parametrize("rank", [1, 16, 140])
def test_what_is_wrong_with_solved_rows(make: Make, rank: int, parts: dict[str, float], flag: int) -> None:
    grams, status = [np.eye(rank)] * 3, status_of_run(3, rank)
    equations, device = loaded(make, grams, status)
    equations.prepare(2)
    fill(equations, device, **parts)
    equations.finish(2)
    got = read(equations)
    assert got.flags == flag
    assert np.array_equal(got.norms, status.norms)
    assert np.array_equal(got.scales, status.scales)
    assert read(equations).flags == 0, "a flag is reported once"


@pytest.mark.parametrize("rank", [3, 140])
def test_gram_matrices_that_are_not_finite(make: Make, rank: int) -> None:
    equations, _ = loaded(make, [np.full((rank, rank), np.nan), np.eye(rank), np.eye(rank)], status_of_run(3, rank))
    equations.prepare(1)
    assert read(equations).flags & NOT_FINITE


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("order", [2, 5])
def test_the_fit(make: Make, order: int, rank: int) -> None:
    grams, status = [gram(rank, m) for m in range(order)], status_of_run(order, rank, 4, 0.1)
    equations, device = loaded(make, grams, status, gains=False)
    weights = status.norms[-1]
    squared = float(weights @ np.prod(scaled(grams, status), axis=0) @ weights)
    dots = np.random.default_rng(3).random(rank)
    parts = weights * np.prod(status.scales, axis=0) * dots
    dots *= squared / 2 / parts.sum()  # a distance of about the norm
    fill(equations, device, dots=dots)
    equations.fit()
    got = read(equations)
    want = 1 - np.sqrt(NORM**2 + squared - 2 * (parts * squared / 2 / parts.sum()).sum()) / NORM
    assert (got.flags, got.iterations) == (0, 5)
    assert got.fit == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("rank", [1, 133])
@pytest.mark.parametrize(("dot", "best"), [(NORM**2, 0.0), (0.1 * NORM**2, NEARBY + 0.01)])
def test_a_fit_near_1_waits_for_exact_products(make: Make, dot: float, best: float, rank: int) -> None:
    """Where rounding may change the fit, and once a fit was near 1. Components but one are 0."""
    grams = [np.diag(np.eye(rank)[0] * NORM)] * 2
    status = EquationsStatus(0, 2, 0.5, np.ones((2, rank)), np.ones((2, rank)))
    equations, device = loaded(make, grams, status, best)
    fill(equations, device, dots=np.eye(rank)[0] * dot * (1 - 1e-9))
    equations.fit()
    got = read(equations)
    assert (got.flags, got.iterations, got.fit) == (NEAR, 2, 0.5)
    source, target = np.zeros((2, rank)), np.zeros((2, rank), np.float32)
    source[0, 0], target[:, 0] = dot, (1, 3)
    equations.multiply(device.to_device(source), device.to_device(target))
    equations.fit(exact=True)
    got = read(equations)
    assert (got.flags, got.iterations) == (0, 3)
    assert got.fit == pytest.approx(1 - np.sqrt(2 * NORM**2 - 2 * dot) / NORM, abs=1e-7)
    equations.fit(exact=True)
    assert read(equations).iterations == 3, "nothing is left to be computed"


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_inner_products_of_columns(make: Make, rows: int, rank: int) -> None:
    equations, device = make(3, rank)
    rng = np.random.default_rng(rows)
    one, other = rng.random((rows, rank + 3)), rng.random((rows, rank + 1)).astype(np.float32)
    equations.dots[...] = np.nan
    equations.multiply(device.to_device(one)[:, :rank], device.to_device(other)[:, :rank])
    got = device.to_host(equations.dots)[0].sum(axis=0)
    np.testing.assert_allclose(got, (one[:, :rank] * other[:, :rank]).sum(axis=0), rtol=1e-12)


@pytest.mark.parametrize("rank", [2, 140])
def test_nothing_is_kept_once_a_flag_is_set(make: Make, rank: int) -> None:
    equations, device = loaded(make, [np.eye(rank)] * 3, status_of_run(3, rank))
    source, target = (device.to_device(np.full(64, value, np.uint8)) for value in (1, 0))
    equations.snapshot(source, target)
    assert device.to_host(target).all()
    equations.prepare(0)
    fill(equations, device, gram=np.nan, largest=1.0)
    equations.finish(0)
    target.fill(0)
    equations.snapshot(source, target)
    assert not device.to_host(target).any()


@pytest.mark.parametrize("rank", [5, 140])
def test_what_is_told_lies_in_the_memory(make: Make, rank: int) -> None:
    equations, device = loaded(make, [np.eye(rank)] * 3, status_of_run(3, rank, 7, 0.25))
    if equations.memory is None:
        pytest.skip("the host computes part of this case")
    (got,) = equations.read(device.to_host(equations.reported))
    want = status_of_run(3, rank, 7, 0.25)
    assert got[:3] == want[:3]
    assert np.array_equal(got.norms, want.norms)
    assert np.array_equal(got.scales, want.scales)


# Under constraints


def constrained(make: Make, rank: int, ridge: float = 0.7) -> tuple[Any, Device, list[np.ndarray], EquationsStatus]:
    """Return equations of order 3 whose mode 1 is non-negative and whose mode 0 is fixed, with lengths taken out."""
    grams, status = [gram(rank, m) + np.eye(rank) for m in range(3)], status_of_run(3, rank)
    bounds = ConstraintBounds((0.0, ridge, 2 * ridge), (1,), 2)
    equations, device = loaded(make, grams, status, bounds=bounds)
    return equations, device, scaled(grams, status), status


@pytest.mark.parametrize("rank", RANKS)
def test_what_rows_without_negative_numbers_are_to_minimise(make: Make, rank: int) -> None:
    equations, device, grams, status = constrained(make, rank)
    lengths = np.sqrt([np.diag(each) for each in grams])
    got = read(equations)
    np.testing.assert_allclose(got.norms, status.norms * lengths, rtol=1e-12)
    np.testing.assert_allclose(got.scales, status.scales / lengths, rtol=1e-12)
    equations.totals[...] = np.nan
    for part in equations.system:
        part[...] = np.nan
    equations.prepare(1)
    device.wait_side()
    divisor = got.norms[1] * got.scales[1]
    unit = [each / np.outer(length, length) for each, length in zip(grams, lengths, strict=True)]
    want = (unit[0] * unit[2] + 0.7 * np.eye(rank)) * np.outer(divisor, divisor)
    right, begin = got.scales[0] * got.scales[2] * divisor, got.scales[1] * lengths.prod(axis=0) / divisor
    for part, numbers in zip(equations.system, (want, right, begin), strict=True):
        np.testing.assert_allclose(device.to_host(part), numbers, rtol=1e-11, atol=1e-13 * abs(numbers).max())
    assert not device.to_host(equations.totals).any()
    equations.totals[...] = np.nan
    equations.prepare(2)
    device.wait_side()
    inverse = np.linalg.inv(unit[0] * unit[1] + 1.4 * np.eye(rank)) * (got.scales[0] * got.scales[1])[:, None]
    inverse /= got.norms[2] * got.scales[2]
    np.testing.assert_allclose(device.to_host(equations.inverse), inverse, rtol=0, atol=1e-11 * abs(inverse).max())
    assert read(equations).flags == 0


@pytest.mark.parametrize("rank", [1, 16, 33, 150])
def test_components_have_the_norms_of_the_mode_that_was_solved_last(make: Make, rank: int) -> None:
    equations, device, _, _ = constrained(make, rank)
    equations.prepare(2)
    before, new = read(equations), gram(rank, 9)
    fill(equations, device, gram=new, largest=np.ones((1, rank)), dots=np.linspace(0.1, 0.2, rank))
    equations.finish(2)
    equations.fit()
    got, divisor = read(equations), before.norms[2] * before.scales[2]
    norms = np.sqrt(np.diag(new)) * divisor
    np.testing.assert_allclose(got.norms[2], norms, rtol=1e-12)
    assert got.squares == pytest.approx(np.sum(norms**2), rel=1e-12), "columns have unit length"
    unit = [gram(rank, m) + np.eye(rank) for m in (0, 1)] + [new]
    product = np.prod([each / np.sqrt(np.outer(np.diag(each), np.diag(each))) for each in unit], axis=0)
    inner = np.sum(norms * np.prod(got.scales, axis=0) * np.linspace(0.1, 0.2, rank))
    distance = np.sqrt(max(NORM**2 + norms @ product @ norms - 2 * inner, 0))
    assert got.fit == pytest.approx(1 - distance / NORM, abs=1e-11)


@pytest.mark.parametrize("rank", [4, 133])
@pytest.mark.parametrize("mode", [1, 2])
def test_what_another_mode_has_lost_stays_and_is_told_by_no_equation(make: Make, mode: int, rank: int) -> None:
    grams, status = [gram(rank, m) + np.eye(rank) for m in range(3)], status_of_run(3, rank)
    grams[0][2] = grams[0][:, 2] = 0
    equations, device = loaded(make, grams, status, bounds=ConstraintBounds((0.5, 0.5, 0.5), (1,), 2))
    equations.prepare(mode)
    device.wait_side()
    if mode == 1:
        found = device.to_host(equations.system.gram)
        assert not found[2].any()
        assert not found[:, 2].any()
        assert np.delete(np.diag(found), 2).all()
    assert read(equations).flags == 0
