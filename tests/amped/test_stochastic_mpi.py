"""Generalised CP by stochastic gradients over all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gcp import model_array, values_for
from oracle import random_factors, small_pieces

import amped
from amped.parallel.mpi import Comm

pytestmark = pytest.mark.mpi


def run(comm: Comm, array: np.ndarray, **given: Any) -> amped.KruskalTensor:
    """Decompose an array of rank 0; the model must be equal on all ranks."""
    tensor = amped.SparseTensor(np.argwhere(array), array[array != 0], array.shape)
    some = {"method": "adam", "rate": 0.02, "steps": 20, "samples": 40, "max_iters": 3, "precision": "fp64", **given}
    with small_pieces(10):
        model = amped.cp(tensor if comm.rank == 0 else None, 3, device="cpu", **some)
    mine = (model.weights.tobytes(), *(f.tobytes() for f in model.factors), str(model.series))
    assert all(other == mine for other in comm.allgather(mine))
    return model


@pytest.mark.parametrize("compiled", ["never", "always"])
@pytest.mark.parametrize("shape", [(6, 5, 4), (2, 9, 1, 3), (1, 5, 6), (1, 2, 2)])
def test_ranks_agree(comm: Comm, shape: tuple[int, ...], compiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are reproducible; there may be more ranks than rows."""
    monkeypatch.setenv("AMPED_COMPILE", compiled)
    array = values_for("poisson", model_array(random_factors(0, shape, 3)) / 2)
    array.flat[:2] = 1, 0
    for sampling in ("stratified", "semi-stratified", "uniform", "nonzeros"):
        one, other = (run(comm, array, loss="poisson", sampling=sampling) for _ in range(2))
        assert str(one.series) == str(other.series)
        assert one.weights.tobytes() == other.weights.tobytes()


def test_full_passes_are_those_of_one_rank(comm: Comm) -> None:
    """All observed elements in each step: gradients and objectives are sums over the ranks."""
    shape = (7, 2, 8)
    array = values_for("gamma", model_array([f + 0.3 for f in random_factors(0, shape, 3)]))
    array[:, 1, :5] = 0
    given: dict[str, Any] = {"loss": "gamma", "mask": "stored", "samples": 10**6, "init": random_factors(1, shape, 3)}
    model = run(comm, array, **(given if comm.rank == 0 else {**given, "init": None}))
    factors, seen = [model.factors[0] * model.weights, *model.factors[1:]], array > 0
    from gcp import oracle

    assert model.series["objective"][-1] == pytest.approx(oracle(array, factors, "gamma", seen)[0], rel=1e-10)
    x, moments = random_factors(1, shape, 3), [[np.zeros((n, 3)) for n in shape] for _ in range(2)]
    for step in range(1, 61):
        gradients = oracle(array, x, "gamma", seen)[1]
        for mode, g in enumerate(gradients):
            moments[0][mode] = 0.9 * moments[0][mode] + 0.1 * g
            moments[1][mode] = 0.999 * moments[1][mode] + 0.001 * g * g
            first, second = moments[0][mode] / (1 - 0.9**step), moments[1][mode] / (1 - 0.999**step)
            x[mode] = np.maximum(x[mode] - 0.02 * first / (np.sqrt(second) + 1e-8), 0)
    np.testing.assert_allclose(model_array(factors), model_array(x), rtol=1e-7)
