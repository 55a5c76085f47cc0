"""Models as starts and in core consistency: their rows are matched by label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensors import labels_of

import amped
from amped.models.labelled_matrices import LabelledMatrices, in_order_of

SHAPE, ORDER = (5, 4, 3), [2, 0, 3, 1]
X = np.random.default_rng(0).random(SHAPE)
LABELS = [list("vwxyz"), list("pqrs"), [1, 2, 3]]
NAMES = ["a", "b", "c"]
HOW: dict[str, Any] = {"max_iters": 3, "tol": 0, "precision": "fp64", "device": "cpu"}


def tensor(moved: bool = False, turned: bool = False) -> amped.DenseTensor:
    """Return the tensor, perhaps with the indices of a mode, or its modes, in another order."""
    array, labels, names = X, LABELS, NAMES
    if moved:
        array, labels = X[:, ORDER], [LABELS[0], [LABELS[1][k] for k in ORDER], LABELS[2]]
    if turned:
        array, labels, names = array.transpose(2, 0, 1), [labels[m] for m in (2, 0, 1)], ["c", "a", "b"]
    return amped.DenseTensor(array).labelled(labels_of(*labels, names=names))


@pytest.fixture(scope="module")
def model() -> amped.KruskalTensor:
    return amped.cp_als(tensor(), 2, **HOW)


@pytest.mark.parametrize("turned", [False, True])
def test_a_start_is_matched(model: amped.KruskalTensor, turned: bool) -> None:
    fixed, moved = {"fixed_modes": [1]}, tensor(moved=True, turned=turned)
    want = amped.cp_als(tensor(), 2, init=model, **fixed, **HOW).fits
    if not turned:
        assert amped.cp_als(moved, 2, init=model, **fixed, **HOW).fits == pytest.approx(want, rel=1e-9)
    found = amped.cp_als(moved, 2, init=model, **{**HOW, "max_iters": 1})
    assert found.fits[0] >= model.fits[-1] - 1e-12
    counts = {**HOW, "max_iters": 1}
    poisson = amped.cp_apr(tensor(), 2, **HOW)
    found = amped.cp_apr(moved, 2, init=poisson, **counts)
    assert found.series["loglikelihood"][0] >= poisson.series["loglikelihood"][-1] - 1e-9


def test_a_start_of_a_tucker_decomposition_is_matched() -> None:
    core = amped.tucker(tensor(), (2, 2, 2), **HOW)
    found = amped.tucker(tensor(moved=True), (2, 2, 2), init=core, **{**HOW, "max_iters": 1})
    assert found.fits[0] >= core.fits[-1] - 1e-12


@pytest.mark.parametrize("turned", [False, True])
def test_core_consistency(model: amped.KruskalTensor, turned: bool) -> None:
    want = amped.core_consistency(tensor(), model, precision="fp64", device="cpu")
    found = amped.core_consistency(tensor(True, turned), model, precision="fp64", device="cpu")
    assert found == pytest.approx(want, rel=1e-9)


def test_matrices_without_the_labels_of_the_tensor_are_unchanged() -> None:
    matrices = [np.arange(n)[:, None] for n in SHAPE]
    labels = labels_of(*LABELS, names=NAMES)
    for own in (
        None,
        labels_of(*LABELS[:2]),
        labels_of(list("vwxyy"), *LABELS[1:]),
        labels_of([1, 2, 3, 4, 5], *LABELS[1:]),
    ):
        given = LabelledMatrices(matrices, own)
        assert in_order_of(given, labels) is given
    assert in_order_of(matrices, labels) is matrices
    assert in_order_of("nvecs", labels) == "nvecs"


@pytest.mark.parametrize("loss", ["gaussian", "huber"])
def test_a_start_with_any_loss_is_matched(model: amped.KruskalTensor, loss: str) -> None:
    how = {**HOW, "loss": loss, "max_iters": 1, "init": model}
    found, want = (amped.cp(X, 2, **how).full() for X in (tensor(moved=True), tensor()))
    np.testing.assert_allclose(found, want[:, ORDER], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("turned", [False, True])
def test_a_file_is_matched(model: amped.KruskalTensor, turned: bool, tmp_path: Path) -> None:
    model.save(tmp_path / "model.npz")
    found = amped.cp_als(tensor(True, turned), 2, init=tmp_path / "model.npz", **{**HOW, "max_iters": 1})
    assert found.fits[0] >= model.fits[-1] - 1e-12


@pytest.mark.parametrize("turned", [False, True])
def test_an_objective_is_matched(model: amped.KruskalTensor, turned: bool) -> None:
    """The gradients are those of the model's matrices, in their order."""
    larger = amped.KruskalTensor(2 * model.weights, model.factors)
    larger.labels = model.labels
    tensors = tensor(), tensor(True, turned)
    (want, gradients), (found, others) = (amped.objective(X, larger, loss="huber", device="cpu") for X in tensors)
    assert found == pytest.approx(want, rel=1e-12)
    for one, other in zip(gradients, others, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-9)
