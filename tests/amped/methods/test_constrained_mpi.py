"""Constrained CP-ALS over all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from constrained import dense_constrained_als, signed_tensor
from forms import exhaustive
from oracle import PRECISIONS, load, random_factors, small_pieces, tensor_path
from scipy.optimize import nnls

import amped
from amped.api.projection import project
from amped.methods.constraints import ConstraintParams
from amped.parallel.mpi import Comm, on_root

pytestmark = pytest.mark.mpi

KINDS: list[dict[str, Any]] = [
    {"nonnegative": True},
    {"nonnegative": (1,), "ridge": 0.3},
    {"ridge": 0.3},
    {"nonnegative": True, "fixed_modes": (1,), "ridge": (0.5, 0.0, 1.0, 0.0, 0.2)},
]


def how_of(kind: int, order: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return arguments of `cp_als`, and the oracle's."""
    how = dict(KINDS[kind])
    if isinstance(how.get("ridge"), tuple):
        how["ridge"] = how["ridge"][:order]
    found = ConstraintParams(**how).of(order)
    return how, {"nonnegative": found.nonnegative, "ridge": list(found.ridge), "fixed": found.fixed}


def assert_same_on_all_ranks(comm: Comm, model: amped.KruskalTensor) -> None:
    parts = (model.weights.tobytes(), *(f.tobytes() for f in model.factors), model.fits, model.converged)
    assert all(other == parts for other in comm.allgather(parts))


@pytest.mark.parametrize("placement", ["resident", "stream"])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", range(len(KINDS)))
@pytest.mark.parametrize("shape", [(6, 1, 7), exhaustive((4, 6, 5, 3)), exhaustive((3, 3, 2, 3, 3))])
def test_the_same_path_as_a_dense_oracle(
    comm: Comm, device: str, shape: tuple[int, ...], kind: int, precision: str, placement: str
) -> None:
    dense, tensor = signed_tensor(len(shape), shape)
    start, (how, oracle) = random_factors(0, shape, 3), how_of(kind, len(shape))
    with small_pieces(20):
        model = amped.cp_als(
            tensor if comm.rank == 0 else None, 3, init=start, tol=0, max_iters=6,
            device=device, precision=precision, placement=placement, **how,
        )  # fmt: skip
    want = dense_constrained_als(dense, start, 6, **oracle)
    accuracy = {"fp32": 2e-5, "fp64": 1e-10}[precision]
    assert_same_on_all_ranks(comm, model)
    np.testing.assert_allclose(model.fits, want.fits, rtol=0, atol=accuracy)
    np.testing.assert_allclose(model.full(), want.full, rtol=0, atol=100 * accuracy * abs(want.full).max())


@pytest.mark.parametrize(
    ("name", "rank"), [("nations_3d", 4), exhaustive("nations_3d", 16), exhaustive("kinships_3d", 10)]
)
def test_a_real_tensor(comm: Comm, device: str, name: str, rank: int) -> None:
    tensor_path(name)
    tensor = on_root(comm, lambda: load(name))
    shape = comm.bcast(tensor.shape if tensor is not None else None)
    assert shape is not None
    whole, start = load(name), random_factors(1, shape, rank)
    dense = np.zeros(shape)
    dense[tuple(whole.columns)] = whole.values
    want = dense_constrained_als(dense, start, 20, range(3)).fits
    options: dict[str, Any] = {"init": start, "tol": 0, "max_iters": 20, "device": device, "nonnegative": True}
    for precision, accuracy in (("fp32", 1e-5), ("fp64", 1e-9)):
        model = amped.cp_als(tensor, rank, precision=precision, **options)  # type: ignore[arg-type]
        assert_same_on_all_ranks(comm, model)
        np.testing.assert_allclose(model.fits, want, atol=accuracy)


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_deterministic(comm: Comm, device: str, kind: int) -> None:
    _, tensor = signed_tensor(3, (30, 4, 9))
    how, _ = how_of(kind, 3)
    start = random_factors(3, (30, 4, 9), 4)
    models = [amped.cp_als(tensor, 4, init=start, deterministic=True, device=device, **how) for _ in range(2)]
    assert models[0].fits == models[1].fits
    assert all(np.array_equal(a, b) for a, b in zip(models[0].factors, models[1].factors, strict=True))


def test_a_start_that_is_refused_is_refused_on_all(comm: Comm) -> None:
    _, tensor = signed_tensor(3, (5, 4, 6))
    start = [np.full((length, 2), -1.0) for length in (5, 4, 6)]
    given = start if comm.rank == 0 else None
    with pytest.raises(amped.InputError, match="factor_0 of the start has negative entries") as caught:
        amped.cp_als(tensor, 2, init=given, nonnegative=True, device="cpu")
    assert len(set(comm.allgather(str(caught.value)))) == 1
    with pytest.raises(amped.InputError, match="the start is random"):
        amped.cp_als(tensor, 2, fixed_modes=(1,), device="cpu")


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("placement", ["resident", "stream"])
def test_new_data_on_known_components(comm: Comm, device: str, nonnegative: bool, placement: str) -> None:
    shape = (7, 11, 6)
    dense, tensor = signed_tensor(5, shape)
    model = amped.KruskalTensor(np.ones(3), random_factors(4, (7, 2, 6), 3)).arranged()
    design = np.einsum("ar,cr->acr", model.factors[0], model.factors[2]).reshape(-1, 3)
    with small_pieces(20):
        found = project(
            model if comm.rank == 0 else None, tensor if comm.rank == 0 else None, 1,
            nonnegative=nonnegative, device=device, precision="fp64", placement=placement,
        )  # fmt: skip
    data = dense.transpose(1, 0, 2).reshape(11, -1)
    want = [nnls(design, row)[0] if nonnegative else np.linalg.lstsq(design, row, rcond=None)[0] for row in data]
    np.testing.assert_allclose(found, want, atol=1e-9)
    assert len(set(comm.allgather(found.tobytes()))) == 1


def test_the_best_of_some_starts(comm: Comm, device: str) -> None:
    _, tensor = signed_tensor(6, (8, 9, 7))
    options: dict[str, Any] = {"tol": 0, "max_iters": 10, "device": device, "deterministic": True, "nonnegative": True}
    each = [amped.cp_als(tensor, 4, seed=seed, **options) for seed in range(2, 6)]
    found = amped.cp_als(tensor, 4, seed=2, starts=4, **options)
    best = max(each, key=lambda model: model.fits[-1])
    assert_same_on_all_ranks(comm, found)
    assert found.fits == best.fits
    assert all(np.array_equal(a, b) for a, b in zip(found.factors, best.factors, strict=True))
    with pytest.raises(amped.InputError, match="starts 2: init gives one start"):
        amped.cp_als(tensor, 4, starts=2, init="nvecs" if comm.rank == 0 else None, **options)
