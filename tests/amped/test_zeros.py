"""Data that are all zero: the zero model where the loss has a finite minimum there, otherwise one clear error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import amped
from amped.backend.known_losses import loss_of
from partitioner.tensors.interop import tensor_of

pytestmark = pytest.mark.in_turn

ZEROS = np.zeros((6, 5, 4))
SEEN = np.random.default_rng(0).random(ZEROS.shape) < 0.5
EXPLICIT = amped.SparseTensor([[0, 0, 0], [5, 4, 3], [1, 2, 3]], [0.0, 0.0, 0.0], keep_zeros=True)
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "dense": (ZEROS, {}),
    "masked": (ZEROS, {"mask": SEEN}),
    "weighted": (ZEROS, {"weights": 2.0 * SEEN}),
    "sparse": (EXPLICIT, {}),
    "stored": (EXPLICIT, {"mask": "stored"}),
    "empty": (amped.SparseTensor(np.zeros((0, 3), int), [], ZEROS.shape), {}),
}
FINITE = [("gaussian", "als"), ("gaussian", "lbfgs"), ("poisson", "mu"), ("poisson", "pdnr"), ("poisson", "lbfgs")]
FINITE += [("poisson", "newton"), ("huber", None), ("bernoulli-odds", None), ("negative-binomial", "newton")]
FINITE += [("beta:0.5", None)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("loss", "method"), FINITE)
def test_the_model_is_zero(loss: str, method: Any, kind: str) -> None:
    tensor, observed = KINDS[kind]
    model = amped.cp(tensor, 2, loss=loss, method=method, device="cpu", **observed)
    assert model.converged
    assert not model.full().any()
    assert not model.weights.any()
    assert method != "als" or model.fits[-1] == 1


@pytest.mark.parametrize("loss", ["bernoulli-logit", "poisson-log", "gamma", "rayleigh", "beta:-0.5"])
@pytest.mark.parametrize("kind", KINDS)
def test_losses_without_a_finite_minimum(loss: str, kind: str) -> None:
    tensor, observed = KINDS[kind]
    with pytest.raises(amped.InputError, match=f"every element is zero: loss '{loss}' has no minimum there"):
        amped.cp(tensor, 2, loss=loss, device="cpu", **observed)


def test_sparse_tensors_of_zeros() -> None:
    """However they are made, they are the same tensor as a dense one of zeros."""
    scipy = pytest.importorskip("scipy.sparse")
    some = amped.SparseTensor([[0, 0, 0], [5, 4, 3]], [1.0, 2.0], ZEROS.shape).labelled([range(6), range(5), range(4)])
    part = some[[1, 2]]
    assert part.labels is not None
    assert part.labels[0].tolist() == [1, 2]
    for tensor in (part, some[3], amped.SparseTensor([[1, 2]], [0.0]), tensor_of(scipy.coo_array((3, 4)))):
        assert tensor.norm() == 0
        assert not tensor.todense().any()
        assert amped.cp_als(tensor, 2, device="cpu").fits[-1] == 1
    with pytest.raises(amped.InputError, match="no nonzeros"):
        amped.SparseTensor(np.zeros((0, 3), int), [])  # its shape is unknown


@pytest.mark.parametrize("kind", ["dense", "sparse", "empty"])
@pytest.mark.parametrize("how", [{"rank": (2, 2, 2)}, {"rank": (2, 2, 2), "nonnegative": True}, {"error": 0.1}])
def test_nothing_to_compress(kind: str, how: dict[str, Any]) -> None:
    with pytest.raises(amped.InputError, match="the tensor is zero: nothing to compress"):
        amped.tucker(KINDS[kind][0], device="cpu", **how)


def test_which_losses_have_one() -> None:
    finite = {name for name, _ in FINITE}
    assert all(loss_of(name).fits_zeros for name in (*finite, "beta:0.1", "beta:2"))
    cauchy = amped.Loss(value="log1p((x - m)**2)", first="2 * (m - x) / (1 + (x - m)**2)")
    assert cauchy.fits_zeros
    assert not amped.Loss(value="(x - m + 1)**2", first="2 * (m - x - 1)").fits_zeros


def test_constraints_and_starts() -> None:
    start = [np.random.default_rng(0).random((length, 2)) for length in ZEROS.shape]
    for given in ({"nonnegative": True}, {"ridge": 0.1}, {"init": start, "fixed_modes": (1,)}, {"init": "nvecs"}):
        for method in ("als", "lbfgs"):
            model = amped.cp(ZEROS, 2, method=method, device="cpu", **given)  # type: ignore[arg-type]
            assert not model.full().any()
    assert not amped.mttkrp(ZEROS, start, 0, device="cpu").any()
    with pytest.raises(amped.InputError, match="the tensor is zero"):
        amped.tucker(ZEROS, (2, 2, 2), device="cpu")


def test_rows_of_zero_counts_become_zero() -> None:
    """Where the loss is linear in the model, Newton steps follow the gradient to the bound."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(np.einsum("ir,jr,kr->ijk", *(4 * rng.random((n, 2)) for n in (8, 7, 6)))).astype(float)
    counts[3], counts[:, :, 5] = 0, 0
    how: dict[str, Any] = {"loss": "poisson", "precision": "fp64", "device": "cpu"}
    newton = amped.cp(counts, 2, method="newton", **how)
    assert newton.factors[0][3].max() < 1e-12
    assert newton.factors[2][5].max() < 1e-12
    likelihood = amped.cp(counts, 2, method="mu", max_iters=500, tol=1e-6, **how).series["loglikelihood"][-1]
    assert newton.series["objective"][-1] == pytest.approx(-likelihood, rel=1e-4)
