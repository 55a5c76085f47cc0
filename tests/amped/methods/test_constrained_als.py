"""CP-ALS under constraints by AO-ADMM on one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import make_operator, random_factors
from proximal import dense_ao_admm, smooth_tensor

import amped
from amped.errors import InputError
from amped.methods.constrained_als import ConstrainedAls
from amped.methods.constraints import ConstraintParams
from amped.methods.driver import never
from amped.methods.proximal.terms import by_mode
from amped.parallel.mpi import Comm

HOW: dict[str, Any] = {"tol": 0, "precision": "fp64", "device": "cpu", "threads": 1}
RNG = np.random.default_rng(0)
DENSE = np.where(RNG.random((8, 7, 6)) < 0.6, RNG.random((8, 7, 6)) + 0.2, 0)
TENSOR = amped.SparseTensor(np.argwhere(DENSE), DENSE[DENSE != 0], DENSE.shape)
KINDS: dict[str, dict[int, Any]] = {
    "unimodal": {1: "unimodal"},
    "penalties": {0: ["nonnegative", "l1:0.1"], 1: "smooth:0.1", 2: "monotone"},
    "sets": {0: "simplex:rows", 1: "orthonormal", 2: "bounds:-0.5:1.5"},
    "sparse": {2: ["sparse:3", "nonnegative"], 0: "l2:0.2"},
    "all": {0: "simplex", 1: ["orthonormal", "nonnegative"], 2: ["smooth:0.05:2", "nonnegative", "unimodal"]},
}


def columns_sum_to_one(factor: np.ndarray) -> bool:
    return bool(factor.min() >= 0 and np.allclose(factor.sum(axis=0), 1, atol=1e-6))


def is_unimodal(factor: np.ndarray) -> bool:
    signs = [np.sign(np.diff(column))[np.diff(column) != 0] for column in factor.T]
    return all((np.diff(each) <= 0).all() for each in signs)


@pytest.mark.parametrize("tensor", [DENSE, TENSOR], ids=["dense", "sparse"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_path_of_the_oracle(tensor: Any, kind: str) -> None:
    start = random_factors(0, DENSE.shape, 3)
    model = amped.cp_als(tensor, 3, init=start, max_iters=8, constraints=KINDS[kind], **HOW)
    factors, objectives = dense_ao_admm(DENSE, start, 8, KINDS[kind])
    np.testing.assert_allclose(model.series["objective"], objectives, rtol=1e-10)
    np.testing.assert_allclose(model.full(), np.einsum("ir,jr,kr->ijk", *factors), atol=1e-9)
    assert model.fits[-1] == pytest.approx(1 - np.linalg.norm(DENSE - model.full()) / np.linalg.norm(DENSE), abs=1e-12)
    assert (np.diff(model.series["objective"]) <= 1e-12 * objectives[0]).all()


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_factors_meet_the_constraints(precision: str) -> None:
    how = HOW | {"max_iters": 5, "precision": precision}
    model = amped.cp_als(DENSE, 3, constraints=KINDS["all"], **how)
    assert columns_sum_to_one(model.factors[0])
    np.testing.assert_allclose(model.factors[1].T @ model.factors[1], np.eye(3), atol=1e-6)
    assert model.factors[1].min() >= 0
    assert is_unimodal(model.factors[2])
    assert model.run["nonnegative"] == [0, 1, 2]
    model = amped.cp_als(DENSE, 3, constraints=KINDS["sets"], **how)
    np.testing.assert_allclose(model.factors[0].sum(axis=1), 1, atol=1e-6)
    assert -0.5 <= model.factors[2].min() <= model.factors[2].max() <= 1.5
    model = amped.cp_als(DENSE, 3, constraints=KINDS["sparse"], **how)
    assert (np.count_nonzero(model.factors[2], axis=0) <= 3).all()
    np.testing.assert_allclose([np.abs(f).sum(axis=0) for f in model.factors], 1, atol=1e-6)
    assert (np.diff(model.weights) <= 0).all()


def test_what_is_recorded() -> None:
    model = amped.cp_als(DENSE, 2, max_iters=3, constraints={0: ["l1:0.1", "nonnegative"], 1: "unimodal"}, **HOW)
    assert model.run["constraints"] == {"0": ["l1:0.1", "nonnegative"], "1": ["unimodal", "ball"], "2": ["ball"]}
    assert model.run["nonnegative"] == [0]
    assert model.run["objectives"] == list(model.series["objective"])
    model = amped.cp_als(DENSE, 2, max_iters=3, constraints={1: "unimodal"}, nonnegative=[0, 1], **HOW)
    assert model.run["constraints"] == {"0": ["nonnegative"], "1": ["unimodal", "nonnegative"]}


@pytest.mark.parametrize("names", [["unimodal", "nonnegative"], ["smooth:1"]])
def test_planted_columns_are_recovered_better(names: list[str]) -> None:
    clean, noisy = smooth_tensor(0, (10, 40, 8), 2.0)
    errors = []
    for constraints in ({}, {1: names}):
        model = amped.cp_als(noisy, 3, max_iters=60, starts=2, constraints=constraints, **HOW)
        errors.append(np.linalg.norm(model.full() - clean))
    assert errors[1] < 0.8 * errors[0]


def test_unconstrained_modes_are_those_of_als() -> None:
    """A constraint that is never active leaves the path of ALS, up to the inner iterations."""
    start = random_factors(3, DENSE.shape, 3)
    plain = amped.cp_als(DENSE, 3, init=start, max_iters=200, **HOW)
    model = amped.cp_als(DENSE, 3, init=start, max_iters=200, constraints={1: "bounds:-1e9:1e9"}, **HOW)
    np.testing.assert_allclose(model.fits[-1], plain.fits[-1], atol=1e-3)


def test_a_function_is_called_with_whole_matrices() -> None:
    shapes = set[tuple[int, ...]]()

    def nonnegative(matrix: np.ndarray, step: float) -> np.ndarray:
        assert step > 0
        shapes.add(matrix.shape)
        return np.maximum(matrix, 0)

    how = HOW | {"max_iters": 300, "init": random_factors(0, DENSE.shape, 3)}
    found, wanted = (amped.cp_als(TENSOR, 3, constraints={1: each}, **how) for each in (nonnegative, "nonnegative"))
    assert shapes == {(7, 3)}
    assert found.fits[-1] == pytest.approx(wanted.fits[-1], abs=1e-5)  # by ADMM and by coordinate descent
    assert "nonnegative" in found.run["constraints"]["1"][0]


def test_errors_of_a_function_are_its_own() -> None:
    def failing(matrix: np.ndarray, step: float) -> np.ndarray:
        raise ValueError("the function's message")

    with pytest.raises(ValueError, match=r"^the function's message$"):
        amped.cp_als(np.ones((4, 3, 2)), 1, constraints={0: failing}, device="cpu")


def test_fixed_modes_and_starts() -> None:
    start = random_factors(0, DENSE.shape, 3)
    model = amped.cp_als(DENSE, 3, init=start, fixed_modes=[0], constraints={1: "unimodal"}, max_iters=4, **HOW)
    match = abs((model.factors[0] / np.linalg.norm(model.factors[0], axis=0)).T @ start[0])
    np.testing.assert_allclose(match.max(axis=0), np.linalg.norm(start[0], axis=0), rtol=1e-12)
    how = HOW | {"max_iters": 4, "constraints": {1: ["smooth:0.1", "nonnegative"]}}
    each = [amped.cp_als(DENSE, 3, seed=seed, **how).series["objective"][-1] for seed in range(3)]
    assert amped.cp_als(DENSE, 3, starts=3, **how).series["objective"][-1] == min(each)


def held(model: amped.KruskalTensor, mode: int, start: np.ndarray, mask: np.ndarray) -> bool:
    """Return whether a factor matrix has fixed elements, in the columns of the start."""
    return np.array_equal(model.factors[mode][mask], start[mask])


@pytest.mark.parametrize("others", [{}, {0: "nonnegative", 2: ["l1:0.1", "nonnegative"]}])
def test_fixed_elements(others: dict[int, Any]) -> None:
    start, rng = random_factors(0, DENSE.shape, 3), np.random.default_rng(1)
    mask = rng.random((7, 3)) < 0.4
    mask[0] = True
    how = HOW | {"init": start, "max_iters": 20}
    model = amped.cp_als(DENSE, 3, fixed={1: mask}, constraints=others, **how)
    assert held(model, 1, start[1], mask)
    objectives = model.series["objective"]
    assert (np.diff(objectives) <= 1e-12 * objectives[0]).all()
    free = amped.cp_als(DENSE, 3, constraints=others or {1: "bounds:-1e9:1e9"}, **how)
    assert free.series["objective"][-1] <= objectives[-1] + 1e-3
    assert model.run["constraints"]["1"][0].startswith(f"fixed:mask:{mask.sum()}:")


def test_fixed_rows_and_columns() -> None:
    start = random_factors(0, DENSE.shape, 3)
    how = HOW | {"init": start, "max_iters": 6}
    rows, columns = np.zeros((8, 1), bool), np.array([[True, False, False]])
    rows[[1, 2]] = True
    masks = amped.cp_als(TENSOR, 3, fixed={0: rows, 1: columns}, constraints={1: ["monotone", "nonnegative"]}, **how)
    named = {0: "fixed:rows:1-2", 1: ["monotone", "nonnegative", "fixed:columns:0"]}
    texts = amped.cp_als(TENSOR, 3, constraints=named, **how)
    assert masks.series == texts.series
    assert held(texts, 0, start[0], np.broadcast_to(rows, (8, 3)))
    assert np.array_equal(texts.factors[1][:, 0], start[1][:, 0])
    again = amped.cp_als(TENSOR, 3, constraints=named, **how | {"init": texts})
    assert np.array_equal(again.factors[1][:, 0], start[1][:, 0]), "components keep their places"
    assert sum((np.diff(column) >= 0).all() for column in texts.factors[1].T) >= 2


def test_fixed_elements_of_observed_elements_and_resumed(folder: Path) -> None:
    start, mask = random_factors(0, DENSE.shape, 3), np.zeros((7, 3), bool)
    mask[:3, 1] = True
    how = HOW | {"init": start, "fixed": {1: mask}, "mask": DENSE != 0}
    whole = amped.cp_als(DENSE, 3, max_iters=6, **how)
    assert held(whole, 1, start[1], mask)
    amped.cp_als(DENSE, 3, max_iters=3, checkpoint="c", **how)
    assert amped.cp_als(DENSE, 3, max_iters=6, checkpoint="c", resume=True, **how).series == whole.series
    with pytest.raises(InputError, match="was made with constraints"):
        amped.cp_als(DENSE, 3, max_iters=9, checkpoint="c", resume=True, **how | {"fixed": {1: ~mask}})


def test_the_tolerance_and_callbacks() -> None:
    seen = list[float]()
    how = HOW | {"tol": 1e-3, "max_iters": 200}
    model = amped.cp_als(
        DENSE, 3, constraints={1: "unimodal"}, callback=lambda number, fit: seen.append(fit), **how
    )  # fmt: skip
    assert model.converged
    assert 2 < len(seen) < 200
    assert abs(seen[-1] - seen[-2]) < 1e-3 <= abs(seen[-2] - seen[-3])


@pytest.mark.parametrize("kind", ["penalties", "all"])
def test_a_resumed_run_is_the_uninterrupted_one(folder: Path, kind: str) -> None:
    how = HOW | {"constraints": KINDS[kind], "precision": "fp32"}
    whole = amped.cp_als(TENSOR, 3, max_iters=7, **how)
    amped.cp_als(TENSOR, 3, max_iters=3, checkpoint="c", **how)
    rest = amped.cp_als(TENSOR, 3, max_iters=7, checkpoint="c", resume=True, metrics="m.jsonl", **how)
    assert rest.series == whole.series
    assert all(np.array_equal(one, two) for one, two in zip(rest.factors, whole.factors, strict=True))
    assert '"objective"' in Path("m.jsonl").read_text()
    with pytest.raises(InputError, match="was made with constraints"):
        amped.cp_als(TENSOR, 3, max_iters=9, checkpoint="c", resume=True, **HOW | {"constraints": {1: "unimodal"}})


def test_a_stopped_iteration_continues(comm: Comm) -> None:
    start, constraints = (
        random_factors(0, DENSE.shape, 3),
        ConstraintParams(terms=by_mode("", KINDS["penalties"])).of(3),
    )

    def begun() -> ConstrainedAls:
        method = ConstrainedAls(make_operator(TENSOR, start, comm, precision="fp64", device="cpu"), constraints)
        for mode, factor in enumerate(method.started(start, "")):
            method.operator.set_factor(mode, factor)
        return method

    whole, stopped, again = begun(), begun(), begun()
    assert whole.step(never)
    assert whole.step(never)
    assert stopped.step(never)
    assert not stopped.step(lambda: True)
    assert stopped.state.mode == 1
    again.restart(stopped.state.copy())
    for mode in range(3):
        again.operator.set_factor(mode, stopped.factor(mode))
    for method in (stopped, again):
        assert method.step(never)
        assert method.state.series == whole.state.series
        assert all(np.array_equal(method.factor(mode), whole.factor(mode)) for mode in range(3))


@pytest.mark.parametrize("init", ["nvecs", "tucker", "negative"])
def test_any_start_is_projected(init: Any) -> None:
    if init == "negative":
        first, *others = random_factors(0, DENSE.shape, 3)
        init = [-first, *others]
    model = amped.cp_als(DENSE, 3, init=init, max_iters=3, constraints={0: "nonnegative", 1: ["simplex"]}, **HOW)
    assert model.factors[0].min() >= 0
    assert columns_sum_to_one(model.factors[1])
    assert model.fits[-1] > 0.3


def test_zeros() -> None:
    model = amped.cp_als(np.zeros((4, 3, 2)), 2, max_iters=2, constraints={1: "unimodal", 0: "l1:1"}, **HOW)
    assert not model.full().any()


def test_streamed_and_compiled() -> None:
    """The same by compiled code, from shards that are streamed."""
    shape, rng = (6, 5, 4, 3), np.random.default_rng(1)
    dense = np.where(rng.random(shape) < 0.5, rng.random(shape), 0)
    tensor, start = amped.SparseTensor(np.argwhere(dense), dense[dense != 0], shape), random_factors(0, shape, 5)
    constraints: dict[int, Any] = {1: "unimodal", 0: ["l1:0.1", "nonnegative"], 3: ["smooth:0.1", "nonnegative"]}
    _, wanted = dense_ao_admm(dense, start, 5, constraints)
    model = amped.cp_als(tensor, 5, init=start, max_iters=5, placement="stream", constraints=constraints, **HOW)
    np.testing.assert_allclose(model.series["objective"], wanted, rtol=1e-9)


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        ({"constraints": {3: "unimodal"}}, "there is no mode 3"),
        ({"constraints": {-1: "unimodal"}}, "mode -1"),
        ({"constraints": "unimodal"}, "expected a mapping"),
        ({"constraints": {1: "unimodl"}}, "did you mean 'unimodal'"),
        ({"constraints": {1: "unimodal"}, "ridge": 1.0}, "l2:X"),
        ({"constraints": {1: "unimodal"}, "fixed_modes": [1], "init": random_factors(0, DENSE.shape, 3)}, "is fixed"),
        ({"constraints": dict.fromkeys(range(3), "simplex")}, "leave one for the tensor's size"),
        ({"constraints": {1: abs}, "nonnegative": True}, "must be the only constraint"),
        ({"constraints": {1: "unimodal"}, "grid": "replicated"}, "not supported together with constraints"),
        ({"fixed": {1: np.ones((7, 3), bool)}, "init": random_factors(0, DENSE.shape, 3)}, "use fixed_modes"),
        ({"fixed": {1: np.eye(7, 3) > 0}}, "the start is random"),
        ({"fixed": {1: np.eye(4, 3) > 0}, "init": random_factors(0, DENSE.shape, 3)}, "does not broadcast"),
        ({"fixed": {1: np.eye(7, 3)}}, "True and False"),
        ({"fixed": {4: np.eye(7, 3) > 0}}, "there is no mode 4"),
        ({"fixed": np.eye(7, 3) > 0}, "expected a mapping of modes"),
        ({"fixed": {1: np.eye(7, 3) > 0}, "constraints": {1: "monotone"}}, "only whole columns"),
        ({"constraints": {1: "fixed:rows:9"}, "init": random_factors(0, DENSE.shape, 3)}, "mode 1 has rows 0 to"),
        ({"constraints": {1: "fixed:2"}}, "write it as fixed:rows"),
        ({"constraints": {1: ["simplex:rows", "fixed:columns:1"]}}, "only whole rows"),
        ({"constraints": {1: ["orthonormal", "fixed:columns:1"]}}, "exclude each other"),
        ({"constraints": {1: "orthonormal"}, "rank": 8}, "8 columns of 7 rows cannot be orthonormal"),
    ],
)
def test_invalid_input(arguments: dict[str, Any], cause: str) -> None:
    with pytest.raises(InputError, match=cause):
        amped.cp_als(DENSE, **{"rank": 3, "max_iters": 2} | arguments, **HOW)
