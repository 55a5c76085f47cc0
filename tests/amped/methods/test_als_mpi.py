"""CP-ALS over all ranks."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from forms import exhaustive
from oracle import (
    FIT_RUNS,
    PRECISIONS,
    dense_als,
    fit_error,
    fit_tolerance,
    load,
    random_factors,
    small_pieces,
    tensor_path,
    true_fit,
)

import amped
from amped.errors import InputError
from amped.parallel.mpi import Comm, on_root

pytestmark = pytest.mark.mpi
PATHS = [((6, 1, 7), 2, "fp32"), ((9, 7), 2, "fp64"), ((4, 6, 5, 3), 5, "fp64"), ((25, 24, 23), 130, "fp64")]
MORE_PATHS = [((6, 1, 7), 2), ((9, 7), 2), ((4, 6, 5, 3), 2), ((3, 3, 2, 3, 3), 2), ((25, 24, 23), 140)]
FITS = [
    ("matmul_2-2-2", 7, "fp32"), ("nations_3d", 5, "fp32"), ("aminoacid_3d", 3, "fp64"), ("uber393k_4d", 16, "fp32"),
]  # fmt: skip


def random_tensor(seed: int, shape: tuple[int, ...], density: float = 0.4) -> tuple[np.ndarray, amped.SparseTensor]:
    rng = np.random.default_rng(seed)
    dense = np.where(rng.random(shape) < density, rng.standard_normal(shape) + 0.5, 0)
    return dense, amped.SparseTensor(np.argwhere(dense), dense[dense != 0], shape)


def assert_same_on_all_ranks(comm: Comm, model: amped.KruskalTensor) -> None:
    parts = (model.weights.tobytes(), *(f.tobytes() for f in model.factors), model.fits, model.converged)
    assert all(other == parts for other in comm.allgather(parts))


@pytest.mark.parametrize("placement", ["resident", "stream"])
@pytest.mark.parametrize(
    ("shape", "rank", "precision"),
    [*PATHS, *(exhaustive(*path, how) for path, how in product(MORE_PATHS, PRECISIONS) if (*path, how) not in PATHS)],
)
def test_the_same_path_as_a_dense_oracle(
    comm: Comm, device: str, shape: tuple[int, ...], rank: int, precision: str, placement: str
) -> None:
    dense, tensor = random_tensor(len(shape), shape)
    start = random_factors(0, shape, rank)
    model = amped.cp_als(
        tensor if comm.rank == 0 else None, rank, init=start, tol=0, max_iters=6,
        device=device, precision=precision, placement=placement,
    )  # fmt: skip
    full, fits = dense_als(dense, start, 6)
    accuracy = {"fp32": 1e-5, "fp64": 1e-10}[precision]
    assert_same_on_all_ranks(comm, model)
    np.testing.assert_allclose(model.fits, fits, rtol=0, atol=accuracy)
    np.testing.assert_allclose(model.full(), full, rtol=0, atol=100 * accuracy * abs(full).max())


@pytest.mark.parametrize(
    ("name", "rank", "precision"),
    [*FITS, *(exhaustive(*run, how) for run, how in product(FIT_RUNS, PRECISIONS) if (*run, how) not in FITS)],
)
def test_reference_fits(comm: Comm, device: str, name: str, rank: int, precision: str) -> None:
    tensor_path(name)
    tensor = on_root(comm, lambda: load(name))
    shape = comm.bcast(tensor.shape if tensor is not None else None)
    assert shape is not None
    error = fit_error(name, rank, tensor, shape, device=device, precision=precision)
    assert all(comm.allgather(error <= fit_tolerance(name, precision)))


@pytest.mark.parametrize("placement", ["resident", "stream"])
def test_a_fit_near_1_is_that_of_the_model(comm: Comm, device: str, placement: str) -> None:
    """In single precision; ranks share rows, and with many of them some have none."""
    shape, value = (3, 5, 4), 0.1  # which is rounded
    tensor = amped.SparseTensor(np.argwhere(np.ones(shape)), np.full(60, value), shape)
    with small_pieces(10):
        for iterations in (1, 4):
            options: dict[str, Any] = {"placement": placement, "tol": 0, "max_iters": iterations, "device": device}
            model = amped.cp_als(tensor if comm.rank == 0 else None, 3, **options)
            assert_same_on_all_ranks(comm, model)
            assert model.fits[-1] == pytest.approx(true_fit(tensor, model), abs=1e-6)


@pytest.mark.filterwarnings("ignore:invalid value encountered in add:RuntimeWarning")
def test_an_mttkrp_that_overflows_is_refused_on_all_ranks(comm: Comm, device: str) -> None:
    _, tensor = random_tensor(3, (6, 4, 7))
    with pytest.raises(InputError, match="not finite"):
        amped.mttkrp(tensor, [1e30 * f for f in random_factors(0, (6, 4, 7), 2)], 1, device=device)


@pytest.mark.parametrize("init", [None, "nvecs"])
def test_starts_do_not_depend_on_the_ranks(comm: Comm, device: str, init: str | None) -> None:
    dense, tensor = random_tensor(8, (20, 6, 9))
    options: dict[str, Any] = {"init": init, "tol": 1e-4, "precision": "fp64", "device": device}
    model = amped.cp_als(tensor if comm.rank == 0 else None, 3, seed=5, **options)
    assert_same_on_all_ranks(comm, model)
    fit = 1 - np.linalg.norm(dense - model.full()) / np.linalg.norm(dense)
    assert model.fits[-1] == pytest.approx(fit, abs=1e-11)
    if init is None:
        start = [np.random.default_rng([5, mode]).random((length, 3)) for mode, length in enumerate(dense.shape)]
        np.testing.assert_allclose(model.fits, dense_als(dense, start, len(model.fits))[1], atol=1e-9)


@pytest.mark.parametrize("precision", ["fp32", exhaustive("fp64")])
@pytest.mark.parametrize("shape", [(2, 1, 2), (2, 3, 2), (1, 1, 50), exhaustive((1, 1))])
def test_more_components_and_ranks_than_rows(comm: Comm, device: str, shape: tuple[int, ...], precision: str) -> None:
    dense, tensor = random_tensor(9, shape, density=1)
    model = amped.cp_als(tensor if comm.rank == 0 else None, 7, tol=0, max_iters=10, device=device, precision=precision)
    assert_same_on_all_ranks(comm, model)
    assert all(np.all(np.isfinite(f)) for f in (model.weights, *model.factors))
    assert np.linalg.norm(dense - model.full()) <= 0.02 * np.linalg.norm(dense)


def test_empty_rows_are_zero_whoever_owns_them(comm: Comm, device: str) -> None:
    _, tensor = random_tensor(10, (20, 6, 9))
    longer = amped.SparseTensor(tensor.indices * [3, 2, 1] + [5, 0, 0], tensor.values, (500, 12, 9))
    model = amped.cp_als(longer if comm.rank == 0 else None, 3, max_iters=4, device=device)
    assert_same_on_all_ranks(comm, model)
    for factor, column in zip(model.factors, longer.columns, strict=True):
        assert np.array_equal(np.flatnonzero(factor.any(axis=1)), np.unique(column))


def test_the_same_bits_from_run_to_run(comm: Comm, device: str) -> None:
    _, tensor = random_tensor(11, (20, 1, 30))
    options: dict[str, Any] = {"tol": 0, "max_iters": 5, "device": device, "deterministic": True}
    first, again = (amped.cp_als(tensor if comm.rank == 0 else None, 4, **options) for _ in range(2))
    assert first.fits == again.fits
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first.factors, again.factors, strict=True))


def test_what_other_ranks_pass_is_not_looked_at(comm: Comm) -> None:
    _, right = random_tensor(12, (5, 6, 7))
    wrong = amped.SparseTensor(right.columns.T, -right.values, right.shape)
    model = amped.cp_als(right if comm.rank == 0 else wrong, 2, max_iters=3, device="cpu")
    assert model.shape == (5, 6, 7)
    assert_same_on_all_ranks(comm, model)


@pytest.mark.parametrize(
    "arguments",
    [{"rank": 0}, {"max_iters": 0}, {"seed": -1}, {"kernel": "magic"}, {"device_memory": 10}, {"init": "no/file"}],
)
def test_wrong_arguments_end_on_all_ranks(comm: Comm, arguments: dict[str, Any]) -> None:
    _, tensor = random_tensor(12, (5, 6, 7))
    with pytest.raises(InputError) as caught:
        amped.cp_als(tensor if comm.rank == 0 else None, **{"rank": 2, "device": "cpu", **arguments})
    assert len(set(comm.allgather(str(caught.value)))) == 1


def test_no_tensor_on_rank_0(comm: Comm) -> None:
    _, tensor = random_tensor(12, (5, 6, 7))
    with pytest.raises(InputError, match=r"no tensor on rank 0|X is None on rank 0"):
        amped.cp_als(None if comm.rank == 0 else tensor, 2, device="cpu")
