"""An oracle of losses by their definition, and data drawn from planted models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from oracle import load, random_factors, reference, splitmix_factors

import amped
from amped.backend.known_losses import loss_of
from amped.parallel.mpi import Comm

Reference = tuple[str, int, str]
"""A tensor, the number of components, and the loss, with what is computed."""
TOLERANCE = {"fp32": 1e-5, "fp64": 1e-10}
REFERENCES: list[Reference] = [
    ("nations_3d", 5, "bernoulli-logit|start only"), ("nations_3d", 5, "gamma|start only"),
    ("nations_3d", 5, "negative-binomial-2|start only"), ("nations_3d", 5, "beta-0.5|start only"),
    ("nations_3d", 5, "poisson|start only"), ("nations_3d", 5, "gaussian|start only"),
    ("sparten_cpapr100_3d", 5, "bernoulli-odds|start only"), ("sparten_cpapr100_3d", 5, "rayleigh|start only"),
    ("sparten_cpapr100_3d", 5, "poisson-log|start only"), ("sparten_cpapr100_3d", 5, "huber-0.25|start only"),
    ("aminoacid_3d", 3, "gaussian|mask0.35"), ("aminoacid_3d", 3, "gaussian|mask0.9"),
]  # fmt: skip


def check_reference(comm: Comm, case: Reference, dense: bool, precision: Any, device: str) -> None:
    """Compare a loss and the norms of its gradient at the start with those of the reference. Collective."""
    name, rank, key = case
    tensor, want = load(name), reference("gcp.json", f"{name}|R{rank}|{key}")
    loss, _, how = key.partition("|")
    for family in ("huber", "negative-binomial", "beta"):
        loss = loss.replace(f"{family}-", f"{family}:")
    given: dict[str, Any] = {}
    if how.startswith("mask"):
        (numbers,) = splitmix_factors((1,) * 63 + (int(np.prod(tensor.shape)),), 1)[63:]
        given["mask"] = numbers[:, 0].reshape(tensor.shape) >= float(how[4:])
    X: Any = amped.DenseTensor.of_sparse(tensor) if dense else tensor
    mine = (X, given) if comm.rank == 0 else (None, {})
    value, gradients = amped.objective(
        mine[0], splitmix_factors(tensor.shape, rank), loss=loss, precision=precision, device=device, **mine[1]
    )  # type: ignore[misc]
    assert value == pytest.approx(want["f0"], rel=TOLERANCE[precision])
    norms = [np.linalg.norm(gradient) for gradient in gradients]
    np.testing.assert_allclose(norms, want["g0"], rtol=TOLERANCE[precision])


def model_array(factors: Sequence[np.ndarray]) -> np.ndarray:
    """Return the dense array of a model with unit weights."""
    letters = "abcdef"[: len(factors)]
    return np.einsum(",".join(f"{c}z" for c in letters) + f"->{letters}", *factors)


def oracle(
    array: np.ndarray, factors: Sequence[np.ndarray], name: str, weights: np.ndarray | float = 1.0
) -> tuple[float, list[np.ndarray]]:
    """Return a loss and its gradient over a dense array."""
    loss, model = loss_of(name), model_array(factors)
    letters = "abcdef"[: array.ndim]
    slopes = weights * loss.slope(array, model)
    gradients = []
    for mode in range(array.ndim):
        others = [m for m in range(array.ndim) if m != mode]
        form = ",".join([letters, *(f"{letters[m]}z" for m in others)])
        gradients.append(np.einsum(f"{form}->{letters[mode]}z", slopes, *(factors[m] for m in others)))
    return float((weights * loss.of(array, model)).sum()), gradients


def values_for(name: str, model: np.ndarray, seed: int = 0) -> np.ndarray:
    """Draw values from the distribution of a loss, given the model's values."""
    rng, head = np.random.default_rng(seed), name.partition(":")[0]
    draws = {
        "gaussian": lambda: model + 0.1 * rng.standard_normal(model.shape),
        "huber": lambda: model + np.where(rng.random(model.shape) < 0.1, 20, 0.1) * rng.standard_normal(model.shape),
        "bernoulli-odds": lambda: rng.random(model.shape) < model / (1 + model),
        "bernoulli-logit": lambda: rng.random(model.shape) < 1 / (1 + np.exp(-model)),
        "poisson": lambda: rng.poisson(model),
        "poisson-log": lambda: rng.poisson(np.exp(model)),
        "rayleigh": lambda: rng.rayleigh(model * np.sqrt(2 / np.pi)),
        "gamma": lambda: rng.gamma(3.0, model / 3.0),
        "negative-binomial": lambda: rng.negative_binomial(2, 1 / (1 + model)),
        "beta": lambda: rng.gamma(3.0, model / 3.0),
        "zero-truncated-poisson": lambda: 1 + rng.poisson(model),
    }
    return np.asarray(draws[head](), np.float64)


def check_gradients(comm: Comm, case: tuple[tuple[int, ...], int, str], **options: Any) -> None:
    """Compare a loss of dense tensors, and its gradient, with the oracle. Collective.

    In both memory orders, with missing elements and with weights. `case` has the shape, the number of components and
    the loss.
    """
    shape, rank, name = case
    single = options["precision"] == "fp32"
    factors = [np.asarray(f, np.float32 if single else np.float64) for f in random_factors(0, shape, rank)]
    array = values_for(name, model_array(factors)).astype(factors[0].dtype)
    rng = np.random.default_rng(1)
    weights, seen = rng.choice([0.0, 0.5, 2.0], shape), rng.random(shape) < 0.8
    weights.flat[0], seen.flat[0] = 1, True
    missing = np.where(seen, array, np.nan)
    cases: list[tuple[Any, dict[str, Any], Any]] = [
        (array, {}, 1.0), (np.asfortranarray(array), {}, 1.0), (array, {"weights": weights}, weights),
        (missing, {"mask": "nan"}, seen),
    ]  # fmt: skip
    exact, close = [f.astype(np.float64) for f in factors], 1e-5 if single else 1e-12
    for tensor, given, shares in cases:
        own = given if comm.rank == 0 else {}
        value, gradients = amped.objective(tensor if comm.rank == 0 else None, factors, loss=name, **options, **own)
        want = oracle(array.astype(np.float64), exact, name, shares)
        assert value == pytest.approx(want[0], rel=close)
        for gradient, expected in zip(gradients, want[1], strict=True):
            np.testing.assert_allclose(gradient, expected, atol=close * np.linalg.norm(expected))
