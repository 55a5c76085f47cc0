"""`amped.ttm` and the verb ``ttm``: references, flags, files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import (
    in_process,
    on_ranks,
    random_tensor,
    refused,
    run_amped,
    run_partitioner,
    small_tns,
    succeeded,
    write_factors,
)
from forms import exhaustive
from oracle import BUNDLED, PRECISIONS, SMALL, load, reference, splitmix_factors
from ttmcases import dense_of, dense_product, small_pieces, tensor_of

import amped
from amped import InputError, SemiSparseTensor, SparseTensor
from amped.methods.initial import random_factor

SHAPE, RANK = (9, 7, 5), 4
CPU = ["--device", "cpu"]
REFERENCE = {"fp32": 1e-6, "fp64": 1e-12}


@pytest.fixture
def tensor() -> SparseTensor:
    return SparseTensor(*random_tensor())


def product(*arguments: Any, **options: Any) -> SemiSparseTensor:
    """Return a product that is not written to a file."""
    found = amped.ttm(*arguments, **{"device": "cpu", "precision": "fp64", **options})
    assert isinstance(found, SemiSparseTensor)
    return found


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", sorted({*BUNDLED, *SMALL} - {"matmul_2-2-2", "aminoacid_3d"}))
def test_references(device: str, name: str, precision: str) -> None:
    given = load(name)
    wanted = reference("ttm.json", f"{name}|R16")
    for mode, (want, matrix) in enumerate(zip(wanted, splitmix_factors(given.shape, 16), strict=True)):
        found = product(given, matrix, mode, device=device, precision=precision)
        values = found.values.astype(np.float64)
        assert found.fibres == want["fibres"]
        assert np.linalg.norm(values) == pytest.approx(want["fro"], rel=REFERENCE[precision])
        assert values.sum() == pytest.approx(want["sum"], rel=REFERENCE[precision])
        assert abs(values).max() == pytest.approx(want["maxabs"], rel=REFERENCE[precision])


@pytest.mark.ranks(1)
@pytest.mark.parametrize("ranks", [2, exhaustive(3), exhaustive(4)])
def test_references_on_ranks(folder: Path, ranks: int) -> None:
    """The norm and the fibres of the file that ranks write together."""
    given, factors = load("nycflights_5d"), splitmix_factors(load("nycflights_5d").shape, 16)
    np.savez("start.npz", **{f"factor_{m}": f for m, f in enumerate(factors)})
    np.savez("t.npz", indices=given.indices, values=given.values, shape=given.shape)
    for mode in (0, 3) if ranks > 2 else (3,):
        want = reference("ttm.json", "nycflights_5d|R16")[mode]
        how = ["--mode", mode, "--rank", 16, "--init", "start.npz", "--precision", "fp64", "--output", f"{mode}.npz"]
        succeeded(on_ranks(ranks, "ttm", "t.npz", *how, *CPU))
        found = SemiSparseTensor.load(f"{mode}.npz")
        assert found.fibres == want["fibres"]
        assert found.norm() == pytest.approx(want["fro"], rel=1e-12)
        assert found.values.sum() == pytest.approx(want["sum"], rel=1e-12)


def test_one_row_fibres_of_one_nonzero_and_cancelling_ones() -> None:
    ones = SparseTensor([[0, 0, 0], [1, 2, 0]], [2.0, 3.0], (2, 3, 1))
    found = product(ones, np.array([[1.0, -1.0, 0.0]]), 2)
    assert found.values.tolist() == [[2, -2, 0], [3, -3, 0]]
    cancelling = SparseTensor([[0, 0], [0, 1]], [1.0, -1.0], (1, 2))
    found = product(cancelling, np.ones((2, 1)), 1)
    assert (found.values.tolist(), found.indices.tolist()) == ([[0.0]], [[0]])
    chained = product(found, np.ones((1, 2)), 0)
    assert (chained.values.shape, chained.modes, chained.indices.shape) == ((1, 1, 2), (1, 0), (1, 0))


def test_labels_stay(folder: Path) -> None:
    Path("t.tns").write_text("10 5 7 1.0\n30 5 9 2.0\n")
    there = amped.read("t.tns", compact=True)
    found = product(there, np.ones((2, 3)), 0)
    assert found.labels is not None
    assert [each.tolist() for each in found.labels] == [[0, 1, 2], [5], [7, 9]]


def test_every_chain_is_the_product(tensor: SparseTensor) -> None:
    """In every order of modes, the last ones in dense modes."""
    array, rng = dense_of(tensor), np.random.default_rng(0)
    matrices = [rng.random((n, 2 + m)) for m, n in enumerate(SHAPE)]
    want = array
    for mode, matrix in enumerate(matrices):
        want = dense_product(want, matrix, mode)
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        found: Any = tensor
        for mode in order:
            found = product(found, matrices[mode], mode)
        np.testing.assert_allclose(found.to_dense(), want, rtol=1e-12)
        again = product(found, np.ones((found.shape[1], 1)), 1)
        np.testing.assert_allclose(again.to_dense(), want.sum(axis=1, keepdims=True), rtol=1e-12)
        assert again.modes == order


def test_a_result_in_pieces_is_input_again(folder: Path, tensor: SparseTensor) -> None:
    matrix = np.random.default_rng(0).random((9, 6))
    whole = product(tensor, matrix, 0)
    with small_pieces(7):
        assert (
            amped.ttm(tensor, matrix, 0, output="y.npz", device="cpu", precision="fp64", device_memory=9000) == "y.npz"
        )
    found = SemiSparseTensor.load("y.npz")
    np.testing.assert_array_equal(found.indices, whole.indices)
    np.testing.assert_allclose(found.values, whole.values, rtol=1e-14)
    there = amped.read("y.npz")
    assert isinstance(there, SparseTensor)
    np.testing.assert_array_equal(there.columns, whole.to_sparse().columns)
    np.testing.assert_array_equal(there.values, found.to_sparse().values)
    again = product("y.npz", np.ones((5, 2)), 2)
    np.testing.assert_allclose(again.to_dense(), dense_product(whole.to_dense(), np.ones((5, 2)), 2), rtol=1e-13)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"mode": 3}, r"mode 3 is outside 0\.\.2"),
    ({"mode": -1}, "mode -1: expected an integer of at least 0"),
    ({"matrix": np.ones((9, 2))}, r"matrix is \(9, 2\), expected \(7, 2\)"),
    ({"matrix": np.ones(7)}, r"matrix of shape \(7,\): expected \(I_mode, R\)"),
    ({"matrix": np.ones((7, 0))}, "expected"),
    ({"matrix": None}, "expected"),
    ({"matrix": np.ones((7, 1025))}, "rank 1025: expected an integer from 1 to 1024"),
    ({"matrix": np.full((7, 2), np.inf)}, "matrix is not finite"),
    ({"matrix": np.full((7, 2), "x")}, "expected a real matrix"),
    ({"matrix": np.full((7, 2), 1e300), "precision": "fp32"}, "matrix, as float32, is not finite"),
    ({"matrix": np.full((7, 2), 3e38), "precision": "fp32"}, "the product is not finite: it is beyond fp32"),
    ({"X": np.ones((9, 7, 5))}, "dense tensor: ttm supports sparse and semi-sparse tensors"),
    ({"X": 5}, "X is of type int"),
    ({"X": "missing.tns"}, "no such file"),
    ({"kernel": "segmented"}, "kernel 'segmented': of products, cpu has auto, fibres"),
    ({"kernel": "none"}, "kernel 'none'"),
    ({"gather": "fp16", "precision": "fp32"}, "gather 'fp16'"),
    ({"device_memory": 10}, "device memory: the matrix of 7 rows"),
    ({"output": "folder"}, "folder"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[message for _, message in WRONG])
def test_wrong_arguments(folder: Path, tensor: SparseTensor, change: dict[str, Any], message: str) -> None:
    (folder / "folder").mkdir()
    given = {"X": tensor, "matrix": np.ones((7, 2)), "mode": 1, "device": "cpu", "precision": "fp64", **change}
    with pytest.raises(InputError, match=message):
        amped.ttm(**given)


def test_a_result_that_no_memory_holds(tensor: SparseTensor, monkeypatch: pytest.MonkeyPatch) -> None:
    from amped.api import products

    monkeypatch.setattr(products, "available_memory", lambda: 100)
    with pytest.raises(InputError, match=r"the result, .* needs .* bytes of host memory, .* output=FILE"):
        product(tensor, np.ones((7, 2)), 1, device_memory=1 << 20)


# The verb


@pytest.mark.parametrize("placement", ["resident", "stream"])
def test_the_verb(folder: Path, tensor: SparseTensor, placement: str) -> None:
    path = small_tns(folder)
    for mode in range(3):
        how = ["--mode", mode, "--rank", RANK, "--seed", 3, "--precision", "fp64", "--placement", placement]
        done = succeeded(
            run_amped("ttm", path, *how, "--repeat", 2, "--output", "y.npz", "--metrics", "m.jsonl", "--force", *CPU)
        )
        matrix = random_factor(SHAPE[mode], RANK, 3, mode, np.dtype(np.float64))
        found, want = SemiSparseTensor.load("y.npz"), dense_product(dense_of(tensor), matrix, mode)
        np.testing.assert_allclose(found.to_dense(), want, rtol=1e-12)
        assert f"norm {np.linalg.norm(want):.9g}" in done.out
        assert f"{found.fibres:,} fibres" in done.out
        events = [json.loads(line) for line in Path("m.jsonl").read_text().splitlines()]
        kinds = [event["event"] for event in events]
        assert kinds == ["start", "ttm", "ttm", "result", "memory", "stages"]
        assert events[0]["fibres"] == events[3]["fibres"] == found.fibres
        assert {"resident nonzeros", "result", "host"} <= set(events[0]["planned_bytes"][0])
    with np.load("y.npz") as archive:
        assert {*archive.files} == {"indices", "values", "mode", "shape"}
        assert archive["indices"].shape == (found.fibres, 2)
        assert archive["mode"] == 2
        assert archive["shape"].tolist() == [9, 7, RANK]


def test_the_verb_of_a_chain_and_of_a_given_matrix(folder: Path, tensor: SparseTensor) -> None:
    factors = write_factors(folder / "start.npz", SHAPE, RANK)
    path = small_tns(folder)
    how = ["--rank", RANK, "--init", "start.npz", "--precision", "fp64", *CPU]
    succeeded(run_amped("ttm", path, "--mode", 1, *how, "--output", "y.npz"))
    done = succeeded(run_amped("ttm", "y.npz", "--mode", 0, *how, "--output", "z.npz"))
    assert "semi-sparse" in done.out
    want = dense_product(dense_product(dense_of(tensor), factors[1], 1), factors[0], 0)
    found = SemiSparseTensor.load("z.npz")
    np.testing.assert_allclose(found.to_dense(), want, rtol=1e-12)
    assert found.modes == (1, 0)
    succeeded(run_amped("info", "z.npz"))
    refused(run_amped("ttm", "y.npz", "--mode", 0, *how, "--output", "z.npz"), "z.npz", "exists already")
    refused(run_amped("ttm", "y.npz", "--mode", 0, *how, "--output", "y.npz", "--force"), "is both TENSOR and --output")


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--rank", "4"], ["--mode"]),
        (["--mode", "0"], ["--rank"]),
        (["--mode", "3", "--rank", "4"], ["mode 3 is outside 0..2"]),
        (["--mode", "-1", "--rank", "4"], ["--mode -1"]),
        (["--mode", "all", "--rank", "4"], ["--mode", "whole number"]),
        (["--mode", "0", "--rank", "0"], ["rank 0"]),
        (["--mode", "0", "--rank", "4", "--repeat", "0"], ["--repeat 0"]),
        (["--mode", "0", "--rank", "4", "--init", "missing.npz"], ["missing.npz"]),
        (["--mode", "0", "--rank", "3", "--init", "start.npz"], ["factor_0 is (9, 4), expected (9, 3)"]),
        (["--mode", "0", "--rank", "4", "--device-memory", "1K"], ["device memory"]),
    ],
)
def test_what_the_verb_refuses(folder: Path, flags: list[str], parts: list[str]) -> None:
    write_factors(folder / "start.npz", SHAPE, RANK)
    refused(run_amped("ttm", small_tns(folder), *flags, *CPU), *parts)


def test_damaged_results_are_refused(folder: Path) -> None:
    path = small_tns(folder)
    succeeded(run_amped("ttm", path, "--mode", 1, "--rank", 2, "--output", "y.npz", *CPU))
    data = bytearray(Path("y.npz").read_bytes())
    data[len(data) // 2] ^= 255
    Path("bad.npz").write_bytes(data)
    refused(run_amped("ttm", "bad.npz", "--mode", 0, "--rank", 2, *CPU), "bad.npz")
    Path("cut.npz").write_bytes(bytes(data[: len(data) // 2]))
    refused(run_amped("ttm", "cut.npz", "--mode", 0, "--rank", 2, *CPU), "cut.npz")


def test_a_full_disk(folder: Path) -> None:
    path = small_tns(folder)
    done = in_process("ttm", path, "--mode", 1, "--rank", 2, "--output", "/dev/full", *CPU)
    assert done.code == 2
    assert "Traceback" not in done.err


def test_results_are_tensors_for_every_verb(folder: Path) -> None:
    """A store, a model: of the file, and of the tensor in memory."""
    path = small_tns(folder)
    succeeded(run_amped("ttm", path, "--mode", 1, "--rank", 3, "--precision", "fp64", "--output", "y.npz", *CPU))
    succeeded(run_partitioner("y.npz", "--output", "store"))
    start = write_factors(folder / "start.npz", (9, 3, 5), 2)
    how: dict[str, Any] = {"init": start, "max_iters": 3, "tol": 0, "device": "cpu", "precision": "fp64"}
    y = SemiSparseTensor.load("y.npz")
    fits = [amped.cp_als(given, 2, **how).fits for given in (y, "y.npz", "store", y.to_sparse())]
    for found in fits[1:]:
        np.testing.assert_allclose(found, fits[0], rtol=1e-12)


def test_eigenvectors_are_a_start_of_sparse_tensors(folder: Path) -> None:
    path = small_tns(folder)
    succeeded(run_amped("ttm", path, "--mode", 1, "--rank", 2, "--init", "nvecs", "--output", "y.npz", *CPU))
    refused(run_amped("ttm", "y.npz", "--mode", 0, "--rank", 2, "--init", "nvecs", *CPU), "nvecs", "semi-sparse")


def test_tensors_of_every_order() -> None:
    for order in range(2, 9):
        there = tensor_of((2,) * order, 30, order)
        for mode in range(order):
            found = product(there, np.eye(2), mode)
            np.testing.assert_allclose(found.to_dense(), dense_of(there))


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_plan(folder: Path, ranks: int) -> None:
    """What is planned is what a run then counts, but for fibres, which are counted once they are sorted."""
    path = small_tns(folder)
    how = ["--rank", 16, "--mode", 1, "--metrics", "m.jsonl", "--force", *CPU]
    done = succeeded(run_amped("plan", path, *how, "--ranks", ranks))
    event = json.loads(Path("m.jsonl").read_text().splitlines()[0])
    assert len(event["planned_bytes"]) == ranks
    assert event["fibres"] >= 42
    assert "result: at most" in done.out
    if ranks == 1:
        succeeded(run_amped("ttm", path, *how))
        real = json.loads(Path("m.jsonl").read_text().splitlines()[0])
        for use, planned in event["planned_bytes"][0].items():
            assert real["planned_bytes"][0][use] <= planned
    small = succeeded(run_amped("plan", path, "--rank", 16, "--mode", 1, "--placement", "stream", *CPU))
    assert "0 of" in small.out
    refused(run_amped("plan", path, "--rank", 16, "--mode", 1, "--device-memory", "1K", *CPU), "device memory")
    refused(run_amped("plan", path, "--rank", 16, "--mode", 5, *CPU), "mode 5 is outside 0..2")
    refused(run_amped("plan", path, "--rank", 16, "--mode", 1, "--loss", "poisson", *CPU), "--mode plans a product")
