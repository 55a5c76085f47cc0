"""Tucker decompositions over all ranks."""

from __future__ import annotations

from itertools import product
from typing import Any
from unittest import mock

import numpy as np
import pytest
from forms import exhaustive
from oracle import PRECISIONS, load, random_nonzeros, small_pieces
from tuckers import RUNS, assert_orthonormal, assert_same_spaces, assert_the_reference, dense_hooi, dense_hosvd

import amped
from amped.errors import InputError
from amped.methods import hosvd, singular_vectors
from amped.parallel.mpi import Comm

pytestmark = pytest.mark.mpi
DEFAULT = [("uber393k_4d", (3, 4, 5, 5), "fp64"), ("aminoacid_3d", (3, 3, 3), "fp64")]  # of the reference results
SPECTRA = [((9, 7), (3, 3)), ((6, 3, 8), (3, 2, 4)), ((4, 6, 5, 3), (2, 3, 2, 2)), ((3, 4, 40), (2, 3, 5))]
SHAPES = [((9, 7), (3, 3)), ((6, 2, 8), (3, 2, 4)), ((4, 6, 5, 3), (2, 3, 2, 3)), ((2, 3, 40), (2, 3, 5))]


def random_tensor(shape: tuple[int, ...]) -> tuple[amped.SparseTensor, np.ndarray]:
    columns, values = random_nonzeros(len(shape), shape, 120)
    dense = np.zeros(shape)
    np.add.at(dense, tuple(columns), values)
    return amped.SparseTensor(columns.T, values, shape), dense


@pytest.mark.parametrize(
    ("name", "ranks", "precision"),
    [*DEFAULT, *(exhaustive(*run, how) for run, how in product(RUNS, PRECISIONS) if (*run, how) not in DEFAULT)],
)
def test_the_reference_results(comm: Comm, device: str, name: str, ranks: tuple[int, ...], precision: str) -> None:
    tensor = load(name)
    mine = tensor if comm.rank == 0 else None
    assert_the_reference(name, ranks, mine, tensor.shape, precision=precision, device=device)


@pytest.mark.parametrize("most", [singular_vectors.MOST, 2])
@pytest.mark.parametrize("placement", ["resident", "stream"])
@pytest.mark.parametrize(("shape", "ranks"), SHAPES)
def test_the_path_of_an_oracle(
    comm: Comm, device: str, shape: tuple[int, ...], ranks: tuple[int, ...], placement: Any, most: int
) -> None:
    """Modes of two rows are split over ranks; all ranks have the same model."""
    tensor, dense = random_tensor(shape)
    start = [np.random.default_rng([n, r]).random((n, r)) for n, r in zip(shape, ranks, strict=True)]
    _, fits = dense_hooi(dense, start, 4)
    with small_pieces(20), mock.patch.object(singular_vectors, "MOST", most):
        model = amped.tucker(
            tensor if comm.rank == 0 else None, ranks, init=start, max_iters=4, tol=0, precision="fp64",
            device=device, placement=placement,
        )  # fmt: skip
    np.testing.assert_allclose(model.fits, fits, atol=1e-5 if most == 2 or fits[-1] > 0.999 else 1e-11)
    assert_orthonormal(model, 1e-12)
    mine = (model.core.tobytes(), *(f.tobytes() for f in model.factors), str(model.fits))
    assert all(other == mine for other in comm.allgather(mine))


@pytest.mark.parametrize("method", ["hosvd", "sthosvd"])
@pytest.mark.parametrize("most", [hosvd.MOST, 3])
@pytest.mark.parametrize(("shape", "ranks"), SPECTRA)
def test_spectra(comm: Comm, shape: tuple[int, ...], ranks: tuple[int, ...], most: int, method: str) -> None:
    tensor, dense = random_tensor(shape)
    with mock.patch.object(hosvd, "MOST", most):
        mine = tensor if comm.rank == 0 else None
        model = amped.tucker(mine, ranks, method=method, precision="fp64", device="cpu")
    assert_same_spaces(model.factors, dense_hosvd(dense, ranks, method == "sthosvd"), 1e-6)


def test_every_rank_refuses_what_is_wrong(comm: Comm) -> None:
    tensor, _ = random_tensor((9, 7))
    with pytest.raises(InputError, match="at most 2 columns, the product"):
        amped.tucker(tensor if comm.rank == 0 else None, (3, 2), device="cpu")
