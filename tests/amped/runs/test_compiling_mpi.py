"""Runs without compiled code over all ranks agree with those of compiled code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from counts import by_rows, random_counts
from oracle import random_factors

import amped
from amped.parallel.mpi import Comm
from partitioner.host.worth import SETTING

pytestmark = pytest.mark.mpi
COUNTS = amped.SparseTensor(
    np.stack(np.unravel_index(np.random.default_rng(0).choice(480, 200, replace=False), (8, 10, 6)), 1),
    np.random.default_rng(1).integers(1, 6, 200).astype(float),
    (8, 10, 6),
)
GRID = np.random.default_rng(2).random((5, 6, 7))
RUNS: dict[str, Callable[..., Any]] = {
    "sparse": lambda **how: amped.cp_als(COUNTS, 2, max_iters=8, tol=0, **how),
    "nonnegative": lambda **how: amped.cp_als(COUNTS, 2, max_iters=8, tol=0, nonnegative=True, **how),
    "dense": lambda **how: amped.cp_als(GRID, 2, max_iters=8, tol=0, **how),
    "counts": lambda **how: amped.cp_apr(COUNTS, 2, max_iters=4, tol=0, **how),
    "tucker": lambda **how: amped.tucker(COUNTS, rank=(2, 3, 2), max_iters=4, tol=0, **how),
}


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("name", RUNS)
def test_both_paths_agree(comm: Comm, name: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    models = []
    for wish in ("always", "never"):
        monkeypatch.setenv(SETTING, wish)
        models.append(RUNS[name](precision=precision, device="cpu"))
    compiled, plain = models
    assert "without compiled code" in plain.run["device_description"]
    bound = 1e-12 if precision == "fp64" else 1e-6
    np.testing.assert_allclose(plain.fits, compiled.fits, rtol=bound, atol=bound)
    for series, numbers in compiled.series.items():
        if series != "kkt":  # which is a difference of numbers near 1
            np.testing.assert_allclose(plain.series[series], numbers, rtol=bound, atol=bound)
    for one, other in zip(plain.factors, compiled.factors, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e3 * bound, atol=1e3 * bound)


def test_products_agree(comm: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
    factors, products = [np.random.default_rng(m).random((n, 3)) for m, n in enumerate(COUNTS.shape)], []
    for wish in ("always", "never"):
        monkeypatch.setenv(SETTING, wish)
        products.append([amped.ttm(COUNTS, factors[0], 0, precision="fp64", device="cpu").values])
        products[-1] += [amped.mttkrp(COUNTS, factors, mode, precision="fp64", device="cpu") for mode in (0, 2)]
    for compiled, plain in zip(*products, strict=True):
        np.testing.assert_allclose(plain, compiled, rtol=1e-12)


@pytest.mark.parametrize("method", ["pdnr", "pqnr"])
def test_rows_of_several_ranks(comm: Comm, method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "never")
    shape = (6, 2, 8)
    tensor, start = random_counts(3, shape), random_factors(0, shape, 3)
    want = by_rows(tensor, start, 5, method)
    model = amped.cp_apr(
        tensor, 3, init=start, max_iters=5, precision="fp64", method=method, mu_iters=0, device="cpu"
    )  # fmt: skip
    assert "without compiled code" in model.run["device_description"]
    np.testing.assert_allclose(model.series["loglikelihood"], want.loglikelihood, rtol=1e-9)


@pytest.mark.parametrize("loss", ["gaussian", "poisson"])
def test_scans_agree(comm: Comm, loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    explained = []
    for wish in ("always", "never"):
        monkeypatch.setenv(SETTING, wish)
        how: dict[str, Any] = {"precision": "fp64", "max_iters": 6, "tol": 0, "device": "cpu", "loss": loss}
        scan = amped.scan(COUNTS, [1, 2], starts=2, halves=False, **how)
        explained.append([tried.explained for tried in scan.tried])
    np.testing.assert_allclose(explained[0], explained[1], rtol=1e-9)
