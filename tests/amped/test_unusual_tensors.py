"""What only looks wrong: tiny, lopsided and repetitive tensors give right results on any number of ranks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command import (
    dense,
    on_ranks,
    random_tensor,
    run_amped,
    run_partitioner,
    small_tns,
    succeeded,
    write_factors,
    write_tns,
)
from forms import exhaustive
from oracle import dense_mttkrp

RANK = 4


def check_mttkrp(folder: Path, path: Path, shape: tuple[int, ...], tensor: np.ndarray, ranks: int = 1) -> str:
    """Compare every mode's MTTKRP with its definition; return what was printed."""
    factors = write_factors(folder / "start.npz", shape, RANK)
    arguments = ["mttkrp", path, "--rank", RANK, "--init", folder / "start.npz", "--output", folder / "out.npz"]
    arguments += ["--precision", "fp64", "--device", "cpu", "--force"]
    result = run_amped(*arguments) if ranks == 1 else on_ranks(ranks, *arguments)
    assert result.code == 0, result.out + result.err
    with np.load(folder / "out.npz") as out:
        assert set(out.files) == {f"mode_{n}" for n in range(len(shape))}
        for n in range(len(shape)):
            np.testing.assert_allclose(out[f"mode_{n}"], dense_mttkrp(tensor, factors, n), rtol=1e-12, atol=1e-12)
    return result.out


def check_cpd(path: Path, ranks: int = 1) -> list[float]:
    """Run a decomposition to a finite end; return its fits."""
    arguments = ["cpd", path, "--rank", RANK, "--tol", 0, "--max-iters", 4, "--output", "model", "--force"]
    arguments += ["--precision", "fp64", "--device", "cpu"]
    result = run_amped(*arguments) if ranks == 1 else on_ranks(ranks, *arguments)
    assert result.code == 0, result.out + result.err
    fits = json.loads(Path("model/run.json").read_text())["fits"]
    with np.load("model/model.npz") as model:
        assert all(np.isfinite(model[name]).all() for name in model.files)
    assert len(fits) == 4
    assert all(np.isfinite(fits))
    return [float(fit) for fit in fits]


@pytest.mark.exhaustive  # the tests under mpirun have such tensors, too
def test_more_ranks_than_rows_or_nonzeros(folder: Path) -> None:
    """Four ranks, three nonzeros, modes of 2, 1 and 5 rows: some ranks own nothing at all."""
    shape = (2, 1, 5)
    indices, values = np.array([[0, 0, 0], [0, 0, 4], [1, 0, 2]]), np.array([1.0, -2.0, 3.0])
    path = write_tns(folder / "tiny.tns", indices, values)
    check_mttkrp(folder, path, shape, dense(shape, indices, values), ranks=4)
    alone = check_cpd(path)
    np.testing.assert_allclose(check_cpd(path, ranks=4), alone, atol=1e-9)
    assert alone[-1] == pytest.approx(1, abs=1e-6)  # three components say all of three nonzeros


@pytest.mark.exhaustive
def test_one_nonzero_on_three_ranks(folder: Path) -> None:
    indices, values = np.array([[1, 1]]), np.array([-3.0])
    path = write_tns(folder / "one.tns", indices, values)
    check_mttkrp(folder, path, (2, 2), dense((2, 2), indices, values), ranks=3)


@pytest.mark.parametrize("shape", [(1, 1, 6), (1, 9), exhaustive((8, 1, 1, 5))])
def test_one_row_modes(folder: Path, shape: tuple[int, ...]) -> None:
    indices, values = random_tensor(shape, nonzeros=4)
    path = write_tns(folder / "rows.tns", indices, values)
    check_mttkrp(folder, path, shape, dense(shape, indices, values))
    check_cpd(path)


def test_order_two_is_a_matrix(folder: Path) -> None:
    """The best rank-R fit of a matrix is known from its singular values."""
    shape = (12, 10)
    indices, values = random_tensor(shape, nonzeros=70)
    matrix = dense(shape, indices, values)
    path = write_tns(folder / "matrix.tns", indices, values)
    check_mttkrp(folder, path, shape, matrix)
    succeeded(run_amped("cpd", path, "--rank", RANK, "--tol", 0, "--max-iters", 300, "--output", "svd",
                        "--precision", "fp64", "--device", "cpu"))  # fmt: skip
    singular = np.linalg.svd(matrix, compute_uv=False)
    best = 1 - np.linalg.norm(singular[RANK:]) / np.linalg.norm(singular)
    assert json.loads(Path("svd/run.json").read_text())["fits"][-1] == pytest.approx(best, abs=1e-6)


@pytest.mark.exhaustive
def test_mode_length_far_beyond_the_highest_index(folder: Path) -> None:
    shape = (4, 300_000, 3)
    indices, values = random_tensor((4, 5, 3), nonzeros=20)
    path = folder / "long.npz"
    np.savez(path, indices=indices, values=values, shape=np.array(shape))
    out = check_mttkrp(folder, path, shape, dense(shape, indices, values))
    assert "4 x 300000 x 3" in out
    check_cpd(path)
    with np.load("model/model.npz") as model:
        assert model["factor_1"].shape == (300_000, RANK)
        assert not model["factor_1"][5:].any()  # empty rows are zero rows


def test_duplicates_are_summed_and_zeros_dropped_and_both_are_reported(folder: Path) -> None:
    shape = (3, 3, 2)
    path = folder / "repeats.tns"
    path.write_text("1 1 1 1.5\n3 3 2 2\n1 1 1 2.5\n2 2 1 0\n1 1 1 -1\n2 1 2 4\n2 1 2 -4\n")
    tensor = np.zeros(shape)
    tensor[0, 0, 0], tensor[2, 2, 1] = 3.0, 2.0
    out = check_mttkrp(folder, path, shape, tensor)
    assert "3 x 3 x 2, 2 nonzeros" in out
    assert "3 duplicates summed" in out
    assert "2 zeros dropped" in out
    info = succeeded(run_amped("info", path)).out
    assert "3 duplicates summed, 2 zeros dropped" in info
    partition = succeeded(run_partitioner(path, "--output", "store")).out
    assert "3 duplicates summed, 2 zeros dropped" in partition
    assert "3 duplicates summed, 2 zeros dropped" in succeeded(run_amped("info", "store")).out
    assert "3 duplicates summed" in check_mttkrp(folder, folder / "store", shape, tensor)


def test_start_that_is_rank_deficient_or_zero_gives_no_nan(folder: Path) -> None:
    path, shape = small_tns(folder), (9, 7, 5)
    for fill in (1.0, 0.0):
        np.savez(folder / "flat.npz", **{f"factor_{n}": np.full((s, RANK), fill) for n, s in enumerate(shape)})
        succeeded(run_amped("cpd", path, "--rank", RANK, "--init", "flat.npz", "--tol", 0, "--max-iters", 3,
                            "--output", "model", "--force", "--device", "cpu"))  # fmt: skip
        with np.load("model/model.npz") as model:
            assert all(np.isfinite(model[name]).all() for name in model.files)
