"""L-BFGS-B with its vectors in the memory of a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gcp import model_array, values_for
from oracle import random_factors

import amped
from amped.operators import placement
from amped.operators.dense import plan

pytestmark = pytest.mark.gpu
SHAPE = (12, 10, 8)


def data(loss: str, sparse: bool) -> Any:
    """Return values for a loss."""
    array = values_for(loss, model_array([2 * f for f in random_factors(3, SHAPE, 2)]))
    return amped.SparseTensor(np.argwhere(array), array[array != 0], SHAPE) if sparse else array


@pytest.mark.parametrize(
    ("loss", "sparse", "given"),
    [
        ("poisson", True, {}), ("poisson", False, {"ridge": 0.1}), ("gaussian", True, {"nonnegative": [1]}),
        ("bernoulli-logit", False, {}), ("huber:0.5", True, {"mask": "stored"}),
    ],
)  # fmt: skip
def test_the_path_of_vectors_on_the_host(
    loss: str, sparse: bool, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where the GPU's memory does not suffice: with and without bounds, a ridge and missing elements."""
    tensor, start = data(loss, sparse), random_factors(0, SHAPE, 3)
    how: dict[str, Any] = {"loss": loss, "method": "lbfgs", "max_iters": 12, "tol": 0, "init": start, **given}
    models = [amped.cp(tensor, 3, device=device, precision="fp64", **how) for device in ("cuda", "cpu")]
    monkeypatch.setattr(placement, "vector_bytes", lambda modes, setting: placement.VectorBytes(1 << 20, 1 << 20))
    monkeypatch.setattr(plan, "vector_bytes", placement.vector_bytes)
    models.append(amped.cp(tensor, 3, device="cuda", precision="fp64", **how))
    for model in models[1:]:
        np.testing.assert_allclose(model.series["objective"], models[0].series["objective"], rtol=1e-7)


def test_fixed_modes_and_resumption(tmp_path: Any) -> None:
    tensor, start = data("poisson", True), random_factors(0, SHAPE, 3)
    how: dict[str, Any] = {"loss": "poisson", "method": "lbfgs", "tol": 0, "init": start, "device": "cuda"}
    fixed = amped.cp(tensor, 3, max_iters=4, fixed_modes=[1], **how)
    columns = [matrix / np.linalg.norm(matrix, axis=0) for matrix in (fixed.factors[1], start[1])]
    found, given = (each[:, np.argsort(each[0])] for each in columns)  # components descend by weight
    np.testing.assert_allclose(found, given, rtol=1e-5)
    whole = amped.cp(tensor, 3, max_iters=8, checkpoint=tmp_path / "c.npz", every=4, **how)
    again = amped.cp(tensor, 3, max_iters=12, checkpoint=tmp_path / "c.npz", resume=True, **how)
    assert again.series["objective"][:8] == whole.series["objective"]
    assert again.series["objective"][-1] <= whole.series["objective"][-1]
