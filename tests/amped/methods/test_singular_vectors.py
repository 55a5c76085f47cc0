"""HOOI whose factor matrices are found without the host: as others, and as others where that fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest
from oracle import random_nonzeros
from tuckers import assert_orthonormal, assert_same_spaces, dense_hooi

import amped
from amped.backend.device import Array
from amped.backend.null.ops.eigh import NumpyEigh
from amped.backend.ops import eigh
from amped.methods import singular_vectors
from amped.methods.singular_vectors import LeadingRows

SHAPES = [((40, 30, 20), (3, 3, 4)), ((30, 40, 35), (2, 4, 5)), ((30, 30, 30, 30), (2, 3, 2, 3))]


@contextmanager
def seen(device: str, way: eigh.Eigh) -> Iterator[list[bool]]:
    """Use the null device's way on a host; yield whether each mode was found so."""
    answers, find = list[bool](), LeadingRows._find_queued

    def spy(self: Any, *arguments: Any) -> bool:
        answers.append(find(self, *arguments))
        return answers[-1]

    chosen = mock.patch.object(singular_vectors, "eigh_of", return_value=way) if device == "cpu" else mock.MagicMock()
    with chosen, mock.patch.object(LeadingRows, "_find_queued", spy):
        yield answers


def problem(shape: tuple[int, ...], ranks: tuple[int, ...]) -> tuple[amped.SparseTensor, Any, list[np.ndarray]]:
    columns, values = random_nonzeros(1, shape, 2000)
    dense = np.zeros(shape)
    np.add.at(dense, tuple(columns), values)
    start = [np.random.default_rng([n, r]).random((n, r)) for n, r in zip(shape, ranks, strict=True)]
    return amped.SparseTensor(columns.T, values, shape), dense, start


class Failing(NumpyEigh):
    """Finds all eigenvectors alike."""

    def eigenvectors(self, gram: Array, out: Array, facts: Array) -> None:
        super().eigenvectors(gram, out, facts)
        out[...] = out[:, :1]


@pytest.mark.parametrize("way", [NumpyEigh(), Failing()])
@pytest.mark.parametrize(("shape", "ranks"), SHAPES)
def test_the_path_of_an_oracle(device: str, shape: tuple[int, ...], ranks: tuple[int, ...], way: NumpyEigh) -> None:
    tensor, dense, start = problem(shape, ranks)
    factors, fits = dense_hooi(dense, start, 5)
    with seen(device, way) as answers:
        model = amped.tucker(tensor, ranks, init=start, max_iters=5, tol=0, precision="fp64", device=device)
    assert len(answers) == 5 * len(shape)
    if device == "cpu":
        assert all(answers) == (not isinstance(way, Failing))
    np.testing.assert_allclose(model.fits, fits, atol=1e-12)
    assert_same_spaces(model.factors, factors, 1e-6)
    assert_orthonormal(model, 1e-12)


def test_what_the_rank_leaves_open_is_filled(device: str) -> None:
    dense = np.zeros((30, 31, 32))
    dense[np.ix_([1, 2], [3, 5], [0, 9])] = 2.0
    tensor = amped.SparseTensor(np.argwhere(dense), dense[dense != 0], dense.shape)
    with seen(device, NumpyEigh()) as answers:
        model = amped.tucker(tensor, (3, 3, 3), max_iters=3, tol=0, precision="fp64", device=device)
    assert not any(answers)
    assert_orthonormal(model, 1e-12)
    assert model.fits[-1] > 1 - 1e-6
