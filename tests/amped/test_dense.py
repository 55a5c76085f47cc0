"""Dense tensors through the command line and the Python functions: the same as of sparse ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from command import (
    finish,
    mpirun_line,
    on_ranks,
    python_line,
    refused,
    refused_on_ranks,
    run_amped,
    succeeded,
    write_tns,
)
from densecases import low_rank
from forms import exhaustive
from oracle import REFERENCE_FIT, dense_mttkrp, fit_error, load, random_factors

import amped
from amped.errors import InputError
from amped.report.dense import dense_density
from partitioner.readers import with_zeros

ARRAY = low_rank((20, 15, 10), 3, noise=0.02)


def saved(folder: Path, array: np.ndarray = ARRAY, name: str = "x.npy") -> Path:
    np.save(folder / name, array)
    return folder / name


def sparse(array: np.ndarray) -> amped.SparseTensor:
    return amped.SparseTensor(np.argwhere(array), array[array != 0], array.shape)


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("placement", ["resident", "stream"])
def test_aminoacid_has_the_reference_fits(device: str, precision: str, placement: str) -> None:
    tensor: Any = with_zeros(load("aminoacid_3d"))
    how = {"precision": precision, "placement": placement, "device": device}
    error = fit_error("aminoacid_3d", 3, tensor, tensor.shape, **how)
    assert error <= REFERENCE_FIT[precision]


def test_aminoacid_is_as_on_the_sparse_path(device: str) -> None:
    tensor = load("aminoacid_3d")
    how: dict[str, Any] = {"init": random_factors(0, tensor.shape, 3), "tol": 0, "max_iters": 20, "precision": "fp64"}
    want, got = (amped.cp_als(each, 3, device=device, **how) for each in (tensor, with_zeros(tensor)))
    assert np.abs(np.subtract(got.fits, want.fits)).max() <= 1e-12


def test_aminoacid_from_eigenvectors_has_the_published_fits(device: str) -> None:
    """Tensor Toolbox: .9334888 / .9604549 / .9712518 / .9741285 at iterations 10 / 20 / 30 / 40."""
    tensor = with_zeros(load("aminoacid_3d"))
    model = amped.cp_als(tensor, 3, init="nvecs", tol=0, max_iters=40, precision="fp64", device=device)
    assert np.allclose(model.fits[9::10], [0.9334888, 0.9604549, 0.9712518, 0.9741285], atol=5e-7)


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
def test_a_known_rank_is_found(device: str, precision: str) -> None:
    array = low_rank((30, 20, 10, 5), 3, seed=4)
    model = amped.cp_als(array, 3, tol=0, max_iters=60, starts=3, precision=precision, device=device)
    assert model.fits[-1] >= 1 - (1e-9 if precision == "fp64" else 2e-6)


def test_functions_take_arrays_in_any_order(device: str, tmp_path: Path) -> None:
    factors = random_factors(1, ARRAY.shape, 4)
    how: dict[str, Any] = {"precision": "fp64", "device": device}
    given = [ARRAY, np.asfortranarray(ARRAY), ARRAY[::1, ::-1][:, ::-1], saved(tmp_path), amped.DenseTensor(ARRAY)]
    for tensor in given:
        for mode in range(3):
            found = amped.mttkrp(tensor, factors, mode, **how)
            assert np.allclose(found, dense_mttkrp(ARRAY, factors, mode), rtol=1e-12)
    start = random_factors(0, ARRAY.shape, 3)
    models = [amped.cp_als(tensor, 3, init=start, max_iters=4, **how) for tensor in (*given, sparse(ARRAY))]
    for model in models:
        assert np.allclose(model.fits, models[0].fits, atol=1e-12)


@pytest.mark.parametrize("constraints", [{"nonnegative": True}, {"ridge": 0.5}, {"fixed_modes": [1]}], ids=str)
def test_constraints_are_as_of_sparse_tensors(device: str, constraints: dict[str, Any]) -> None:
    start = random_factors(0, ARRAY.shape, 3)
    how: dict[str, Any] = {
        "init": start,
        "max_iters": 6,
        "tol": 0,
        "precision": "fp64",
        "device": device,
        **constraints,
    }
    dense, other = amped.cp_als(ARRAY, 3, **how), amped.cp_als(sparse(ARRAY), 3, **how)
    assert np.allclose(dense.fits, other.fits, atol=1e-12)


def test_new_data_on_known_components(device: str) -> None:
    model = amped.cp_als(ARRAY, 3, precision="fp64", device=device)
    got = model.transform(ARRAY[:, :7], 1, precision="fp64", device=device)
    assert np.allclose(got, model.transform(sparse(ARRAY[:, :7]), 1, precision="fp64", device=device), atol=1e-9)


@pytest.mark.parametrize("length", [30, 600, 2500])
def test_eigenvectors_are_those_of_the_gram_matrix(length: int) -> None:
    from amped.methods.leading_vectors import leading_vectors

    array = low_rank((6, length, 7), 4, noise=0.01, seed=2)
    for mode in range(3):
        unfolded = np.moveaxis(array, mode, 0).reshape(array.shape[mode], -1)
        want = np.linalg.svd(unfolded, full_matrices=False)[0][:, :4]
        for given in (array, np.asfortranarray(array)):
            found = leading_vectors(amped.DenseTensor(given), mode, 4, 0)
            assert np.allclose(abs(np.sum(found * want, axis=0)), 1, atol=1e-8)
            with mock.patch("amped.methods.leading_vectors.BLOCK", 500):
                one, three = (leading_vectors(amped.DenseTensor(given), mode, 4, 0, threads) for threads in (1, 3))
            assert np.allclose(abs(np.sum(one * want, axis=0)), 1, atol=1e-8)
            assert np.array_equal(one, three)


def test_cpd_stops_and_goes_on(folder: Path) -> None:
    tensor = saved(folder)
    how = ["--rank", 3, "--tol", 0, "--precision", "fp64", "--device", "cpu", "--seed", 3]
    succeeded(run_amped("cpd", tensor, *how, "--max-iters", 9, "--output", "whole"))
    first = succeeded(run_amped("cpd", tensor, *how, "--max-iters", 4, "--checkpoint", "c", "--output", "parts"))
    assert "x.npy: 20 x 15 x 10, dense, float64\n" in first.out
    fortran = saved(folder, np.asfortranarray(ARRAY), "f.npy")  # the same tensor in another order
    more = ["--max-iters", 9, "--checkpoint", "c", "--resume", "--placement", "stream", "--output", "parts"]
    assert "resumed after iteration 4" in succeeded(run_amped("cpd", fortran, *how, *more)).out
    whole, parts = (json.loads((folder / name / "run.json").read_text()) for name in ("whole", "parts"))
    assert np.allclose(whole["fits"], parts["fits"], atol=1e-12)
    other = saved(folder, ARRAY + 1, "other.npy")
    refused(run_amped("cpd", other, *how, *more, "--force"), "was made with another tensor")


def test_mttkrp_writes_all_modes(folder: Path) -> None:
    tensor, start = saved(folder), random_factors(1, ARRAY.shape, 4)
    np.savez(folder / "start.npz", **{f"factor_{n}": f for n, f in enumerate(start)})
    how = ["--rank", 4, "--init", "start.npz", "--precision", "fp64", "--device", "cpu", "--output", "m.npz"]
    succeeded(run_amped("mttkrp", tensor, *how))
    found = np.load(folder / "m.npz")
    for mode in range(3):
        assert np.allclose(found[f"mode_{mode}"], dense_mttkrp(ARRAY, start, mode), rtol=1e-12)


def test_info_and_plan(folder: Path) -> None:
    tensor = saved(folder, np.asfortranarray(np.where(ARRAY > 0, ARRAY, 0)))
    told = succeeded(run_amped("info", tensor, "--metrics", "m.jsonl")).out
    assert "dense, float64" in told
    assert "modes in memory order, the slowest first: 2, 1, 0" in told
    assert json.loads((folder / "m.jsonl").read_text())["dense"] is True
    told = succeeded(run_amped("plan", tensor, "--rank", 5, "--ranks", 3, "--device", "cpu")).out
    assert "10 x 5 x 20" in told
    assert "balance: the largest block has 0.00% more elements" in told
    streamed = run_amped("plan", tensor, "--rank", 5, "--placement", "stream", "--device", "cpu")
    assert "streamed, 3 indices at a time" in succeeded(streamed).out


def test_a_full_sparse_tensor_would_better_be_dense(folder: Path) -> None:
    rng = np.random.default_rng(0)
    full, empty = rng.random((9, 8, 7)), np.where(rng.random((9, 8, 7)) < 0.2, 1.0, 0.0)
    paths = [write_tns(folder / name, np.argwhere(a), a[a != 0]) for name, a in (("f.tns", full), ("e.tns", empty))]
    for verb in (["info"], ["plan", "--rank", 4, "--device", "cpu"]):
        told = [succeeded(run_amped(verb[0], path, *verb[1:])).out for path in paths]
        assert ["--dense" in each for each in told] == [True, False]
    for arguments in (["info", "--dense"], ["cpd", "--dense", "--rank", 2, "--device", "cpu"]):
        assert "f.tns: 9 x 8 x 7, dense, float64" in succeeded(run_amped(arguments[0], paths[0], *arguments[1:])).out


def test_the_density_is_that_of_fewer_bytes_and_operations() -> None:
    order, rank, size, item = 4, 16, 50**4, 4
    at = dense_density((50,) * 4, rank, item)
    for density, better in ((at * 1.01, True), (at * 0.99, False)):
        nonzeros = density * size
        fewer_bytes = 2 * size * item < order * nonzeros * (4 * order + item + (order - 1) * rank * item)
        fewer_operations = 4 * size * rank < order * nonzeros * rank * order
        assert (fewer_bytes and fewer_operations) == better


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (np.array([[None] * 2] * 2), "elements are object"),
        (np.ones((2, 2), complex), "elements are complex128"),
        (np.ones((2, 0)), "length 0 of mode 1"),
        (np.ones(5), "order 1 tensor"),
        (np.ones((1,) * 9), "order 9 tensor"),
        (np.full((2, 3), np.inf), "element [0, 0] is inf"),
        (np.full((2, 3), 1e-30), "beyond the range of float32"),
        (b"nothing", "damaged header"),
        (None, "no such file"),
    ],
    ids=range(9),
)
@pytest.mark.parametrize("verb", ["cpd", "info", "plan", "mttkrp"])
def test_wrong_files_are_refused(folder: Path, verb: str, content: Any, part: str) -> None:
    file = folder / "x.npy"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        np.save(file, content)
    flags = [] if verb == "info" else ["--rank", 2, "--device", "cpu"]
    if ("beyond" in part and verb == "info") or (part.split()[0] in ("beyond", "element") and verb == "plan"):
        assert run_amped(verb, file, *flags).code == 0, "a plan looks at no element"
        return
    refused(run_amped(verb, file, *flags), "x.npy: " if "beyond" not in part else "", part)
    assert {p.name for p in folder.iterdir()} <= {"x.npy"}


def test_what_a_dense_tensor_has_not_is_refused(folder: Path) -> None:
    file = saved(folder)
    for flags, part in (
        (["--loss", "poisson"], "loss 'poisson'"),
        (["--compact"], "--compact"),
        (["--no-values"], "--no-values"),
        (["--kernel", "tiled"], "kernel 'tiled'"),
        (["--device-memory", "40K"], "two slabs of one index need"),
        (["--device-memory", "4K"], "bytes of device memory"),
        (["--workspace", "0"], "--workspace"),
        (["--device-memory", "60K", "--placement", "resident"], "the resident tensor need"),
    ):
        refused(run_amped("cpd", file, "--rank", 30, "--device", "cpu", *flags), part)
    refused(run_amped("plan", file, "--rank", 3, "--device", "cpu", "--loss", "poisson"), "loss 'poisson'")
    with pytest.raises(InputError, match="X: elements are complex128"):
        amped.cp_als(np.ones((2, 2), complex), 1)


@pytest.mark.parametrize(("ranks", "order"), [(4, "F"), exhaustive(2, "C"), exhaustive(2, "F"), exhaustive(4, "C")])
def test_ranks_find_the_same_model(folder: Path, ranks: int, order: str) -> None:
    """Also where there are more ranks than indices of the slowest mode."""
    array = ARRAY if order == "C" else np.asfortranarray(low_rank((20, 9, 3), 2, noise=0.05))
    tensor = saved(folder, array, "x.npy")
    how = ["--rank", 3, "--tol", 0, "--max-iters", 8, "--precision", "fp64", "--device", "cpu", "--force"]
    succeeded(run_amped("cpd", tensor, *how, "--output", "one"))
    told = on_ranks(ranks, "cpd", tensor, *how, "--output", "many")
    assert told.code == 0, told.err
    fits = [json.loads((folder / name / "run.json").read_text())["fits"] for name in ("one", "many")]
    assert np.allclose(*fits, atol=1e-11)
    if ranks == 2:
        (folder / "x.npy").write_bytes(b"nothing")
        refused_on_ranks(on_ranks(ranks, "info", "x.npy"), "damaged header")


@pytest.mark.exhaustive
def test_a_sparse_file_is_given_its_zeros_on_ranks(folder: Path) -> None:
    indices = np.argwhere(ARRAY > 0)
    tensor = write_tns(folder / "x.tns", indices, ARRAY[ARRAY > 0])
    how = ["--rank", 3, "--tol", 0, "--max-iters", 5, "--precision", "fp64", "--device", "cpu"]
    succeeded(run_amped("cpd", tensor, *how, "--output", "one"))
    line = [*mpirun_line(2), *python_line("cpd", tensor, *how, "--dense", "--output", "many")]
    assert finish(line).code == 0
    fits = [json.loads((folder / name / "run.json").read_text())["fits"] for name in ("one", "many")]
    assert np.allclose(*fits, atol=1e-11)


@pytest.mark.parametrize(
    ("value", "part", "verb"),
    [
        (np.nan, "element [7, 2, 1] is nan", "cpd"),
        (1e200, "beyond the range of float32", "mttkrp"),
        exhaustive(np.nan, "element [7, 2, 1] is nan", "mttkrp"),
        exhaustive(1e200, "beyond the range of float32", "cpd"),
    ],
)
def test_a_streamed_file_is_refused_in_one_line(folder: Path, verb: str, value: float, part: str) -> None:
    """Once it was read, before anything is written."""
    array = np.array(ARRAY)
    array[7, 2, 1] = value
    how = [verb, saved(folder, array), "--rank", 2, "--device", "cpu", "--placement", "stream"]
    how += ["--output", "model"] if verb == "cpd" else ["--output", "m.npz"]
    refused(run_amped(*how), part)
    refused_on_ranks(on_ranks(2, *how), part)
    assert {p.name for p in folder.iterdir()} == {"x.npy"}


def test_metrics_of_a_streamed_file_begin_without_a_norm(folder: Path) -> None:
    how = ["--rank", 2, "--device", "cpu", "--max-iters", 3, "--metrics", "m.jsonl", "--output", "model"]
    for placement, known in (("stream", False), ("resident", True)):
        succeeded(run_amped("cpd", saved(folder), *how, "--placement", placement, "--force"))
        start = next(e for e in map(json.loads, (folder / "m.jsonl").read_text().splitlines()) if e["event"] == "start")
        assert (start["norm"] is not None) == known
        told = json.loads((folder / "model" / "run.json").read_text())["tensor_norm"]
        assert told == pytest.approx(np.linalg.norm(ARRAY), rel=1e-14)
