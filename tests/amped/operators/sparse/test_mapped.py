"""Gradients of losses of sparse tensors on GPUs: mapped MTTKRPs by each kernel."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from forms import exhaustive
from gcp import model_array, oracle, values_for
from oracle import random_factors

import amped
from amped.backend.cuda.layout import PANEL, VECTOR, kernel_names
from amped.options import DTYPES

pytestmark = pytest.mark.gpu
SHAPES = {2: (70, 90), 3: (40, 50, 30), 4: (12, 9, 14, 10), 5: (5, 7, 6, 4, 3)}
CASES = [
    (3, 16, "fp32", "poisson"), (3, 33, "fp64", "gaussian"), (2, 1, "fp32", "poisson"), (4, 7, "fp64", "poisson"),
    (5, 130, "fp32", "gaussian"),
]  # fmt: skip
MORE = [
    exhaustive(order, rank, precision, loss)
    for order, rank, precision, loss in product(SHAPES, (1, 7, 16, 33), ("fp32", "fp64"), ("poisson", "gaussian"))
]


@pytest.mark.parametrize(("order", "rank", "precision", "loss"), [*CASES, *MORE])
def test_gradients(order: int, rank: int, precision: str, loss: str) -> None:
    """Absent elements are zeros; a mode has empty rows, and one row has a tenth of the nonzeros."""
    shape, single = SHAPES[order], precision == "fp32"
    factors = [np.asarray(f, np.float32).astype(float) for f in random_factors(0, shape, rank)]
    array = values_for(loss, model_array(factors)).astype(np.float32).astype(float)
    array *= np.random.default_rng(1).random(shape) < 0.3
    array[3], array[0] = 0, np.maximum(array[0], 1)
    tensor = amped.SparseTensor(np.argwhere(array), array[array != 0], shape)
    want, expected = oracle(array, factors, loss)
    row_bytes = -(-rank * np.dtype(DTYPES[precision]).itemsize // VECTOR) * VECTOR
    for kernel in ("auto", *kernel_names(order)):
        most = {"segmented": math.inf, "auto": math.inf, "fibre": 32}.get(kernel, PANEL)  # vectors of a row
        if row_bytes > most * VECTOR:
            continue
        value, gradients = amped.objective(
            tensor, factors, loss=loss, device="cuda", precision=precision, kernel=kernel
        )  # type: ignore[misc]
        close = 2e-5 if single else 1e-11
        assert value == pytest.approx(want, rel=close)
        for gradient, right in zip(gradients, expected, strict=True):
            np.testing.assert_allclose(gradient, right, atol=close * np.linalg.norm(right), err_msg=kernel)


@pytest.mark.parametrize("name", ["bernoulli-logit", "huber:0.5", "gamma", "poisson-log"])
def test_gradients_over_stored_elements(name: str) -> None:
    """Zeros that are stored count; only values without zeros are computed by mapped MTTKRPs."""
    shape = (20, 30, 25)
    factors = random_factors(0, shape, 5)
    array = values_for(name, model_array(factors))
    seen = np.random.default_rng(1).random(shape) < 0.1
    tensor = amped.SparseTensor(np.argwhere(seen), array[seen], shape, keep_zeros=True)
    assert (array[seen] == 0).any() == (name in ("bernoulli-logit", "poisson-log"))
    want, expected = oracle(array, factors, name, seen)
    value, gradients = amped.objective(tensor, factors, loss=name, mask="stored", device="cuda")  # type: ignore[misc]
    assert value == pytest.approx(want, rel=1e-11)
    for gradient, right in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(gradient, right, atol=1e-11 * np.linalg.norm(right))
