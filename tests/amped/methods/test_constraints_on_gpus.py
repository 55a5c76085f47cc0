"""CP-ALS under constraints on a GPU, compared with the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import random_factors

import amped
from amped.backend.choose import choose
from amped.errors import InputError
from amped.methods.proximal.arrays import Arrays
from amped.methods.proximal.projections import polar
from amped.parallel.mpi import world
from partitioner.shards.sorters import probe

pytestmark = pytest.mark.gpu

RNG = np.random.default_rng(0)
DENSE = np.where(RNG.random((9, 8, 7)) < 0.6, RNG.random((9, 8, 7)) + 0.2, 0)
TENSOR = amped.SparseTensor(np.argwhere(DENSE), DENSE[DENSE != 0], DENSE.shape)
MASK = RNG.random(DENSE.shape) < 0.7
WEIGHTS = np.where(MASK, RNG.integers(1, 4, DENSE.shape), 0).astype(float)
START = random_factors(0, DENSE.shape, 3)
KINDS: dict[str, dict[int, Any]] = {
    "rows": {0: "simplex:rows", 1: "bounds:-0.5:1.5", 2: ["nonnegative", "fixed:columns:1"]},
    "penalties of entries": {0: ["nonnegative", "l1:0.1"], 1: "l2:0.2", 2: ["l1:0.3", "bounds:-1:1"]},
    "one": {1: "nonnegative"},
    "smooth": {0: ["nonnegative", "l1:0.1"], 1: ["smooth:0.1", "nonnegative"], 2: "smooth:0.05:2"},
    "columns": {0: "monotone:decreasing", 1: ["unimodal", "nonnegative"], 2: "simplex"},
    "orthonormal": {0: "orthonormal", 2: "sparse:3"},
    "disjoint": {0: ["orthonormal", "nonnegative"], 1: ["nonnegative", "ball"]},
}
BY_ROWS = "rows", "penalties of entries", "one"
GIVEN: dict[str, tuple[Any, dict[str, Any]]] = {
    "dense": (DENSE, {}),
    "sparse": (TENSOR, {}),
    "mask": (DENSE, {"mask": MASK}),
    "weights": (DENSE, {"weights": WEIGHTS}),
}


@pytest.fixture(autouse=True)
def gpu() -> None:
    """Skip if there is no GPU."""
    if missing := probe():
        pytest.skip(missing)


def run(given: str, kind: Any, device: str = "cuda", **how: Any) -> amped.KruskalTensor:
    tensor, elements = GIVEN[given]
    constraints = KINDS[kind] if isinstance(kind, str) else kind
    how = {"init": START, "max_iters": 60, "tol": 0, "precision": "fp64", **elements, **how}
    model = amped.cp_als(tensor, 3, constraints=constraints, device=device, **how)
    assert model.run["device"] == device
    return model


def never_rises(model: amped.KruskalTensor, rounding: float = 1e-12) -> bool:
    objectives = np.array(model.series["objective"])
    return bool((np.diff(objectives) <= rounding * objectives[0]).all())


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("kind", KINDS)
def test_the_objective_of_the_cpu(given: str, kind: str) -> None:
    """Equal paths, except where the GPU tests the residuals less often, or ends each row on its own."""
    found, wanted = (run(given, kind, device) for device in ("cuda", "cpu"))
    assert never_rises(found)
    assert found.series["objective"][-1] <= 1.02 * wanted.series["objective"][-1]
    left = DENSE - found.full()
    squares = {"mask": (MASK * left**2).sum(), "weights": (WEIGHTS * left**2).sum()}.get(given, (left**2).sum())
    if kind in ("one", "rows", "columns", "disjoint"):  # without penalties
        assert found.series["objective"][-1] == pytest.approx(squares / 2, rel=1e-9)


@pytest.mark.parametrize("given", ["dense", "sparse", "mask"])
def test_sets_are_met_in_single_precision(given: str) -> None:
    model = run(given, "rows", precision="fp32")
    assert never_rises(model, 1e-6)
    np.testing.assert_allclose(model.factors[0].sum(axis=1), 1, atol=1e-6)
    assert model.factors[0].min() >= 0
    assert -0.5 <= model.factors[1].min() <= model.factors[1].max() <= 1.5
    assert model.factors[2].min() >= 0
    assert any(np.array_equal(column, START[2][:, 1].astype(np.float32)) for column in model.factors[2].T)
    model = run(given, "columns", precision="fp32")
    assert np.diff(model.factors[0], axis=0).max() <= 0
    np.testing.assert_allclose(model.factors[2].sum(axis=0), 1, atol=1e-6)
    model = run(given, "orthonormal", precision="fp32")
    np.testing.assert_allclose(model.factors[0].T @ model.factors[0], np.eye(3), atol=1e-5)
    assert (np.count_nonzero(model.factors[2], axis=0) <= 3).all()


@pytest.mark.parametrize("kind", ["rows", "columns"])
def test_a_resumed_run_and_several_starts(folder: Path, kind: str) -> None:
    whole = run("sparse", kind, max_iters=9)
    run("sparse", kind, max_iters=4, checkpoint="c")
    rest = run("sparse", kind, max_iters=9, checkpoint="c", resume=True)
    np.testing.assert_allclose(rest.series["objective"], whole.series["objective"], rtol=1e-12)
    again = run("sparse", kind, max_iters=9)
    assert again.series == whole.series
    each = [run("sparse", {1: "nonnegative"}, init=None, seed=seed, max_iters=9) for seed in range(2)]
    best = run("sparse", {1: "nonnegative"}, init=None, starts=2, max_iters=9)
    assert best.series["objective"][-1] == pytest.approx(min(one.series["objective"][-1] for one in each), rel=1e-12)


@pytest.mark.parametrize("rank", [33, 130])
def test_many_components(rank: int) -> None:
    """Of which a lane holds several columns, or which arrays solve."""
    options = {"max_iters": 6, "tol": 0, "device": "cuda", "precision": "fp64"}
    model = amped.cp_als(TENSOR, rank, constraints={1: "nonnegative"}, **options)
    assert never_rises(model, 1e-9)


def test_streamed_elements() -> None:
    model = run("sparse", "one", placement="stream")
    assert model.series["objective"][-1] == pytest.approx(run("sparse", "one").series["objective"][-1], rel=1e-9)


@pytest.mark.parametrize("condition", [1e0, 1e3, 1e5, 1e13])
def test_orthonormal_columns(condition: float) -> None:
    """Of well-conditioned matrices by their Gram matrix, and of others by a QR decomposition."""
    device = choose("cuda", world())
    matrix = np.random.default_rng(0).standard_normal((3000, 8)) * np.geomspace(1, 1 / condition, 8)
    found = device.to_host(polar(device.to_device(matrix), Arrays.of(device)))
    np.testing.assert_allclose(found.T @ found, np.eye(8), atol=1e-13)
    np.testing.assert_allclose(found, polar(matrix), atol=1e-15 * max(10, condition))


def test_functions_of_users() -> None:
    import cupy

    def nonnegative(matrix: Any, step: float) -> Any:
        assert isinstance(matrix, cupy.ndarray)
        return cupy.maximum(matrix, 0)

    found, wanted = run("sparse", {1: nonnegative}), run("sparse", {1: lambda matrix, step: np.maximum(matrix, 0)})
    assert found.factors[1].min() >= 0
    np.testing.assert_allclose(found.full(), wanted.full(), atol=1e-9)
    returned = run("sparse", {1: lambda matrix, step: np.maximum(matrix.get(), 0)})
    np.testing.assert_array_equal(returned.full(), found.full())
    with pytest.raises(TypeError, match="Implicit conversion") as raised:
        run("sparse", {1: lambda matrix, step: np.asarray(matrix)})
    assert any("takes CuPy arrays" in note for note in raised.value.__notes__)
    with pytest.raises(InputError, match="its result is no matrix"):
        run("sparse", {1: lambda matrix, step: "text"})
