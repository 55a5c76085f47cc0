"""Generalised CP over all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gcp import REFERENCES, TOLERANCE, Reference, check_reference, model_array, oracle, values_for
from oracle import load, random_factors, small_pieces

import amped
from amped.parallel.mpi import Comm

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("shape", [(6, 5, 4), (2, 9, 1, 3), (1, 5, 6), (1, 2, 2)])
@pytest.mark.parametrize("compiled", ["never", "always"])
@pytest.mark.parametrize("name", ["poisson", "bernoulli-logit", "huber:0.5"])
def test_values_and_gradients(
    comm: Comm, shape: tuple[int, ...], name: str, compiled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of dense and sparse tensors, with masks and weights; there may be more ranks than rows."""
    monkeypatch.setenv("AMPED_COMPILE", compiled)
    factors = random_factors(0, shape, 3)
    array = values_for(name, model_array(factors))
    array.flat[:2] = 1
    seen = np.random.default_rng(1).random(shape) < 0.05
    seen.flat[:2], seen.flat[-1] = (True, False), True
    sparse = amped.SparseTensor(np.argwhere(array), array[array != 0], shape)
    cases: list[tuple[Any, dict[str, Any], Any]] = [
        (array, {}, 1.0), (np.asfortranarray(array), {}, 1.0), (sparse, {}, 1.0), (array, {"mask": seen}, seen),
        (array, {"mask": ~seen}, ~seen), (array, {"weights": 0.5 * seen}, 0.5 * seen),
    ]  # fmt: skip
    for tensor, given, weights in cases:
        with small_pieces(10):
            value, gradients = amped.objective(
                tensor if comm.rank == 0 else None, factors, loss=name, device="cpu",
                **(given if comm.rank == 0 else {}),
            )  # type: ignore[misc]  # fmt: skip
        want = oracle(array, factors, name, weights)
        assert value == pytest.approx(want[0], rel=1e-12)
        for gradient, expected in zip(gradients, want[1], strict=True):
            np.testing.assert_allclose(gradient, expected, atol=1e-12 * np.linalg.norm(expected))


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("case", REFERENCES)
def test_the_reference_at_the_start(comm: Comm, case: Reference, dense: bool, precision: Any, device: str) -> None:
    check_reference(comm, case, dense, precision, device)


def test_a_decomposition_is_that_of_one_rank(comm: Comm) -> None:
    tensor = load("uber393k_4d")
    given: dict[str, Any] = {"loss": "poisson", "method": "lbfgs", "max_iters": 3, "precision": "fp64", "device": "cpu"}
    model = amped.cp(tensor if comm.rank == 0 else None, 4, init=random_factors(0, tensor.shape, 4), **given)
    mine = (model.weights.tobytes(), *(f.tobytes() for f in model.factors), str(model.series))
    assert all(other == mine for other in comm.allgather(mine))
    start = random_factors(0, tensor.shape, 4)
    first = amped.objective(tensor if comm.rank == 0 else None, start, loss="poisson", gradient=False, device="cpu")
    assert model.series["objective"][0] < first
    factors = [model.factors[0] * model.weights, *model.factors[1:]]
    value = amped.objective(tensor if comm.rank == 0 else None, factors, loss="poisson", gradient=False, device="cpu")
    assert value == pytest.approx(model.series["objective"][-1], rel=1e-10)


def test_newton_steps_with_weights(comm: Comm) -> None:
    shape, rng = (6, 2, 8), np.random.default_rng(0)
    factors, weights = random_factors(0, shape, 3), rng.choice([0.0, 0.5, 2.0], (6, 2, 8))
    array = values_for("poisson", model_array(factors))
    given: dict[str, Any] = {"loss": "poisson", "method": "newton", "max_iters": 4, "tol": 0, "precision": "fp64"}
    with small_pieces(10):
        root = comm.rank == 0
        weighted = weights if root else None
        model = amped.cp(array if root else None, 3, init=factors, weights=weighted, device="cpu", **given)
    ends = [model.factors[0] * model.weights, *model.factors[1:]]
    assert oracle(array, ends, "poisson", weights)[0] == pytest.approx(model.series["objective"][-1], rel=1e-9)
    assert len(set(comm.allgather(repr(model.series)))) == 1


@pytest.mark.parametrize("masked", [False, True])
def test_newton_steps(comm: Comm, masked: bool) -> None:
    """Rows are shared by ranks; absent elements are zeros, or unknown."""
    shape = (6, 2, 8)
    factors = random_factors(0, shape, 3)
    array = values_for("poisson", model_array(factors))
    array.flat[:2] = 1
    given: dict[str, Any] = {"loss": "poisson", "method": "newton", "max_iters": 4, "tol": 0, "precision": "fp64"}
    with small_pieces(10):
        sparse = amped.SparseTensor(np.argwhere(array), array[array != 0], shape)
        mask = "stored" if masked else None
        model = amped.cp(sparse if comm.rank == 0 else None, 3, init=factors, mask=mask, device="cpu", **given)
    mine = (model.weights.tobytes(), *(f.tobytes() for f in model.factors), str(model.series))
    assert all(other == mine for other in comm.allgather(mine))
    ends = [model.factors[0] * model.weights, *model.factors[1:]]
    value = oracle(array, ends, "poisson", (array != 0) if masked else 1.0)[0]
    assert value == pytest.approx(model.series["objective"][-1], rel=1e-9)
    assert value < oracle(array, factors, "poisson", (array != 0) if masked else 1.0)[0]
