"""Models of matrices in device memory equal those that are arranged in host memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tensors import random_nonzeros

import amped
from amped.methods import arranged

RUNS: dict[str, Callable[[amped.SparseTensor], amped.KruskalTensor]] = {
    "signed": lambda X: amped.cp_als(X, 5, max_iters=4, tol=0, device="cuda"),
    "padded": lambda X: amped.cp_als(X, 7, max_iters=4, tol=0, device="cuda", precision="fp64"),
    "non-negative": lambda X: amped.cp_als(X, 8, max_iters=4, tol=0, device="cuda", nonnegative=True),
    "counts": lambda X: amped.cp_apr(X, 5, max_iters=4, device="cuda", precision="fp64"),
}


@pytest.mark.gpu
@pytest.mark.parametrize("run", RUNS)
def test_models_from_a_device(monkeypatch: pytest.MonkeyPatch, run: str) -> None:
    pytest.importorskip("cupy")
    columns, values = random_nonzeros((90, 40, 60), 3000, 1)
    X = amped.SparseTensor(columns.T, np.abs(values) + 1, (90, 40, 60))
    host = RUNS[run](X)
    monkeypatch.setattr(arranged, "LARGE", 0)
    device = RUNS[run](X)
    np.testing.assert_allclose(device.weights, host.weights, rtol=1e-12)
    assert (device.fits, device.converged) == (host.fits, host.converged)
    for one, other in zip(device.factors, host.factors, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6 if one.dtype == np.float32 else 1e-12, atol=1e-300)
        assert one.flags.c_contiguous
