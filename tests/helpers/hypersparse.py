"""Decompositions of small hypersparse tensors, with compact matrices and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import amped
from amped.operators import kept_rows
from amped.operators.sources import compact
from partitioner.host.worth import SETTING

SHAPES = {2: (90, 110), 3: (120, 40, 200), 4: (90, 5, 60, 110)}
NEVER = 1 << 62


def hypersparse(order: int, seed: int = 0, nonzeros: int = 60) -> amped.SparseTensor:
    """Return a tensor of counts that uses at most 14 indices of a mode; first and last ones are unused."""
    rng, shape = np.random.default_rng(seed), SHAPES[order]
    used = [np.sort(rng.choice(np.arange(1, n - 1), min(14, n - 2), replace=False)) for n in shape]
    indices = np.stack([some[rng.integers(0, some.size, nonzeros)] for some in used], 1)
    return amped.SparseTensor(indices, rng.integers(1, 6, nonzeros).astype(float), shape)


def start_of(order: int, rank: int) -> list[np.ndarray]:
    """Return a start, of which no row is zero."""
    return [np.random.default_rng(7 + m).random((n, rank)) + 0.1 for m, n in enumerate(SHAPES[order])]


RUNS: dict[str, Callable[..., Any]] = {
    "als": lambda x, **how: amped.cp_als(x, 5, max_iters=3, tol=0, **how),
    "als from a start": lambda x, **how: amped.cp_als(x, 4, max_iters=3, tol=0, init=start_of(x_order(x), 4), **how),
    "fixed": lambda x, **how: amped.cp_als(
        x, 4, max_iters=3, tol=0, fixed_modes=[x_order(x) - 1], init=start_of(x_order(x), 4), **how
    ),
    "nonnegative": lambda x, **how: amped.cp_als(x, 2, max_iters=2, tol=0, nonnegative=[0], ridge=0.5, **how),
    "starts": lambda x, **how: amped.cp_als(x, 3, max_iters=2, tol=0, starts=2, **how),
    "mu": lambda x, **how: amped.cp_apr(x, 5, max_iters=3, tol=0, **how),
    "mu, one update": lambda x, **how: amped.cp_apr(x, 3, max_iters=2, tol=0, inner_iters=1, **how),
    "pdnr": lambda x, **how: amped.cp_apr(x, 3, max_iters=2, tol=0, method="pdnr", mu_iters=0, **how),
    "hooi": lambda x, **how: amped.tucker(x, (2,) * x_order(x), max_iters=3, tol=0, **how),
    "hosvd": lambda x, **how: amped.tucker(x, (2,) * x_order(x), method="hosvd", **how),
}


PARTS = {0: ["nonnegative", "l1:0.1"], 1: "bounds:-1:2"}
ZERO_ROWS: dict[str, Callable[..., Any]] = {
    "admm": lambda x, rank, **how: amped.cp_als(x, rank, constraints=PARTS, **how),
    "admm, ball": lambda x, rank, **how: amped.cp_als(x, rank, constraints={0: "ball"}, **how),
    "admm, smooth": lambda x, rank, **how: amped.cp_als(x, rank, constraints={0: "smooth:0.1", 1: "l2:0.1"}, **how),
    "masked": lambda x, rank, **how: amped.cp_als(x, rank, mask="stored", ridge=0.1, **how),
    "masked, held out": lambda x, rank, **how: amped.cp_als(x, rank, mask="stored", ridge=0.1, holdout=0.1, **how),
    "masked admm": lambda x, rank, **how: amped.cp_als(x, rank, mask="stored", constraints=PARTS, **how),
    "masked, fixed": lambda x, rank, **how: amped.cp_als(
        x, rank, mask="stored", ridge=0.1, fixed_modes=[1], init=start_of(x_order(x), rank), **how
    ),
    "lbfgs": lambda x, rank, **how: amped.cp(x, rank, loss="poisson", method="lbfgs", **how),
    "lbfgs, ridge": lambda x, rank, **how: amped.cp(x, rank, loss="gaussian", method="lbfgs", ridge=0.1, **how),
    "masked lbfgs": lambda x, rank, **how: amped.cp(x, rank, loss="huber:1", method="lbfgs", mask="stored", **how),
    "newton": lambda x, rank, **how: amped.cp(x, rank, loss="poisson", method="newton", ridge=0.1, **how),
    "masked newton": lambda x, rank, **how: amped.cp(x, rank, loss="huber:1", method="newton", mask="stored", **how),
}
"""Methods whose empty rows are zero from the start: calls of a tensor and a rank."""
RUNS |= {
    f"{name}, rank {rank}": lambda x, call=call, rank=rank, **how: call(x, rank, max_iters=3, tol=0, **how)
    for name, call in ZERO_ROWS.items()
    for rank in (1, 7)
}


def x_order(tensor: amped.SparseTensor | None) -> int:
    """Return the order of a tensor; 3 on ranks that have none."""
    return 3 if tensor is None else tensor.order


def both_ways(
    patch: pytest.MonkeyPatch, name: str, tensor: amped.SparseTensor | None, **how: Any
) -> tuple[Any, Any, int]:
    """Return the models of a run with all rows and with compact matrices, and the number of compact tensors."""
    made = list[object]()
    original = compact.CompactSource.__init__

    def counted(self: Any, *arguments: Any) -> None:
        made.append(self)
        original(self, *arguments)

    patch.setattr(compact.CompactSource, "__init__", counted)
    models = []
    if "deterministic" not in how:
        patch.setenv(SETTING, "never")
    for least in (NEVER, 1):
        patch.setattr(kept_rows, "LEAST_LENGTH", least)
        assert not made
        models.append(RUNS[name](tensor, precision="fp64", device="cpu", **how))
    return models[0], models[1], len(made)


def assert_alike(one: Any, other: Any, tolerance: float = 1e-12) -> None:
    """Check that two models are equal to rounding: all factor matrices, weights or cores, and series."""
    head = "core" if hasattr(one, "core") else "weights"
    for a, b in zip([getattr(one, head), *one.factors], [getattr(other, head), *other.factors], strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=tolerance * np.abs(a).max())
    assert one.series.keys() == other.series.keys()
    for name, numbers in one.series.items():
        np.testing.assert_allclose(other.series[name], numbers, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(other.fits, one.fits, rtol=0, atol=tolerance)
