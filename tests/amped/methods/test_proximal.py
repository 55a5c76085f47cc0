"""Projections, proximal operators, and ADMM of one mode, against brute force and SciPy."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from admm_steps import PlainAdmmStepsProvider
from proximal import brute_disjoint, brute_monotone, brute_unimodal
from scipy.linalg import polar
from scipy.optimize import Bounds, brentq, minimize

from amped.errors import InputError
from amped.methods.proximal.admm import ModeSolver, Solution, Storage
from amped.methods.proximal.arrays import Arrays
from amped.methods.proximal.equations import SharedGram
from amped.methods.proximal.operators import Proximal, difference_bands
from amped.methods.proximal.projections import project
from amped.methods.proximal.terms import terms_of

BOUNDS = {"unimodal": (-np.inf, np.inf), "nonnegative": (0, np.inf), "bounds:-0.5:0.4": (-0.5, 0.4)}


def matrix_of(seed: int, rows: int = 9, columns: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns))


def projected(matrix: np.ndarray, *names: str) -> np.ndarray:
    return project(matrix, terms_of(names))


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("seed", range(6))
def test_monotone_and_unimodal(seed: int, bounds: str) -> None:
    matrix, (low, high) = matrix_of(seed), BOUNDS[bounds]
    if seed == 5:
        matrix = matrix.round()  # ties
    names = [] if bounds == "unimodal" else [bounds]
    for column, up, down, one in zip(
        matrix.T,
        projected(matrix, "monotone", *names).T,
        projected(matrix, "monotone:decreasing", *names).T,
        projected(matrix, "unimodal", *names).T,
        strict=True,
    ):
        np.testing.assert_allclose(up, brute_monotone(column, low, high), atol=1e-12)
        np.testing.assert_allclose(down, brute_monotone(column[::-1], low, high)[::-1], atol=1e-12)
        best = brute_unimodal(column, low, high)
        assert np.square(one - column).sum() == pytest.approx(np.square(best - column).sum(), rel=1e-12)
        assert np.sum(np.diff(np.sign(np.diff(one))[np.diff(one) != 0]) != 0) <= 1


@pytest.mark.parametrize("rows", [1, 2])
def test_short_columns(rows: int) -> None:
    matrix = matrix_of(0, rows)
    np.testing.assert_array_equal(projected(matrix, "unimodal"), matrix)
    np.testing.assert_array_equal(Proximal(terms_of("smooth:1:2")).blocks[0](matrix, 1.0), matrix)


@pytest.mark.parametrize("name", ["simplex", "simplex:rows"])
def test_simplex(name: str) -> None:
    matrix = 2 * matrix_of(1)
    found, wanted = projected(matrix, name), matrix.copy()
    for vector in wanted.T if name == "simplex" else wanted:
        level = brentq(lambda t, v=vector: np.maximum(v - t, 0).sum() - 1, -20, 20, xtol=1e-14)
        vector[...] = np.maximum(vector - level, 0)
    np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_orthonormal() -> None:
    np.testing.assert_allclose(projected(matrix_of(2), "orthonormal"), polar(matrix_of(2))[0], atol=1e-12)
    deficient = np.ones((5, 2))
    found = projected(deficient, "orthonormal")
    np.testing.assert_allclose(found.T @ found, np.eye(2), atol=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_nonnegative_orthonormal_columns(seed: int) -> None:
    matrix = matrix_of(seed, 6, 2)
    found = projected(matrix, "orthonormal", "nonnegative")
    assert found.min() >= 0
    np.testing.assert_allclose(found.T @ found, np.eye(2), atol=1e-12)
    assert np.vdot(found, matrix) >= 0.85 * brute_disjoint(matrix)
    for poor in (-np.ones((4, 3)), np.outer(np.arange(1.0, 5), [3, 2, 1])):
        found = projected(poor, "orthonormal", "nonnegative")
        np.testing.assert_allclose(found.T @ found, np.eye(3), atol=1e-12)


@pytest.mark.parametrize("rows", [40, 1000])
@pytest.mark.parametrize("count", [1, 7, 39])
def test_sparse_columns_keep_the_first_of_equal_entries(rows: int, count: int) -> None:
    """Few entries are sorted, and many partitioned."""
    matrix = np.random.default_rng(count).integers(-4, 5, (rows, 3)).astype(float)
    found, wanted = projected(matrix, f"sparse:{count}"), np.zeros_like(matrix)
    for column, result in zip(matrix.T, wanted.T, strict=True):
        kept = sorted(range(rows), key=lambda row, of=column: -abs(of[row]))[:count]  # Python's sort is stable
        result[kept] = column[kept]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("names", [[], ["nonnegative"], ["bounds:-0.3:0.7"]])
def test_sparse(names: list[str]) -> None:
    matrix = matrix_of(3, 6)
    found, terms = projected(matrix, "sparse:2", *names), terms_of(["sparse:2", *names])
    for column, result in zip(matrix.T, found.T, strict=True):
        errors = []
        for support in [(i, j) for i in range(6) for j in range(i)]:
            trial = np.zeros(6)
            trial[list(support)] = np.clip(column[list(support)], terms.low, terms.high)
            errors.append(np.square(trial - column).sum())
        assert np.count_nonzero(result) <= 2
        assert np.square(result - column).sum() == pytest.approx(min(errors), rel=1e-12)


@pytest.mark.parametrize("order", [1, 2])
def test_smooth(order: int) -> None:
    matrix = matrix_of(4)
    differences = np.diff(np.eye(9), order, axis=0)
    product = differences.T @ differences
    for offset, band in enumerate(difference_bands(9, order)):
        np.testing.assert_array_equal(band[: 9 - offset], np.diag(product, -offset))
    proximal = Proximal(terms_of(f"smooth:0.7:{order}"))
    wanted = np.linalg.solve(np.eye(9) + 0.7 * 0.3 * product, matrix)
    np.testing.assert_allclose(proximal.blocks[0](matrix, 0.3), wanted, atol=1e-12)
    np.testing.assert_allclose(proximal.gradient(matrix), 0.7 * product @ matrix, atol=1e-12)
    assert proximal.penalty(matrix) == pytest.approx(0.35 * np.trace(matrix.T @ product @ matrix))
    assert np.linalg.norm(0.7 * product, 2) <= proximal.curvature


@pytest.mark.parametrize(
    "names",
    [["l1:0.4"], ["l1:0.4", "nonnegative"], ["l1:0.4", "bounds:-0.2:0.3"], ["l1:0.4", "ball"], ["nonnegative", "ball"]],
)
def test_entries_and_the_ball(names: list[str]) -> None:
    """No feasible matrix nearby has a smaller value of what the operator minimises, which is convex."""
    matrix, terms, step = 2 * matrix_of(5), terms_of(names), 0.5
    proximal = Proximal(terms)
    found = proximal.blocks[0](matrix, step)
    np.testing.assert_allclose(project(found, terms), found, atol=1e-14)

    def value(z: np.ndarray) -> float:
        return proximal.penalty(z) + float(np.square(z - matrix).sum()) / (2 * step)

    rng = np.random.default_rng(0)
    for size in (1e-3, 1e-2, 0.1, 1):
        for _ in range(50):
            other = project(found + size * rng.standard_normal(found.shape), terms)
            assert value(other) >= value(found) - 1e-12
            mixed = found + 0.01 * (other - found)
            assert value(mixed) >= value(found) - 1e-12


# ADMM


def equations_of(seed: int, rows: int = 8, rank: int = 3) -> SharedGram:
    rng = np.random.default_rng(seed)
    design = rng.random((20, rank))
    return SharedGram(rng.standard_normal((rows, 20)) @ design, design.T @ design)


def solved(equations: SharedGram, value: Any, calls: int = 60) -> Solution:
    proximal = Proximal(terms_of(value))
    solver = ModeSolver(proximal, Storage())
    rows = proximal.projected(np.random.default_rng(9).random(equations.source.shape))
    solution = Solution(rows, np.zeros((len(proximal.blocks), *rows.shape)), np.inf, np.inf)
    for _ in range(calls):
        before, solution = solution.value, solver.solve(equations, solution.rows, solution.dual)
        assert solution.value <= before + 1e-13 * abs(solution.value)
    return solution


@pytest.mark.parametrize(
    "names",
    [
        ["nonnegative"], ["bounds:-0.1:0.2"], ["l2:0.5"], ["l2:0.5", "nonnegative"], ["l1:0.3", "nonnegative"],
        ["smooth:2"], ["smooth:2:2", "nonnegative"], ["smooth:1", "l2:0.1", "l1:0.1", "nonnegative"],
    ],
)  # fmt: skip
def test_the_optimum_of_a_convex_mode(names: list[str]) -> None:
    equations, terms, proximal = equations_of(1), terms_of(names), Proximal(terms_of(names))

    def value(x: np.ndarray) -> tuple[float, np.ndarray]:
        z = x.reshape(8, 3)
        data = np.vdot(z @ equations.gram, z) / 2 - np.vdot(equations.source, z)
        slope = z @ equations.gram - equations.source + terms.l2 * z + terms.l1 + proximal.gradient(z)
        return float(data + proximal.penalty(z)), slope.reshape(-1)

    bounds = Bounds(np.full(24, terms.low), np.full(24, terms.high))
    start = np.clip(np.ones(24), terms.low, terms.high)
    best = minimize(value, start, jac=True, bounds=bounds, options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 5000})
    found = solved(equations, names)
    assert found.value == pytest.approx(best.fun, rel=1e-7)
    np.testing.assert_allclose(found.rows.reshape(-1), best.x, atol=1e-3)


@pytest.mark.parametrize(
    "names",
    [
        ["unimodal"],
        ["orthonormal"],
        ["orthonormal", "nonnegative"],
        ["sparse:2"],
        ["unimodal", "smooth:1"],
        ["simplex"],
    ],
)
def test_no_solve_increases_the_objective(names: list[str]) -> None:
    for seed in range(3):
        found = solved(equations_of(seed), names, 10)
        np.testing.assert_allclose(project(found.rows, terms_of(names)), found.rows, atol=1e-12)


def test_a_function() -> None:
    calls = list[float]()

    def box(matrix: np.ndarray, step: float) -> np.ndarray:
        calls.append(step)
        return np.clip(matrix, -0.1, 0.2)

    def soft(matrix: np.ndarray, step: float) -> np.ndarray:
        return np.maximum(matrix - 0.3 * step, 0)

    soft.penalty = lambda matrix: 0.3 * matrix.sum()  # type: ignore[attr-defined]
    equations = equations_of(1)
    np.testing.assert_allclose(solved(equations, box).rows, solved(equations, "bounds:-0.1:0.2").rows, atol=1e-9)
    assert min(calls) > 0
    assert solved(equations, soft).value == pytest.approx(solved(equations, ["l1:0.3", "nonnegative"]).value, rel=1e-9)


@pytest.mark.parametrize(
    ("result", "cause"),
    [
        (np.ones((2, 2)), r"of shape \(2, 2\), not \(8, 3\)"),
        (np.full((8, 3), np.nan), "not finite"),
        ("x", "no matrix"),
    ],
)
def test_a_function_with_an_invalid_result(result: Any, cause: str) -> None:
    with pytest.raises(InputError, match=cause):
        solved(equations_of(1), lambda matrix, step: result, 1)


# Names


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ("unimodl", "did you mean 'unimodal'"), ("xyz", "known are nonnegative"), ("l1", "write it as l1:X"),
        ("l1:0", "expected a number above 0"), ("l1:-1", "above 0"), ("l1:1_0", "not a number"),
        ("smooth:1:3", "1 or 2"), ("bounds:2:1", "must be below"), ("bounds:0", "bounds:LOW:HIGH"),
        ("sparse:0", "at least 1"), ("monotone:up", "monotone:increasing or monotone:decreasing"),
        (["unimodal", "orthonormal"], "exclude each other"), (["l1:1", "l1:2"], "only once"),
        (["nonnegative", "bounds:-2:-1"], "no matrix meets them"), (["simplex", "bounds:0:1"], "exclude each other"),
        (["sparse:2", "bounds:1:2"], "must include 0"), (["ball", "orthonormal"], "not together"),
        (["l1:1", "unimodal"], "only supported with 'nonnegative'"), (["l1:1", "simplex"], "a constant"),
        ([], "not a name"), (3, "not a name"), ([abs, "l1:1"], "must be the only constraint"),
    ],
)  # fmt: skip
def test_invalid_constraints(value: Any, cause: str) -> None:
    with pytest.raises(InputError, match=cause):
        terms_of(value)


# Devices


@pytest.mark.parametrize(
    "names",
    [
        ["nonnegative"], ["smooth:0.3", "nonnegative"], ["smooth:0.2:2"], ["unimodal"], ["monotone", "bounds:0:1"],
        ["simplex"], ["simplex:rows"], ["sparse:3", "l1:0.1"], ["orthonormal"], ["orthonormal", "nonnegative"],
        ["l1:0.2", "ball"], ["l2:0.1"],
    ],
)  # fmt: skip
def test_arrays_of_a_device(names: list[str]) -> None:
    """A namespace that is not NumPy's takes the paths of GPUs: the same optimum, with fewer tests of residuals."""
    module = ModuleType("arrays of a device")
    module.__dict__.update(np.__dict__)
    equations, rounds, found = equations_of(6), 40, []
    for arrays in (Arrays(module, steps=PlainAdmmStepsProvider()), Arrays(module), Arrays(np)):
        proximal = Proximal(terms_of(names), arrays)
        solver = ModeSolver(proximal, Storage(arrays))
        rows = proximal.projected(np.random.default_rng(9).random(equations.source.shape))
        dual = np.zeros((len(proximal.blocks), *rows.shape))
        each = SharedGram(equations.source, equations.gram, arrays.xp)
        for _ in range(rounds):
            solution = solver.solve(each, rows, dual)
            rows, dual = solution.rows, solution.dual
        np.testing.assert_allclose(project(rows, proximal.terms, arrays), rows, atol=1e-9)
        found.append(solution.value)
    assert found[0] == pytest.approx(found[1], rel=1e-10), "the same, in few launches"
    assert found[1] == pytest.approx(found[2], rel=1e-4)
