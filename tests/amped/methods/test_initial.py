"""What a decomposition starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import random_factors, random_nonzeros

import amped
from amped.errors import InputError
from amped.methods import eigenvectors, initial
from amped.methods.initial import initial_factors, random_factor
from amped.operators.sources.sparse import TensorSource
from amped.parallel.mpi import Comm
from partitioner.tensors.sparse import SparseTensor

SHAPE = (40, 12, 30)
COLUMNS, VALUES = random_nonzeros(7, SHAPE, 600)
TENSOR = SparseTensor(COLUMNS.T, VALUES - 1, SHAPE)
F4, F8 = np.dtype(np.float32), np.dtype(np.float64)


@pytest.fixture
def source(comm: Comm) -> TensorSource:
    return TensorSource(TENSOR, comm)


def test_random_starts(comm: Comm, source: TensorSource) -> None:
    start = initial_factors(source, 5, comm, F8, seed=3)
    assert [f.shape for f in start] == [(length, 5) for length in SHAPE]
    assert all(np.all((f >= 0) & (f < 1)) for f in start)
    assert abs(np.concatenate(start).mean() - 0.5) < 0.05
    same = initial_factors(source, 5, comm, F8, seed=3)
    assert all(np.array_equal(a, b) for a, b in zip(start, same, strict=True))
    narrow = initial_factors(source, 5, comm, F4, seed=3)
    assert all(np.array_equal(a.astype(F4), b) for a, b in zip(start, narrow, strict=True))
    others = [initial_factors(source, 5, comm, F8, seed=seed)[0] for seed in (0, 1, 2)]
    assert len({f.tobytes() for f in (*others, start[0], start[1][:, :])}) == 5
    assert not np.array_equal(start[0][:12], start[1]), "modes start from different numbers"


def test_random_rows_do_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = random_factor(100, 3, 9, 1, F8)
    monkeypatch.setattr(initial, "BLOCK_ROWS", 7)
    assert np.array_equal(random_factor(100, 3, 9, 1, F8), whole)


def test_a_negative_seed_is_refused(comm: Comm, source: TensorSource) -> None:
    with pytest.raises(InputError, match="seed -1"):
        initial_factors(source, 5, comm, F8, seed=-1)


# Leading eigenvectors


@pytest.mark.parametrize(("dense_rows", "small"), [(0, 64), (2048, 64), (2048, 0)])
def test_leading_eigenvectors(
    comm: Comm, source: TensorSource, monkeypatch: pytest.MonkeyPatch, dense_rows: int, small: int
) -> None:
    monkeypatch.setattr(initial, "DENSE_ROWS", dense_rows)
    monkeypatch.setattr(eigenvectors, "SMALL", small)
    dense = np.zeros(SHAPE)
    dense[tuple(TENSOR.columns)] = TENSOR.values
    for mode, factor in enumerate(initial_factors(source, 4, comm, F8, init="nvecs")):
        unfolded = np.moveaxis(dense, mode, 0).reshape(SHAPE[mode], -1)
        left, singular, _ = np.linalg.svd(unfolded, full_matrices=False)
        assert np.all(singular[:4] > singular[1:5] * 1.001), "separated, so that the vectors are defined"
        np.testing.assert_allclose(np.abs((left[:, :4] * factor).sum(axis=0)), 1, atol=1e-9)


def test_modes_shorter_than_the_rank_get_random_columns(comm: Comm, source: TensorSource) -> None:
    factor = initial_factors(source, 15, comm, F8, init="nvecs")[1]
    assert factor.shape == (12, 15)
    np.testing.assert_allclose(factor[:, :12].T @ factor[:, :12], np.eye(12), atol=1e-12)
    assert np.all((factor[:, 12:] >= 0) & (factor[:, 12:] < 1))
    assert np.linalg.matrix_rank(factor[:, 12:]) == 3


def test_leading_eigenvectors_of_rows_beyond_the_highest_index(comm: Comm) -> None:
    padded = SparseTensor(TENSOR.indices, TENSOR.values, (40, 3000, 30))
    for mode, factor in enumerate(initial_factors(TensorSource(padded, comm), 3, comm, F8, init="nvecs")):
        assert factor.shape == (padded.shape[mode], 3)
        np.testing.assert_allclose(factor.T @ factor, np.eye(3), atol=1e-9)
    assert np.abs(initial_factors(TensorSource(padded, comm), 3, comm, F8, init="nvecs")[1][12:]).max() < 1e-12


# A given start


def test_given_matrices_and_files(comm: Comm, source: TensorSource, tmp_path: Path) -> None:
    factors = random_factors(0, SHAPE, 4)
    amped.KruskalTensor(np.ones(4), factors).save(tmp_path / "start.npz")
    for init in (factors, tuple(factors), tmp_path / "start.npz", str(tmp_path / "start.npz")):
        start = initial_factors(source, 4, comm, F4, init=init)
        assert all(f.dtype == F4 and f.flags.c_contiguous for f in start)
        assert all(np.array_equal(a, b.astype(F4)) for a, b in zip(start, factors, strict=True))


def replaced(mode: int, factor: Any) -> list[Any]:
    factors: list[Any] = random_factors(0, SHAPE, 4)
    factors[mode] = factor
    return factors


@pytest.mark.parametrize(
    ("init", "cause"),
    [
        ([], "0 factor matrices"),
        (random_factors(0, SHAPE, 4)[:2], "2 factor matrices for a tensor of order 3"),
        (random_factors(0, (*SHAPE, 2), 4), "4 factor matrices"),
        (random_factors(0, SHAPE, 5), r"factor_0 of the start is \(40, 5\), expected \(40, 4\)"),
        (replaced(1, np.ones((13, 4))), r"factor_1 of the start is \(13, 4\)"),
        (replaced(2, np.ones((4, 30))), "factor_2 of the start"),
        (replaced(2, np.ones(120)), "factor_2 of the start"),
        (replaced(0, np.full((40, 4), np.nan)), "factor_0 of the start is not finite"),
        (replaced(1, np.full((12, 4), "1")), "factor_1"),
        (replaced(1, np.full((12, 4), 1j)), "factor_1"),
        (replaced(1, np.full((12, 4), 1e300)), "factor_1"),  # no single-precision number
    ],
)
@pytest.mark.parametrize("as_file", [False, True])
def test_a_wrong_start_is_refused(
    comm: Comm, source: TensorSource, tmp_path: Path, init: Any, cause: str, as_file: bool
) -> None:
    if as_file:
        path = tmp_path / "start.npz"
        np.savez(path, **{f"factor_{n}": f for n, f in enumerate(init)})
        with pytest.raises(InputError, match=r"start\.npz: "):
            initial_factors(source, 4, comm, F4, init=path, as_is=True)
    else:
        with pytest.raises(InputError, match=cause):
            initial_factors(source, 4, comm, F4, init=init, as_is=True)


def test_columns_out_of_range_are_multiplied_by_powers_of_two(comm: Comm, source: TensorSource) -> None:
    """Also those that are no numbers in single precision; columns in range stay as they are, to the last bit."""
    factors = random_factors(0, SHAPE, 4)
    units = np.array([1.0, 1e300, 1e-300, 1000.0])
    start = initial_factors(source, 4, comm, F4, init=[f * units for f in factors])
    for given, found in zip(factors, start, strict=True):
        assert np.array_equal(found[:, [0, 3]], (given * units)[:, [0, 3]].astype(F4))
        for column, unit in ((1, 1e300), (2, 1e-300)):
            assert 0.5 <= found[:, column].max() <= 1
            ratio = np.log2(found[:, column] / given[:, column]) - np.log2(unit)
            np.testing.assert_allclose(ratio, np.round(ratio[0]), atol=1e-5)
    whole = [np.full((n, 4), -(2**40)) for n in SHAPE]
    assert all(np.all(f == -0.5) for f in initial_factors(source, 4, comm, F4, init=whole))
