"""Independent reference results: MTTKRP and CP-ALS on real tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from forms import exhaustive, in_turn
from oracle import (
    BUNDLED,
    FIT_RUNS,
    LARGE,
    LARGE_FIT_RUNS,
    PRECISIONS,
    REFERENCE_MTTKRP,
    SMALL,
    fit_error,
    fit_tolerance,
    load,
    mttkrp_error,
    reference,
    small_pieces,
    splitmix_factors,
    tensor_path,
)

import amped
from amped.operators.sources.sparse import TensorSource
from amped.parallel.mpi import Comm


def of_orders_3_and_4(name: str, *more: int) -> Any:
    """Return values of a test's parameters, marked exhaustive for tensors of other orders, which have other kernels."""
    return pytest.param(name, *more) if name.endswith(("_3d", "_4d", "2-2-2")) else exhaustive(name, *more)


def test_the_start_is_the_one_defined() -> None:
    """Entries worked out by hand with Python's integers."""
    mask, factors = 2**64 - 1, splitmix_factors((3, 700), 5)
    for n, i, r in ((0, 0, 0), (0, 2, 4), (1, 0, 1), (1, 699, 3)):
        z = ((n << 48) + (i << 8) + r + 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        assert factors[n][i, r] == ((z ^ (z >> 31)) >> 11) / 2**53


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("placement", ["resident", "stream"])
@pytest.mark.parametrize("name", [of_orders_3_and_4(name) for name in (*BUNDLED, *SMALL)])
@pytest.mark.in_turn
def test_mttkrp(comm: Comm, device: str, name: str, placement: str, precision: str) -> None:
    source = TensorSource(load(name), comm)
    with small_pieces(20_000):
        error = mttkrp_error(name, source, comm, device=device, placement=placement, precision=precision)
    assert error <= REFERENCE_MTTKRP[precision]


@pytest.mark.parametrize(("name", "precision"), in_turn(LARGE))
def test_mttkrp_of_millions_of_nonzeros(comm: Comm, device: str, name: str, precision: str) -> None:
    error = mttkrp_error(name, TensorSource(load(name), comm), comm, device=device, precision=precision)
    assert error <= REFERENCE_MTTKRP[precision]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("name", "rank"), [of_orders_3_and_4(*run) for run in (*FIT_RUNS, *LARGE_FIT_RUNS)])
def test_cp_als_fits(device: str, name: str, rank: int, precision: str) -> None:
    tensor = load(name)
    norm = reference("cp_als_fits.json", f"{name}|R{rank}")["norm"]
    assert tensor.norm() == pytest.approx(norm, rel=1e-12)
    error = fit_error(name, rank, tensor, tensor.shape, device=device, precision=precision)
    assert error <= fit_tolerance(name, precision)


def test_aminoacid_as_published(device: str) -> None:
    """The example of the Tensor Toolbox's documentation of cp_als."""
    model = amped.cp_als(tensor_path("aminoacid_3d"), 3, init="nvecs", tol=1e-4, device=device, precision="fp64")
    assert model.converged
    assert len(model.fits) == 43
    published = [0.9334888, 0.9604549, 0.9712518, 0.9741285, 0.9744312]
    np.testing.assert_allclose([model.fits[k - 1] for k in (10, 20, 30, 40, 43)], published, rtol=0, atol=5e-8)
